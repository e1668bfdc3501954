//! Pure decisions: what a call means, from plain values to plain values. No unsafe, no input or output, no clock, no libc.
#![forbid(unsafe_code)]

pub mod path;
pub mod posix;

use crate::base::Status;
use crate::base::stats::Counter;

/// What a hook does with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The library does it.
    Handle,
    /// The real function gets it unchanged, and this is why.
    PassThrough(Reason),
    /// Nobody does it; the caller gets an error.
    Refuse(Status),
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        /// Why a call went to the real function. Each has one counter in [`ReasonCounts`].
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Reason { $($(#[doc = $doc])* $name,)* }

        impl Reason {
            /// Every reason, in the order of the counters.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// Name in reports.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// `LIBSMC_DISABLE=1`.
    Disabled = "disabled",
    /// The path does not start with `/smc/`, or the file system has something of that name.
    OtherPath = "other_path",
    /// The descriptor is not one of a `/smc/` file.
    OtherFile = "other_file",
    /// No byte of the range belongs to a view.
    OtherRange = "other_range",
}

/// One counter per reason. Only calls that the hooks had to look at are counted: those that a process without regions
/// makes cost one load and leave no trace.
#[derive(Debug)]
pub struct ReasonCounts([Counter; Reason::ALL.len()]);

impl ReasonCounts {
    /// All zero.
    pub const fn new() -> ReasonCounts {
        ReasonCounts([const { Counter::new() }; Reason::ALL.len()])
    }

    /// Counts one call.
    pub fn hit(&self, r: Reason) {
        if let Some(c) = self.0.get(r as usize) {
            c.hit();
        }
    }

    /// Calls counted so far.
    pub fn get(&self, r: Reason) -> u64 {
        self.0.get(r as usize).map_or(0, Counter::get)
    }
}

impl Default for ReasonCounts {
    fn default() -> ReasonCounts {
        ReasonCounts::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_counter() {
        let counts = ReasonCounts::new();
        for (i, r) in Reason::ALL.iter().enumerate() {
            for _ in 0..=i {
                counts.hit(*r);
            }
        }
        for (i, r) in Reason::ALL.iter().enumerate() {
            assert_eq!(counts.get(*r), i as u64 + 1, "{}", r.name());
        }
    }
}
