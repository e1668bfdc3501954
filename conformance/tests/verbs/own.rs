//! Memory in a protection domain of the program's, and bound to a port.

use super::parts::{chosen, memory, next};
use super::{on_hca, softhca_support};
use smc_engine::base::Status;
use smc_engine::link::Access;
use smc_engine::link::mgmt::key::Key;
use smc_engine::link::verbs::words::Outcome;
use smc_engine::link::verbs::*;
use softhca_support::programs;
use std::sync::Arc;

/// How one request ends, made to a fresh queue pair of the domain.
fn outcome(choice: &Choice, domain: &Arc<Domain>, verb: Verb, addr: *mut u8, rkey: u32) -> Outcome {
    let (port, here) = (&choice.ports[0], Domain::new(&choice.device).unwrap());
    let [cq, idle] = [4, 4].map(|n| Completions::new(&choice.device, n).unwrap());
    let pair = QueuePair::new(&here, &cq, port, Depth { requests: 4, inline: 0 }, false).unwrap();
    let other = QueuePair::new(domain, &idle, port, Depth { requests: 1, inline: 0 }, true).unwrap();
    other.connect(&pair.endpoint()).unwrap();
    pair.connect(&other.endpoint()).unwrap();
    let mine = memory(4096);
    mine.fill(3);
    // SAFETY: never unmapped.
    let local = unsafe { here.register(mine.as_mut_ptr(), 4096, Rights::Local) }.unwrap();
    let local = Place { ptr: mine.as_mut_ptr(), len: 64, lkey: local.lkey };
    let mut batch = Batch::<1>::new();
    assert!(batch.push(&Request { id: 1, verb, local, addr: addr as u64, rkey, signalled: true }));
    // SAFETY: memory that is never unmapped.
    unsafe { batch.post(&pair) }.unwrap();
    next(&cq).outcome
}

#[test]
fn keys_of_a_domain_of_ones_own_are_good_as_long_as_the_registration() {
    if !on_hca("own::keys_of_a_domain_of_ones_own_are_good_as_long_as_the_registration", &[]) {
        return;
    }
    let (choice, home) = (chosen(), memory(8192));
    let (domain, at) = (Domain::new(&choice.device).unwrap(), home.as_mut_ptr().wrapping_add(4096));
    let register = |access| {
        // SAFETY: never unmapped, and the domain outlives the registration.
        unsafe { Foreign::register(domain.raw(), at, 4096, access) }.unwrap()
    };
    let ends = |verb, rkey| outcome(&choice, &domain, verb, at, rkey);
    let both = register(Access::ReadWrite);
    assert_eq!(ends(Verb::Write, both.rkey), Outcome(0));
    assert!(home[4096..4160].iter().all(|b| *b == 3) && home[4160] == 0);
    let dead = both.rkey;
    drop(both);
    assert_ne!(ends(Verb::Read, dead), Outcome(0));
    let read = register(Access::ReadOnly);
    assert_eq!(ends(Verb::Read, read.rkey), Outcome(0));
    assert_ne!(ends(Verb::Write, read.rkey), Outcome(0));
    for nothing in [8usize, at as usize, &raw const choice as usize] {
        // SAFETY: no domain, which is what is tried.
        let e = unsafe { Foreign::register(nothing as *mut _, at, 4096, Access::ReadOnly) }.unwrap_err();
        assert_eq!(e.status, Status::INVALID_ARGUMENT, "{e}");
    }
}

/// The same by the C API, and the port by which clients of other hosts come.
#[test]
fn a_c_program_registers_memory_in_its_domain_and_binds_it_to_a_port() {
    let library = programs::library();
    let dir = library.parent().unwrap().to_str().unwrap();
    let program = programs::app("api_register", &[&format!("-L{dir}"), "-lsmc", "-ldl"]);
    let key = std::env::temp_dir().join(format!("api-register-{}", std::process::id()));
    Key::generate(None).unwrap().save(&key, false).unwrap();
    let mut c = softhca_support::on_hca(program.to_str().unwrap(), &[key.to_str().unwrap()]);
    let path = format!("{}:{dir}", softhca_support::hca().display());
    c.env("LD_LIBRARY_PATH", path).env("LIBSOFTHCA_DEVICES", "2").env("LIBSMC_KEY", &key);
    let out = softhca_support::output(c);
    std::fs::remove_file(&key).unwrap();
    softhca_support::success("api_register", &out);
}
