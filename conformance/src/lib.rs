//! Conformance suite of libsmc.
