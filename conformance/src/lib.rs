//! Conformance suite of libsmc.
//!
//! Reading order: [`runner`] (cases as data, one process per case), [`suites`] (the list of cases), [`rig`] (a region
//! under test, on every kind of home), [`litmus`] (memory-model tests of two to four nodes), [`sim`] (seeded runs
//! against a byte-exact model), [`abi`] (header, layout, symbols), [`repo`] (the repository as the gates in
//! `conformance/tests/` read it), [`source`] (Rust text as the gates read it).
//!
//! A new case is a function and one line in its suite's list. A new promise about memory is a litmus test in
//! [`litmus::catalogue`] or an operation of [`sim`]. Both machines are generic over the thing under test and are
//! themselves tested against subjects that are wrong on purpose.

pub mod abi;
pub mod litmus;
pub mod repo;
pub mod rig;
pub mod runner;
pub mod sim;
pub mod source;
pub mod suites;
