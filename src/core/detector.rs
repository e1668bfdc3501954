//! Sequential detector: how many pages a fault brings. Follows several streams at once (threads that walk different parts
//! of a region). Plain arithmetic on atomics; a lost race costs a smaller window and nothing else.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Largest window in pages. Measured over the embedded link on a 2-core virtual machine, where a fault costs 5 us: with 64
/// pages a sequential reader has 0.64 of the bandwidth of one copy and a read, with 256 it has 0.78; 1 MiB is on a
/// 100 Gb/s wire for 84 us, which is what a thread that wants another page of the window waits at most.
pub const MAX_WINDOW: usize = 256;
/// First window after a second fault in sequence.
const FIRST: usize = 16;
/// Streams followed.
const STREAMS: usize = 16;

#[derive(Debug)]
struct Stream {
    /// Page a sequential reader faults on next.
    next: AtomicUsize,
    window: AtomicUsize,
}

/// The read windows of one region.
#[derive(Debug)]
pub struct Detector {
    streams: [Stream; STREAMS],
    /// Stream that is replaced next.
    turn: AtomicUsize,
    max: usize,
}

impl Detector {
    /// `max` 1..=256 pages; 0 means 256.
    pub fn new(max: usize) -> Detector {
        let max = if max == 0 { MAX_WINDOW } else { max.min(MAX_WINDOW) };
        let streams =
            std::array::from_fn(|_| Stream { next: AtomicUsize::new(usize::MAX), window: AtomicUsize::new(1) });
        Detector { streams, turn: AtomicUsize::new(0), max }
    }

    /// The largest window.
    pub fn full(&self) -> usize {
        self.max
    }

    fn following(&self, page: usize) -> Option<&Stream> {
        self.streams.iter().find(|s| s.next.load(Relaxed) == page)
    }

    /// Pages to bring for a fault at `page`, at least `unit` (the region's page unit in pages).
    pub fn window(&self, page: usize, unit: usize) -> usize {
        let Some(s) = self.following(page) else { return unit.max(1) };
        let grown = match s.window.load(Relaxed) {
            0 | 1 => FIRST,
            w => w * 2,
        };
        grown.min(self.max).max(unit)
    }

    /// Notes that `[start, end)` was brought for a fault at `page`: a fault at `end` is then in sequence.
    pub fn brought(&self, page: usize, start: usize, end: usize) {
        let oldest = || self.streams.get(self.turn.fetch_add(1, Relaxed) % STREAMS);
        if let Some(s) = self.following(page).or_else(oldest) {
            s.next.store(end, Relaxed);
            s.window.store(end - start, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(d: &Detector, at: &mut usize) -> usize {
        let w = d.window(*at, 1);
        d.brought(*at, *at, *at + w);
        *at += w;
        w
    }

    #[test]
    fn grows_in_sequence_and_falls_back() {
        let d = Detector::new(0);
        let mut at = 100;
        assert_eq!([(); 6].map(|()| walk(&d, &mut at)), [1, 16, 32, 64, 128, 256]);
        assert_eq!(d.window(7, 1), 1);
        assert_eq!(d.window(7, 512), 512);
        let narrow = Detector::new(4);
        narrow.brought(0, 0, 1);
        assert_eq!(narrow.window(1, 1), 4);
    }

    #[test]
    fn interleaved_streams_keep_their_windows() {
        let d = Detector::new(0);
        let mut at: Vec<usize> = (0..8).map(|i| i * 100_000).collect();
        let mut last = Vec::new();
        for _ in 0..6 {
            last = at.iter_mut().map(|a| walk(&d, a)).collect();
        }
        assert_eq!(last, [256; 8]);
    }
}
