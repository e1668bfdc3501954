//! Revocation: the memory leaves, the revoked client stays behind with zeros.

use super::conn::Conn;
use super::home::Home;
use super::orders::Who;
use crate::base::Result;
use crate::link::Access;
use crate::link::embedded::control::{GATE_CLOSED, GATE_OPEN, GATE_REVOKED};
use crate::link::mgmt::Message;
use crate::sys::clock::{Deadline, nap};
use std::os::fd::AsFd;

/// How long clients that may stay are given to finish what is under way.
const DRAIN_MS: u64 = 1000;

/// Revokes `who` among the clients of `export`, of whom there is one at least, moving its home. `beat` keeps the heartbeats going meanwhile.
pub(super) fn revoke(
    home: &mut Home,
    conns: &mut [Conn],
    export: u64,
    who: Who,
    reason: &str,
    quiesced: bool,
    beat: u64,
) -> Result<()> {
    let chosen = |c: &Conn| matches!(who, Who::All) || matches!(who, Who::One(id) if id == c.id);
    let mut clients: Vec<(&mut Conn, bool)> = conns
        .iter_mut()
        .filter(|c| c.is_client_of(export))
        .map(|c| {
            let out = chosen(c);
            (c, out)
        })
        .collect();
    // The revoked first: from here on he does not wait, and we do not wait for him.
    for (c, out) in &clients {
        c.set_gate(if *out { GATE_REVOKED } else { GATE_CLOSED });
    }
    drain(&mut clients);
    let mut count = beat;
    let mut keep_alive = || {
        count += 1;
        clients.iter().for_each(|(c, _)| c.beat(count));
    };
    if let Err(e) = home.relocate(quiesced, &mut keep_alive) {
        clients.iter().for_each(|(c, _)| c.set_gate(GATE_OPEN));
        return Err(e);
    }
    for (c, out) in &mut clients {
        if *out {
            c.revoked = Some(reason.to_owned());
            c.say(&Message::Revoked { reason: reason.to_owned() }, &[]);
            c.gone = true;
        } else {
            follow(home, c);
        }
    }
    Ok(())
}

/// Waits until nobody who may stay is in the middle of a write; who does not come to an end joins the revoked.
fn drain(clients: &mut [(&mut Conn, bool)]) {
    let deadline = Deadline::in_ms(DRAIN_MS);
    loop {
        let busy = |(c, out): &&mut (&mut Conn, bool)| !*out && !c.is_drained();
        let late = deadline.passed();
        let mut waiting = false;
        for (c, out) in clients.iter_mut().filter(busy) {
            if late || c.hung_up() {
                c.set_gate(GATE_REVOKED);
                *out = true;
            } else {
                waiting = true;
            }
        }
        if !waiting {
            return;
        }
        nap(50_000);
    }
}

/// Gives a client the new home. One that cannot be told is dropped: his old memory is zero, so his gate must not open.
fn follow(home: &Home, c: &mut Conn) {
    let moved = Message::Moved { generation: home.generation };
    match c.access {
        Access::ReadWrite => c.say(&moved, &[home.fd()]),
        Access::ReadOnly => match home.read_only_fd() {
            Ok(fd) => c.say(&moved, &[fd.as_fd()]),
            Err(_) => c.gone = true,
        },
    }
    if c.gone {
        c.set_gate(GATE_REVOKED);
    } else {
        c.admit(home.generation);
    }
}
