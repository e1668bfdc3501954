//! The list of all cases. A suite is a module with a `CASES` list; a new suite is one line here.

pub mod controls;
pub mod fuzz;
pub mod host;
pub mod install;
pub mod litmus_engine;
pub mod litmus_self;
pub mod paging;
pub mod sim_engine;
pub mod sim_faults;
pub mod sim_self;
pub mod torture;
pub mod verbs;

use crate::runner::Case;

/// Every case, suite by suite.
pub fn all() -> Vec<Case> {
    let suites: &[&[Case]] = &[
        litmus_self::CASES,
        sim_self::CASES,
        install::CASES,
        paging::basic::CASES,
        paging::views::CASES,
        paging::counters::CASES,
        paging::registration::CASES,
        paging::limits::CASES,
        paging::errors::CASES,
        paging::failure::CASES,
        paging::failover::CASES,
        paging::threads::CASES,
        paging::storms::CASES,
        paging::first_writes::CASES,
        paging::first_writes::HUGE,
        paging::exact::CASES,
        litmus_engine::CASES,
        sim_engine::CASES,
        sim_faults::CASES,
        torture::CASES,
        controls::CASES,
        host::CASES,
        fuzz::CASES,
        verbs::weather::CASES,
        verbs::ends::CASES,
        verbs::memory::CASES,
        verbs::underway::CASES,
        verbs::setup::CASES,
        verbs::manager::CASES,
    ];
    suites.concat()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique_and_have_a_family() {
        let all = super::all();
        for (i, a) in all.iter().enumerate() {
            assert!(a.name.contains('_'), "{} has no family", a.name);
            assert!(a.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{}", a.name);
            assert!(all.iter().skip(i + 1).all(|b| b.name != a.name), "{} is twice in the list", a.name);
        }
    }
}
