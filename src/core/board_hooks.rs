//! The part of the board that is about the process and not about one region: the hooks, and the back end's reason.
//!
//! Words, from the section's start: sequence, hooks, reasons, 1 when this process has hooks; the back end's reason as text;
//! `REASONS` entries of name and count; `HOOKS` entries of name, kind (one byte each: family, state, needed by, required),
//! hits, name of the object that has the name. What does not fit is cut: `hooks` says how many there are.

use super::coverage::{self, Family, Off, Row, State};

const HOOKS: usize = 256;
const REASONS: usize = 16;
const HEAD: usize = 4;
const TEXT: usize = 64;
const NAME: usize = 5;
const REASON: usize = NAME + 1;
const HOOK: usize = NAME + 2 + NAME;
/// Words of the section.
pub(super) const WORDS: usize = HEAD + TEXT + REASONS * REASON + HOOKS * HOOK;

fn put(write: &dyn Fn(usize, u64), at: usize, room: usize, text: &str) {
    for (i, piece) in text.as_bytes().chunks(8).chain(std::iter::repeat(&[][..])).take(room).enumerate() {
        let mut word = [0; 8];
        word.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
        write(at + i, u64::from_ne_bytes(word));
    }
}

fn text(section: &[u64], at: usize, room: usize) -> String {
    let words = section.get(at..at + room).unwrap_or_default();
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes all but the sequence word.
pub(super) fn post(reason: &str, write: &dyn Fn(usize, u64)) {
    put(write, HEAD, TEXT, reason);
    let mut n = 0;
    coverage::reasons(&mut |name, count| {
        let at = HEAD + TEXT + n * REASON;
        if n < REASONS {
            put(write, at, NAME, name);
            write(at + NAME, count);
        }
        n += 1;
    });
    write(2, n.min(REASONS) as u64);
    let mut n = 0;
    coverage::rows(&mut |row| {
        if n < HOOKS {
            post_row(row, HEAD + TEXT + REASONS * REASON + n * HOOK, write);
        }
        n += 1;
    });
    write(1, n as u64);
    write(3, u64::from(coverage::present()));
}

fn post_row(row: &Row, at: usize, write: &dyn Fn(usize, u64)) {
    put(write, at, NAME, row.name);
    let kind = [row.family as u8, row.state as u8, row.needed_by as u8, u8::from(row.required), 0, 0, 0, 0];
    write(at + NAME, u64::from_le_bytes(kind));
    write(at + NAME + 1, row.hits);
    put(write, at + NAME + 2, NAME, row.by);
}

/// One hook, as a reader finds it on a board.
#[derive(Clone, Debug)]
pub struct PostedHook {
    /// The function.
    pub name: String,
    /// What it belongs to.
    pub family: Family,
    /// Every supported libc has it.
    pub required: bool,
    /// What is switched off without it.
    pub needed_by: Off,
    /// What the self-test found.
    pub state: State,
    /// Calls that the library acted on.
    pub hits: u64,
    /// The object that has the name instead; empty when none has.
    pub by: String,
}

impl PostedHook {
    /// The same as the hooks themselves list it.
    pub fn row(&self) -> Row<'_> {
        Row {
            name: &self.name,
            family: self.family,
            required: self.required,
            announces: "",
            needed_by: self.needed_by,
            state: self.state,
            hits: self.hits,
            by: &self.by,
        }
    }
}

/// What a board says of its process.
#[derive(Clone, Debug, Default)]
pub struct PostedCoverage {
    /// The process has hooks: the library is loaded, and not only the engine inside a program.
    pub present: bool,
    /// Why the back end is the one in use.
    pub backend_reason: String,
    /// Why calls were passed through, and how many.
    pub reasons: Vec<(String, u64)>,
    /// The hooks.
    pub hooks: Vec<PostedHook>,
    /// Hooks that found no place on the board.
    pub unlisted: u64,
}

/// Reads a section; `None` while it is being written.
pub(super) fn parse(section: &[u64]) -> Option<PostedCoverage> {
    let word = |i: usize| section.get(i).copied().unwrap_or(0);
    if word(0) % 2 == 1 {
        return None;
    }
    let reason = |i: usize| {
        let at = HEAD + TEXT + i * REASON;
        (text(section, at, NAME), word(at + NAME))
    };
    let hook = |i: usize| {
        let at = HEAD + TEXT + REASONS * REASON + i * HOOK;
        let [family, state, needed, required, ..] = word(at + NAME).to_le_bytes();
        Some(PostedHook {
            name: text(section, at, NAME),
            family: *Family::ALL.get(usize::from(family))?,
            required: required != 0,
            needed_by: *Off::ALL.get(usize::from(needed))?,
            state: *State::ALL.get(usize::from(state))?,
            hits: word(at + NAME + 1),
            by: text(section, at + NAME + 2, NAME),
        })
    };
    Some(PostedCoverage {
        present: word(3) != 0,
        backend_reason: text(section, HEAD, TEXT),
        reasons: (0..(word(2) as usize).min(REASONS)).map(reason).collect(),
        hooks: (0..(word(1) as usize).min(HOOKS)).filter_map(hook).collect(),
        unlisted: word(1).saturating_sub(HOOKS as u64),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::cell::RefCell;

    #[test]
    fn what_is_posted_is_read() {
        let section = RefCell::new(vec![0u64; WORDS]);
        let write = |i: usize, n: u64| section.borrow_mut()[i] = n;
        post("asked for", &write);
        let by = "a-name-that-is-longer-than-forty-bytes-in-all.so";
        let row = Row {
            name: "munmap",
            family: Family::Maps,
            required: true,
            announces: "",
            needed_by: Off::Mapping,
            state: State::Shadowed,
            hits: 7,
            by,
        };
        post_row(&row, WORDS - HOOK, &write);
        write(1, HOOKS as u64 + 2);
        let c = parse(&section.borrow()).unwrap();
        assert_eq!((c.backend_reason.as_str(), c.unlisted, c.present), ("asked for", 2, false));
        let h = c.hooks.last().unwrap();
        assert_eq!((h.name.as_str(), h.hits, h.row().off(), &h.by[..]), ("munmap", 7, Off::Mapping, &by[..40]));
        write(0, 1);
        assert!(parse(&section.borrow()).is_none(), "a section that is being written is read");
    }
}
