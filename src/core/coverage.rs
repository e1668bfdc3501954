//! Which of the names that the preloaded library hooks are really reached by this program, and what follows from that.
//!
//! The hooks register a [`Provider`]: a few plain functions that test and list them. The engine has the test run when the
//! first region is made ([`test()`]); never at load, and never in a process without regions. A name that another library has
//! taken costs what its family says ([`Family::lost`]), and where a call that is not seen would lose data without a word,
//! the way in that depends on it is switched off ([`Off`]): it then answers an error instead.

use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering::*};

macro_rules! kinds {
    ($(#[$doc:meta])* $kind:ident { $($(#[$vdoc:meta])* $name:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum $kind { $($(#[$vdoc])* $name,)* }

        impl $kind {
            /// Every one, in the order of their numbers.
            pub const ALL: &'static [$kind] = &[$($kind::$name),*];

            /// Name in reports.
            pub fn name(self) -> &'static str {
                match self { $($kind::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// What a hooked name belongs to.
    Family {
        /// The heap: passed through, seen only.
        Heap = "heap",
        /// Names under `/smc/`.
        Paths = "paths",
        /// Descriptors of `/smc/` files.
        Files = "files",
        /// Mappings.
        Maps = "maps",
        /// System calls that may meet an absent page of a view in their buffers.
        Buffers = "buffers",
        /// Dispositions and masks of the signals that a back end uses.
        Signals = "signals",
        /// stdio on `/smc/` files.
        Stdio = "stdio",
        /// Lookups by name, and objects opened while the program runs.
        Loader = "loader",
        /// The program's user, groups and capabilities.
        Users = "users",
    }
}

impl Family {
    /// What a program loses with a name of this family that does not reach the library.
    pub fn lost(self) -> &'static str {
        match self {
            Family::Heap => "nothing: the heap is passed through",
            Family::Paths => "the call does not know names under /smc/: it answers ENOENT",
            Family::Files => "the call does not know /smc/ files: it acts on the bare descriptor, or answers EBADF",
            Family::Maps => "the call does not know views of regions",
            Family::Buffers => {
                "the call answers EBADF on a /smc/ file, and EFAULT for a buffer on an absent page unless the back end is thread"
            }
            Family::Signals => {
                "the call acts on the library's own handler: a program that replaces SIGBUS or SIGSEGV by it loses its views, unless the back end is thread"
            }
            Family::Stdio => "streams on /smc/ files cannot be had by this call",
            Family::Loader => "a hooked name that the program asks of a handle is libc's own",
            Family::Users => "the library's threads cannot follow a change of user in steps: libc ends the program",
        }
    }
}

kinds! {
    /// What the self-test has found for one name.
    State {
        /// It has not run.
        Untested = "not tested",
        /// The program's calls reach the hook: one was made, and the hook saw it.
        Fires = "fires",
        /// The name leads to the hook; no harmless call of it exists, so none was made.
        Bound = "bound, not tried",
        /// Another object has the name, and passes the calls on to the hook.
        Forwarded = "forwarded",
        /// Another object has the name, and the hook was not seen to get its calls. A name that cannot be tried counts as such.
        Shadowed = "shadowed",
        /// This libc does not have the function.
        Absent = "absent in this libc",
    }
}

kinds! {
    /// A way in that depends on a hook: without the hook it would lose stores silently, so it is refused.
    Off {
        /// Nothing depends on it.
        Nothing = "nothing",
        /// open, fopen and their relatives of `/smc/` names: EOPNOTSUPP.
        Opening = "opening files under /smc/",
        /// mmap of `/smc/` files: EOPNOTSUPP. read and write work.
        Mapping = "mapping files under /smc/",
    }
}

/// One hook, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The function.
    pub name: &'a str,
    /// What it belongs to.
    pub family: Family,
    /// Every supported libc has it.
    pub required: bool,
    /// What the hook tells the library's tables, and whether before or after the real call; empty for nothing.
    pub announces: &'a str,
    /// What is switched off without it.
    pub needed_by: Off,
    /// What the self-test found.
    pub state: State,
    /// Calls that the library acted on.
    pub hits: u64,
    /// The object that has the name instead; empty when none has.
    pub by: &'a str,
}

impl Row<'_> {
    /// False when the self-test found that calls do not reach the hook.
    pub fn covered(&self) -> bool {
        !matches!(self.state, State::Shadowed | State::Absent)
    }

    /// What is off because of this hook. A function that does not exist is called by nobody.
    pub fn off(&self) -> Off {
        if self.state == State::Shadowed { self.needed_by } else { Off::Nothing }
    }
}

/// What is called with each hook.
pub type Each<'a> = &'a mut dyn FnMut(&Row);

/// What the hooks hand down when they are loaded.
pub struct Provider {
    /// Tests every hook, once.
    pub test: fn(),
    /// Lists every hook.
    pub rows: fn(Each),
    /// Lists why calls were passed through: reason and number of calls.
    pub reasons: fn(&mut dyn FnMut(&'static str, u64)),
}

static PROVIDER: AtomicPtr<Provider> = AtomicPtr::new(std::ptr::null_mut());

/// Told by the hooks when they are loaded. Stores a pointer and does nothing else: libc may not be there yet.
pub fn register(p: &'static Provider) {
    PROVIDER.store(std::ptr::from_ref(p).cast_mut(), Release);
}

fn provider() -> Option<&'static Provider> {
    // SAFETY: null, or what `register` took from a `&'static Provider`.
    unsafe { PROVIDER.load(Acquire).as_ref() }
}

/// True when this process has hooks at all.
pub fn present() -> bool {
    provider().is_some()
}

/// Tests the hooks unless that was done. Takes the loader's lock; not for signal handlers. About 0.3 ms, once.
pub fn test() {
    static ONCE: Once = Once::new();
    if let Some(p) = provider() {
        ONCE.call_once(p.test);
    }
}

/// Calls `f` for every hook. Does not allocate.
pub fn rows(f: Each) {
    if let Some(p) = provider() {
        (p.rows)(f);
    }
}

/// Calls `f` for every reason for passing a call through, with the number of calls. Does not allocate.
pub fn reasons(f: &mut dyn FnMut(&'static str, u64)) {
    if let Some(p) = provider() {
        (p.reasons)(f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_shadowed_hook_switches_off() {
        for state in State::ALL {
            let row = Row {
                name: "munmap",
                family: Family::Maps,
                required: true,
                announces: "",
                needed_by: Off::Mapping,
                state: *state,
                hits: 0,
                by: "",
            };
            assert_eq!(row.off() == Off::Mapping, *state == State::Shadowed, "{}", state.name());
            assert_eq!(row.covered(), !matches!(state, State::Shadowed | State::Absent), "{}", state.name());
        }
    }
}
