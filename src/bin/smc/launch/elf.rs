//! What an ELF file says to the kernel and to the loader.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The parts of an ELF file that decide whether a library can be preloaded into it.
#[derive(Default)]
pub struct Elf {
    /// 64-bit, little endian, x86-64.
    pub ours: bool,
    /// In words: `32-bit x86`, `aarch64`.
    pub machine: String,
    /// PT_INTERP: the loader the kernel starts. `None`: the file is static, or a loader or library itself.
    pub loader: Option<String>,
    /// DT_NEEDED.
    pub needed: Vec<String>,
    /// DT_SONAME.
    pub soname: Option<String>,
}

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;

/// A program header.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

fn number(b: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut w = [0u8; 8];
    w.get_mut(..len)?.copy_from_slice(b.get(at..at.checked_add(len)?)?);
    Some(u64::from_le_bytes(w))
}

/// At most `len` bytes from `at` on.
fn bytes(f: &File, at: u64, len: u64) -> Option<Vec<u8>> {
    let mut b = vec![0u8; usize::try_from(len.min(1 << 20)).ok()?];
    let n = f.read_at(&mut b, at).ok()?;
    b.truncate(n);
    Some(b)
}

/// The text that starts at `at`.
fn text(f: &File, at: u64) -> Option<String> {
    let b = bytes(f, at, 4096)?;
    Some(String::from_utf8_lossy(b.split(|c| *c == 0).next()?).into_owned())
}

fn machine(bits: Option<&u8>, order: Option<&u8>, number: u64) -> String {
    let name = match number {
        3 => "x86",
        8 => "MIPS",
        20 | 21 => "PowerPC",
        22 => "S/390",
        40 => "ARM",
        62 => "x86-64",
        183 => "ARM64",
        243 => "RISC-V",
        258 => "LoongArch",
        n => return format!("machine {n}"),
    };
    let bits = if bits == Some(&1) { "32-bit " } else { "" };
    let order = if order == Some(&2) { "big-endian " } else { "" };
    format!("{bits}{order}{name}")
}

fn segments(f: &File, head: &[u8]) -> Option<Vec<Segment>> {
    let (at, size, count) = (number(head, 32, 8)?, number(head, 54, 2)?, number(head, 56, 2)?);
    let table = bytes(f, at, size * count)?;
    let step = usize::try_from(size).ok().filter(|s| *s >= 56)?;
    let one = |h: &[u8]| {
        Some(Segment {
            kind: number(h, 0, 4)?,
            offset: number(h, 8, 8)?,
            address: number(h, 16, 8)?,
            size: number(h, 32, 8)?,
        })
    };
    table.chunks_exact(step).map(one).collect()
}

/// Offset in the file of what lies at `address` in memory.
fn offset_of(all: &[Segment], address: u64) -> Option<u64> {
    let holds = |s: &&Segment| s.kind == PT_LOAD && address.checked_sub(s.address).is_some_and(|by| by < s.size);
    all.iter().find(holds).map(|s| s.offset.wrapping_add(address - s.address))
}

fn dynamic(f: &File, all: &[Segment], elf: &mut Elf) -> Option<()> {
    let at = all.iter().find(|s| s.kind == PT_DYNAMIC)?;
    let table = bytes(f, at.offset, at.size)?;
    let entries: Vec<(u64, u64)> = table
        .chunks_exact(16)
        .filter_map(|e| Some((number(e, 0, 8)?, number(e, 8, 8)?)))
        .take_while(|e| e.0 != 0)
        .collect();
    let strings = offset_of(all, entries.iter().find(|e| e.0 == DT_STRTAB)?.1)?;
    let of = |kind| entries.iter().filter(move |e| e.0 == kind).filter_map(|e| text(f, strings.checked_add(e.1)?));
    elf.needed = of(DT_NEEDED).collect();
    elf.soname = of(DT_SONAME).next();
    Some(())
}

/// Reads the file; `None` for something else than ELF.
pub fn read(f: &File) -> Option<Elf> {
    let head = bytes(f, 0, 64)?;
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    let kind = number(&head, 18, 2).unwrap_or(0);
    let order = head.get(5);
    let number = if order == Some(&2) { u64::from((kind as u16).swap_bytes()) } else { kind };
    let machine = machine(head.get(4), order, number);
    let mut elf = Elf { ours: head.get(4..6) == Some(&[2, 1]) && kind == 62, machine, ..Elf::default() };
    if elf.ours {
        let all = segments(f, &head).unwrap_or_default();
        elf.loader = all.iter().find(|s| s.kind == PT_INTERP).and_then(|s| text(f, s.offset));
        // A file without a dynamic section names nothing.
        let _ = dynamic(f, &all, &mut elf);
    }
    Some(elf)
}
