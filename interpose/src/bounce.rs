//! Calls that give something away even when they fail, with buffers in a view: the kernel works on memory of our own.
//!
//! A datagram, an exit status, a pending error is gone once the kernel has taken it, whether it could write it down or not,
//! and between [`crate::touch`] and that moment a page may be driven out or protected again: by the time a call returns that
//! has waited for an hour, it will have been. So these calls get copies of the buffers. What the kernel changes in a copy is
//! stored to the view afterwards as any program stores.
//!
//! The memory is asked for and given back within the call. A thread that leaves the call by `siglongjmp` or is cancelled in
//! it leaves it behind.

use crate::blocking::Frame;
use crate::convert::set_errno;
use crate::table::Hook;
use crate::touch::{Each, LIST, Use, any_view, copied};
use libc::{c_int, iovec, mmsghdr, msghdr};
use smc_engine::core::spans;
use smc_engine::sys::mem::{self, Mapping};
use smc_engine::sys::process::write_own;

/// Most bytes of the buffers of one call; a call with more goes without.
const MOST: usize = 64 << 20;

/// What lies behind a pointer argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nested {
    /// A buffer.
    Nothing,
    /// A list of as many buffers as the next argument says.
    Vector,
    /// A message.
    Message,
    /// As many messages as the next argument says.
    Messages,
}

/// The argument that [`Nested`] speaks of.
const NESTED: usize = 1;

/// One buffer and its copies.
#[repr(C)]
struct Piece {
    user: usize,
    own: usize,
    /// What was in `own` before the call; 0 when the kernel only reads it.
    before: usize,
    len: usize,
}

/// What a mapping begins with; the pieces follow, and then the bytes.
#[repr(C)]
struct Head {
    pieces: usize,
    most: usize,
    used: usize,
    end: usize,
}

/// Memory of our own for one call.
struct Room {
    memory: Mapping,
    /// A buffer that lies in a view has no copy.
    missed: bool,
}

impl Room {
    /// Room for so many pieces with so many bytes.
    fn new(pieces: usize, bytes: usize) -> Option<Room> {
        let front = (size_of::<Head>() + pieces * size_of::<Piece>()).next_multiple_of(16);
        let map = Mapping::anonymous(front.checked_add(bytes)?.next_multiple_of(4096), mem::RW).ok()?;
        let end = map.addr() + map.len();
        let head = Head { pieces: 0, most: pieces, used: map.addr() + front, end };
        // SAFETY: the mapping is fresh and longer than its head.
        unsafe { map.ptr().cast::<Head>().write(head) };
        Some(Room { memory: map, missed: false })
    }

    fn head(&mut self) -> &mut Head {
        // SAFETY: written by `new`; nobody else knows the mapping, and `self` is borrowed.
        unsafe { &mut *self.memory.ptr().cast::<Head>() }
    }

    fn take(&mut self, len: usize) -> Option<usize> {
        let h = self.head();
        let at = h.used;
        let next = at.checked_add(len.checked_next_multiple_of(16)?)?;
        if next > h.end {
            return None;
        }
        h.used = next;
        Some(at)
    }

    /// Remembers a copy of `[user, user + len)` that lies at `own`, and what is in it now unless it is only a source.
    fn keep(&mut self, user: usize, own: usize, len: usize, how: Use) -> Option<()> {
        let before = if how == Use::Source { 0 } else { self.take(len)? };
        if before != 0 {
            copy(own, before, len);
        }
        let h = self.head();
        if h.pieces == h.most {
            return None;
        }
        let n = h.pieces;
        h.pieces += 1;
        let place = self.memory.ptr().wrapping_add(size_of::<Head>()).cast::<Piece>().wrapping_add(n);
        // SAFETY: `new` has made room for `most` pieces behind the head.
        unsafe { place.write(Piece { user, own, before, len }) };
        Some(())
    }

    /// The address to give the kernel for a buffer: a copy when all of it lies in views that can be had, else itself.
    fn place(&mut self, at: usize, len: usize, how: Use) -> Option<usize> {
        if len == 0 || !can_be_had(at, len, how) {
            self.missed |= len != 0 && any_view(at, len);
            return Some(at);
        }
        let own = self.take(len)?;
        copy(at, own, len);
        self.keep(at, own, len, how)?;
        Some(own)
    }

    /// A structure of the program as the kernel is to see it.
    fn structure<T: Copy>(&mut self, at: usize, value: &T) -> Option<usize> {
        let own = self.take(size_of::<T>())?;
        // SAFETY: `take` gave bytes enough, aligned to 16.
        unsafe { (own as *mut T).write(*value) };
        self.keep(at, own, size_of::<T>(), Use::Target)?;
        Some(own)
    }

    fn vector(&mut self, at: usize, n: usize, how: Use) -> Option<usize> {
        let own = self.take(n * size_of::<iovec>())?;
        for i in 0..n {
            let [base, len] = copied::<[usize; 2]>(at.wrapping_add(i * size_of::<iovec>()))?;
            let entry = [self.place(base, len, how)?, len];
            // SAFETY: one of the `n` entries that `take` has made room for.
            unsafe { (own as *mut [usize; 2]).wrapping_add(i).write(entry) };
        }
        Some(own)
    }

    fn rewrite(&mut self, m: &mut msghdr, how: Use) -> Option<()> {
        if m.msg_iovlen > LIST {
            return None;
        }
        m.msg_name = self.place(m.msg_name as usize, m.msg_namelen as usize, how)? as *mut _;
        m.msg_control = self.place(m.msg_control as usize, m.msg_controllen, how)? as *mut _;
        m.msg_iov = self.vector(m.msg_iov as usize, m.msg_iovlen, how)? as *mut _;
        Some(())
    }

    fn message(&mut self, at: usize) -> Option<usize> {
        let mut m = copied::<msghdr>(at)?;
        self.rewrite(&mut m, Use::Target)?;
        self.structure(at, &m)
    }

    fn messages(&mut self, at: usize, n: usize) -> Option<usize> {
        let own = self.take(n * size_of::<mmsghdr>())?;
        for i in 0..n {
            let mut m = copied::<mmsghdr>(at.wrapping_add(i * size_of::<mmsghdr>()))?;
            self.rewrite(&mut m.msg_hdr, Use::Target)?;
            // SAFETY: one of the `n` entries that `take` has made room for.
            unsafe { (own as *mut mmsghdr).wrapping_add(i).write(m) };
        }
        self.keep(at, own, n * size_of::<mmsghdr>(), Use::Target)?;
        Some(own)
    }

    fn pieces(&self) -> &[Piece] {
        let first = self.memory.ptr().wrapping_add(size_of::<Head>()).cast::<Piece>();
        // SAFETY: written by `new`, changed by `keep` only.
        let n = unsafe { (*self.memory.ptr().cast::<Head>()).pieces };
        // SAFETY: `keep` has written so many pieces.
        unsafe { std::slice::from_raw_parts(first, n) }
    }
}

/// Before a call of which a buffer lies in a view: puts copies in the place of the buffers that `list` names. [`finish`] brings back what the
/// kernel has changed. True when all buffers that lie in views have copies.
pub fn begin(hook: &'static Hook, f: &mut Frame, nested: Nested, list: impl Fn(&Frame, Each)) -> bool {
    let (mut pieces, mut bytes) = (1usize, 0usize);
    list(f, &mut |_, len, _| {
        pieces += 1;
        bytes = bytes.saturating_add(len.saturating_add(32).saturating_mul(2));
    });
    if bytes > 2 * MOST {
        return false;
    }
    let done = Room::new(pieces, bytes + 4096).and_then(|mut room| {
        f.set_args(replaced(f, &mut room, nested, list)?);
        Some(room)
    });
    set_errno(f.errno as c_int);
    let Some(room) = done else { return false };
    hook.hits.hit();
    let missed = room.missed;
    let (at, len) = room.memory.forget();
    f.room = [at as usize, len];
    !missed
}

/// The arguments with copies; `None` when there is no room, or something cannot be read.
fn replaced(f: &Frame, room: &mut Room, nested: Nested, list: impl Fn(&Frame, Each)) -> Option<[usize; 6]> {
    let mut args = f.all_args();
    let mut whole = true;
    list(f, &mut |at, len, how| {
        let one = |(i, a): &(usize, &mut usize)| (*i != NESTED || nested == Nested::Nothing) && **a == at;
        if let Some((_, a)) = args.iter_mut().enumerate().find(one) {
            match room.place(at, len, how) {
                Some(own) => *a = own,
                None => whole = false,
            }
        }
    });
    if nested != Nested::Nothing {
        let (at, n) = (f.arg::<NESTED, usize>(), f.arg::<{ NESTED + 1 }, usize>() & u32::MAX as usize);
        let own = match nested {
            Nested::Message | Nested::Nothing => room.message(at)?,
            _ if n > LIST => return None,
            Nested::Vector => room.vector(at, n, Use::Target)?,
            Nested::Messages => room.messages(at, n)?,
        };
        if let Some(a) = args.get_mut(NESTED) {
            *a = own;
        }
    }
    whole.then_some(args)
}

/// After the call: stores what the kernel has changed, and gives the copies back.
pub extern "C" fn finish(f: &mut Frame) {
    let [at, len] = std::mem::take(&mut f.room);
    // SAFETY: made and given up by `begin` in this very call.
    let room = Room { memory: unsafe { Mapping::adopt(at as *mut u8, len) }, missed: false };
    let mut args = f.all_args();
    for p in room.pieces() {
        args.iter_mut().filter(|a| **a == p.own).for_each(|a| *a = p.user);
        if p.before != 0 {
            store_changes(p);
        }
    }
    f.set_args(args);
}

/// Only what is not as it was: other threads may use the rest.
fn store_changes(p: &Piece) {
    let view = any_view(p.user, p.len);
    // SAFETY: `keep` was given as many bytes at `own`, and nobody else has them.
    let now = unsafe { std::slice::from_raw_parts(p.own as *const u8, p.len) };
    // SAFETY: as many at `before`, taken by `keep`.
    let was = unsafe { std::slice::from_raw_parts(p.before as *const u8, p.len) };
    let mut at = 0;
    while let Some((from, to)) = changed(now, was, at) {
        let bytes = now.get(from..to).unwrap_or_default();
        if view {
            copy(bytes.as_ptr() as usize, p.user + from, bytes.len());
        } else {
            // What the kernel could not have written either stays as it is.
            let _ = write_own(p.user + from, bytes);
        }
        at = to;
    }
}

/// The first run of bytes, from `at` on, that differ.
fn changed(now: &[u8], was: &[u8], at: usize) -> Option<(usize, usize)> {
    let differ = |i: &usize| now.get(*i) != was.get(*i);
    let from = (at..now.len()).find(differ)?;
    let to = (from..now.len()).find(|i| !differ(i)).unwrap_or(now.len());
    Some((from, to))
}

/// All of it lies in views whose pages can be had now, and may be written where that is asked for.
fn can_be_had(start: usize, len: usize, how: Use) -> bool {
    let Some(end) = start.checked_add(len) else { return false };
    let mut at = start;
    while at < end {
        match spans::first(at, end) {
            Some(s) if s.start == at && !s.waits && (s.write || how == Use::Source) => {
                if s.signals && !spans::bring(s.start, s.end).is_ok() {
                    return false;
                }
                at = s.end;
            }
            _ => return false,
        }
    }
    true
}

fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: one of the two is a part of a Room, the other a part of a Room or of live views, where loads and stores are
    // served.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
}
