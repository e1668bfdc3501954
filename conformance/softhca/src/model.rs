//! The cost model: what an operation on the soft HCA is declared to cost at least.
//!
//! `LIBSOFTHCA_MODEL` is `off` (the default: as fast as it goes), `on`, or a list of `NAME=NUMBER` that changes what `on`
//! means:
//!
//! | name | on | meaning |
//! |---|---|---|
//! | `latency` | 2000 | ns one way |
//! | `gap` | 10 | ns between two messages of one open device |
//! | `bandwidth` | 12500 | MB/s of one open device |
//! | `register` | 30000 | ns of a registration |
//! | `page` | 300 | ns more for each page of 4 KiB |
//!
//! A time of the model is a lower bound: a message is not looked at before it is due, a registration does not return
//! before. The host's own cost comes first, and where it is higher it is what is measured. Messages of different
//! openings of a device do not share its bandwidth.

use crate::raw;
use std::sync::OnceLock;

/// The numbers in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Model {
    on: bool,
    latency: u64,
    gap: u64,
    bandwidth: u64,
    register: u64,
    page: u64,
}

const ON: Model = Model { on: true, latency: 2000, gap: 10, bandwidth: 12500, register: 30000, page: 300 };

impl Model {
    /// Reads the text of the variable; `None` when it makes no sense.
    pub fn parse(text: &str) -> Option<Model> {
        match text.trim() {
            "" | "off" => return Some(Model { on: false, ..ON }),
            "on" => return Some(ON),
            _ => {}
        }
        let mut model = ON;
        for part in text.split(',') {
            let (name, value) = part.split_once('=')?;
            let value: u64 = value.trim().parse().ok()?;
            match name.trim() {
                "latency" => model.latency = value,
                "gap" => model.gap = value,
                "bandwidth" if value > 0 => model.bandwidth = value,
                "register" => model.register = value,
                "page" => model.page = value,
                _ => return None,
            }
        }
        Some(model)
    }

    /// What the environment asks for, read once; nonsense counts as `off`.
    pub fn of_host() -> Model {
        static MODEL: OnceLock<Model> = OnceLock::new();
        *MODEL.get_or_init(|| {
            let wish = std::env::var("LIBSOFTHCA_MODEL").ok().and_then(|t| Model::parse(&t));
            wish.unwrap_or(Model { on: false, ..ON })
        })
    }

    /// When a message of `bytes` that is sent now is due, 0 for at once. `free` is when the sender's wire is free, and
    /// moves on.
    pub fn due(&self, bytes: usize, now: u64, free: &mut u64) -> u64 {
        if !self.on {
            return 0;
        }
        *free = (*free).max(now) + self.gap.max(bytes as u64 * 1000 / self.bandwidth);
        *free + self.latency
    }

    /// Lets the time of a registration that began at `start` pass.
    pub fn registration(&self, pages: u64, start: u64) {
        if !self.on {
            return;
        }
        let until = start + self.register + pages * self.page;
        let mut now = raw::now();
        while now < until {
            if until - now > 200_000 {
                std::thread::sleep(std::time::Duration::from_nanos(until - now - 100_000));
            } else {
                std::hint::spin_loop();
            }
            now = raw::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read() {
        assert_eq!(Model::parse("on"), Some(ON));
        assert_eq!(Model::parse("off"), Some(Model { on: false, ..ON }));
        assert_eq!(Model::parse("latency=5,bandwidth=100"), Some(Model { latency: 5, bandwidth: 100, ..ON }));
        for bad in ["latency", "latency=x", "speed=1", "bandwidth=0"] {
            assert_eq!(Model::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn messages_queue_for_the_wire() {
        let mut free = 0;
        assert_eq!(Model::parse("off").expect("off").due(1 << 20, 77, &mut free), 0);
        assert_eq!(ON.due(12500, 1000, &mut free), 1000 + 1000 + 2000);
        assert_eq!(ON.due(0, 1000, &mut free), 2000 + 10 + 2000);
    }

    #[test]
    fn a_registration_takes_its_time() {
        let start = raw::now();
        Model::parse("register=50000,page=100").expect("a model").registration(500, start);
        assert!(raw::now() - start >= 100_000);
    }
}
