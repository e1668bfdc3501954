//! The hooks, tested in a child of this tool that has the library preloaded.

use super::{Row, Verdict};
use crate::explain::{switched_off, why};
use crate::{launch, os, out};
use serde_json::{Value, json};
use smc_engine::capi::coverage::smc_hook_info;
use smc_engine::core::board::PostedHook;
use smc_engine::core::coverage::{Family, Off, State};
use std::ffi::CStr;
use std::process::{Command, ExitCode, Stdio};

/// Status of a child that has no library.
const ABSENT: u8 = 4;

fn word(p: *const std::ffi::c_char) -> Value {
    if p.is_null() {
        return Value::Null;
    }
    // SAFETY: the library's strings end in NUL and live during the callback.
    json!(unsafe { CStr::from_ptr(p) }.to_string_lossy())
}

unsafe extern "C" fn print(hook: *const smc_hook_info, _: *mut std::ffi::c_void) -> i32 {
    // SAFETY: the library passes a valid structure for the duration of this call.
    let h = unsafe { &*hook };
    out::json(
        &json!({"name": word(h.name), "family": word(h.family), "by": word(h.by), "state": h.state, "off": h.off,
                      "required": h.required, "hits": h.hits}),
    );
    0
}

/// The child's side: one line of JSON per hook.
pub fn child() -> ExitCode {
    // SAFETY: print has the type that the library's function takes.
    match unsafe { os::hooks_each(print) } {
        Some(0) => ExitCode::SUCCESS,
        _ => ExitCode::from(ABSENT),
    }
}

fn parse(line: &str) -> Option<PostedHook> {
    let v: Value = serde_json::from_str(line).ok()?;
    let number = |k: &str| v[k].as_u64().unwrap_or(0) as usize;
    Some(PostedHook {
        name: v["name"].as_str()?.to_owned(),
        family: *Family::ALL.iter().find(|f| Some(f.name()) == v["family"].as_str())?,
        required: number("required") != 0,
        needed_by: *Off::ALL.get(number("off"))?,
        state: *State::ALL.get(number("state"))?,
        hits: v["hits"].as_u64()?,
        by: v["by"].as_str().unwrap_or_default().to_owned(),
    })
}

/// What the child says, or why there is nothing.
fn ask() -> Result<Vec<PostedHook>, String> {
    let lib = launch::find_library(None).map_err(|e| e.to_string())?;
    let preload = launch::list(&lib, std::env::var_os("LD_PRELOAD").as_deref(), None);
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut c = Command::new(me);
    c.args(["doctor", "--hooks"]).env("LD_PRELOAD", preload).env_remove("LIBSMC_DISABLE");
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let out = super::wait(c.spawn().map_err(|e| e.to_string())?)?;
    if !out.status.success() {
        let code = out.status.code();
        return Err(if code == Some(i32::from(ABSENT)) {
            "the loader has not loaded the library into the child".into()
        } else {
            format!("the child ended with {}", out.status)
        });
    }
    Ok(String::from_utf8_lossy(&out.stdout).lines().filter_map(parse).collect())
}

/// One row for all of them.
pub fn row() -> Row {
    let name = "hooks";
    let meaning =
        "functions of libc that `smc run` puts the library before, each tried where a call without effect exists";
    let hooks = match ask() {
        Ok(h) if !h.is_empty() => h,
        Ok(_) => return Row::new(name, Verdict::Unknown, "nothing was listed", meaning),
        Err(e) => {
            return Row::new(name, Verdict::Unknown, format!("not examined: {e}"), meaning)
                .remedy("put libsmc.so beside this tool or in ../lib");
        }
    };
    let with = |s: &[State]| hooks.iter().filter(|h| s.contains(&h.state)).count();
    let shadowed: Vec<String> = hooks
        .iter()
        .filter(|h| h.state == State::Shadowed)
        .map(|h| format!("{} {}: {}", h.name, why(h), h.family.lost()))
        .collect();
    let mut value = format!(
        "{} fire, {} bound and not tried, {} absent in this libc",
        with(&[State::Fires, State::Forwarded]),
        with(&[State::Bound]),
        with(&[State::Absent])
    );
    if shadowed.is_empty() {
        return Row::new(name, Verdict::Ok, value, meaning);
    }
    value = format!("{value}; {}", shadowed.join("; "));
    let off = switched_off(hooks.iter());
    if !off.is_empty() {
        value = format!("{value}; switched off: {}", off.join(", "));
    }
    let verdict = if off.is_empty() { Verdict::Warn } else { Verdict::Bad };
    Row::new(name, verdict, value, meaning).remedy("put libsmc.so first in LD_PRELOAD, as `smc run` does")
}
