//! Members at a listening exporter of this process.
#![allow(clippy::unwrap_used)]

use super::super::{Export, ExportOptions, Memory, Reach};
use super::*;
use crate::link::Access;
use crate::link::mgmt::key::Key;
use crate::link::mgmt::message::Endpoint;
use crate::link::mgmt::tcp::Client;
use crate::link::mgmt::{Message, RegionDesc};
use crate::sys::clock::Deadline;

fn client(at: SocketAddr, key: &Key) -> Result<Client> {
    Client::connect(&[at], key, "there", Deadline::in_ms(20_000))
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn unique(what: &str) -> String {
    format!("net-{what}-{}-{:x}", std::process::id(), crate::sys::process::random())
}

fn export(name: &str, reach: Reach) -> Export {
    let options = ExportOptions { reach, ..ExportOptions::default() };
    Exporter::get().unwrap().export(name, Memory::New(8192), options).unwrap()
}

fn open(c: &mut Client, name: &str, want: Access) -> Result<RegionDesc> {
    match c.ask(&Message::Open { name: name.to_owned(), want })? {
        Message::Opened { region } => Ok(region),
        m => panic!("{m:?}"),
    }
}

fn soon() -> Deadline {
    Deadline::in_ms(20_000)
}

#[test]
fn members_see_the_exports_as_they_are() {
    let (e, key) = (Exporter::get().unwrap(), Key::generate(None).unwrap());
    let net = e.listen(any(), key.clone().into()).unwrap();
    assert_eq!(e.listen(net.address(), key.clone().into()).unwrap_err().status, Status::EXISTS);
    let mine = unique("many");
    let export = |n: u32| {
        let options = ExportOptions { access: Access::ReadOnly, incarnation: 77, ..ExportOptions::default() };
        e.export(&format!("{mine}{n:03}"), Memory::New(8192), options).unwrap()
    };
    let seen =
        |c: &mut Client| -> Vec<_> { c.list().unwrap().into_iter().filter(|r| r.name.starts_with(&mine)).collect() };
    let mut c = client(net.address(), &key).unwrap();
    assert!(seen(&mut c).is_empty());
    // More than one answer holds.
    let all: Vec<_> = (0..40).map(export).collect();
    let list = seen(&mut c);
    assert_eq!(list.len(), 40);
    let (r, pid) = (&list[39], std::process::id());
    assert_eq!((&*r.name, r.len, r.access, r.pid), (all[39].name(), 8192, Access::ReadOnly, pid));
    assert_eq!((r.incarnation, r.clients), (77, 0));
    drop(all);
    assert!(seen(&mut c).is_empty());
    assert_eq!(open(&mut c, &mine, Access::ReadOnly).unwrap_err().status, Status::NOT_FOUND);
    assert_eq!(client(net.address(), &Key::generate(None).unwrap()).unwrap_err().status, Status::REFUSED);
    let at = net.address();
    drop(net);
    assert_eq!(c.list().unwrap_err().status, Status::LINK_DOWN);
    assert_eq!(client(at, &key).unwrap_err().status, Status::LINK_DOWN);
    // The port is free at once.
    drop(e.listen(at, key.into()).unwrap());
}

#[test]
fn a_member_sees_and_opens_what_is_his_and_nothing_else() {
    use Access::{ReadOnly, ReadWrite};
    let [a, b] = ["a", "b"].map(|n| Key::generate(Some(n)).unwrap());
    let shared = Key::generate(None).unwrap();
    let ring = Keyring::of(vec![a.clone(), b.clone(), shared.clone()]).unwrap();
    let net = Exporter::get().unwrap().listen(any(), ring).unwrap();
    let stem = unique("reach");
    let name = |what: &str| format!("{stem}-{what}");
    let _here = export(&name("here"), Reach::Host);
    let _all = export(&name("all"), Reach::Members);
    let some = Reach::Clients(vec![("a".into(), ReadWrite), ("b".into(), ReadOnly)]);
    let _some = export(&name("some"), some);
    for (key, wanted, may) in [
        (&a, vec![("all", ReadWrite), ("some", ReadWrite)], [None, Some(ReadWrite), Some(ReadWrite)]),
        (&b, vec![("all", ReadWrite), ("some", ReadOnly)], [None, Some(ReadWrite), Some(ReadOnly)]),
        (&shared, vec![("all", ReadWrite)], [None, Some(ReadWrite), None]),
    ] {
        let mut c = client(net.address(), key).unwrap();
        let seen: Vec<_> = c.list().unwrap().into_iter().filter(|r| r.name.starts_with(&stem)).collect();
        let seen: Vec<_> = seen.iter().map(|r| (&r.name[stem.len() + 1..], r.access)).collect();
        assert_eq!(seen, wanted);
        let absent = open(&mut c, &name("absent"), ReadOnly).unwrap_err();
        for (what, may) in ["here", "all", "some"].iter().zip(may) {
            for want in [ReadOnly, ReadWrite] {
                let mut c = client(net.address(), key).unwrap();
                match (open(&mut c, &name(what), want), may) {
                    (Ok(r), Some(most)) => assert!(want <= most && r.access == want && r.clients == 1, "{r:?}"),
                    (Err(e), Some(most)) => assert!(want > most && e.status == Status::PERMISSION, "{what}: {e}"),
                    // What is not shown is told in the words for what is not there.
                    (Err(e), None) => assert_eq!((e.status, e.why), (absent.status, absent.why.clone())),
                    (Ok(r), None) => panic!("{r:?} was opened"),
                }
            }
        }
    }
}

#[test]
fn a_revoked_client_is_told_and_the_others_go_on() {
    let key = Key::generate(Some("x")).unwrap();
    let net = Exporter::get().unwrap().listen(any(), key.clone().into()).unwrap();
    let name = unique("revoke");
    let e = export(&name, Reach::Members);
    let [mut one, mut two, mut three] = [0; 3].map(|_| client(net.address(), &key).unwrap());
    assert_eq!(open(&mut one, &name, Access::ReadWrite).unwrap().clients, 1);
    assert_eq!(open(&mut two, &name, Access::ReadOnly).unwrap().clients, 2);
    let known = e.clients();
    assert_eq!(known.len(), 2);
    let remote = known[0].remote.as_ref().unwrap();
    assert!(remote.client.as_deref() == Some("x") && remote.address.ip().is_loopback() && remote.device.is_none());
    assert_eq!((known[0].pid, known[0].access, known[1].access), (0, Access::ReadWrite, Access::ReadOnly));
    assert_eq!(e.revoke(known[0].id + 1000, "no", true).unwrap_err().status, Status::NOT_FOUND);
    e.revoke(known[0].id, "enough", false).unwrap();
    assert_eq!(e.clients().iter().map(|c| c.id).collect::<Vec<_>>(), [known[1].id], "gone when revoke returns");
    assert_eq!(one.hear(soon()).unwrap(), Some(Message::Revoked { reason: "enough".into() }));
    assert_eq!(one.hear(soon()).unwrap_err().status, Status::LINK_DOWN);
    assert_eq!(e.revoke(known[0].id, "again", true).unwrap_err().status, Status::NOT_FOUND);
    // The other has felt nothing: nothing has moved.
    assert_eq!(two.ask(&Message::Ping { token: 3 }).unwrap(), Message::Pong { token: 3 });
    assert_eq!(open(&mut three, &name, Access::ReadWrite).unwrap().generation, 1);
    e.revoke_all("all of you", false).unwrap();
    for c in [&mut two, &mut three] {
        assert_eq!(c.hear(soon()).unwrap(), Some(Message::Revoked { reason: "all of you".into() }));
    }
    assert!(e.clients().is_empty());
    let mut late = client(net.address(), &key).unwrap();
    open(&mut late, &name, Access::ReadWrite).unwrap();
    drop(e);
    assert_eq!(late.hear(soon()).unwrap(), Some(Message::Ended));
    assert_eq!(late.hear(soon()).unwrap_err().status, Status::LINK_DOWN);
    let mut other = client(net.address(), &key).unwrap();
    assert_eq!(open(&mut other, &name, Access::ReadOnly).unwrap_err().status, Status::NOT_FOUND);
}

#[test]
fn a_key_that_is_taken_away_takes_the_access_along() {
    let [a, b] = ["a", "b"].map(|n| Key::generate(Some(n)).unwrap());
    let ring = |keys: &[&Key]| Keyring::of(keys.iter().map(|k| (*k).clone()).collect()).unwrap();
    let net = Exporter::get().unwrap().listen(any(), ring(&[&a, &b])).unwrap();
    let name = unique("keys");
    let e = export(&name, Reach::Members);
    let [mut of_a, mut of_b] = [&a, &b].map(|k| client(net.address(), k).unwrap());
    for c in [&mut of_a, &mut of_b] {
        open(c, &name, Access::ReadWrite).unwrap();
    }
    net.take_keys(ring(&[&b])).unwrap();
    assert_eq!(e.clients().len(), 1);
    assert_eq!(of_a.hear(soon()).unwrap(), Some(Message::Revoked { reason: "the key is no longer good".into() }));
    assert_eq!(client(net.address(), &a).unwrap_err().status, Status::REFUSED);
    assert_eq!(of_b.ask(&Message::Ping { token: 3 }).unwrap(), Message::Pong { token: 3 });
    net.take_keys(ring(&[&a, &b])).unwrap();
    drop(client(net.address(), &a).unwrap());
    // Without a listener everything of the others ends too.
    drop(net);
    assert!(e.clients().is_empty());
    assert_eq!(of_b.hear(soon()).unwrap_err().status, Status::LINK_DOWN);
}

#[test]
fn questions_in_the_wrong_order_end_the_conversation() {
    let key = Key::generate(None).unwrap();
    let net = Exporter::get().unwrap().listen(any(), key.clone().into()).unwrap();
    let name = unique("order");
    let e = export(&name, Reach::Members);
    let lanes = vec![Endpoint { mtu: 1, ..Endpoint::default() }];
    let mut c = client(net.address(), &key).unwrap();
    assert_eq!(c.ask(&Message::Connect { lanes }).unwrap_err().status, Status::PROTOCOL);
    assert_eq!(c.list().unwrap_err().status, Status::LINK_DOWN);
    let mut c = client(net.address(), &key).unwrap();
    open(&mut c, &name, Access::ReadOnly).unwrap();
    assert_eq!(open(&mut c, &name, Access::ReadOnly).unwrap_err().status, Status::PROTOCOL);
    assert_eq!(c.list().unwrap_err().status, Status::LINK_DOWN);
    assert_eq!(e.wait_clients_gone(soon()), Status::OK);
}
