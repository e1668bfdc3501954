//! The simulation with faults: random operations while the link loses, cuts and drops, exporters end and come back, and access
//! is revoked.
//!
//! What must be true: where calls say OK the home equals the model, a load sees what it may see or the error value, and
//! every store that is nowhere is named by the region, never more of the program's bytes than went to a failing page.

mod judge;
mod world;

use crate::cases;
use crate::rig::Bench;
use crate::sim::run::{Plan as Program, Size};
use std::time::{Duration, Instant};
use world::{World, options};

cases!(CASES, "sim",
    faults: Normal, 60;
);

fn faults(b: &Bench) {
    let (start, time) = (Instant::now(), Duration::from_millis(b.ctx.scale(1_000, 15_000, 150_000)));
    let (mut n, mut ends) = (0, [0; 3]);
    while n < 2 || start.elapsed() < time {
        let seed = b.ctx.seed.wrapping_add(n);
        let program = Program::new(seed, Size { home: (64 << 10) + 8 * (n as usize % 2), ops: 300 });
        let mut world = World::new(b.backend, seed, &program);
        let took = Instant::now();
        if let Err(e) = world.run(&program) {
            panic!(
                "seed={seed}: {} embedded={} {:?} options {:?}: {e}",
                world.rig.tag,
                world.embedded,
                world.end,
                options(seed)
            );
        }
        assert!(took.elapsed() < Duration::from_secs(50), "seed={seed}: took {:?}", took.elapsed());
        ends[world.end as usize] += 1;
        n += 1;
    }
    println!(
        "{}: {n} seeds from {}: {} well, {} revoked, {} gone",
        b.backend.name(),
        b.ctx.seed,
        ends[0],
        ends[1],
        ends[2]
    );
}
