//! Who has the exports open: events as they come and go, and a list on demand.

use crate::out;
use serde_json::{Value, json};
use smc_engine::core::export::{ClientInfo, Export, Remote};
use smc_engine::sys::clock;
use std::collections::BTreeMap;

pub struct Watch {
    json: bool,
    known: BTreeMap<u64, (String, ClientInfo)>,
}

fn event(what: &str, name: &str, c: &ClientInfo) -> Value {
    let mut v = json!({"event": what, "name": name, "client": c.id, "pid": c.pid, "uid": c.uid, "access": out::access(c.access)});
    if let Some(r) = &c.remote {
        (v["pid"], v["uid"]) = (Value::Null, Value::Null);
        v["remote"] = json!({"client": r.client, "address": r.address.to_string(), "device": r.device});
    }
    v
}

/// Who and where a client of another host is.
fn from(r: &Remote) -> String {
    let by = r.device.as_ref().map(|d| format!(" by {d}")).unwrap_or_default();
    format!("{} {}{by}", r.client.as_deref().unwrap_or("(no name)"), r.address)
}

impl Watch {
    pub fn new(json: bool) -> Watch {
        Watch { json, known: BTreeMap::new() }
    }

    /// Compares with the last look and tells what has changed (JSON only).
    pub fn look(&mut self, exports: &[Export]) {
        let mut now = BTreeMap::new();
        for e in exports {
            now.extend(e.clients().into_iter().map(|c| (c.id, (e.name().to_owned(), c))));
        }
        if self.json {
            for (_, (name, c)) in self.known.iter().filter(|(id, _)| !now.contains_key(id)) {
                out::json(&event("client-left", name, c));
            }
            for (_, (name, c)) in now.iter().filter(|(id, _)| !self.known.contains_key(id)) {
                out::json(&event("client-opened", name, c));
            }
        }
        self.known = now;
    }

    /// Prints the clients.
    pub fn list(&mut self, exports: &[Export]) {
        self.look(exports);
        if self.json {
            let all: Vec<Value> = self.known.values().map(|(name, c)| event("client", name, c)).collect();
            return out::json(&json!({"event": "clients", "clients": all}));
        }
        let mut rows = vec![["CLIENT", "NAME", "PID", "UID", "ACCESS", "SECONDS", "FROM"].map(String::from).to_vec()];
        for (name, c) in self.known.values() {
            let age = clock::now().saturating_sub(c.since) / 1_000_000_000;
            let [pid, uid] = [c.pid, c.uid].map(|n| if c.remote.is_some() { "-".into() } else { n.to_string() });
            let cells = [
                c.id.to_string(),
                name.clone(),
                pid,
                uid,
                out::access(c.access).into(),
                age.to_string(),
                c.remote.as_ref().map_or("this host".into(), from),
            ];
            rows.push(cells.to_vec());
        }
        out::line(out::table(&rows, &[0, 2, 3, 5]).trim_end());
    }
}
