//! The C library's memcpy, memmove and memset onto write-protected memory: no store may need a single step.

use crate::Rng;
use crate::rig::{AREA, Rig};
use std::ffi::c_void;

const LARGEST: usize = 20_000;
/// Names a variant to the child process that runs it.
const CHILD: &str = "SMC_TEST_LIBC_STEP";

/// One call of each function with this size and these alignments.
fn sizes(rig: &Rig, size: usize, dst: usize, src: usize, source: &[u8], shadow: &mut [u8]) -> u64 {
    let base = rig.base() as *mut u8;
    let mut faults = 0;
    let mut same = |what: &str, tally: crate::rig::Tally, shadow: &[u8]| {
        assert_eq!(tally.steps, 0, "{what} of {size} bytes at +{dst}: {tally:?}");
        assert!(rig.content() == shadow, "{what} of {size} bytes at +{dst}: wrong content");
        faults += tally.faults;
    };
    let tally = rig.under(true, || {
        // SAFETY: dst + size and from + size lie in the area, src + size in the source.
        unsafe {
            libc::memcpy(base.wrapping_add(dst).cast(), source.as_ptr().wrapping_add(src).cast::<c_void>(), size)
        };
    });
    shadow[dst..dst + size].copy_from_slice(&source[src..src + size]);
    same("memcpy", tally, shadow);
    let byte = (size % 251) as u8;
    let tally = rig.under(true, || {
        // SAFETY: dst + size and from + size lie in the area, src + size in the source.
        unsafe { libc::memset(base.wrapping_add(dst).cast(), i32::from(byte), size) };
    });
    shadow[dst..dst + size].fill(byte);
    same("memset", tally, shadow);
    // Within the area, so that source and destination overlap.
    let from = dst + src;
    let tally = rig.under(true, || {
        // SAFETY: dst + size and from + size lie in the area, src + size in the source.
        unsafe { libc::memmove(base.wrapping_add(dst).cast(), base.wrapping_add(from).cast::<c_void>(), size) };
    });
    shadow.copy_within(from..from + size, dst);
    same("memmove", tally, shadow);
    faults
}

fn run(step: usize) {
    let rig = Rig::new();
    let mut rng = Rng::new("libc");
    let source: Vec<u8> = (0..LARGEST + 8192).map(|_| rng.bits() as u8).collect();
    let mut shadow = rig.content();
    let (mut faults, mut size) = (0, 0);
    while size <= LARGEST {
        let dst = 4096 + if rng.one_in(3) { 64 * rng.below(16) } else { rng.below(4096) } as usize;
        let src = if rng.one_in(3) { dst % 64 } else { rng.below(3000) as usize };
        assert!(dst + src + size <= AREA);
        faults += sizes(&rig, size, dst, src, &source, &mut shadow);
        size += if size < 600 { 1 } else { step };
    }
    println!("{faults} faults");
    assert!(faults > 1000);
}

#[test]
fn memcpy_memmove_memset_of_every_size() {
    run(std::env::var(CHILD).ok().and_then(|s| s.parse().ok()).unwrap_or(1));
}

/// The same with the implementations the C library has for other processors, in child processes.
#[test]
fn the_other_implementations_too() {
    const VARIANTS: &[&str] = &[
        "glibc.cpu.hwcaps=-AVX512F,-AVX512VL",
        "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX_Fast_Unaligned_Load,-AVX",
        "glibc.cpu.hwcaps=-ERMS,-FSRM",
        "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-SSSE3,-ERMS,-FSRM,-Fast_Unaligned_Copy",
        "glibc.cpu.hwcaps=Prefer_ERMS,Prefer_FSRM",
        "glibc.cpu.x86_non_temporal_threshold=0x4040",
        "glibc.cpu.x86_rep_movsb_threshold=512:glibc.cpu.x86_rep_stosb_threshold=512",
    ];
    for v in VARIANTS {
        let out = std::process::Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "libc_copies::memcpy_memmove_memset_of_every_size", "--nocapture"])
            .env("GLIBC_TUNABLES", v)
            .env(CHILD, "97")
            .output()
            .expect("child");
        assert!(
            out.status.success(),
            "{v}:\n{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
}
