//! A subject in plain memory: a page cache with twins over a home, and the flaws an engine could have.

use super::{Dirty, Factory, Subject};
use std::collections::BTreeMap;

const PAGE: usize = smc_engine::base::PAGE;

/// A way to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// Right.
    None,
    /// Eviction drops dirty pages.
    EvictLoses,
    /// A release misses the last page of its range when it is a partial one.
    ReleaseShort,
    /// Write-back sends whole pages, with what others wrote in them meanwhile.
    WholePage,
    /// An acquire drops unreleased stores.
    AcquireDrops,
    /// An acquire keeps what is cached.
    AcquireKeeps,
    /// After a write-back the twin stays what it was: the next one sends the same bytes again.
    TwinStays,
    /// Refetching under a dirty page takes the home's bytes as stores of this node.
    RefetchClaims,
    /// Invalidation drops dirty pages.
    InvalidateDrops,
    /// Atomic additions work on the cached copy.
    AddCached,
    /// The last byte of a store that crosses pages is lost.
    CrossingShort,
}

impl Flaw {
    /// All but [`Flaw::None`].
    pub const ALL: &[Flaw] = &[
        Flaw::EvictLoses,
        Flaw::ReleaseShort,
        Flaw::WholePage,
        Flaw::AcquireDrops,
        Flaw::AcquireKeeps,
        Flaw::TwinStays,
        Flaw::RefetchClaims,
        Flaw::InvalidateDrops,
        Flaw::AddCached,
        Flaw::CrossingShort,
    ];
}

/// Makes [`Cache`]s.
pub struct Reference(pub Flaw);

impl Factory for Reference {
    type Subject = Cache;

    fn fresh(&mut self, home: &[u8]) -> Result<Cache, String> {
        Ok(Cache { flaw: self.0, home: home.to_vec(), pages: BTreeMap::new() })
    }
}

struct Page {
    bytes: Vec<u8>,
    twin: Vec<u8>,
}

impl Page {
    fn dirty(&self) -> bool {
        self.bytes != self.twin
    }
}

/// One node's cache and the home below it.
pub struct Cache {
    flaw: Flaw,
    home: Vec<u8>,
    pages: BTreeMap<usize, Page>,
}

/// Pages that hold any byte of the range.
fn pages(off: usize, len: usize) -> std::ops::Range<usize> {
    off / PAGE..(off + len).div_ceil(PAGE)
}

impl Cache {
    fn span(&self, page: usize) -> std::ops::Range<usize> {
        page * PAGE..((page + 1) * PAGE).min(self.home.len())
    }

    fn page(&mut self, page: usize) -> &mut Page {
        let span = self.span(page);
        let home = &self.home;
        self.pages.entry(page).or_insert_with(|| Page { bytes: home[span.clone()].to_vec(), twin: home[span].to_vec() })
    }

    /// Calls `f` with each piece of the range: the page, where in it, where in the range.
    fn pieces(off: usize, len: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>, std::ops::Range<usize>)> {
        pages(off, len).map(move |p| {
            let (start, end) = (off.max(p * PAGE), (off + len).min((p + 1) * PAGE));
            (p, start - p * PAGE..end - p * PAGE, start - off..end - off)
        })
    }

    fn write_back(&mut self, page: usize) {
        let (span, flaw) = (self.span(page), self.flaw);
        let Some(p) = self.pages.get_mut(&page).filter(|p| p.dirty()) else { return };
        let home = &mut self.home[span];
        for ((h, b), t) in home.iter_mut().zip(&p.bytes).zip(&p.twin) {
            if flaw == Flaw::WholePage || b != t {
                *h = *b;
            }
        }
        if flaw != Flaw::TwinStays {
            p.twin.clone_from(&p.bytes);
        }
    }

    /// Brings a dirty page up to the home without losing its stores.
    fn merge(&mut self, page: usize) {
        let (span, flaw) = (self.span(page), self.flaw);
        let Some(p) = self.pages.get_mut(&page) else { return };
        for ((h, b), t) in self.home[span].iter().zip(&mut p.bytes).zip(&mut p.twin) {
            if *b == *t {
                *b = *h;
            }
            if flaw != Flaw::RefetchClaims {
                *t = *h;
            }
        }
    }

    fn refresh_word(&mut self, off: usize) {
        let word = self.home[off..off + 8].to_vec();
        if let Some(p) = self.pages.get_mut(&(off / PAGE)) {
            let at = off % PAGE..off % PAGE + 8;
            p.bytes[at.clone()].copy_from_slice(&word);
            p.twin[at].copy_from_slice(&word);
        }
    }

    fn word(&self, off: usize) -> u64 {
        self.home.get(off..off + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    fn set_word(&mut self, off: usize, value: u64) {
        self.home[off..off + 8].copy_from_slice(&value.to_le_bytes());
        self.refresh_word(off);
    }
}

impl Subject for Cache {
    fn store(&mut self, off: usize, bytes: &[u8]) -> Result<(), String> {
        let short = self.flaw == Flaw::CrossingShort && pages(off, bytes.len()).len() > 1;
        let bytes = &bytes[..bytes.len() - usize::from(short)];
        Self::pieces(off, bytes.len()).for_each(|(p, at, from)| self.page(p).bytes[at].copy_from_slice(&bytes[from]));
        Ok(())
    }

    fn load(&mut self, off: usize, into: &mut [u8]) -> Result<(), String> {
        Self::pieces(off, into.len()).for_each(|(p, at, to)| into[to].copy_from_slice(&self.page(p).bytes[at]));
        Ok(())
    }

    fn release(&mut self, off: usize, len: usize) -> Result<(), String> {
        let mut range = pages(off, len);
        if self.flaw == Flaw::ReleaseShort && range.len() > 1 {
            range.end = (off + len) / PAGE;
        }
        range.for_each(|p| self.write_back(p));
        Ok(())
    }

    fn flush(&mut self, off: usize, len: usize) -> Result<(), String> {
        pages(off, len).step_by(2).for_each(|p| self.write_back(p));
        Ok(())
    }

    fn acquire(&mut self, off: usize, len: usize) -> Result<(), String> {
        for p in pages(off, len) {
            let dirty = self.pages.get(&p).is_some_and(Page::dirty);
            match self.flaw {
                Flaw::AcquireKeeps => {}
                Flaw::AcquireDrops => drop(self.pages.remove(&p)),
                _ if dirty => self.merge(p),
                _ => drop(self.pages.remove(&p)),
            }
        }
        Ok(())
    }

    fn prefetch(&mut self, off: usize, len: usize) -> Result<(), String> {
        for p in pages(off, len) {
            self.page(p);
        }
        Ok(())
    }

    fn invalidate(&mut self, off: usize, len: usize) -> Result<Result<(), Dirty>, String> {
        let dirty = pages(off, len).any(|p| self.pages.get(&p).is_some_and(Page::dirty));
        if dirty && self.flaw != Flaw::InvalidateDrops {
            return Ok(Err(Dirty));
        }
        pages(off, len).for_each(|p| drop(self.pages.remove(&p)));
        Ok(if dirty { Err(Dirty) } else { Ok(()) })
    }

    fn pressure(&mut self, pages: usize) -> Result<(), String> {
        let victims: Vec<usize> = self.pages.keys().copied().take(pages).collect();
        for p in victims {
            if self.flaw != Flaw::EvictLoses {
                self.write_back(p);
            }
            self.pages.remove(&p);
        }
        Ok(())
    }

    fn fetch_add(&mut self, off: usize, value: u64) -> Result<u64, String> {
        if self.flaw == Flaw::AddCached {
            let mut old = [0; 8];
            self.load(off, &mut old)?;
            let old = u64::from_le_bytes(old);
            self.set_word(off, old.wrapping_add(value));
            return Ok(old);
        }
        let old = self.word(off);
        self.set_word(off, old.wrapping_add(value));
        Ok(old)
    }

    fn compare_swap(&mut self, off: usize, expected: u64, value: u64) -> Result<u64, String> {
        let old = self.word(off);
        if old == expected {
            self.set_word(off, value);
        }
        Ok(old)
    }

    fn store_u64(&mut self, off: usize, value: u64) -> Result<(), String> {
        // Leaves a cached copy old, which the model allows until an acquire.
        self.home[off..off + 8].copy_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn load_u64(&mut self, off: usize) -> Result<u64, String> {
        Ok(self.word(off))
    }

    fn foreign_store(&mut self, off: usize, bytes: &[u8]) -> Result<(), String> {
        self.home[off..off + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn home(&mut self) -> Result<Vec<u8>, String> {
        Ok(self.home.clone())
    }
}
