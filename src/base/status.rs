//! The one table of result codes: number, name, text. Grouped by what is broken.

/// Result of an operation, as the C API returns it: 0 is success, every other value names one cause.
///
/// A newtype and not an enum: a number from outside stays a number until it is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Status(pub i32);

macro_rules! table {
    ($($(#[$doc:meta])* $name:ident = $num:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($num);)*
            /// Every code this version knows, in order.
            pub const ALL: &'static [Status] = &[$(Status::$name),*];

            /// Name as in `smc.h`, without the `SMC_STATUS_` prefix; `UNKNOWN` for a number this version does not know.
            pub fn name(self) -> &'static str {
                match self.0 { $($num => stringify!($name),)* _ => "UNKNOWN" }
            }

            /// [`Status::name`], NUL-terminated so that C can have it without a copy.
            pub fn name_c(self) -> &'static std::ffi::CStr {
                let s: &'static [u8] = match self.0 { $($num => concat!(stringify!($name), "\0").as_bytes(),)* _ => b"UNKNOWN\0" };
                match std::ffi::CStr::from_bytes_with_nul(s) { Ok(c) => c, Err(_) => c"UNKNOWN" }
            }

            /// One sentence for people, NUL-terminated so that C can have it without a copy.
            pub fn text_c(self) -> &'static std::ffi::CStr {
                let s: &'static [u8] = match self.0 { $($num => concat!($text, "\0").as_bytes(),)* _ => b"unknown status\0" };
                match std::ffi::CStr::from_bytes_with_nul(s) { Ok(c) => c, Err(_) => c"unknown status" }
            }
        }
    };
}

table! {
    /// Success.
    OK = 0, "success";
    /// An argument is outside its documented range; nothing was done.
    INVALID_ARGUMENT = 100, "an argument is outside its documented range";
    /// The call is right but this host, link or build cannot do it.
    NOT_SUPPORTED = 101, "not supported here";
    /// Memory, address space, descriptors or another local resource is exhausted.
    NO_RESOURCES = 102, "a local resource is exhausted";
    /// No exporter offers that name, or no such object is open.
    NOT_FOUND = 103, "no such name";
    /// The name is exported already.
    EXISTS = 104, "the name is taken";
    /// The peer or the operating system refused by permission.
    PERMISSION = 105, "permission denied";
    /// The object is in use and cannot change now.
    BUSY = 106, "in use";
    /// The time given ran out; nothing is known to be lost.
    TIMED_OUT = 107, "the time given ran out";
    /// The calling process is a fork child of the one that made the object.
    FORKED = 108, "the object belongs to the parent process";
    /// The range is not inside one mapped region.
    OUT_OF_RANGE = 200, "the range is not inside one mapped region";
    /// The range holds stores that were not released.
    DIRTY = 201, "the range holds unreleased stores";
    /// The range holds pages that show the error value.
    POISONED = 202, "the range holds pages that could not be fetched";
    /// Stores were given up; the error text names the ranges.
    LOST = 203, "stores were lost";
    /// The link is down; it may come back.
    LINK_DOWN = 300, "the link is down";
    /// The peer process has ended.
    PEER_DEAD = 301, "the exporter has ended";
    /// The exporter has revoked this client's access.
    REVOKED = 302, "the exporter has revoked access";
    /// The peer answered, and refused.
    REFUSED = 303, "the peer refused";
    /// The peer speaks another version or sent nonsense.
    PROTOCOL = 304, "the peer broke the protocol or speaks another version";
    /// The exporter came back with other memory under the same name: map it again.
    STALE = 305, "the exporter came back with other memory";
    /// The operating system refused a call; the error text names it.
    SYSTEM = 400, "the operating system refused a call";
    /// No fault back end works on this host; `smc doctor` says why.
    NO_BACKEND = 401, "no fault back end works on this host";
    /// A bug in libsmc; the error text says where.
    INTERNAL = 402, "internal error";
}

impl Status {
    /// True for [`Status::OK`].
    pub fn is_ok(self) -> bool {
        self == Status::OK
    }

    /// The sentence of [`Status::text_c`] as Rust text.
    pub fn text(self) -> &'static str {
        self.text_c().to_str().unwrap_or("unknown status")
    }

    /// `Ok(())` for success, else the status itself: for code that handles bare statuses with `?`.
    pub fn ok(self) -> std::result::Result<(), Status> {
        if self.is_ok() { Ok(()) } else { Err(self) }
    }

    /// This status, or `next` when this one is OK: the first failure of a sequence.
    #[must_use]
    pub fn and(self, next: Status) -> Status {
        if self.is_ok() { next } else { self }
    }

    /// True when trying again later can help: the region's state machine rides these out.
    pub fn is_transient(self) -> bool {
        matches!(self, Status::LINK_DOWN | Status::TIMED_OUT | Status::BUSY)
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_named() {
        for (i, a) in Status::ALL.iter().enumerate() {
            assert_ne!(a.name(), "UNKNOWN");
            assert!(!a.text().is_empty());
            assert!(Status::ALL.iter().skip(i + 1).all(|b| b.0 != a.0));
        }
        assert_eq!(Status(77777).name(), "UNKNOWN");
        assert_eq!(Status(77777).text(), "unknown status");
    }
}
