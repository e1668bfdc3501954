//! What must be true, byte by byte.

use super::map::{Map, Owner};
use std::collections::BTreeMap;

/// Bytes of a tracking page.
const PAGE: usize = smc_engine::base::PAGE;

/// The state of the world as the memory model has it.
pub struct Model {
    owners: Vec<Owner>,
    /// Local bytes: the last store. Others: the home.
    truth: Vec<u8>,
    /// Local bytes stored since the last release that covered them.
    dirty: Vec<bool>,
    /// Foreign and atomic bytes: values the home had since the last acquire, without the present one.
    older: BTreeMap<usize, Vec<u8>>,
    /// Pages in which a store may have left a mark: since then no release covered the page's whole dirty bytes.
    touched: Vec<bool>,
}

impl Model {
    /// A home with these bytes, nothing cached.
    pub fn new(map: &Map, home: &[u8]) -> Model {
        Model {
            owners: map.owners(),
            truth: home.to_vec(),
            dirty: vec![false; map.len],
            older: BTreeMap::new(),
            touched: vec![false; map.len.div_ceil(PAGE)],
        }
    }

    /// This node stored.
    pub fn store(&mut self, off: usize, bytes: &[u8]) {
        self.truth[off..off + bytes.len()].copy_from_slice(bytes);
        self.dirty[off..off + bytes.len()].fill(true);
        self.touched[off / PAGE..(off + bytes.len()).div_ceil(PAGE)].fill(true);
    }

    /// The home changed, by another node or an atomic operation: loads may still see the older value.
    pub fn change_home(&mut self, off: usize, bytes: &[u8]) {
        for (i, b) in (off..).zip(bytes) {
            let old = std::mem::replace(&mut self.truth[i], *b);
            if old != *b {
                self.older.entry(i).or_default().push(old);
            }
        }
    }

    /// What a byte should be: the last store, or the home's.
    pub fn byte(&self, i: usize) -> u8 {
        self.truth[i]
    }

    /// True when this node stored the byte since the last release that covered it.
    pub fn is_dirty(&self, i: usize) -> bool {
        self.dirty[i]
    }

    /// True when a load may see `b` there.
    pub fn may_be(&self, i: usize, b: u8) -> bool {
        b == self.truth[i] || self.older.get(&i).is_some_and(|old| old.contains(&b))
    }

    /// A store of this node is known to be lost: the byte is the home's again.
    pub fn lose(&mut self, i: usize, home: u8) {
        self.truth[i] = home;
        self.dirty[i] = false;
    }

    /// The word at the home.
    pub fn word(&self, off: usize) -> u64 {
        let bytes = self.truth.get(off..off + 8).and_then(|b| b.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    }

    /// A load in the range sees the present home from now on.
    pub fn acquire(&mut self, off: usize, len: usize) {
        let old: Vec<usize> = self.older.range(off..off + len).map(|(i, _)| *i).collect();
        old.iter().for_each(|i| drop(self.older.remove(i)));
    }

    /// The stores in the range are at the home.
    pub fn release(&mut self, off: usize, len: usize) {
        self.dirty[off..off + len].fill(false);
        for page in off / PAGE..(off + len).div_ceil(PAGE) {
            let bytes = page * PAGE..((page + 1) * PAGE).min(self.dirty.len());
            self.touched[page] = self.touched[page] && self.dirty[bytes].contains(&true);
        }
    }

    /// What an invalidation may answer: `Some(true)` must work, `Some(false)` must find it dirty, `None` either.
    /// A page stays marked by a store of equal bytes or one already written back early, so that both answers hold.
    pub fn invalidation(&self, off: usize, len: usize, home: &[u8]) -> Option<bool> {
        let pages = off / PAGE..(off + len).div_ceil(PAGE);
        let bytes = pages.start * PAGE..(pages.end * PAGE).min(self.truth.len());
        let unsent = |i: usize| self.dirty[i] && self.truth[i] != home[i];
        if bytes.clone().any(unsent) {
            return Some(false);
        }
        (!self.touched[pages].contains(&true)).then_some(true)
    }

    /// `Err` when a load could not have seen these bytes.
    pub fn check_load(&self, off: usize, got: &[u8]) -> Result<(), String> {
        for (i, b) in (off..).zip(got) {
            let older = self.older.get(&i).map(Vec::as_slice).unwrap_or_default();
            if *b != self.truth[i] && !older.contains(b) {
                let also = if older.is_empty() { String::new() } else { format!(" or one of {older:02x?}") };
                return Err(format!(
                    "load of byte {i} ({:?}) saw {b:02x}, expected {:02x}{also}",
                    self.owners[i], self.truth[i]
                ));
            }
        }
        Ok(())
    }

    /// `Err` when the home holds what it must not. Bytes with unreleased stores may be old or new there.
    pub fn check_home(&self, home: &[u8]) -> Result<(), String> {
        if home.len() != self.truth.len() {
            return Err(format!("the home has {} bytes, expected {}", home.len(), self.truth.len()));
        }
        let wrong = |i: &usize| home[*i] != self.truth[*i] && !self.dirty[*i];
        match (0..home.len()).find(wrong) {
            None => Ok(()),
            Some(i) => {
                let n = (i..home.len()).filter(wrong).count();
                let owner = self.owners[i];
                Err(format!(
                    "home byte {i} ({owner:?}) is {:02x}, expected {:02x}; {n} bytes differ",
                    home[i], self.truth[i]
                ))
            }
        }
    }
}
