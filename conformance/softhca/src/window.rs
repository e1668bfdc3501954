//! Memory windows: keys of their own for parts of a region, opened and closed by requests in a send queue.
//!
//! Type 1 belongs to its protection domain and is bound anew by `ibv_bind_mw`, which changes its key. Type 2 is bound by
//! a request with a key that the program chooses, to the queue pair that the request goes through (type 2B), and
//! is closed by an invalidation, from here or from afar.

use crate::context::Context;
use crate::keys::{Region, Span, access};
use crate::qp::Qp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Rights that need a region which may be written.
const WRITES: u32 = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
/// Rights that a window may give. The local one is nothing to it, but programs ask for it.
const RIGHTS: u32 = WRITES | access::REMOTE_READ | access::LOCAL_WRITE;

/// What a window opens.
struct Bound {
    region: Arc<Region>,
    addr: u64,
    len: u64,
    access: u32,
    /// Queue pair, of type 2.
    qp: Option<u32>,
}

/// A window.
pub struct Window {
    pd: u32,
    two: bool,
    bound: Option<Bound>,
}

/// What a request asks of a window.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// Key that it gets; its upper part says which window.
    pub key: u32,
    /// Key of the region.
    pub region: u32,
    /// First address.
    pub addr: u64,
    /// Bytes; 0 closes a window of type 1.
    pub len: u64,
    /// Rights.
    pub access: u32,
}

impl Window {
    /// One that is bound to nothing.
    pub fn new(pd: u32, two: bool) -> Window {
        Window { pd, two, bound: None }
    }

    /// Whether it is of type 2.
    pub fn is_two(&self) -> bool {
        self.two
    }

    /// Closes it.
    pub fn unbind(&mut self) {
        if let Some(bound) = self.bound.take() {
            bound.region.windows.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A range of it, for a queue pair with all of the rights in `need`.
    pub fn span(&self, pd: u32, qp: u32, addr: u64, len: u64, need: u32) -> Option<Span> {
        let bound = self.bound.as_ref()?;
        let owner = self.pd == pd && bound.qp.is_none_or(|own| own == qp);
        let inside = addr.checked_sub(bound.addr)?.checked_add(len).is_some_and(|end| end <= bound.len);
        let open = owner && inside && bound.access & need == need;
        Span::of(bound.region.clone(), addr, len).filter(|_| open)
    }
}

/// Binds a window on behalf of a queue pair. False when it may not be.
pub fn bind(context: &Context, qp: &Qp, b: &Bind) -> bool {
    let region = context.keys.get(b.region).filter(|r| {
        let rights = r.access & access::BIND != 0 && (b.access & WRITES == 0 || r.access & access::LOCAL_WRITE != 0);
        r.pd == qp.pd && rights
    });
    let inside = region.clone().is_some_and(|r| Span::of(r, b.addr, b.len).is_some());
    let done = context.keys.with_window(b.key, |window, tag| {
        let free = !window.two || window.bound.is_none();
        let closes = !window.two && b.len == 0;
        if window.pd != qp.pd || !free || !(inside || closes) || b.access & !RIGHTS != 0 {
            return false;
        }
        window.unbind();
        *tag = b.key as u8;
        if let (Some(region), false) = (region, closes) {
            region.windows.fetch_add(1, Ordering::Relaxed);
            let owner = window.two.then_some(qp.number);
            window.bound = Some(Bound { region, addr: b.addr, len: b.len, access: b.access, qp: owner });
        }
        true
    });
    done == Some(true)
}

/// Closes a window of type 2 on behalf of a queue pair. False when there is none that it may close.
pub fn invalidate(context: &Context, qp: &Qp, key: u32) -> bool {
    let done = context.keys.with_window(key, |window, tag| {
        let own = window.bound.as_ref().is_some_and(|b| b.qp == Some(qp.number));
        let may = own && *tag == key as u8 && window.pd == qp.pd;
        if may {
            window.unbind();
        }
        may
    });
    done == Some(true)
}
