//! Seeded runs of random operations against a byte-exact model of the home.
//!
//! One seed decides the owners of the bytes ([`map`]), the operations ([`ops`]) and so everything. The [`model`] says
//! what each operation may answer and what the home must hold; [`run`] compares, and on a difference shrinks the
//! list of operations. The thing under test is a [`Subject`]; [`mod@reference`] is one with switchable flaws, each of
//! which must be caught.
//!
//! The program is free of data races: a byte has one writer, this node or the other ones, so every answer is known
//! exactly or is one of few. Owners change every few bytes, so pages and lines are shared all the same.

pub mod map;
pub mod model;
pub mod ops;
pub mod reference;
pub mod run;

/// Why [`Subject::invalidate`] did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirty;

/// A region under test, as one node sees it, and its home, as the test sees it. Offsets are bytes from the start.
/// An `Err` text of any operation is a failure: the simulation asks for nothing that may be refused.
pub trait Subject {
    /// Plain stores.
    fn store(&mut self, off: usize, bytes: &[u8]) -> Result<(), String>;
    /// Plain loads.
    fn load(&mut self, off: usize, into: &mut [u8]) -> Result<(), String>;
    /// All stores in the range are at the home when this returns.
    fn release(&mut self, off: usize, len: usize) -> Result<(), String>;
    /// Starts write-back of the range.
    fn flush(&mut self, off: usize, len: usize) -> Result<(), String>;
    /// Later loads in the range see the home as of this call or later; own unreleased stores survive.
    fn acquire(&mut self, off: usize, len: usize) -> Result<(), String>;
    /// A hint that the range will be loaded.
    fn prefetch(&mut self, off: usize, len: usize) -> Result<(), String>;
    /// Drops the clean pages of the range, or does nothing because one is dirty.
    fn invalidate(&mut self, off: usize, len: usize) -> Result<Result<(), Dirty>, String>;
    /// Makes local memory scarce for a moment: about this many pages must go.
    fn pressure(&mut self, pages: usize) -> Result<(), String>;
    /// Adds at the home to the aligned word at `off`; the value before.
    fn fetch_add(&mut self, off: usize, value: u64) -> Result<u64, String>;
    /// Compares and swaps at the home; the value before.
    fn compare_swap(&mut self, off: usize, expected: u64, value: u64) -> Result<u64, String>;
    /// Stores the word at the home.
    fn store_u64(&mut self, off: usize, value: u64) -> Result<(), String>;
    /// Loads the word at the home.
    fn load_u64(&mut self, off: usize) -> Result<u64, String>;
    /// Another node's store, at the home at once.
    fn foreign_store(&mut self, off: usize, bytes: &[u8]) -> Result<(), String>;
    /// The home's bytes now, past every cache.
    fn home(&mut self) -> Result<Vec<u8>, String>;
}

/// Makes fresh subjects, so that a shorter list of operations can be tried from the start.
pub trait Factory {
    /// What it makes.
    type Subject: Subject;
    /// A subject whose home holds these bytes and whose node holds nothing.
    fn fresh(&mut self, home: &[u8]) -> Result<Self::Subject, String>;
}
