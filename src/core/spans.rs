//! What the hooks of system calls ask about addresses of the program: is it a view, what would the kernel find there, and
//! bring its pages in.
//!
//! Everything here may run in a signal handler of the program: it takes no lock, and nothing stays pinned between two
//! calls.

use super::views::{self, View};
use crate::base::Status;
use crate::base::addr::PAGE;
use crate::sys::sync::SignalsBlocked;

/// A part of the address space that shows one region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// The program may store to it.
    pub write: bool,
    /// The kernel waits for absent pages, as for any others; otherwise it answers EFAULT.
    pub waits: bool,
    /// The kernel answers EFAULT when it would write to a page that nobody has stored to since the last release.
    pub refuses_clean: bool,
    /// A load that cannot be served raises SIGBUS.
    pub signals: bool,
    /// So many bytes may be brought in one after the other without driving the first ones out again.
    pub most: usize,
}

impl Span {
    /// Pages of it are driven out by others.
    pub fn pages_go(&self) -> bool {
        self.most != usize::MAX
    }

    fn of(v: &View, start: usize, end: usize) -> Span {
        let (r, end_of_view) = (v.region(), v.start + v.pages.len() * PAGE);
        Span {
            start: start.max(v.start),
            end: end.min(end_of_view),
            write: v.write,
            waits: r.kernel_waits(),
            refuses_clean: r.tracks_by_fault(),
            signals: r.errors_are_sigbus(),
            // The window that comes with each fault takes room as well.
            most: if r.budget == usize::MAX { usize::MAX } else { (r.budget / 2) * PAGE },
        }
    }
}

/// The lowest part of a view in `[start, end)`.
pub fn first(start: usize, end: usize) -> Option<Span> {
    let signals = SignalsBlocked::new();
    let span = views::lowest(&signals, start, end).map(|v| Span::of(&v, start, end));
    drop(signals);
    span.filter(|s| s.start < s.end)
}

/// True when the page at `addr` of a view is here: a touch would fetch nothing.
pub fn is_here(addr: usize) -> bool {
    let _signals = SignalsBlocked::new();
    views::lookup(addr).is_some_and(|v| v.region().is_resident(v.page_at(addr)))
}

/// True when all pages of a part of one view are here.
pub fn all_here(start: usize, end: usize) -> bool {
    let _signals = SignalsBlocked::new();
    let here = |v: &View, at: usize| at < v.start + v.pages.len() * PAGE && v.region().is_resident(v.page_at(at));
    views::lookup(start).is_some_and(|v| (start & !(PAGE - 1)..end).step_by(PAGE).all(|at| here(&v, at.max(start))))
}

/// Brings the pages of `[start, end)` that belong to views, without showing them: the next touch fetches nothing.
/// Waits for the home as a load does, but answers the error.
pub fn bring(start: usize, end: usize) -> Status {
    let mut at = start;
    while at < end {
        let _signals = SignalsBlocked::new();
        if let Some(v) = views::lookup(at) {
            let region = v.region();
            if let Err(s) = region.ensure(v.page_at(at), region.deadline()) {
                return s;
            }
        }
        at = (at & !(PAGE - 1)).saturating_add(PAGE);
    }
    Status::OK
}
