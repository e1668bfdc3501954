//! Who gets in, and what reading only means.

use crate::child::{Child, Client, export, export_with, soon, unique, word};
use crate::manners::Raw;
use smc_engine::base::Status;
use smc_engine::core::export::ExportOptions;
use smc_engine::link::embedded::EmbeddedLink;
use smc_engine::link::{Access, AtomicOp, Link};
use std::sync::atomic::Ordering::SeqCst;

fn root() -> bool {
    // SAFETY: geteuid has no preconditions.
    let me = unsafe { libc::geteuid() };
    if me != 0 {
        eprintln!("skipped: needs root to become another user");
    }
    me == 0
}

#[test]
fn a_read_only_client_cannot_write() {
    let e = export("ro", 8192);
    let c = Client::open(e.name(), Access::ReadOnly);
    word(&e, 0).store(3, SeqCst);
    assert_eq!(c.word(0), Ok(3));
    assert_eq!(c.atomic(0, AtomicOp::Load), Ok(3));
    assert_eq!(c.put(0, &[1]), Status::PERMISSION);
    assert_eq!(c.atomic(0, AtomicOp::FetchAdd(1)), Err(Status::PERMISSION));
    // SAFETY: an empty batch has no sources.
    assert_eq!(unsafe { c.link.post(c.key, &[]) }, Err(Status::PERMISSION));
    assert_eq!(e.clients().iter().map(|c| c.access).collect::<Vec<_>>(), [Access::ReadOnly]);
    assert_eq!(word(&e, 0).load(SeqCst), 3);
}

#[test]
fn a_read_only_export_admits_no_writer_at_all() {
    let e = export_with("sealed", 8192, ExportOptions { access: Access::ReadOnly, ..Default::default() });
    let link = EmbeddedLink::connect_local();
    assert_eq!(link.open(e.name(), Access::ReadWrite, soon()).unwrap_err().status, Status::PERMISSION);
    // Same user, who may open our memory file again for writing: the seal stops him.
    assert!(!Raw::open(e.name(), Access::ReadOnly).can_write_somehow());
    word(&e, 0).store(9, SeqCst);
    assert_eq!(Client::open(e.name(), Access::ReadOnly).word(0), Ok(9));
}

#[test]
fn the_control_of_the_test_above() {
    // The same attempts on a home that others may write do succeed for the same user: the test can fail.
    let e = export("unsealed", 8192);
    assert!(Raw::open(e.name(), Access::ReadOnly).can_write_somehow());
}

#[test]
fn other_users_are_admitted_by_name_only() {
    if !root() {
        return;
    }
    let e = export("users", 8192);
    let c = Child::start("open-as-nobody", &[e.name()]);
    c.expect("PERMISSION");
    c.expect("PERMISSION");
    let e = export_with("users", 8192, ExportOptions { allow_uids: vec![65534], ..Default::default() });
    let c = Child::start("open-as-nobody", &[e.name()]);
    c.expect("open");
    c.expect("open");
    let e =
        export_with("users", 8192, ExportOptions { allow_any: true, access: Access::ReadOnly, ..Default::default() });
    let c = Child::start("open-as-nobody", &[e.name()]);
    c.expect("PERMISSION");
    c.expect("open");
}

#[test]
fn another_user_cannot_write_what_he_opened_for_reading() {
    if !root() {
        return;
    }
    let e = export_with("reopen", 8192, ExportOptions { allow_any: true, ..Default::default() });
    let c = Child::start("open-as-nobody", &[e.name(), "reopen"]);
    c.expect("open");
    c.expect("open");
    c.expect("false");
    assert_eq!(word(&e, 0).load(SeqCst), 0);
}

#[test]
fn an_exporter_of_a_stranger_is_not_trusted() {
    if !root() {
        return;
    }
    // The stranger squats a name; he is not even asked.
    let name = unique("squat");
    let c = Child::start("squat-as-nobody", &[&name]);
    c.expect("ready");
    let link = EmbeddedLink::connect_local();
    let e = link.open(&name, Access::ReadOnly, soon()).unwrap_err();
    assert_eq!(e.status, Status::PERMISSION, "{e}");
    let trusting = EmbeddedLink::connect_local_trusting(&[65534]);
    assert!(trusting.open(&name, Access::ReadOnly, soon()).is_ok());
}

#[test]
fn changing_the_user_does_not_hang() {
    if !root() {
        return;
    }
    let name = unique("setuid");
    let e = Child::start("late-setuid", &[&name]);
    e.expect("ok");
    // The user it has become is its own now, and trusts it.
    let c = Child::start("open-as-nobody", &[&name]);
    c.expect("open");
    c.expect("open");
}
