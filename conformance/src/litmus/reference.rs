//! A world that is small enough to be seen right: per-node write-back caches over one home.
//!
//! Values stay in a node's cache until a release, in random order; loads are served from it until an acquire. So the
//! relaxed outcomes of the catalogue really occur. [`Flaw`]s make it wrong in the ways an engine could be.

use super::{Memory, Placement, Var, World};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// A way to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// Right.
    None,
    /// A release returns without writing back.
    ReleaseForgets,
    /// A release returns before the write-back is done.
    ReleaseEarly,
    /// An acquire keeps cached values.
    AcquireKeeps,
    /// A write-through store stays in the cache.
    ThroughStays,
    /// A write-back sends the whole line, with what others wrote in it meanwhile.
    WholeLine,
    /// An atomic addition is a load and a store.
    AddInPieces,
    /// A compare and swap is a load and a store.
    SwapInPieces,
    /// A cache in front of the home that never relaxes anything: every store is written through, every load fetched.
    /// Not wrong, but a control must call the harness blind on it.
    Strong,
}

/// The reference world.
pub struct Reference {
    /// How it is wrong.
    pub flaw: Flaw,
    /// Decides the order of write-backs.
    pub seed: u64,
}

impl World for Reference {
    type Node = Node;

    fn build(&mut self, nodes: usize, vars: usize, placement: Placement) -> Result<Vec<Node>, String> {
        let home: Arc<[AtomicU64]> = (0..vars).map(|_| AtomicU64::new(0)).collect();
        let late = Arc::new(Mutex::new(Vec::new()));
        let node = |i: usize| Node {
            flaw: self.flaw,
            line: if placement == Placement::Line { vars } else { 1 },
            home: home.clone(),
            late: late.clone(),
            cache: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(self.seed ^ i as u64),
        };
        Ok((0..nodes).map(node).collect())
    }
}

/// A cached value, and whether it waits for a release.
#[derive(Clone, Copy)]
struct Cached {
    value: u64,
    dirty: bool,
}

/// One node.
pub struct Node {
    flaw: Flaw,
    /// Variables per line.
    line: usize,
    home: Arc<[AtomicU64]>,
    /// Write-backs that a too early release left for later.
    late: Arc<Mutex<Vec<(Var, u64)>>>,
    cache: BTreeMap<Var, Cached>,
    rng: fastrand::Rng,
}

impl Node {
    /// Caches the line of `x`: one fetch brings its neighbours too.
    fn fetch(&mut self, x: Var) {
        let first = x / self.line * self.line;
        for y in first..(first + self.line).min(self.home.len()) {
            let value = self.home[y].load(SeqCst);
            self.cache.entry(y).or_insert(Cached { value, dirty: false });
        }
    }

    fn write_back(&mut self) {
        let dirty = |c: &BTreeMap<Var, Cached>, x: &Var| c.get(x).is_some_and(|v| v.dirty);
        let (whole, line) = (self.flaw == Flaw::WholeLine, self.line);
        let lines: Vec<usize> = self.cache.keys().filter(|x| dirty(&self.cache, x)).map(|x| x / line).collect();
        let sent = |x: &Var| if whole { lines.contains(&(x / line)) } else { dirty(&self.cache, x) };
        let mut order: Vec<Var> = self.cache.keys().copied().filter(sent).collect();
        self.rng.shuffle(&mut order);
        for x in order {
            if let Some(c) = self.cache.get_mut(&x) {
                c.dirty = false;
                if self.flaw == Flaw::ReleaseEarly && self.rng.bool() {
                    lock(&self.late).push((x, c.value));
                } else {
                    self.home[x].store(c.value, SeqCst);
                }
            }
        }
    }

    /// An addition or swap at the home makes the cached copy old, unless it is an own unreleased store.
    fn drop_clean(&mut self, x: Var) {
        self.cache.retain(|y, c| *y != x || c.dirty);
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Memory for Node {
    fn store(&mut self, x: Var, value: u64) {
        if self.flaw == Flaw::Strong {
            return self.home[x].store(value, SeqCst);
        }
        // A store to an absent page fetches it first, as a fault does.
        self.fetch(x);
        self.cache.insert(x, Cached { value, dirty: true });
    }

    fn load(&mut self, x: Var) -> u64 {
        if self.flaw == Flaw::Strong {
            return self.home[x].load(SeqCst);
        }
        self.fetch(x);
        self.cache.get(&x).map_or(0, |c| c.value)
    }

    fn store_through(&mut self, x: Var, value: u64) {
        if self.flaw == Flaw::ThroughStays {
            return self.store(x, value);
        }
        self.home[x].store(value, SeqCst);
        self.cache.insert(x, Cached { value, dirty: false });
    }

    fn load_home(&mut self, x: Var) -> u64 {
        self.home[x].load(SeqCst)
    }

    fn release(&mut self) {
        if self.flaw != Flaw::ReleaseForgets {
            self.write_back();
        }
        // What a too early release left arrives some time later, out of order.
        let rng = &mut self.rng;
        lock(&self.late).retain(|(x, v)| {
            let arrives = rng.bool();
            if arrives {
                self.home[*x].store(*v, SeqCst);
            }
            !arrives
        });
    }

    fn acquire(&mut self) {
        if self.flaw != Flaw::AcquireKeeps {
            self.cache.retain(|_, c| c.dirty);
        }
    }

    fn atomic_add(&mut self, x: Var, value: u64) -> u64 {
        self.drop_clean(x);
        if self.flaw == Flaw::AddInPieces {
            let old = self.home[x].load(SeqCst);
            std::thread::yield_now();
            self.home[x].store(old + value, SeqCst);
            return old;
        }
        self.home[x].fetch_add(value, SeqCst)
    }

    fn compare_swap(&mut self, x: Var, expected: u64, value: u64) -> u64 {
        self.drop_clean(x);
        if self.flaw == Flaw::SwapInPieces {
            let old = self.home[x].load(SeqCst);
            std::thread::yield_now();
            if old == expected {
                self.home[x].store(value, SeqCst);
            }
            return old;
        }
        self.home[x].compare_exchange(expected, value, SeqCst, SeqCst).unwrap_or_else(|old| old)
    }

    fn forget(&mut self) {
        self.cache.clear();
        lock(&self.late).clear();
    }

    fn reset_home(&mut self, x: Var, value: u64) {
        self.home[x].store(value, SeqCst);
    }
}
