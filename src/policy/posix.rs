//! What POSIX calls mean for the files and mappings of a region.
#![forbid(unsafe_code)]

use super::path::PREFIX;
use super::{Decision, Reason};
use crate::base::Status;
use crate::base::addr::round_up_page;
use crate::link::Access;

/// A call with a path that the file system does not know.
pub fn path_call(disabled: bool, path: &[u8]) -> Decision {
    if disabled {
        Decision::PassThrough(Reason::Disabled)
    } else if path.starts_with(PREFIX) {
        Decision::Handle
    } else {
        Decision::PassThrough(Reason::OtherPath)
    }
}

/// A call with a descriptor.
pub fn file_call(ours: bool) -> Decision {
    if ours { Decision::Handle } else { Decision::PassThrough(Reason::OtherFile) }
}

/// A call with an address range.
pub fn range_call(holds_view: bool) -> Decision {
    if holds_view { Decision::Handle } else { Decision::PassThrough(Reason::OtherRange) }
}

/// What an open file may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode {
    /// read and friends.
    pub read: bool,
    /// write and friends.
    pub write: bool,
    /// Writes go to the end.
    pub append: bool,
}

impl Mode {
    /// Access to ask from the exporter: a file that is never written through asks for no more than reading.
    pub fn access(self) -> Access {
        if self.write { Access::ReadWrite } else { Access::ReadOnly }
    }
}

/// Where a transfer of `want` bytes at `off` ends, given a region of `len` bytes: the number of bytes that can be moved.
/// Reading at the end answers 0. Writing at the end cannot move anything: a region does not grow.
pub fn clamp(off: u64, want: usize, len: u64) -> usize {
    usize::try_from(len.saturating_sub(off)).unwrap_or(usize::MAX).min(want)
}

/// The offset a write starts at.
pub fn write_start(mode: Mode, off: u64, len: u64) -> u64 {
    if mode.append { len } else { off }
}

/// Where a seek goes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// The start.
    Set,
    /// The current offset.
    Cur,
    /// The end.
    End,
    /// The next byte that is data: every byte of a region is.
    Data,
    /// The next hole: the end.
    Hole,
}

/// The new offset of a seek; `None` when it is before the start or not a signed 64-bit number, `Some(Err(()))` when
/// `Data` or `Hole` start beyond the end.
pub fn seek(whence: Whence, by: i64, cur: u64, len: u64) -> Option<Result<u64, ()>> {
    let base = match whence {
        Whence::Set => 0,
        Whence::Cur => cur,
        Whence::End => len,
        Whence::Data | Whence::Hole => {
            let beyond = u64::try_from(by).map_or(true, |o| o >= len);
            return Some(match (beyond, whence) {
                (true, _) => Err(()),
                (false, Whence::Hole) => Ok(len),
                (false, _) => Ok(by.unsigned_abs()),
            });
        }
    };
    base.checked_add_signed(by).filter(|o| i64::try_from(*o).is_ok()).map(Ok)
}

/// What an mmap of a `/smc/` file asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapAsk {
    /// Stores are to reach the file.
    pub shared: bool,
    /// Stores are allowed.
    pub write: bool,
    /// Execution is allowed.
    pub exec: bool,
    /// What the descriptor may do.
    pub mode: Mode,
    /// First byte.
    pub off: u64,
    /// Bytes, as given.
    pub len: usize,
    /// Bytes of the region.
    pub region_len: u64,
}

/// How an mmap is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapPlan {
    /// A view of `len` bytes (whole pages).
    View {
        /// With stores.
        write: bool,
        /// Bytes.
        len: usize,
    },
    /// A private copy, taken now: what POSIX leaves open for MAP_PRIVATE, and the only one a region can give, because its
    /// views share their pages.
    Snapshot {
        /// Bytes, whole pages.
        len: usize,
    },
}

/// Decides an mmap.
///
/// `PERMISSION`: the descriptor was not opened for it, or execution was asked for. `INVALID_ARGUMENT`: no length.
/// `OUT_OF_RANGE`: the offset is not that of a page or the range ends after the region: unlike a file, a region has no
/// tail that reads as zeros.
pub fn map_call(a: MapAsk) -> Result<MapPlan, Status> {
    if a.len == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    if a.exec || !a.mode.read || (a.shared && a.write && !a.mode.write) {
        return Err(Status::PERMISSION);
    }
    let len = round_up_page(a.len).ok_or(Status::NO_RESOURCES)?;
    let end = a.off.checked_add(len as u64).ok_or(Status::OUT_OF_RANGE)?;
    if !a.off.is_multiple_of(crate::base::PAGE as u64) || end > a.region_len {
        return Err(Status::OUT_OF_RANGE);
    }
    if a.write && !a.shared { Ok(MapPlan::Snapshot { len }) } else { Ok(MapPlan::View { write: a.write, len }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RW: Mode = Mode { read: true, write: true, append: false };
    const ASK: MapAsk = MapAsk { shared: true, write: true, exec: false, mode: RW, off: 0, len: 1, region_len: 8192 };

    #[test]
    fn paths() {
        assert_eq!(path_call(false, b"/smc/local/x"), Decision::Handle);
        assert_eq!(path_call(true, b"/smc/local/x"), Decision::PassThrough(Reason::Disabled));
        assert_eq!(path_call(false, b"/smc"), Decision::PassThrough(Reason::OtherPath));
    }

    #[test]
    fn maps() {
        let ro = Mode { write: false, ..RW };
        assert_eq!(map_call(ASK), Ok(MapPlan::View { write: true, len: 4096 }));
        assert_eq!(map_call(MapAsk { shared: false, ..ASK }), Ok(MapPlan::Snapshot { len: 4096 }));
        assert_eq!(map_call(MapAsk { shared: false, mode: ro, ..ASK }), Ok(MapPlan::Snapshot { len: 4096 }));
        assert_eq!(map_call(MapAsk { write: false, mode: ro, ..ASK }), Ok(MapPlan::View { write: false, len: 4096 }));
        assert_eq!(map_call(MapAsk { mode: ro, ..ASK }), Err(Status::PERMISSION));
        assert_eq!(map_call(MapAsk { exec: true, ..ASK }), Err(Status::PERMISSION));
        assert_eq!(map_call(MapAsk { mode: Mode { read: false, ..RW }, ..ASK }), Err(Status::PERMISSION));
        assert_eq!(map_call(MapAsk { len: 0, ..ASK }), Err(Status::INVALID_ARGUMENT));
        assert_eq!(map_call(MapAsk { off: 1, ..ASK }), Err(Status::OUT_OF_RANGE));
        assert_eq!(map_call(MapAsk { off: 4096, len: 4097, ..ASK }), Err(Status::OUT_OF_RANGE));
        assert_eq!(map_call(MapAsk { len: usize::MAX, ..ASK }), Err(Status::NO_RESOURCES));
    }

    #[test]
    fn seeks() {
        use Whence::*;
        assert_eq!(seek(Set, 5, 1, 10), Some(Ok(5)));
        assert_eq!(seek(Cur, -1, 1, 10), Some(Ok(0)));
        assert_eq!(seek(Cur, -2, 1, 10), None);
        assert_eq!(seek(End, 3, 1, 10), Some(Ok(13)));
        assert_eq!(seek(Data, 3, 1, 10), Some(Ok(3)));
        assert_eq!(seek(Hole, 3, 1, 10), Some(Ok(10)));
        assert_eq!(seek(Data, 10, 1, 10), Some(Err(())));
        assert_eq!(seek(Hole, -1, 1, 10), Some(Err(())));
        assert_eq!(seek(Cur, i64::MAX, 1, 10), None);
    }

    #[test]
    fn transfers_stop_at_the_end() {
        assert_eq!(clamp(0, 100, 10), 10);
        assert_eq!(clamp(10, 1, 10), 0);
        assert_eq!(clamp(u64::MAX, 1, 10), 0);
        assert_eq!(write_start(Mode { append: true, ..RW }, 3, 10), 10);
        assert_eq!(write_start(RW, 3, 10), 3);
    }

    proptest! {
        #[test]
        fn a_view_never_leaves_the_region(off in any::<u64>(), len in any::<usize>(), region_len in 0u64..1 << 40, shared: bool, write: bool) {
            if let Ok(MapPlan::View { len, .. } | MapPlan::Snapshot { len }) = map_call(MapAsk { off, len, region_len, shared, write, ..ASK }) {
                prop_assert!(off.checked_add(len as u64).is_some_and(|end| end <= region_len));
            }
        }
    }
}
