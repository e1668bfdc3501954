//! A record of who was given what: one JSON object a line, for machines, and a line on stderr, for people.

use crate::out::{self, cannot};
use serde_json::json;
use smc_engine::base::{Error, Status};
use smc_engine::core::export::{Event, Exporter, What};
use smc_engine::sys::channel::channel;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

/// The thread that writes the record.
pub struct Audit(Option<JoinHandle<()>>);

impl Audit {
    /// Records from now on. The file is made for its owner alone, and appended to.
    pub fn start(path: &Path) -> Result<Audit, Error> {
        let attempt = || format!("record in {}", path.display());
        let open = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let file = open.map_err(|e| cannot(attempt(), e))?;
        let meta = file.metadata().map_err(|e| cannot(attempt(), e))?;
        let mode = meta.permissions().mode() & 0o7777;
        if meta.is_file() && mode & 0o077 != 0 {
            let e = Error::new(Status::PERMISSION, attempt(), format!("others can use it too (mode {mode:04o})"));
            return Err(e.remedy("make it yours alone: chmod 600"));
        }
        let (to, events) = channel();
        Exporter::get()?.record(Some(to));
        let mut file = Some(file);
        let write = move || events.until_the_end().for_each(|e| put(&mut file, &e));
        let thread = std::thread::Builder::new().name("audit".into()).spawn(write).map_err(|e| cannot(attempt(), e))?;
        Ok(Audit(Some(thread)))
    }

    /// Writes what is left.
    pub fn end(mut self) {
        if let Ok(e) = Exporter::get() {
            e.record(None);
        }
        if let Some(t) = self.0.take() {
            let _ = t.join();
        }
    }
}

/// A file that cannot be written is given up, and said to be.
fn put(file: &mut Option<File>, e: &Event) {
    eprintln!("smc: {}", words(e));
    let line = format!("{}\n", object(e, &time(SystemTime::now())));
    if let Some(Err(why)) = file.as_mut().map(|f| f.write_all(line.as_bytes())) {
        eprintln!("smc: warning: the record cannot be written any more: {why}");
        *file = None;
    }
}

fn object(e: &Event, time: &str) -> serde_json::Value {
    let (pid, uid) = (e.process.map(|p| p.0), e.process.map(|p| p.1));
    json!({"time": time, "event": e.what.name(), "client": e.client, "id": e.id, "address": e.address.map(|a| a.to_string()),
           "pid": pid, "uid": uid, "region": e.region, "access": e.access.map(out::access), "device": e.device,
           "why": e.why, "untold": e.untold})
}

fn words(e: &Event) -> String {
    let mut text = match e.what {
        What::Grant => "granted",
        What::Refusal => "refused",
        What::Revocation => "revoked",
        What::End => "ended",
    }
    .to_owned();
    for (word, value) in [
        ("region", &e.region),
        ("access", &e.access.map(|a| out::access(a).to_owned())),
        ("client", &e.client),
        ("from", &e.address.map(|a| a.to_string())),
        ("process", &e.process.map(|p| format!("{} of user {}", p.0, p.1))),
        ("by", &e.device),
    ] {
        if let Some(v) = value {
            text += &format!(" {word} {v}");
        }
    }
    text += &format!(": {}", e.why);
    if e.untold > 0 {
        text += &format!(" ({} refusals before it were not told)", e.untold);
    }
    text
}

/// As in RFC 3339, in UTC, to the millisecond.
fn time(t: SystemTime) -> String {
    let since = t.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, s) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    // Days are counted from March 1st of year 0, so that a leap day is a year's last.
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * of_year + 2) / 153;
    let day = of_year - (153 * m + 2) / 5 + 1;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (h, min, s) = (s / 3600, s / 60 % 60, s % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{min:02}:{s:02}.{:03}Z", since.subsec_millis())
}
