//! The engine: what the processors on an HCA do.
//!
//! It has a thread of its own, and any thread that polls an empty completion queue lends it a hand. One of them at a
//! time runs [`Engine::step`]. Posting only queues: the bytes of a message are read when the engine gets to it, so a
//! program that changes them before their completion sends what it deserves.

mod requester;
mod responder;

pub use requester::UNSENT;

use crate::context::Context;
use crate::link::{self, Place, Rings};
use crate::memory::Gone;
use crate::qp::Wait;
use crate::raw::{self, Fd};
use crate::ring::{CHUNK, Header};
use crate::wire::{self, Answer};
use crate::wqe::{Sge, Sges};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A link to a peer, or to ourselves.
pub struct Link {
    socket: Option<Fd>,
    /// Tells of the peer's death, with the socket.
    _peer: Option<Fd>,
    /// `None` until the peer has sent them.
    rings: Option<Rings>,
    /// Answers that wait for room.
    answers: VecDeque<Answer>,
    /// Queue pairs that wait for room.
    blocked: Vec<u32>,
    /// Whether something was sent since the peer was last told.
    sent: bool,
}

/// Messages taken from one link before the next has its turn.
const BURST: usize = 64;

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
/// Bit of the events that tell of the death of a link's peer.
const DEATH: u64 = 1 << 62;

/// See the module.
pub struct Engine {
    place: Place,
    listener: Fd,
    epoll: Arc<Fd>,
    links: HashMap<u64, Link>,
    last_link: u64,
    /// Links that we have made, by whom they lead to.
    by_place: HashMap<Place, u64>,
    ready: Vec<u32>,
    ids: Vec<u64>,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// When the wire of the cost model is free.
    wire_free: u64,
}

impl Engine {
    /// An engine without links.
    pub fn new(place: Place, listener: Fd, bell: &Fd) -> Result<Engine, i32> {
        let epoll = Arc::new(raw::epoll()?);
        raw::epoll_add(&epoll, &listener, LISTENER)?;
        raw::epoll_add(&epoll, bell, BELL)?;
        Ok(Engine {
            place,
            listener,
            epoll,
            links: HashMap::new(),
            last_link: 0,
            by_place: HashMap::new(),
            ready: Vec::new(),
            ids: Vec::new(),
            timers: BinaryHeap::new(),
            wire_free: 0,
        })
    }

    /// What the thread waits on.
    pub fn epoll(&self) -> Arc<Fd> {
        self.epoll.clone()
    }

    /// Tells the peers whether they must wake us.
    pub fn sleep(&mut self, asleep: bool) {
        self.links.values().filter_map(|l| l.rings.as_ref()).for_each(|r| r.rx.sleep(asleep));
    }

    /// When the next message that has come may be looked at; 0 is now.
    pub fn next_input(&mut self) -> Option<u64> {
        let rings = self.links.values_mut().filter_map(|l| l.rings.as_mut());
        rings.filter_map(|r| r.rx.front().map(|(h, _)| h.due)).min()
    }

    /// After a sleep: new links, dead links.
    pub fn wake(&mut self, context: &Context, tokens: &[u64]) {
        for &token in tokens {
            match token {
                LISTENER => self.accept(),
                BELL => {}
                id if id & DEATH != 0 => self.end(context, id & !DEATH),
                id => self.hear(context, id),
            }
        }
    }

    fn accept(&mut self) {
        while let Some(socket) = link::accept(&self.listener) {
            self.add_link(Some(socket), None);
        }
    }

    fn add_link(&mut self, socket: Option<Fd>, rings: Option<Rings>) -> Option<u64> {
        let id = self.last_link + 1;
        let mut peer = None;
        if let Some(socket) = &socket {
            peer = link::watch(socket).ok()?;
            raw::epoll_add(&self.epoll, socket, id).ok()?;
        }
        if let Some(peer) = &peer {
            raw::epoll_add(&self.epoll, peer, id | DEATH).ok()?;
        }
        self.last_link = id;
        let link = Link { socket, _peer: peer, rings, answers: VecDeque::new(), blocked: Vec::new(), sent: false };
        self.links.insert(id, link);
        Some(id)
    }

    fn hear(&mut self, context: &Context, id: u64) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(socket) = &link.socket else { return };
        if link.rings.is_none() {
            match link::receive(socket) {
                Ok(rings) => link.rings = Some(rings),
                Err(libc::EAGAIN) => return,
                Err(_) => {
                    self.links.remove(&id);
                    return;
                }
            }
        }
        if !link::hear_bell(socket) {
            self.end(context, id);
        }
    }

    /// The peer of a link is gone.
    fn end(&mut self, context: &Context, id: u64) {
        // What it has sent before it went is still to be taken.
        while self.take(context, id).0 {}
        self.links.remove(&id);
        self.by_place.retain(|_, other| *other != id);
        requester::peer_is_gone(context, &self.by_place, &mut self.timers);
    }

    /// Does what can be done now. Returns whether anything was, and when there will be something to do.
    pub fn step(&mut self, context: &Context) -> (bool, Option<u64>) {
        let mut busy = false;
        let mut due: Option<u64> = None;
        // Both lists keep their room: a program that polls comes here each time, and should not meet the allocator.
        let mut ids = std::mem::take(&mut self.ids);
        ids.extend(self.links.keys());
        for id in ids.drain(..) {
            let (some, later) = self.take(context, id);
            busy |= some;
            due = due.into_iter().chain(later).min();
            busy |= self.answer(context, id);
        }
        self.ids = ids;
        self.ring_timers(context);
        context.take_work(&mut self.ready);
        let mut ready = std::mem::take(&mut self.ready);
        for number in ready.drain(..) {
            busy |= self.pump(context, number);
        }
        self.ready = ready;
        self.wake_peers();
        due = due.into_iter().chain(self.timers.peek().map(|t| t.0.0)).min();
        (busy, due)
    }

    fn wake_peers(&mut self) {
        for link in self.links.values_mut().filter(|l| l.sent) {
            link.sent = false;
            if let (Some(socket), Some(rings)) = (&link.socket, &link.rings)
                && rings.tx.must_wake()
            {
                link::ring_bell(socket);
            }
        }
    }

    /// Takes messages of one link. Returns whether there were any, and when the next is due.
    fn take(&mut self, context: &Context, id: u64) -> (bool, Option<u64>) {
        let Some(link) = self.links.get_mut(&id) else { return (false, None) };
        let Some(rings) = link.rings.as_mut() else { return (false, None) };
        let now = raw::now();
        let mut some = false;
        for _ in 0..BURST {
            let Some((header, payload)) = rings.rx.front() else { break };
            if header.due > now {
                return (some, Some(header.due));
            }
            some = true;
            if header.kind >= wire::ANSWERS {
                self.ready.extend(requester::answered(context, &header, payload, &mut self.timers));
            } else if let Some(answer) = responder::requested(context, &header, payload) {
                link.answers.push_back(answer);
            }
            if rings.rx.next(&header)
                && let Some(socket) = &link.socket
            {
                link::ring_bell(socket);
            }
        }
        // Room may have come with what woke us.
        self.ready.append(&mut link.blocked);
        (some, None)
    }

    /// Sends answers that wait. Returns whether any was sent.
    fn answer(&mut self, context: &Context, id: u64) -> bool {
        let Some(link) = self.links.get_mut(&id) else { return false };
        let Some(rings) = link.rings.as_mut() else { return false };
        let mut some = false;
        while let Some(answer) = link.answers.front_mut() {
            let sent = match &answer.data {
                Some(span) if answer.header.offset < answer.header.total => {
                    let len = (answer.header.total - answer.header.offset).min(CHUNK as u32);
                    let at = span.at + answer.header.offset as usize;
                    let due = context.due(len as usize, &mut self.wire_free);
                    let header = Header { payload: len, due, ..answer.header };
                    let gone = span.region.revoked.load(Ordering::Relaxed);
                    let read = |to: &mut [u8]| if gone { Err(Gone) } else { span.region.memory.read(at, to) };
                    match rings.tx.push(&header, read) {
                        Ok(pushed) => pushed.then_some(len),
                        Err(_) => {
                            answer.data = None;
                            answer.header.kind = wire::NAK;
                            answer.header.imm = ibverbs_sys::ibv_wc_status::IBV_WC_REM_OP_ERR;
                            continue;
                        }
                    }
                }
                _ => {
                    let header = Header { due: context.due(0, &mut self.wire_free), ..answer.header };
                    rings.tx.push(&header, |_| Ok::<(), ()>(())).unwrap_or(false).then_some(answer.header.total)
                }
            };
            let Some(sent) = sent else { break };
            some = true;
            answer.header.offset += sent;
            if answer.header.offset >= answer.header.total {
                link.answers.pop_front();
            }
        }
        link.sent |= some;
        some
    }

    /// Wakes queue pairs whose time has come.
    fn ring_timers(&mut self, context: &Context) {
        let now = raw::now();
        while let Some(&Reverse((at, number))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let Some(qp) = context.qp(number) else { continue };
            let mut inner = qp.lock();
            match inner.wait {
                Wait::Lost(Some(until)) if until <= now => requester::try_again(&qp, &mut inner),
                Wait::NotReady(until) if until <= now => inner.wait = Wait::No,
                _ => continue,
            }
            self.ready.push(number);
        }
    }

    /// The link to a place, made if need be.
    fn link_to(&mut self, place: Place) -> Option<u64> {
        if let Some(id) = self.by_place.get(&place) {
            return Some(*id);
        }
        let id = if place == self.place {
            self.add_link(None, Some(Rings::loopback().ok()?))
        } else {
            let (socket, rings) = link::connect(place).ok()?;
            self.add_link(Some(socket), Some(rings))
        }?;
        self.by_place.insert(place, id);
        Some(id)
    }
}

/// Calls `f` with (piece, offset in it, offset in the transfer, bytes) for `len` bytes from offset `at` of a list of
/// pieces. Bytes beyond the list are passed over: whoever sends them has checked the length.
fn each_piece<E>(
    pieces: &Sges,
    at: u64,
    len: usize,
    mut f: impl FnMut(&Sge, u64, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let (mut skip, mut done) = (at, 0);
    for sge in pieces.all() {
        let room = u64::from(sge.len);
        if skip >= room {
            skip -= room;
            continue;
        }
        let n = ((room - skip) as usize).min(len - done);
        if n == 0 {
            break;
        }
        f(sge, skip, done, n)?;
        skip = 0;
        done += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_walked_from_any_offset() {
        let pieces = Sges::new([3u32, 5, 2].iter().map(|&len| Sge { addr: u64::from(len) * 100, len, lkey: 1 }));
        let walk = |at, len| {
            let mut seen = Vec::new();
            let all = each_piece(&pieces, at, len, |s, inside, done, n| {
                seen.push((s.addr + inside, done, n));
                Ok::<(), ()>(())
            });
            assert_eq!(all, Ok(()));
            seen
        };
        assert_eq!(walk(0, 10), [(300, 0, 3), (500, 3, 5), (200, 8, 2)]);
        assert_eq!(walk(4, 5), [(501, 0, 4), (200, 4, 1)]);
        assert_eq!(walk(3, 5), [(500, 0, 5)]);
        assert_eq!(walk(9, 0), []);
    }
}
