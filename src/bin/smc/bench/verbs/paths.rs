//! The two loads, each over the three paths.

use super::LEN;
use super::peer::Peer;
use crate::bench::Plan;
use crate::bench::report::{On, Report, Samples, Target};
use crate::bench::rig::{Home, Rng, fill, policy, store64, time};
use smc_engine::base::Result;
use smc_engine::core::options::Policy;
use smc_engine::link::verbs::Verb;

/// Times something that may fail.
pub fn timed(f: impl FnOnce() -> Result<()>) -> Result<f64> {
    let mut r = Ok(());
    let ns = time(|| r = f());
    r.map(|()| ns)
}

/// What each round of a path took: filling and sending, and sending alone.
#[derive(Default)]
struct Rounds {
    whole: Vec<f64>,
    sending: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, fill_ns: f64, send_ns: f64) {
        self.whole.push(LEN as f64 / (fill_ns + send_ns) * 1e9);
        self.sending.push(send_ns);
    }

    /// Bandwidth and latency, without the first ten rounds, whose pages are not hot yet.
    fn samples(&self) -> [Samples; 2] {
        [&self.whole, &self.sending].map(|v| Samples::new(v.iter().copied().skip(10).collect()))
    }
}

/// The processor fills 4 MiB and makes them readable at the home.
pub fn bulk(plan: &Plan, report: &mut Report, home: &Home, peer: &mut Peer, on: On) -> Result<()> {
    let rig = home.map(None, policy(Policy::Page))?;
    let bytes = home.map(None, policy(Policy::Byte))?;
    rig.touch_all();
    bytes.touch_all();
    let mut all: [Rounds; 4] = Default::default();
    let [plain, staged, smc, byte] = &mut all;
    peer.watch(true)?;
    for round in 0..if plan.quick { 40 } else { 110 } {
        let value = round as u8;
        let ns = time(|| fill(peer.memory.at(0), value, LEN));
        staged.add(ns, timed(|| peer.staged(0, LEN))?);
    }
    peer.watch(false)?;
    for round in 0..if plan.quick { 40 } else { 110 } {
        let value = round as u8;
        let ns = time(|| fill(peer.memory.at(0), value, LEN));
        let far = peer.home(0);
        plain.add(ns, timed(|| peer.lane.run(Verb::Write, (&peer.memory, 0), far, LEN))?);
        let ns = time(|| fill(rig.v, value.wrapping_add(1), LEN));
        smc.add(ns, time(|| rig.release()));
        let ns = time(|| fill(bytes.v, value.wrapping_add(2), LEN));
        byte.add(ns, time(|| bytes.release()));
    }
    let [plain, staged, smc, byte] = all.each_ref().map(Rounds::samples);
    let note = "fill 4 MiB and make them readable at the home; baseline: fill a registered buffer, one raw WRITE";
    let lines = [
        ("verbs.bulk.4MiB", &smc, [Target::AtLeast(0.976), Target::AtMost(1.17)], note),
        ("verbs.bulk.4MiB.byte", &byte, [Target::None; 2], "the same under the byte policy"),
        ("verbs.bulk.4MiB.plain", &plain, [Target::None; 2], "the baseline"),
        (
            "verbs.bulk.4MiB.staged",
            &staged,
            [Target::None; 2],
            "copy, WRITE with a notice, copy at the other side, answer",
        ),
    ];
    for (name, [bandwidth, latency], [b, l], note) in lines {
        report.add(name, "B/s", bandwidth, &plain[0], on, b, note);
        report.add(&format!("{name}.latency"), "ns", latency, &plain[1], on, l, "without the filling");
    }
    Ok(())
}

/// 64-byte stores all over 4 MiB.
pub fn random(plan: &Plan, report: &mut Report, home: &Home, peer: &mut Peer, on: On) -> Result<()> {
    let stores = if plan.quick { 16_384 } else { 65_536 };
    // Each takes a round trip where it is sent by itself: a sample of them tells the rate.
    let sample = if plan.quick { 1024 } else { 4096 };
    let mut rng = Rng(11);
    let spots: Vec<usize> = (0..stores).map(|_| rng.below(LEN / 64) * 64).collect();
    let (mut plain, mut staged) = (Vec::new(), Vec::new());
    for (i, s) in spots.iter().take(sample).enumerate() {
        let far = peer.home(*s);
        plain.push(timed(|| {
            store64(peer.memory.at(*s), i as u64);
            peer.lane.run(Verb::Write, (&peer.memory, *s), far, 64)
        })?);
    }
    peer.watch(true)?;
    for (i, s) in spots.iter().take(sample / 4).enumerate() {
        staged.push(timed(|| {
            store64(peer.memory.at(*s), i as u64);
            peer.staged(*s, 64)
        })?);
    }
    peer.watch(false)?;
    let (plain, staged) = (Samples::new(plain), Samples::new(staged));
    let rate = |ns: f64| 64.0 / ns * 1e9;
    let one = |s: &Samples| (s.len(), rate(s.median()), rate(s.at(0.99)));
    for (name, s, note) in [
        ("verbs.store.random64.plain", &plain, "the baseline: one completed raw WRITE per store"),
        ("verbs.store.random64.staged", &staged, "one staged copy per store"),
    ] {
        report.put(name, "B/s", rate(s.median()), rate(plain.median()), one(s), on, Target::None, note);
        report.add(&format!("{name}.latency"), "ns", s, &plain, on, Target::None, "until the other side has it");
    }
    for (pol, suffix, least) in [(Policy::Page, "", Target::AtLeast(17.0)), (Policy::Byte, ".byte", Target::None)] {
        let passes: Vec<_> = (0..if plan.quick { 3 } else { 7 })
            // Every byte differs from what the last pass left.
            .map(|i| crate::bench::store::pass(home, pol, &spots, (i * 2 + 2) * 0x0101_0101_0101_0101))
            .collect::<Result<_>>()?;
        let bandwidth = Samples::new(passes.iter().map(|p| (stores * 64) as f64 / p.total_ns * 1e9).collect());
        let name = format!("verbs.store.random64{suffix}");
        let note =
            "64 B stores uniform over 4 MiB, one release at the end; baseline: one completed raw WRITE per store";
        let stat = (bandwidth.len(), bandwidth.median(), bandwidth.at(0.99));
        report.put(&name, "B/s", bandwidth.median(), rate(plain.median()), stat, on, least, note);
        let each = Samples::new(passes.iter().flat_map(|p| p.each_ns.iter().copied()).collect());
        let note = "one store as the program sees it, clock included";
        report.add(&format!("{name}.latency"), "ns", &each, &plain, on, Target::AtMost(0.2), note);
        if pol == Policy::Byte
            && let Some(raw) = report.figure("verbs.raw.write_rate.64").map(|f| f.value)
        {
            let rate = Samples::new(passes.iter().map(|p| p.messages as f64 / p.total_ns * 1e9).collect());
            let stat = (rate.len(), rate.median(), rate.at(0.99));
            let note = "messages a second of that, comparison included; baseline: raw WRITEs of 64 B in a queue";
            report.put(&format!("{name}.messages"), "1/s", rate.median(), raw, stat, on, Target::None, note);
        }
        if pol == Policy::Page {
            let note = "the same against the staged copy of 64 B";
            report.add(&format!("{name}.latency.vs_staged"), "ns", &each, &staged, on, Target::AtMost(0.0555), note);
        }
    }
    Ok(())
}
