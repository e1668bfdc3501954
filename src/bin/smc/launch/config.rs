//! `smc.toml`: settings per program.
//!
//! ```toml
//! [program."python3*"]     # name of the program, or its path when there is a slash in it; * ? [] as in the shell
//! LIBSMC_RESIDENT = "512M"
//! LIBSMC_WAIT = 2000
//! ```
//!
//! Keys are the environment variables of the library. All tables that match count, a later one more than an earlier one.

use super::start::Environment;
use crate::os;
use serde::Deserialize;
use smc_engine::base::config::{Config, VARS};
use smc_engine::base::{Error, Status};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use toml::{Spanned, Value};

/// The variable that names the file; it has no place in the file itself.
pub const VARIABLE: &str = "LIBSMC_CONFIG";
const SYSTEM: &str = "/etc/libsmc/smc.toml";
/// Nobody writes a longer one by hand.
const LIMIT: u64 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    program: BTreeMap<Spanned<String>, BTreeMap<Spanned<String>, Spanned<Value>>>,
}

/// A line of the file.
#[derive(Clone, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub value: String,
    pub line: usize,
}

/// A table: its pattern and its lines.
struct Table {
    pattern: String,
    at: usize,
    settings: Vec<Setting>,
}

/// The file that was read.
pub struct Settings {
    pub path: PathBuf,
    tables: Vec<Table>,
}

/// Reads the file that was named, or the first there is. `None` when there is none, or none is wanted.
pub fn read(named: Option<&Path>, none: bool, env: &Environment) -> Result<Option<Settings>, Error> {
    if none {
        return Ok(None);
    }
    if let Some(p) = named.or(env.get(VARIABLE).map(Path::new)) {
        // An empty variable wants none.
        return if p.as_os_str().is_empty() { Ok(None) } else { load(p, false).map(Some) };
    }
    // What cannot even be looked at, as another user's home, is nobody's settings here.
    places(env).find(|p| p.exists()).map(|p| load(&p, true)).transpose()
}

/// Where the file is looked for. Not in the current directory: whoever may write there would say how programs run.
fn places(env: &Environment) -> impl Iterator<Item = PathBuf> {
    let absolute = |name: &str| env.get(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let own = absolute("XDG_CONFIG_HOME").or(absolute("HOME").map(|h| h.join(".config")));
    own.map(|p| p.join("libsmc/smc.toml")).into_iter().chain([SYSTEM.into()])
}

fn error(p: &Path, line: Option<usize>, why: &str) -> Error {
    let at = line.map_or(String::new(), |l| format!(" line {l}"));
    Error::new(Status::INVALID_ARGUMENT, format!("use {}{at}", p.display()), why)
}

fn load(p: &Path, found: bool) -> Result<Settings, Error> {
    let failed = |e: io::Error| error(p, None, &e.to_string());
    let file = File::open(p).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    let strange = meta.uid() != 0 && meta.uid() != os::ids().effective_user;
    if found && (strange || meta.mode() & 0o002 != 0) {
        let why = if strange { format!("it belongs to user {}", meta.uid()) } else { "everybody may write it".into() };
        return Err(error(p, None, &why).remedy("name it with --config, or use --no-config"));
    }
    let mut text = String::new();
    file.take(LIMIT).read_to_string(&mut text).map_err(failed)?;
    let tables = parse(&text).map_err(|(at, why)| error(p, Some(line_of(&text, at)), &why))?;
    Ok(Settings { path: p.to_owned(), tables })
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|b| *b == b'\n').count()
}

/// The tables in the order of the file; or where the mistake is, and what.
fn parse(text: &str) -> Result<Vec<Table>, (usize, String)> {
    let mistake = |e: toml::de::Error| (e.span().map_or(0, |s| s.start), e.message().trim().replace('\n', ", "));
    let document: Document = toml::from_str(text).map_err(mistake)?;
    let mut tables = Vec::new();
    for (pattern, lines) in document.program {
        let mut settings = Vec::new();
        for (key, value) in lines {
            let (name, at) = (known(key.get_ref()).map_err(|why| (key.span().start, why))?, key.span().start);
            let value = checked(name, value.get_ref()).map_err(|why| (at, why))?;
            settings.push(Setting { name, value, line: line_of(text, at) });
        }
        tables.push(Table { at: pattern.span().start, pattern: pattern.into_inner(), settings });
    }
    tables.sort_by_key(|t| t.at);
    Ok(tables)
}

fn known(key: &str) -> Result<&'static str, String> {
    let all = VARS.iter().map(|v| v.name).filter(|n| *n != VARIABLE);
    all.clone().find(|n| *n == key).ok_or_else(|| {
        let near = all.clone().find(|n| n.eq_ignore_ascii_case(key) || n.strip_prefix("LIBSMC_") == Some(key));
        let hint = near.map_or("`smc env` lists the variables".into(), |n| format!("is {n} meant?"));
        format!("unknown variable `{key}`; {hint}")
    })
}

/// The value as the environment holds it, if the library would take it.
fn checked(name: &str, v: &Value) -> Result<String, String> {
    let text = match v {
        Value::String(s) => s.clone(),
        Value::Integer(n) => n.to_string(),
        Value::Boolean(b) => u8::from(*b).to_string(),
        _ => return Err(format!("{name} needs a text, a whole number, true or false")),
    };
    if text.contains('\0') {
        return Err(format!("{name} cannot hold a zero byte"));
    }
    let c = Config::parse(|n| (n == name).then(|| text.clone()));
    match c.complaints.first() {
        Some(why) => Err(why.replace(" ignored: ", ": ")),
        None => Ok(text),
    }
}

impl Settings {
    /// What the file says for a program started by this name from this file.
    pub fn of(&self, name: &OsStr, file: &Path) -> BTreeMap<&'static str, Setting> {
        let base = Path::new(name).file_name().unwrap_or(name);
        let path = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let fits = |t: &&Table| os::matches(&t.pattern, if t.pattern.contains('/') { path.as_os_str() } else { base });
        self.tables.iter().filter(fits).flat_map(|t| &t.settings).map(|s| (s.name, s.clone())).collect()
    }
}
