//! What goes wrong and when, as plain data and a pure function of (plan, number of the operation).

use super::wire::Wire;
use crate::base::{Error, Status};

/// Fate of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// As the inner link has it.
    Pass,
    /// Later by so many nanoseconds.
    Delay(u64),
    /// Nothing happens and this is the answer.
    Fail(Status),
    /// Half of it happens, and the answer is LINK_DOWN.
    Partial,
}

/// A seeded plan of faults. Rates are per million operations.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// Decides everything below.
    pub seed: u64,
    /// Operations that are lost (TIMED_OUT).
    pub loss_ppm: u32,
    /// Operations of which half happens.
    pub partial_ppm: u32,
    /// Operations that come late.
    pub delay_ppm: u32,
    /// How late at most, in nanoseconds.
    pub delay_ns: u64,
    /// Writes held back until the fence, so that later puts and atomics overtake them.
    pub reorder_ppm: u32,
    /// Operation numbers `[from, to)` during which the link is down.
    pub down: Option<(u64, u64)>,
    /// Operation number from which this client is revoked.
    pub revoked_from: Option<u64>,
    /// Operation number from which the peer is dead.
    pub dead_from: Option<u64>,
    /// What messages cost.
    pub wire: Option<Wire>,
}

/// A well-mixed 64-bit hash (SplitMix64's finaliser).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Plan {
    /// The default wire and no faults.
    pub fn wire_only() -> Plan {
        Plan { wire: Some(Wire::default()), ..Plan::default() }
    }

    /// The state the link is in for good or for a while at operation `n`, apart from single faults.
    pub fn verdict(&self, n: u64) -> Option<Status> {
        if self.dead_from.is_some_and(|d| n >= d) {
            return Some(Status::PEER_DEAD);
        }
        if self.revoked_from.is_some_and(|r| n >= r) {
            return Some(Status::REVOKED);
        }
        self.down.filter(|(from, to)| (*from..*to).contains(&n)).map(|_| Status::LINK_DOWN)
    }

    /// What happens to operation `n`.
    pub fn fate(&self, n: u64) -> Fate {
        if let Some(s) = self.verdict(n) {
            return Fate::Fail(s);
        }
        let dice = mix(self.seed ^ mix(n.wrapping_add(1)));
        let roll = (dice % 1_000_000) as u32;
        let lost = self.loss_ppm;
        let partial = lost.saturating_add(self.partial_ppm);
        match roll {
            r if r < lost => Fate::Fail(Status::TIMED_OUT),
            r if r < partial => Fate::Partial,
            r if r < partial.saturating_add(self.delay_ppm) => Fate::Delay(mix(dice) % self.delay_ns.max(1)),
            _ => Fate::Pass,
        }
    }

    /// True when the i-th write of operation `n` is held back until the fence.
    pub fn holds_back(&self, n: u64, i: usize) -> bool {
        self.reorder_ppm > 0 && mix(self.seed ^ mix(n << 20 | i as u64)) % 1_000_000 < u64::from(self.reorder_ppm)
    }

    /// Parses `LIBSMC_LINK`: `wire` or `faulty`, then `,key=value` pairs: latency_ns, gap_ns, gbps (these make a wire),
    /// seed, loss_ppm, partial_ppm, delay_ppm, delay_ns, reorder_ppm.
    pub fn parse(text: &str) -> Result<Plan, Error> {
        let bad = |why: String| {
            Error::new(Status::INVALID_ARGUMENT, format!("use LIBSMC_LINK={text}"), why)
                .remedy("write for example wire,latency_ns=2000,gap_ns=10,gbps=100 or faulty,seed=7,loss_ppm=1000")
        };
        let mut parts = text.split(',');
        let mut plan = match parts.next() {
            Some("wire") => Plan::wire_only(),
            Some("faulty") => Plan::default(),
            other => return Err(bad(format!("unknown model {:?}", other.unwrap_or("")))),
        };
        for p in parts {
            let (key, value) = p.split_once('=').ok_or_else(|| bad(format!("{p:?} is not key=value")))?;
            let n: u64 = value.parse().map_err(|_| bad(format!("{value:?} is not a number")))?;
            let ppm = u32::try_from(n.min(1_000_000)).unwrap_or(1_000_000);
            match key {
                "latency_ns" => plan.wire.get_or_insert_default().latency_ns = n,
                "gap_ns" => plan.wire.get_or_insert_default().gap_ns = n,
                "gbps" if n > 0 => plan.wire.get_or_insert_default().gbps = n,
                "seed" => plan.seed = n,
                "loss_ppm" => plan.loss_ppm = ppm,
                "partial_ppm" => plan.partial_ppm = ppm,
                "delay_ppm" => plan.delay_ppm = ppm,
                "delay_ns" => plan.delay_ns = n,
                "reorder_ppm" => plan.reorder_ppm = ppm,
                _ => return Err(bad(format!("unknown key {key:?} or value out of range"))),
            }
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_follow_the_rates_and_the_seed() {
        let plan = Plan {
            seed: 9,
            loss_ppm: 100_000,
            partial_ppm: 50_000,
            delay_ppm: 200_000,
            delay_ns: 10,
            ..Plan::default()
        };
        let count = |want: fn(&Fate) -> bool| (0..100_000).map(|n| plan.fate(n)).filter(want).count();
        assert!((9_000..11_000).contains(&count(|f| matches!(f, Fate::Fail(_)))));
        assert!((4_500..5_500).contains(&count(|f| *f == Fate::Partial)));
        assert!((19_000..21_000).contains(&count(|f| matches!(f, Fate::Delay(_)))));
        assert!((0..1000).all(|n| plan.fate(n) == plan.clone().fate(n)));
        let other = Plan { seed: 10, ..plan.clone() };
        assert!((0..1000).any(|n| plan.fate(n) != other.fate(n)));
    }

    #[test]
    fn states_of_the_link() {
        let plan = Plan { down: Some((5, 8)), revoked_from: Some(20), dead_from: Some(30), ..Plan::default() };
        assert_eq!(plan.fate(4), Fate::Pass);
        assert_eq!(plan.fate(7), Fate::Fail(Status::LINK_DOWN));
        assert_eq!(plan.fate(8), Fate::Pass);
        assert_eq!(plan.fate(25), Fate::Fail(Status::REVOKED));
        assert_eq!(plan.fate(31), Fate::Fail(Status::PEER_DEAD));
    }

    #[test]
    fn text_forms() {
        let p = Plan::parse("wire,latency_ns=5,gbps=400").unwrap();
        assert_eq!(p.wire, Some(Wire { latency_ns: 5, gap_ns: 10, gbps: 400 }));
        assert_eq!(Plan::parse("faulty,seed=3,loss_ppm=9").unwrap(), Plan { seed: 3, loss_ppm: 9, ..Plan::default() });
        for bad in ["", "wires", "wire,latency", "wire,gbps=0", "faulty,x=1", "wire,latency_ns=-1"] {
            assert!(Plan::parse(bad).is_err(), "{bad}");
        }
    }
}
