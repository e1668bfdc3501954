//! Which content a file holds: the number by which clients know that a restarted exporter has what they had.
//!
//! A file that is only read has one made of its place and its time. One that is written gets a number, which is left on the
//! file (an extended attribute, with the file's time) after a complete write-back and taken away when it is served: so it is
//! there only when the file holds what the last exporter held at its end. Where the file system has no such attributes
//! every serving counts as new content.

use crate::os;
use smc_engine::sys::process::random;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

const NAME: &std::ffi::CStr = c"user.smc.incarnation";

/// Place, time and length.
fn stamp(file: &File) -> Option<[u64; 5]> {
    let m = file.metadata().ok()?;
    Some([m.dev(), m.ino(), m.mtime() as u64, m.mtime_nsec() as u64, m.len()])
}

/// The file's number; 0 when nothing is known of its content.
pub fn take(file: &File, writable: bool) -> u64 {
    let Some(now) = stamp(file) else { return 0 };
    if !writable {
        let mix = |h: u64, n: &u64| (h ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        return now.iter().fold(0xcbf2_9ce4_8422_2325, mix).max(1);
    }
    let left = os::attribute(file, NAME).and_then(|b| <[u8; 48]>::try_from(b).ok());
    os::remove_attribute(file, NAME);
    let word = |b: &[u8; 48], i: usize| b.get(i * 8..i * 8 + 8).and_then(|w| w.try_into().ok()).map(u64::from_le_bytes);
    let same = |b: &[u8; 48]| (0..5).all(|i| word(b, i + 1) == now.get(i).copied());
    left.filter(same).and_then(|b| word(&b, 0)).unwrap_or_else(|| random().max(1))
}

/// The file holds all that was served under this number.
pub fn leave(file: &File, incarnation: u64) {
    let Some(now) = stamp(file) else { return };
    let words = std::iter::once(incarnation).chain(now);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    os::set_attribute(file, NAME, &bytes);
}
