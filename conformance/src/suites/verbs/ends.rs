//! A way that does not come back: each end is told within its time, whatever was under way, and what is lost is named.

use super::{Far, Stopped, far, within};
use crate::rig::wire::Fault;
use crate::rig::{Home, Rig, policy};
use crate::runner::{Case, Cost};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::condition::Condition;
use smc_engine::core::options::{MapOptions, OnError, Policy};
use smc_engine::sys::event::readable;
use smc_engine::sys::process::can_read;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("verbs_down_for_good", |c| far(c, 1, down_for_good)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_cut_for_good", |c| far(c, 1, cut_for_good)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_sigbus_when_it_is_down", |c| far(c, 1, sigbus))
        .verbs_only()
        .dies_by(libc::SIGBUS)
        .cost(Cost::Quick),
    Case::new("verbs_the_second_path_is_taken", |c| far(c, 2, second_path)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_the_exporter_is_killed", |c| far(c, 1, killed)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_killed_with_requests_under_way", |c| far(c, 1, killed_under_way)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_the_device_is_taken_away", |c| far(c, 1, device_goes)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_the_key_dies", |c| far(c, 1, key_dies)).verbs_only().cost(Cost::Quick),
];

const PAGES: usize = 64;
const ERROR: u64 = u64::MAX;

/// A region with stores that are not released, and the states that were told.
struct Watched {
    r: Rig,
    told: Arc<Mutex<Vec<(Condition, Status)>>>,
    /// A second, as this machine counts.
    second: Duration,
}

impl Watched {
    fn new(f: &Far, opts: MapOptions) -> Watched {
        let home = f.home(PAGES);
        (0..PAGES).for_each(|p| home.set(p * PAGE, p as u64 + 1));
        Watched::over(f, home, opts)
    }

    fn over(f: &Far, home: Home, opts: MapOptions) -> Watched {
        let r = f.rig(home, opts);
        let told = Arc::new(Mutex::new(Vec::new()));
        let list = told.clone();
        r.region.on_status(Some(Box::new(move |region, _| list.lock().expect("a list").push(region.condition()))));
        r.loads(0, 1);
        r.store8(PAGE + 100, 7);
        r.store(5 * PAGE + 8, u64::from_le_bytes([1; 8]));
        Watched { r, told, second: f.seconds(1) }
    }

    fn was_told(&self, want: Condition) -> bool {
        self.told.lock().expect("a list").iter().any(|(c, _)| *c == want)
    }

    /// Whether the region's descriptor is readable within so many milliseconds.
    fn rings(&self, ms: u32) -> bool {
        readable([self.r.region.event_fd()], Some(ms)).expect("poll") == [true]
    }

    /// Loads of pages that are not here see the error value, each within the time of a wait; with the last of `fail_limit` of them and
    /// not before the region is unavailable, and says so. What was stored is named, to the byte. Answers how long each load took.
    fn becomes_unavailable(&self) -> [Duration; 3] {
        let r = &self.r;
        let limit = Duration::from_millis(r.region.options().wait_ms) + 2 * self.second;
        let start = Instant::now();
        assert!(!self.rings(0), "{}: the descriptor is readable before anything has happened", r.tag);
        let took = [17, 33, 49].map(|page| {
            let (one, before) = (Instant::now(), r.region.failures());
            assert!(before < 3 && r.region.condition().0 != Condition::Unavailable, "{}: after {before} loads", r.tag);
            r.loads(page * PAGE, ERROR);
            assert!(one.elapsed() < limit, "{}: a load took {:?}", r.tag, one.elapsed());
            assert_eq!(r.region.failures(), before + 1, "{}: failures after the load of page {page}", r.tag);
            one.elapsed()
        });
        within(5 * self.second, &r.tag, "it is unavailable", || r.region.condition().0 == Condition::Unavailable);
        within(5 * self.second, &r.tag, "it is told", || self.was_told(Condition::Unavailable));
        assert!(self.rings(5000), "{}: the descriptor tells nothing", r.tag);
        println!("unavailable after {:?}: {:?}, loads took {took:?}", start.elapsed(), r.region.condition());
        let one = Instant::now();
        let s = r.region.release(0, 0);
        assert!(!s.is_ok() && one.elapsed() < limit, "{}: release: {s} {:?}", r.tag, one.elapsed());
        let named = (PAGE as u64 + 100, PAGE as u64 + 101);
        let word = (5 * PAGE as u64 + 8, 5 * PAGE as u64 + 16);
        let all = [r.region.unreleased(9), r.region.lost(9)].concat();
        assert!(all.contains(&named) && all.contains(&word) && all.len() == 2, "{}: named are {all:?}", r.tag);
        // What is here stays as it is.
        r.loads(0, 1);
        r.loads(5 * PAGE + 8, u64::from_le_bytes([1; 8]));
        took
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.r.region.on_status(None);
    }
}

fn short() -> MapOptions {
    MapOptions { wait_ms: 500, fail_limit: 3, window: 1, ..policy(Policy::Byte) }
}

/// It is given back within five seconds, whatever hangs at the device.
fn goes_within_five_seconds(w: Watched) {
    let (tag, limit, start) = (w.r.tag.clone(), 5 * w.second, Instant::now());
    drop(w);
    assert!(start.elapsed() < limit, "{tag}: giving it back took {:?}", start.elapsed());
}

/// The ports go down: UNAVAILABLE in its time, told, stores named. They come back: so does the region, by itself, and the stores are sent.
fn down_for_good(f: &Far) -> Stopped {
    let w = Watched::new(f, short());
    f.wire.down()?;
    w.becomes_unavailable();
    f.wire.up()?;
    comes_back(&w);
    Ok(())
}

fn comes_back(w: &Watched) {
    let (r, limit) = (&w.r, 20 * w.second);
    within(limit, &r.tag, "it comes back by itself", || r.region.condition() == (Condition::Ok, Status::OK));
    within(limit, &r.tag, "the stores are sent", || r.region.release(0, 0).is_ok());
    assert_eq!(
        (r.home.bytes(PAGE + 100, 1), r.home.word(5 * PAGE + 8)),
        (vec![7], u64::from_le_bytes([1; 8])),
        "{}",
        r.tag
    );
    within(limit, &r.tag, "error values heal", || [17, 33, 49].iter().all(|p| r.load(p * PAGE) == *p as u64 + 1));
}

/// What the device needs at least to give up a request that nobody answers: a load that ends sooner has ended at its own limit.
const DEVICE_GIVES_UP: Duration = Duration::from_millis(1800);

/// The same where no device notices: only silence tells. A load waits as long as it may and no longer, whatever the device does.
fn cut_for_good(f: &Far) -> Stopped {
    let w = Watched::new(f, short());
    f.wire.cut()?;
    let took = w.becomes_unavailable();
    let wait = Duration::from_millis(w.r.region.options().wait_ms);
    assert!(took[0] + Duration::from_millis(20) >= wait, "{}: it waited {took:?} only", w.r.tag);
    assert!(took.iter().any(|t| *t < DEVICE_GIVES_UP), "{}: not the limit ended them: {took:?}", w.r.tag);
    f.wire.faults(&[])?;
    comes_back(&w);
    Ok(())
}

/// A load ends the process with SIGBUS, after the wait and not before.
fn sigbus(f: &Far) -> Stopped {
    let w = Watched::new(f, MapOptions { on_error: OnError::WaitSigbus, ..short() });
    f.wire.down()?;
    let start = Instant::now();
    // SAFETY: the address is only probed: a system call tells by EFAULT.
    assert!(!can_read((w.r.v + 20 * PAGE) as *const u8), "{}: a page from nowhere", w.r.tag);
    let (took, wait) = (start.elapsed(), Duration::from_millis(w.r.region.options().wait_ms));
    println!("EFAULT after {took:?}");
    assert!(took + Duration::from_millis(20) >= wait && took < wait + 2 * w.second, "{}: {took:?}", w.r.tag);
    w.r.loads(40 * PAGE, 41);
    Err("the load came back".into())
}

/// Another exporter with the same content: loads go on, stores that were not released follow.
fn second_path(f: &Far) -> Stopped {
    let (first, second) = (f.home_of(0, PAGES), f.home_of(1, PAGES));
    [&first, &second].iter().for_each(|h| (0..PAGES).for_each(|p| h.set(p * PAGE, p as u64 + 1)));
    let w = Watched::over(f, first.or_over(&second), MapOptions { wait_ms: 5000, window: 1, ..policy(Policy::Byte) });
    f.exporters[0].kill();
    let start = Instant::now();
    w.r.loads(20 * PAGE, 21);
    assert!(start.elapsed() < f.seconds(5), "{}: the change took {:?}", w.r.tag, start.elapsed());
    w.r.release();
    assert_eq!((second.bytes(PAGE + 100, 1), second.word(5 * PAGE + 8)), (vec![7], u64::from_le_bytes([1; 8])));
    assert_eq!((w.r.region.link().stats().failovers.get(), w.r.region.lost(9)), (1, vec![]), "{}", w.r.tag);
    assert_eq!(w.r.region.condition().0, Condition::Ok, "{}", w.r.tag);
    Ok(())
}

/// SIGKILL, as a crash: found out by the closed connection, long before any time-out of the device.
fn killed(f: &Far) -> Stopped {
    let w = Watched::new(f, short());
    f.exporters[0].kill();
    w.becomes_unavailable();
    let s = w.r.region.condition().1;
    assert!([Status::PEER_DEAD, Status::LINK_DOWN].contains(&s), "{}: the reason is {s}", w.r.tag);
    goes_within_five_seconds(w);
    Ok(())
}

/// The exporter dies while loads and stores are on the slow wire: each comes back with its answer or an error, and giving
/// everything back does not wait for what never comes.
fn killed_under_way(f: &Far) -> Stopped {
    let w = Watched::new(f, short());
    f.wire.faults(&[Fault::Delay(100_000)])?;
    std::thread::scope(|s| {
        let r = &w.r;
        for t in 0..3 {
            s.spawn(move || {
                for i in 0..4 {
                    let (page, start) = (8 + t * 16 + i * 4, Instant::now());
                    let got = r.load(page * PAGE);
                    assert!(got == page as u64 + 1 || got == ERROR, "{}: page {page} holds {got:#x}", r.tag);
                    r.store(page * PAGE + 16, 3);
                    let _ = r.region.release(0, 0);
                    assert!(start.elapsed() < f.seconds(6), "{}: it took {:?}", r.tag, start.elapsed());
                }
            });
        }
        std::thread::sleep(Duration::from_millis(250));
        f.exporters[0].kill();
    });
    within(5 * w.second, &w.r.tag, "it fails", || w.r.region.condition().0 != Condition::Ok);
    goes_within_five_seconds(w);
    Ok(())
}

/// The device is taken away under its user; when it comes back, so does the region.
fn device_goes(f: &Far) -> Stopped {
    let w = Watched::new(f, short());
    f.wire.remove()?;
    w.becomes_unavailable();
    f.wire.restore()?;
    comes_back(&w);
    goes_within_five_seconds(w);
    Ok(())
}

/// The exporter's registration loses its rights while he lives, as no exporter of ours lets it: an end like any other.
fn key_dies(f: &Far) -> Stopped {
    let w = Watched::new(f, short());
    f.wire.revoke_keys()?;
    w.becomes_unavailable();
    goes_within_five_seconds(w);
    Ok(())
}
