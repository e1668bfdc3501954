//! Pages written before they were ever read: the home gets exactly these bytes, whatever the unit and the page size.

use crate::cases;
use crate::rig::setting::Changed;
use crate::rig::{self, Bench, Home, POLICIES, policy};
use crate::runner::{Case, Cost, Ctx, Need, Verdict};
use smc_engine::base::PAGE;
use smc_engine::base::config::Backend;
use smc_engine::core::options::{MapOptions, Policy};

cases!(CASES, "paging",
    writes_before_reads: Normal, 60;
);

/// The same where the kernel gives huge pages to everyone.
pub const HUGE: &[Case] = &[
    huge("paging_writes_before_reads_huge_thread", |c| with_huge_pages(c, Backend::Thread)),
    huge("paging_writes_before_reads_huge_sigbus", |c| with_huge_pages(c, Backend::Sigbus)),
    huge("paging_writes_before_reads_huge_sync", |c| with_huge_pages(c, Backend::Sync)),
    huge("paging_writes_before_reads_huge_mprotect", |c| with_huge_pages(c, Backend::Mprotect)),
];

const fn huge(name: &'static str, run: fn(&mut Ctx) -> Verdict) -> Case {
    Case::new(name, run).needs(&[Need::Root]).cost(Cost::Normal).timeout(120)
}

fn with_huge_pages(ctx: &mut Ctx, backend: Backend) -> Verdict {
    let always = |file: &str| Changed::to(&format!("/sys/kernel/mm/transparent_hugepage/{file}"), "always");
    // Memory of views is shared; of twins, private. Kernels without the first setting have the second.
    let shared = always("shmem_enabled");
    match always("enabled") {
        Ok(_anonymous) => {
            println!("huge pages for shared memory: {}", if shared.is_ok() { "always" } else { "as they were" });
            rig::on(ctx, backend, 0, writes_before_reads)
        }
        Err(e) => Verdict::Skip(format!("huge pages cannot be set to always: {e}")),
    }
}

const UNIT: usize = 2 << 20;

/// Two units of 2 MiB; the pages looked at lie at the front of each.
fn writes_before_reads(b: &Bench) {
    for unit in [PAGE, UNIT] {
        for p in POLICIES {
            for make in [Home::loopback, Home::embedded] {
                let home = make(2 * UNIT, b.ctx.seed);
                let mut want: Vec<u8> = (0..2 * UNIT).map(|i| (i / 8 % 251) as u8).collect();
                home.poke(0, &want);
                let opts = MapOptions { page_unit: unit, ..policy(p) };
                let r = b.rig(home, opts);
                for base in [0, UNIT] {
                    let mut put = |at: usize, bytes: &[u8]| {
                        r.store_bytes(base + at, bytes);
                        want[base + at..base + at + bytes.len()].copy_from_slice(bytes);
                    };
                    [0, 1, 63].into_iter().for_each(|page| put(page * PAGE + 40, &[0xA0 + page as u8]));
                    assert_eq!(r.load8(base + 5 * PAGE), ((base + 5 * PAGE) / 8 % 251) as u8, "{} unit {unit}", r.tag);
                    put(5 * PAGE, &[0x55]);
                    put(8 * PAGE - 900, &(0..1800u32).map(|i| (i % 250 + 3) as u8).collect::<Vec<_>>());
                }
                // What others store meanwhile stays: on pages not written, and byte by byte on those that were.
                let others: &[usize] = if p == Policy::Byte { &[2, 30, 62, 64, 0, 63] } else { &[2, 30, 62, 64] };
                for page in others {
                    let at = UNIT + page * PAGE + 2000;
                    r.home.poke(at, &[0xEE, 0xEF]);
                    want[at..at + 2].copy_from_slice(&[0xEE, 0xEF]);
                }
                r.release();
                let got = r.home.bytes(0, 2 * UNIT);
                let wrong = (0..2 * UNIT).find(|i| got[*i] != want[*i]);
                let at = wrong.map(|i| (i / PAGE, i % PAGE, got[i], want[i]));
                assert_eq!(at, None, "{} unit {unit}: page, offset, the home's byte, what it should be", r.tag);
            }
        }
    }
}
