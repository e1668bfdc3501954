//! stos and movs in all widths, directions, with overlaps, segment overrides, and repeated.

use crate::Rng;
use crate::forms::{Gs, check, content};
use crate::generate::{Case, GS_BASE, state};
use crate::rig::{AREA, Rig};
use iced_x86::{Decoder, DecoderOptions};

fn one(rng: &mut Rng, rig: &Rig, seed: u64) -> u64 {
    let (size, prefix): (u64, &[u8]) =
        [(1, &[][..]), (2, &[0x66][..]), (4, &[][..]), (8, &[0x48][..])][rng.below(4) as usize];
    let movs = rng.one_in(2);
    let rep = rng.below(4);
    let gs = movs && rng.one_in(8);
    let mut bytes = Vec::new();
    if gs {
        bytes.push(0x65);
    }
    match rep {
        0 => {}
        1 => bytes.push(0xf2),
        _ => bytes.push(0xf3),
    }
    bytes.extend(prefix);
    bytes.push(if movs { 0xa4 } else { 0xaa } + u8::from(size > 1));
    let mut s = state(rng, 0);
    let back = rng.one_in(3);
    s.flags |= u64::from(back) << 10;
    let count = if rng.one_in(4) { rng.below(20_000 / size) } else { rng.below(200) };
    s.gpr[1] = if rep == 0 { rng.value() } else { count };
    let room = if rep == 0 { size } else { count * size };
    // The lowest address of the run, then the first element.
    let first = |rng: &mut Rng| {
        let low = rig.base() as u64 + 64 + rng.below(AREA as u64 - room.max(1) - 128);
        if back { low + room.max(size) - size } else { low }
    };
    s.gpr[7] = first(rng);
    let elsewhere: Vec<u8> = (0..room + 2 * size).map(|i| (i * 7 + 3) as u8).collect();
    s.gpr[6] = match rng.below(4) {
        // Overlapping by little, on either side.
        0 => s.gpr[7].wrapping_add(rng.below(80)).wrapping_sub(40),
        1 => first(rng),
        2 => elsewhere.as_ptr() as u64 + if back { room.max(size) - size } else { 0 },
        _ => s.gpr[7].wrapping_add(rng.below(4000)).wrapping_sub(2000),
    };
    let reach = |first: u64| if back { first.wrapping_sub(room) } else { first };
    let inside = |a: u64| a >= rig.base() as u64 + 8 && a + room + 8 < (rig.base() + AREA) as u64;
    if movs && !inside(reach(s.gpr[6])) && !elsewhere.as_ptr_range().contains(&(s.gpr[6] as *const u8)) {
        return 0;
    }
    if gs {
        s.gpr[6] = s.gpr[6].wrapping_sub(GS_BASE);
    }
    let ins = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE).decode();
    let c = Case { bytes, ins, state: s };
    check(rig, 64, &c, content(rng), 0, seed)
}

#[test]
fn strings_agree_with_the_processor() {
    let rig = Rig::new();
    let _gs = Gs::set();
    let mut rng = Rng::new("strings");
    let mut faults = 0;
    for _ in 0..4000 {
        let seed = rng.0;
        faults += one(&mut rng, &rig, seed);
    }
    assert!(faults > 2000, "{faults}");
}
