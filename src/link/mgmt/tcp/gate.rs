//! How often who may knock: a rate for each address, in memory of a fixed size. No clock of its own.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Addresses remembered at most.
const MOST: usize = 1024;

/// So many at once, and then one in `interval_ns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Nanoseconds in which one more becomes free.
    pub interval_ns: u64,
    /// How many may come at once after a long pause.
    pub burst: u32,
}

impl Rate {
    /// Takes one, if one is free. `spent` is the moment at which all are free again; 0 at first.
    pub fn take(self, spent: &mut u64, now: u64) -> bool {
        let from = now.max(*spent);
        let free = from - now <= self.interval_ns.saturating_mul(u64::from(self.burst.saturating_sub(1)));
        if free {
            *spent = from.saturating_add(self.interval_ns);
        }
        free
    }
}

impl Rate {
    /// Gives one back that was taken.
    pub fn give_back(self, spent: &mut u64) {
        *spent = spent.saturating_sub(self.interval_ns);
    }
}

/// Whose rate it is: an IPv4 address, or the network of an IPv6 address (its first 64 bits, which one host has to itself).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Origin(u64, bool);

impl Origin {
    /// The origin of an address. An IPv4 address in an IPv6 one is that IPv4 address.
    pub fn of(a: IpAddr) -> Origin {
        match a.to_canonical() {
            IpAddr::V4(a) => Origin(u64::from(a.to_bits()), false),
            IpAddr::V6(a) => Origin((a.to_bits() >> 64) as u64, true),
        }
    }
}

/// Remembers who has come lately.
#[derive(Debug)]
pub struct Gate {
    rate: Rate,
    seen: BTreeMap<Origin, u64>,
    /// Shared by all who come when the memory is full.
    others: u64,
}

impl Gate {
    /// A gate at which everybody is unknown.
    pub fn new(rate: Rate) -> Gate {
        Gate { rate, seen: BTreeMap::new(), others: 0 }
    }

    /// May `from` come in at `now` (nanoseconds, never less than before)?
    pub fn admit(&mut self, from: Origin, now: u64) -> bool {
        if self.seen.len() >= MOST && !self.seen.contains_key(&from) {
            // Who has all his places back is as good as unknown.
            self.seen.retain(|_, spent| *spent > now);
            if self.seen.len() >= MOST {
                return self.rate.take(&mut self.others, now);
            }
        }
        self.rate.take(self.seen.entry(from).or_default(), now)
    }

    /// He was welcome: his coming does not count.
    pub fn give_back(&mut self, from: Origin) {
        let rate = self.rate;
        rate.give_back(self.seen.get_mut(&from).unwrap_or(&mut self.others));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    const RATE: Rate = Rate { interval_ns: 100, burst: 4 };

    fn v4(n: u32) -> Origin {
        Origin::of(IpAddr::V4(n.into()))
    }

    #[test]
    fn a_burst_and_then_a_rate() {
        let mut g = Gate::new(RATE);
        let mut come = |from, now, n: usize| (0..n).filter(|_| g.admit(from, now)).count();
        assert_eq!(come(v4(1), 1000, 10), 4);
        assert_eq!(come(v4(2), 1000, 10), 4, "another address has its own places");
        assert_eq!(come(v4(1), 1099, 10), 0);
        assert_eq!(come(v4(1), 1100, 10), 1);
        assert_eq!(come(v4(1), 1350, 10), 2);
        assert_eq!(come(v4(1), 9000, 10), 4);
    }

    #[test]
    fn who_is_welcome_may_come_again() {
        let mut g = Gate::new(RATE);
        for _ in 0..100 {
            assert!(g.admit(v4(1), 1000));
            g.give_back(v4(1));
        }
        assert_eq!((0..10).filter(|_| g.admit(v4(1), 1000)).count(), 4, "and no more strangers than before");
    }

    #[test]
    fn memory_is_bounded_and_strangers_share_what_is_left() {
        let mut g = Gate::new(RATE);
        let admitted = (0..100_000).filter(|n| g.admit(v4(*n), 1000)).count();
        assert_eq!((admitted, g.seen.len()), (MOST + 4, MOST));
        assert!(g.admit(v4(0), 1000), "who is known keeps his places");
        assert!((0..100).all(|n| g.admit(v4(1 << 20 | n), 2000)), "the forgotten made room");
        assert!(g.seen.len() <= 101);
    }

    #[test]
    fn one_host_is_one_origin() {
        let of = |s: &str| Origin::of(s.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:1.2.3.4"), of("1.2.3.4"));
        assert_ne!(of("::"), of("0.0.0.0"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn never_more_than_the_rate(steps in proptest::collection::vec(0..300u64, 1..200)) {
            let (mut spent, mut now, mut taken) = (0, 5000, 0u64);
            for s in steps {
                now += s;
                taken += u64::from(RATE.take(&mut spent, now));
                prop_assert!(taken <= 4 + (now - 5000) / RATE.interval_ns);
            }
        }
    }
}
