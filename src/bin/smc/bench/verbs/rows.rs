//! What is not one of the three paths: checks of the baseline, first touches, registrations, counts.

use super::paths::timed;
use super::peer::Peer;
use super::raw::DEPTH;
use super::{LEN, perftest, remote};
use crate::bench::report::{On, Report, Samples, Target};
use crate::bench::rig::{Home, Rng, fill, load, policy, store64, time};
use crate::bench::{Plan, baseline};
use smc_engine::base::addr::PAGE;
use smc_engine::base::config::Backend;
use smc_engine::base::{Error, HomeOff, Result, Status};
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::core::selftest;
use smc_engine::link::WriteOp;
use smc_engine::link::verbs::Verb;
use smc_engine::sys::clock::Deadline;
use smc_engine::sys::uffd::FEATURE_SIGBUS;

fn one(
    report: &mut Report,
    name: &str,
    unit: &'static str,
    [value, base]: [f64; 2],
    on: On,
    target: Target,
    note: &str,
) {
    report.put(name, unit, value, base, (1, value, value), on, target, note);
}

/// Nanoseconds of completed requests of `len` bytes, uniform over the home.
fn latencies(peer: &Peer, verb: Verb, len: usize, count: usize) -> Result<Vec<f64>> {
    let (mut rng, mut ns) = (Rng(7), Vec::new());
    for _ in 0..count {
        let off = rng.below(LEN / len) * len;
        ns.push(timed(|| peer.lane.run(verb, (&peer.memory, off), peer.home(off), len))?);
    }
    Ok(ns)
}

/// 64-byte WRITEs to random places, as many under way as fit.
fn flood(peer: &Peer, count: usize) -> Result<()> {
    let (mut rng, lkey) = (Rng(8), peer.memory.registered.lkey);
    for _ in 0..count {
        let off = rng.below(LEN / 64) * 64;
        peer.lane.post(Verb::Write, (peer.memory.at(off), lkey), peer.home(off), 64)?;
        peer.lane.wait(DEPTH as usize - 1)?;
    }
    peer.lane.wait(0)
}

/// Our own verbs loop against perftest.
pub fn check(plan: &Plan, report: &mut Report, peer: &Peer, on: On) -> Result<()> {
    let count = if plan.quick { 40 } else { 200 };
    let queued = || {
        let (lkey, at) = (peer.memory.registered.lkey, peer.memory.at(0));
        for _ in 0..count {
            peer.lane.post(Verb::Write, (at, lkey), peer.home(0), LEN)?;
            peer.lane.wait(8)?;
        }
        peer.lane.wait(0)
    };
    let ns = timed(queued)?;
    let bandwidth = (count * LEN) as f64 / ns * 1e9;
    let messages = count * 200;
    let rate = messages as f64 / timed(|| flood(peer, messages))? * 1e9;
    let note = "64 B WRITEs to random places, a queue of them: messages a second";
    one(report, "verbs.raw.write_rate.64", "1/s", [rate, rate], on, Target::None, note);
    let writes = Samples::new(latencies(peer, Verb::Write, 64, count * 20)?).median();
    let reads = Samples::new(latencies(peer, Verb::Read, PAGE, count * 20)?).median();
    let choice = &peer.lane.choice;
    let rows = [
        ("verbs.raw.write_bw.4MiB", "B/s", bandwidth, perftest::write_bandwidth(choice, count), "ib_write_bw -t 8"),
        (
            "verbs.raw.write_lat.64",
            "ns",
            writes / 2.0,
            perftest::write_latency(choice, count * 20),
            "half of a completed WRITE; baseline: ib_write_lat",
        ),
        ("verbs.raw.read_lat.4KiB", "ns", reads, perftest::read_latency(choice, count * 20), "ib_read_lat"),
    ];
    for (name, unit, own, theirs, note) in rows {
        let note = format!(
            "our verbs loop; baseline: {note}{}",
            if theirs.is_none() { " (not installed, or it does not work here)" } else { "" }
        );
        one(report, name, unit, [own, theirs.unwrap_or(0.0)], on, Target::None, &note);
    }
    Ok(())
}

/// The link by itself, without faults and pages: what the engine can reach at best.
pub fn link(plan: &Plan, report: &mut Report, home: &Home, peer: &Peer, on: On) -> Result<()> {
    let (key, memory, link) = (home.open()?, peer.lane.unregistered(LEN, false)?, &*home.link);
    let fail = |s: Status| Error::of(s, "use the link for the bench");
    // SAFETY: the memory is unmapped after the registration was taken back.
    let known = unsafe { link.register(memory.ptr(), LEN) }.map_err(fail)?;
    let limit = || Deadline::in_ms(5000);
    let (mut fetches, mut reads, mut posts, mut writes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut rng = Rng(9);
    for _ in 0..if plan.quick { 2000 } else { 10_000 } {
        let off = rng.below(LEN / PAGE) * PAGE;
        // SAFETY: a page of our own.
        let fetch = || unsafe { link.fetch(key, HomeOff(off as u64), memory.ptr(), PAGE, limit()) };
        fetches.push(timed(|| fetch().ok().map_err(fail))?);
        reads.push(timed(|| peer.lane.run(Verb::Read, (&peer.memory, off), peer.home(off), PAGE))?);
    }
    for _ in 0..if plan.quick { 30 } else { 100 } {
        let op = WriteOp { src: memory.ptr(), len: LEN, off: HomeOff(0) };
        let put = || {
            // SAFETY: memory of our own, until the ticket was waited for.
            let ticket = unsafe { link.post(key, &[op]) }?;
            link.wait(key, ticket, limit()).and(link.fence(key, limit())).ok()
        };
        posts.push(timed(|| put().map_err(fail))?);
        writes.push(timed(|| peer.lane.run(Verb::Write, (&peer.memory, 0), peer.home(0), LEN))?);
    }
    link.deregister(known);
    link.close(key);
    let [fetches, reads, posts, writes] = [fetches, reads, posts, writes].map(Samples::new);
    let note = "Link::fetch of 4 KiB into registered memory; baseline: raw READ";
    report.add("verbs.link.fetch.4KiB", "ns", &fetches, &reads, on, Target::None, note);
    let note = "Link::post of 4 MiB, wait and fence; baseline: one raw WRITE";
    report.add("verbs.link.post.4MiB", "ns", &posts, &writes, on, Target::None, note);
    Ok(())
}

/// A touch of an absent page, against a raw READ of it and the smallest handler.
pub fn first_touch(plan: &Plan, report: &mut Report, home: &Home, peer: &Peer, on: On) -> Result<()> {
    if selftest::try_backend(Backend::Sigbus).outcome.is_err() {
        report.say("      verbs.first_touch: the back end sigbus does not work here");
        return Ok(());
    }
    let pages = LEN / PAGE;
    let local = crate::bench::rig::buffer(LEN)?;
    let (mut rng, mut ours, mut bare) = (Rng(5), Vec::new(), Vec::new());
    let (mut read, mut handled) = (Vec::new(), Vec::new());
    for _ in 0..if plan.quick { 4 } else { 10 } {
        let rig = home.map(Some(Backend::Sigbus), MapOptions { window: 1, ..policy(Policy::Page) })?;
        let [copying, reading] = [baseline::Bare::new(LEN, FEATURE_SIGBUS)?, baseline::Bare::new(LEN, FEATURE_SIGBUS)?];
        let known = peer.lane.register(reading.a())?;
        let copy = |off: usize, to: *mut u8| baseline::copy(local.ptr().wrapping_add(off), to, PAGE);
        let bring = |off: usize, to: *mut u8| {
            let read = peer.lane.post(Verb::Read, (to, known.lkey), peer.home(off), PAGE);
            assert!(read.and_then(|()| peer.lane.wait(0)).is_ok(), "a READ failed in a bench");
        };
        // In short turns, so that other load on the host meets all of them.
        for some in rng.order(pages).chunks(32) {
            let touch = |v: *mut u8, to: &mut Vec<f64>| {
                to.extend(some.iter().map(|p| time(|| _ = load(v.wrapping_add(p * PAGE)))));
            };
            touch(rig.v, &mut ours);
            reading.serve(&bring, |v| touch(v, &mut handled))?;
            copying.serve(&copy, |v| touch(v, &mut bare))?;
            read.extend(latencies(peer, Verb::Read, PAGE, some.len())?);
        }
        drop(known);
    }
    let (ours, bare, read) = (Samples::new(ours), Samples::new(bare), Samples::new(read));
    let base = read.median() + 1.5 * bare.median();
    let note = format!(
        "one page, random order, window 1; baseline: raw READ of 4 KiB ({:.2} us) and 1.5 times the bare fault loop ({:.2} us)",
        read.median() / 1e3,
        bare.median() / 1e3
    );
    let handled = Samples::new(handled);
    let same = "one page, random order, window 1; baseline: the smallest SIGBUS handler that READs the page";
    report.add("verbs.first_touch.handler", "ns", &ours, &handled, on, Target::None, same);
    let stat = (ours.len(), ours.median(), ours.at(0.99));
    report.put("verbs.first_touch", "ns", ours.median(), base, stat, on, Target::AtMost(1.0), &note);
    Ok(())
}

/// 100 MB registered once and used many times, against registered for every use; by turns.
pub fn register_once(plan: &Plan, report: &mut Report, peer: &Peer, on: On) -> Result<()> {
    const BIG: usize = 100_000_000 / PAGE * PAGE;
    let (uses, every) = if plan.quick { (100, 10) } else { (1000, 20) };
    let all = uses;
    // The other side's memory is smaller: a use is as many WRITEs as make up the whole.
    let send = |lkey: u32, at: *mut u8| -> Result<()> {
        for off in (0..BIG).step_by(LEN) {
            peer.lane.post(Verb::Write, (at.wrapping_add(off), lkey), peer.home(0), LEN.min(BIG - off))?;
        }
        peer.lane.wait(0)
    };
    for (huge, suffix) in [(false, ""), (true, ".huge")] {
        let uses = if huge { all / 5 } else { all };
        let (memory, fresh) = (peer.lane.unregistered(BIG, huge)?, peer.lane.unregistered(BIG, huge)?);
        let (mut once, mut each, mut cost) = (Vec::new(), Vec::new(), Vec::new());
        let start = std::time::Instant::now();
        let kept = peer.lane.register(&memory)?;
        let first = start.elapsed().as_nanos() as f64;
        for i in 0..uses {
            once.push(timed(|| send(kept.lkey, memory.ptr()))?);
            if i % every == 0 {
                let mut registering = 0.0;
                let whole = timed(|| {
                    let start = std::time::Instant::now();
                    let r = peer.lane.register(&fresh)?;
                    registering = start.elapsed().as_nanos() as f64;
                    send(r.lkey, fresh.ptr())
                })?;
                each.push(whole);
                cost.push(registering);
            }
        }
        let rate = |ns: &f64| BIG as f64 / (ns + first / uses as f64) * 1e9;
        let once = Samples::new(once.iter().map(rate).collect());
        let each = Samples::new(each.iter().map(|ns| BIG as f64 / ns * 1e9).collect());
        let cost = Samples::new(cost);
        let pages = if huge { "huge" } else { "4 KiB" };
        let note = format!(
            "100 MB on {pages} pages sent {uses} times; baseline: registered for each use, {:.2} ms every time",
            cost.median() / 1e6
        );
        report.add(&format!("verbs.register_once{suffix}"), "B/s", &once, &each, on, Target::AtLeast(1.0), &note);
    }
    // The product's own: a mapped region of that size is registered once for all its releases.
    let home = remote::start(BIG)?;
    let rig = home.map(None, policy(Policy::Page))?;
    for i in 0..uses {
        store64(rig.v.wrapping_add(i * PAGE * 16 % BIG), i as u64 + 1);
        rig.release();
    }
    let made = rig.region.stats().registrations.get() as f64;
    let note =
        format!("registrations of a mapped region of 100 MB in {uses} stores and releases; baseline: one for each");
    one(
        report,
        "verbs.register_once.region",
        "registrations",
        [made, uses as f64],
        on,
        Target::AtMost(1.0 / uses as f64),
        &note,
    );
    Ok(())
}

/// Messages and bytes, which mean the same on every device.
pub fn counts(report: &mut Report, home: &Home, on: On) -> Result<()> {
    let rig = home.map(None, MapOptions { window: 1, ..policy(Policy::Page) })?;
    let (pages, s, link) = (LEN / PAGE, rig.region.stats(), home.link.stats());
    let before = link.fetches.get();
    rig.touch_all();
    let fetched = (link.fetches.get() - before) as f64;
    one(
        report,
        "verbs.count.fetches",
        "operations",
        [fetched, pages as f64],
        on,
        Target::AtMost(1.0),
        "READs for 1,024 pages touched one by one; baseline: a READ each",
    );
    fill(rig.v, 7, LEN);
    rig.release();
    let bulk = s.messages.get() as f64;
    one(
        report,
        "verbs.count.bulk",
        "messages",
        [bulk, 64.0],
        on,
        Target::AtMost(1.0),
        "messages of a release of 4 MiB; baseline: 64",
    );
    let sent = s.bytes_written.get();
    let mut rng = Rng(3);
    (0..16_384).for_each(|i| store64(rig.v.wrapping_add(rng.below(LEN / 64) * 64), i));
    let before = s.messages.get();
    rig.release();
    let (stores, messages) = (16_384.0, (s.messages.get() - before) as f64);
    one(
        report,
        "verbs.count.random64",
        "messages",
        [messages, stores],
        on,
        Target::AtMost(0.1),
        "messages of one release after 16,384 stores of 64 B; baseline: one each",
    );
    let bytes = (s.bytes_written.get() - sent) as f64;
    one(
        report,
        "verbs.count.random64.bytes",
        "bytes",
        [bytes, LEN as f64],
        on,
        Target::AtMost(1.0),
        "bytes of that release; baseline: the whole region",
    );
    let made = s.registrations.get() as f64;
    one(
        report,
        "verbs.count.registrations",
        "registrations",
        [made, 1.0],
        on,
        Target::AtMost(1.0),
        "registrations of the region since it was mapped; baseline: 1",
    );
    Ok(())
}
