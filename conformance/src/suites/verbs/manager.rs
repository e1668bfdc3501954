//! Queue pairs that the kernel's connection manager connects (`LIBSMC_RENDEZVOUS=rdma_cm`): everything works as ever, and nobody comes in
//! who is not expected. Needs rxe in the guest, or a real device: the soft HCA has no connection manager.

use super::setup::soon;
use super::{Far, Stopped, far, setup, weather, within};
use crate::rig::{net, policy};
use crate::runner::{Case, Cost, Ctx, Verdict};
use smc_engine::base::config::{Config, DeviceWish};
use smc_engine::base::{HomeOff, PAGE, Status};
use smc_engine::core::export::net::{ListenOptions, Network};
use smc_engine::core::export::{Event, Export, ExportOptions, Exporter, Memory};
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::link::mgmt::Message;
use smc_engine::link::mgmt::message::TOKEN;
use smc_engine::link::mgmt::tcp::Client;
use smc_engine::link::verbs::cm;
use smc_engine::link::{Access, Link, RegionKey};
use smc_engine::sys::channel::channel;
use smc_engine::sys::poll::poll;
use smc_engine::sys::rdma_cm::{ConnectionManager, Terms, What};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("verbs_by_the_connection_manager", |c| managed(c, 1, all)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_connection_manager_takes_nobody_else", |c| managed(c, 0, strangers))
        .verbs_only()
        .cost(Cost::Quick),
    Case::new("verbs_connection_manager_connect_and_close", |c| managed(c, 1, cycles))
        .verbs_only()
        .cost(Cost::Quick)
        .timeout(120),
    Case::new("verbs_connection_manager_follows_a_move", |c| managed(c, 0, moves)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_connection_manager_fair_weather", |c| managed(c, 1, weather::fair)).verbs_only(),
    Case::new("verbs_connection_manager_read_only_and_out_of_range", |c| managed(c, 1, setup::limits)).verbs_only(),
    // Last: rxe does not send for the connection manager any more once it had to while there was no link. That nothing is sent then is
    // what this is about.
    Case::new("verbs_connection_manager_three_seconds_down", |c| managed(c, 1, weather::three_seconds))
        .verbs_only()
        .cost(Cost::Quick),
];

/// As [`far`], with this rendezvous; skipped where there is none.
fn managed(ctx: &mut Ctx, exporters: usize, body: fn(&Far) -> Stopped) -> Verdict {
    // SAFETY: the process has one thread yet.
    unsafe { std::env::set_var("LIBSMC_RENDEZVOUS", "rdma_cm") };
    if let Err(e) = ConnectionManager::open() {
        return Verdict::Skip(format!("there is no connection manager here: {e}"));
    }
    far(ctx, exporters, body)
}

fn not_soft(f: &Far) -> Stopped {
    match f.wire.devices()[0].starts_with("soft") {
        true => Err("the soft HCA has no connection manager".into()),
        false => Ok(()),
    }
}

/// Loads, stores, releases, atomics, each counted once, and the connection manager knows of the queue pairs.
fn all(f: &Far) -> Stopped {
    not_soft(f)?;
    let start = Instant::now();
    setup::counts(f)?;
    println!("operations: {:?}", start.elapsed());
    let r = f.rig(f.home(8), MapOptions { wait_ms: 20_000, ..policy(Policy::Byte) });
    (0..8).for_each(|p| r.store(p * PAGE + 8, p as u64 + 1));
    r.release();
    (0..8).for_each(|p| r.home_is(p * PAGE + 8, p as u64 + 1));
    assert!(resources()?[1] > 3, "the connection manager has no part in it");
    println!("all of it: {:?}", start.elapsed());
    Ok(())
}

/// What the kernel counts of all processes: `[queue pairs, ids of the connection manager]`.
fn resources() -> Result<[usize; 2], String> {
    let out = Command::new("rdma").args(["resource", "show"]).output().map_err(|e| format!("rdma: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let sum = |what: &str| {
        let mut words = text.split_whitespace();
        let mut n = 0;
        while words.by_ref().any(|w| w == what) {
            n += words.next().and_then(|w| w.parse().ok()).unwrap_or(0);
        }
        n
    };
    Ok([sum("qp"), sum("cm_id")])
}

/// Connections, one after the other, leave nothing behind, here, at the exporter or in the kernel.
fn cycles(f: &Far) -> Stopped {
    not_soft(f)?;
    let home = f.home(4);
    let before = resources()?;
    setup::cycles(f)?;
    drop(home);
    let settled = || resources().is_ok_and(|now| now[0] <= before[0] && now[1] <= before[1] + 1);
    println!("queue pairs and ids: {before:?}, then {:?}", resources()?);
    within(f.seconds(5), "cycles", "the kernel has forgotten them", settled);
    Ok(())
}

/// A request with what it carries; what became of it.
fn knock(to: SocketAddr, qp_num: u32, token: &[u8; TOKEN], lane: u8) -> (ConnectionManager, What) {
    let start = Instant::now();
    let m = cm::open().expect("the connection manager");
    let id = m.create(7).expect("an id");
    let next = || {
        for _ in 0..200 {
            match m.event().expect("an event") {
                Some(e) => return e.what,
                None => _ = poll(&mut [m.watch()], 100),
            }
        }
        panic!("no event within 20 s")
    };
    m.resolve_address(id, None, &to, 2000).expect("resolve");
    assert_eq!(next(), What::AddressResolved);
    m.resolve_route(id, 2000).expect("a route");
    assert_eq!(next(), What::RouteResolved);
    let data = cm::request(token, lane);
    m.connect(id, &Terms { qp_num, answers: 1, asks: 1, retries: 6, data: &data }).expect("connect");
    let what = next();
    println!("lane {lane}: {what:?} after {:?}", start.elapsed());
    (m, what)
}

/// An exporter in this process, with the wire's far device, and a page that it exports.
fn here(f: &Far, name: &str) -> (Network, Export) {
    let device = DeviceWish::parse(&f.wire.devices()[0]).expect("a name");
    let options = ListenOptions { device, ..ListenOptions::default() };
    let exporter = Exporter::get().expect("an exporter");
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let network = exporter.listen_with(any, net::key().clone().into(), options).expect("a listener");
    (network, exporter.export(name, Memory::New(PAGE), ExportOptions::default()).expect("an export"))
}

fn put(link: &dyn Link, key: RegionKey, value: u64) -> Status {
    let data = value.to_le_bytes();
    // SAFETY: the array is valid for its length.
    unsafe { link.put(key, HomeOff(0), data.as_ptr(), 8, soon()) }
}

/// The exporter's memory moves under the link, again and again: its queue pairs end, others come, and the memory is the new one.
/// Then the access is taken away for good.
fn moves(f: &Far) -> Stopped {
    not_soft(f)?;
    let (network, export) = here(f, "moving");
    let link = f.link(network.address().port());
    let key = link.open("moving", Access::ReadWrite, soon()).expect("a region").key;
    let local = smc_engine::link::connect(None, &Config::default()).expect("a link on this host");
    for round in 1..4 {
        let opened = local.open("moving", Access::ReadWrite, soon()).expect("a region").key;
        let id = export.clients().iter().find(|c| c.remote.is_none()).expect("the client of this host").id;
        export.revoke(id, "go", true).expect("a move");
        local.close(opened);
        let start = Instant::now();
        within(f.seconds(10), "moves", "a write goes through", || put(&*link, key, round).is_ok());
        println!("move {round}: {:?}", start.elapsed());
        // SAFETY: the home's first word, which nobody writes now.
        assert_eq!(unsafe { export.base().cast::<u64>().read_volatile() }, round);
    }
    let id = export.clients().first().expect("the client").id;
    export.revoke(id, "enough", false).expect("a revocation");
    within(f.seconds(10), "moves", "it is revoked", || put(&*link, key, 9) == Status::REVOKED);
    link.close(key);
    Ok(())
}

/// Only who was told the token comes in, and each lane once; everybody else is rejected and told of. The region works all the same.
fn strangers(f: &Far) -> Stopped {
    not_soft(f)?;
    let (tx, events) = channel();
    Exporter::get().expect("an exporter").record(Some(tx));
    let (network, export) = here(f, "guarded");
    let mut c = Client::connect(&[network.address()], net::key(), "there", soon()).expect("a connection");
    c.ask(&Message::Open { name: "guarded".into(), want: Access::ReadOnly }).expect("open");
    let mut arrange = || match c.ask(&Message::Arrange { lanes: 2 }).expect("an answer") {
        Message::Arranged { at, port, token, .. } => {
            (SocketAddr::new(std::net::Ipv6Addr::from(at).to_canonical(), port), token)
        }
        m => panic!("{m:?}"),
    };
    let (to, token) = arrange();
    let mut wrong = token;
    wrong[TOKEN - 1] ^= 1;
    assert_eq!(knock(to, 0x101, &wrong, 0).1, What::Rejected, "another token");
    assert_eq!(knock(to, 0x102, &token, 2).1, What::Rejected, "a lane that was not arranged");
    assert_eq!(knock(to, 0x103, &token, 255).1, What::Rejected, "a lane that cannot be");
    let (_in, what) = knock(to, 0x104, &token, 1);
    assert_eq!(what, What::Response, "a lane that is expected");
    assert_eq!(knock(to, 0x105, &token, 1).1, What::Rejected, "the same lane again");
    let (_, fresh) = arrange();
    assert_ne!(fresh, token);
    assert_eq!(knock(to, 0x106, &token, 0).1, What::Rejected, "the token of before");
    // Told after the rejection.
    let refusals = |wait: Duration| {
        let told = std::iter::from_fn(|| events.wait(wait)).filter(|e: &Event| e.what.name() == "refusal");
        told.map(|e| (e.why, e.address.map(|a| a.ip()))).take(5).collect::<Vec<_>>()
    };
    let told = refusals(Duration::from_secs(5));
    assert_eq!(told.len(), 5, "{told:?}");
    assert!(told.iter().all(|(why, from)| why.contains("not expected") && *from == Some(to.ip())), "{told:?}");
    let link = f.link(network.address().port());
    let key = link.open("guarded", Access::ReadWrite, soon()).expect("a region").key;
    assert_eq!((put(&*link, key, 7), refusals(Duration::from_millis(50))), (Status::OK, vec![]));
    link.close(key);
    drop(export);
    Ok(())
}
