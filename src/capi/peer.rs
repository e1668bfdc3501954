//! Peers: hosts with exporters.

use super::call::{Call, call, with_text};
use super::context::{self, Child};
use super::handle::Table;
use super::types::{smc_access, smc_context, smc_list_fn, smc_peer, smc_region_info, smc_status};
use crate::base::{Error, Result, Status};
use crate::core::options::PeerName;
use crate::link::{Access, Link, RegionInfo};
use crate::sys::clock::Deadline;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// What smc_connect made.
pub(super) struct Peer {
    pub child: Child,
    pub name: PeerName,
    link: Arc<dyn Link>,
}

static PEERS: Table<Peer> = Table::new(2);

/// The peer behind a handle.
pub(super) fn find(c: Call, peer: *const smc_peer) -> Result<Arc<Peer>> {
    PEERS.get(peer).ok_or_else(|| c.bad("`peer` is not an open peer"))
}

/// `local`, `HOST:PORT` or `[ADDRESS]:PORT`.
pub(super) fn parse(text: &str) -> Option<PeerName> {
    if text == "local" {
        return Some(PeerName::Local);
    }
    let (host, port) = text.rsplit_once(':')?;
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host = inner.or_else(|| (!host.contains([':', '[', ']'])).then_some(host)).filter(|h| !h.is_empty())?;
    let port = port.parse().ok().filter(|p| *p != 0)?;
    Some(PeerName::Net { host: host.to_owned(), port })
}

/// Makes a peer known. `address`: NULL or "local" for exporters on this host, else "HOST:PORT" (an IPv6 address in brackets) of a
/// management port.
///
/// Errors: INVALID_ARGUMENT; for another host NOT_FOUND (this process has no key file, see LIBSMC_KEY) and PERMISSION (others can use
/// it too); FORKED. Nobody is asked yet: that the peer is there, knows the key and can be reached by RDMA, smc_list() and
/// smc_map() find out. The peer is yours until smc_peer_close(). Any thread; may block.
///
/// # Safety
/// `address` is NULL or NUL-terminated; `peer` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_connect(
    ctx: *mut smc_context,
    address: *const c_char,
    peer: *mut *mut smc_peer,
) -> smc_status {
    call("smc_connect", |c| {
        let context = context::find(c, ctx)?;
        let out = c.out(peer, "peer")?;
        // SAFETY: the caller vouches for it.
        let text = unsafe { c.optional_text(address, "address") }?.unwrap_or("local");
        let name = parse(text)
            .ok_or_else(|| c.bad(format_args!("`address` is \"{text}\", not \"local\" or \"HOST:PORT\"")))?;
        let engine = context::engine(c)?;
        let link = engine.link(&name)?;
        let handle = PEERS.insert(Arc::new(Peer { child: Child::of(&context), name, link }));
        let handle = handle.ok_or_else(|| Error::of(Status::NO_RESOURCES, "connect"))?;
        // SAFETY: the caller vouches for it.
        unsafe { out.set(handle) };
        Ok(())
    })
}

/// Closes a peer. Regions mapped through it stay mapped. INVALID_ARGUMENT when it is not open, FORKED in a fork child.
#[unsafe(no_mangle)]
pub extern "C" fn smc_peer_close(peer: *mut smc_peer) -> smc_status {
    call("smc_peer_close", |c| PEERS.remove(peer).map(drop).ok_or_else(|| c.bad("`peer` is not an open peer")))
}

/// The number of an access in smc.h.
pub(super) fn access_number(a: Access) -> u32 {
    match a {
        Access::ReadOnly => smc_access::ReadOnly as u32,
        Access::ReadWrite => smc_access::ReadWrite as u32,
    }
}

fn tell(
    info: &RegionInfo,
    f: unsafe extern "C" fn(*const smc_region_info, *mut c_void) -> i32,
    user: *mut c_void,
) -> i32 {
    with_text(&info.name, |name| {
        let entry = smc_region_info {
            struct_size: size_of::<smc_region_info>(),
            name,
            length: info.len,
            access: access_number(info.access),
            kind: info.kind as u32,
            clients: info.clients,
            pid: info.pid,
        };
        // SAFETY: the program's own function; the entry and its name live during the call.
        unsafe { f(&raw const entry, user) }
    })
}

/// Calls `each` for every region the peer offers to this user, sorted by name, in the calling thread. The list is complete
/// before the first call: `each` may use the library.
///
/// Errors: INVALID_ARGUMENT, LINK_DOWN, TIMED_OUT, FORKED. Any thread; may block up to LIBSMC_WAIT.
///
/// # Safety
/// `each` may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_list(peer: *mut smc_peer, each: smc_list_fn, user: *mut c_void) -> smc_status {
    call("smc_list", |c| {
        let peer = find(c, peer)?;
        let each = each.ok_or_else(|| c.bad("`each` is NULL"))?;
        let engine = context::engine(c)?;
        let wait =
            if peer.child.context().wait_ms == 0 { engine.config().wait_ms } else { peer.child.context().wait_ms };
        let mut list = peer.link.list(Deadline::in_ms(wait))?;
        list.sort_by(|a, b| a.name.cmp(&b.name));
        for info in &list {
            if tell(info, each, user) != 0 {
                break;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let net = |h: &str, port| Some(PeerName::Net { host: h.into(), port });
        assert_eq!(parse("local"), Some(PeerName::Local));
        assert_eq!(parse("node7:7471"), net("node7", 7471));
        assert_eq!(parse("[fe80::1]:9"), net("fe80::1", 9));
        for bad in ["", "node7", ":1", "a:0", "a:70000", "a:b", "fe80::1:9", "[]:1", "[a:1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
