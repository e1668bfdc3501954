//! [verbs]: plain RDMA, the staged copy and the mapping over one device, in one run.

mod paths;
mod peer;
mod perftest;
mod raw;
mod remote;
mod rows;
mod table;

use super::Plan;
use super::report::{On, Report, Truth};
use smc_engine::base::config::DeviceWish;
use smc_engine::base::{Error, Result, Status};
use smc_engine::link::verbs::{Choice, Table, choose};
use std::path::Path;

pub use peer::PROBE;
pub use remote::{Exporting, Fresh};
pub use table::{PATHS, cell};

/// Bytes of the region that the loads run on, and of the bulk load.
const LEN: usize = 4 << 20;

/// The device that `--device` or the environment names.
pub fn wish(device: Option<&str>) -> Result<DeviceWish> {
    let config = smc_engine::base::config::Config::parse(smc_engine::base::config::variable);
    let Some(text) = device else { return Ok(config.device) };
    let why = "expected NAME, NAME:PORT or NAME:PORT+PORT";
    let named = DeviceWish::parse(text);
    let named = named.ok_or_else(|| Error::new(Status::INVALID_ARGUMENT, format!("use device {text}"), why))?;
    Ok(DeviceWish { gid_index: config.device.gid_index, ..named })
}

/// Body of the child that is the other side.
pub fn serve(device: Option<&str>) -> Result<()> {
    peer::serve(&wish(device)?)
}

/// Whether there is a device to measure on; otherwise what is missing, and the remedy.
pub fn usable(device: Option<&str>) -> Result<()> {
    choose(&wish(device)?, None, Table::Program).map(drop)
}

/// What figures of a device are worth.
fn truth(choice: &Choice) -> Truth {
    let name = choice.device.name();
    if name.starts_with("softhca") {
        let model = std::env::var("LIBSOFTHCA_MODEL").unwrap_or_default();
        return if matches!(model.trim(), "" | "off") { Truth::Emulated } else { Truth::Modelled };
    }
    // A device of hardware hangs on a bus; those of rdma_rxe and siw on nothing.
    let bus = Path::new("/sys/class/infiniband").join(name).join("device");
    if bus.exists() { Truth::Measured } else { Truth::Emulated }
}

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let wish = wish(plan.device.as_deref())?;
    let mut peer = peer::Peer::start(&wish, LEN)?;
    let on: On = ("verbs", truth(&peer.lane.choice));
    report.say(&format!("   {}", peer.lane.choice.reason));
    let home = remote::start(LEN)?;
    if on.1 == Truth::Emulated {
        report.say("   a device of software without a cost model: counts only");
        return rows::counts(report, &home, on);
    }
    rows::check(plan, report, &peer, on)?;
    rows::link(plan, report, &home, &peer, on)?;
    paths::bulk(plan, report, &home, &mut peer, on)?;
    paths::random(plan, report, &home, &mut peer, on)?;
    rows::first_touch(plan, report, &home, &peer, on)?;
    rows::counts(report, &home, on)?;
    drop(home);
    rows::register_once(plan, report, &peer, on)?;
    table::print(report);
    Ok(())
}
