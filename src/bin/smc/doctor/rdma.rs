//! The way to other hosts: which RDMA device the library would use, and what it can do.

use super::{Row, Verdict};
use smc_engine::base::config::Config;
use smc_engine::link::verbs::{Table, choose, cm};

const NAME: &str = "RDMA";
/// What LIBSMC_RENDEZVOUS=rdma_cm would find.
fn manager() -> String {
    match cm::open() {
        Ok(_) => "connection manager (rdma_cm)".into(),
        Err(e) => format!("no connection manager ({})", e.why),
    }
}

const MEANING: &str = "regions of other hosts need it (LIBSMC_DEVICE, LIBSMC_GID_INDEX); this host's do not";

/// The device as the settings of this process choose it. The address of a peer may lead to another one.
pub fn row(config: &Config) -> Row {
    match choose(&config.device, None, Table::Own) {
        Ok(choice) => {
            let caps = choice.device.caps();
            let can = |what, yes| format!("{}{what}", if yes { "" } else { "no " });
            let all = [
                can("atomics", caps.atomics),
                can("relaxed ordering", caps.relaxed),
                can("on-demand paging", caps.on_demand),
            ];
            let text = format!("{}; {}, {}", choice.reason, all.join(", "), manager());
            Row::new(NAME, Verdict::Ok, text, MEANING)
        }
        Err(e) => {
            let remedy = e.remedy.clone();
            Row::new(NAME, Verdict::Warn, e.why, MEANING).remedy(remedy)
        }
    }
}
