//! `LIBSMC_CHILDREN=clean`: the program sees the environment as it would be without the library, and so do the programs it
//! starts.
//!
//! The loader has read LD_PRELOAD by then, and libc has not started: its `environ` is this very array. `smc run` puts what
//! it adds behind a line of its own, [`MARK`], and for each variable that it changes in place the old line behind
//! [`WAS`]; so the old array is there, in its order. Without `smc run` the library's name is cut out of LD_PRELOAD.
//!
//! Behind the array's NULL the kernel has put the auxiliary vector, and some programs (Go's runtime) find it by walking
//! there. What is taken off the end is therefore an even number of entries, which become entries of that vector that mean
//! nothing.

use libc::c_char;
use std::ffi::CStr;

/// From here on the lines are those of `smc run`.
pub const MARK: &[u8] = b"LIBSMC_RUN=clean";
/// Before the old line of a variable.
pub const WAS: &[u8] = b"LIBSMC_WAS_";
/// `LD_PRELOAD=`.
const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// The environment of this process, from its first entry to the NULL.
pub struct Environment {
    first: *mut *const c_char,
    len: usize,
}

impl Environment {
    /// # Safety
    /// `first` is a NULL-terminated array of strings that nobody else uses meanwhile.
    pub unsafe fn new(first: *mut *const c_char) -> Environment {
        let mut e = Environment { first, len: 0 };
        while !e.pointer(e.len).is_null() {
            e.len += 1;
        }
        e
    }

    fn pointer(&self, i: usize) -> *const c_char {
        // SAFETY: i is not beyond the NULL: `new` stops there, and the others ask below `len`.
        unsafe { *self.first.wrapping_add(i) }
    }

    fn put(&mut self, i: usize, p: *const c_char) {
        // SAFETY: i is not beyond the NULL, as its callers see to.
        unsafe { *self.first.wrapping_add(i) = p }
    }

    fn line(&self, i: usize) -> &CStr {
        // SAFETY: an entry below `len` is a string, as the caller of `new` vouches.
        unsafe { CStr::from_ptr(self.pointer(i)) }
    }

    /// Every line.
    pub fn lines(&self) -> impl Iterator<Item = &CStr> {
        (0..self.len).map(|i| self.line(i))
    }

    fn find(&self, fits: impl Fn(&[u8]) -> bool) -> Option<usize> {
        (0..self.len).find(|i| fits(self.line(*i).to_bytes()))
    }

    /// Ends the array `by` entries earlier; `by` is even.
    fn shorten(&mut self, by: usize) {
        let old = self.len;
        self.len = old - by;
        self.put(self.len, std::ptr::null());
        for i in self.len + 1..=old {
            let pair = (i - self.len) % 2 == 1;
            self.put(i, if pair { libc::AT_IGNORE as *const c_char } else { std::ptr::null() });
        }
    }

    /// Takes back what `smc run` has done. True when it has done anything.
    pub fn restore(&mut self) -> bool {
        let Some(mark) = self.find(|l| l == MARK) else { return false };
        for i in mark..self.len {
            if !self.line(i).to_bytes().starts_with(WAS) {
                continue;
            }
            let old = self.pointer(i).wrapping_add(WAS.len());
            // SAFETY: the rest of a string is a string.
            let line = unsafe { CStr::from_ptr(old) }.to_bytes();
            let name = line.split_inclusive(|b| *b == b'=').next().unwrap_or(line);
            for j in 0..mark {
                if self.line(j).to_bytes().starts_with(name) {
                    self.put(j, old);
                }
            }
        }
        let by = self.len - mark;
        if by.is_multiple_of(2) {
            self.shorten(by);
        }
        true
    }

    /// Cuts the library out of LD_PRELOAD. When nothing else is in it, it and the line that asks for this go.
    pub fn forget_library(&mut self, asked: &[u8]) {
        let Some(at) = self.find(|l| l.starts_with(PRELOAD)) else { return };
        let len = self.line(at).to_bytes().len() - PRELOAD.len();
        let text = self.pointer(at).cast_mut().wrapping_add(PRELOAD.len()).cast();
        // SAFETY: the value and its NUL; the kernel has put the strings into writable memory, and nobody reads them now.
        if cut(unsafe { std::slice::from_raw_parts_mut(text, len + 1) }) {
            return;
        }
        for gone in [PRELOAD, asked] {
            if let Some(at) = self.find(|l| l.starts_with(gone)) {
                (at..self.len).for_each(|i| self.put(i, self.pointer(i + 1)));
                self.len -= 1;
            }
        }
        // The two NULLs at the end are a pair already: the first ends the array, the second is where it ended before.
        self.len += 2;
        self.shorten(2);
    }
}

/// A name of this library, with or without directories.
fn is_ours(name: &[u8]) -> bool {
    let base = name.rsplit(|b| *b == b'/').next().unwrap_or(name);
    base.strip_prefix(b"libsmc.so").is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
}

/// Takes the library out of a list with its NUL; false when nothing else was in it.
fn cut(list: &mut [u8]) -> bool {
    let (mut to, mut from) = (0, 0);
    let mut put = |list: &mut [u8], b: u8| {
        if let Some(place) = list.get_mut(to) {
            *place = b;
            to += 1;
        }
        to
    };
    let mut written = 0;
    while let Some(len) = list.get(from..).and_then(|l| l.iter().position(|b| matches!(b, b':' | b' ' | 0))) {
        let name = from..from + len;
        if len > 0 && list.get(name.clone()).is_some_and(|n| !is_ours(n)) {
            if written > 0 {
                // The separator before it.
                let b = list.get(from - 1).copied().unwrap_or(b':');
                put(list, b);
            }
            for i in name {
                let b = list.get(i).copied().unwrap_or(0);
                written = put(list, b);
            }
        }
        from += len + 1;
    }
    put(list, 0);
    written > 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// The array with what the kernel puts behind it, and where the auxiliary vector starts.
    struct Stack {
        _strings: Vec<Vec<u8>>,
        words: Vec<*const c_char>,
    }

    const AUX: [usize; 4] = [libc::AT_PAGESZ as usize, 4096, 0, 0];

    impl Stack {
        fn new(lines: &[&str]) -> Stack {
            let mut strings: Vec<Vec<u8>> = lines.iter().map(|l| [l.as_bytes(), b"\0"].concat()).collect();
            let ends = AUX.map(|n| n as *const c_char);
            let words = strings
                .iter_mut()
                .map(|s| s.as_mut_ptr().cast_const().cast())
                .chain([std::ptr::null()])
                .chain(ends)
                .collect();
            Stack { _strings: strings, words }
        }

        fn environment(&mut self) -> Environment {
            // SAFETY: the array and its strings live in self.
            unsafe { Environment::new(self.words.as_mut_ptr()) }
        }

        /// The lines up to the NULL, and the first pair of the auxiliary vector behind it that means something.
        fn seen(&self) -> (Vec<String>, [usize; 2]) {
            let end = self.words.iter().position(|w| w.is_null()).unwrap();
            // SAFETY: entries before the NULL are strings.
            let text = |w: &*const c_char| unsafe { CStr::from_ptr(*w) }.to_str().unwrap().to_owned();
            let rest: Vec<usize> = self.words[end + 1..].iter().map(|w| w.addr()).collect();
            let pair = rest.chunks(2).find(|p| p[0] != libc::AT_IGNORE as usize).unwrap();
            (self.words[..end].iter().map(text).collect(), [pair[0], pair[1]])
        }
    }

    #[test]
    fn what_smc_run_added_is_taken_back() {
        for (lines, left) in [
            (&["A=1", "LIBSMC_RUN=clean", "LD_PRELOAD=/x/libsmc.so"][..], &["A=1"][..]),
            (&["LIBSMC_RUN=clean", "LD_PRELOAD=/x/libsmc.so"], &[]),
            (
                &[
                    "LD_PRELOAD=o:b",
                    "LIBSMC_WAIT=9",
                    "Z=",
                    "LIBSMC_RUN=clean",
                    "LIBSMC_WAS_LD_PRELOAD=b",
                    "LIBSMC_WAS_LIBSMC_WAIT=",
                    "LIBSMC_LOG=off",
                ],
                &["LD_PRELOAD=b", "LIBSMC_WAIT=", "Z="],
            ),
        ] {
            let mut s = Stack::new(lines);
            assert!(s.environment().restore());
            assert_eq!(s.seen(), (left.iter().map(|l| (*l).to_owned()).collect(), [6, 4096]), "{lines:?}");
        }
        // An odd number would move the vector by half a pair: then the lines stay.
        let mut s = Stack::new(&["A=1", "LIBSMC_RUN=clean"]);
        assert!(s.environment().restore());
        assert_eq!(s.seen().0.len(), 2);
        assert!(!Stack::new(&["A=1"]).environment().restore());
    }

    #[test]
    fn the_library_is_cut_out() {
        for (lines, left) in [
            (&["A=1", "LD_PRELOAD=/x/libsmc.so.1", "B=2", "ASKED=1"][..], &["A=1", "B=2"][..]),
            (&["ASKED=1", "LD_PRELOAD=libsmc.so"], &[]),
            (&["ASKED=1", "LD_PRELOAD=libsmc.so:libm.so.6"], &["ASKED=1", "LD_PRELOAD=libm.so.6"]),
            (&["ASKED=1", "LD_PRELOAD=a /b/libsmc.so:c:libsmc.so.1"], &["ASKED=1", "LD_PRELOAD=a:c"]),
            (&["ASKED=1", "LD_PRELOAD=/libsmc.so/a:libsmc.sox"], &["ASKED=1", "LD_PRELOAD=/libsmc.so/a:libsmc.sox"]),
        ] {
            let mut s = Stack::new(lines);
            s.environment().forget_library(b"ASKED=");
            assert_eq!(s.seen(), (left.iter().map(|l| (*l).to_owned()).collect(), [6, 4096]), "{lines:?}");
        }
    }
}
