//! The C header is proven, not trusted: it is what the sources give, compiles alone, and means in C what it means in Rust.

use smc_conformance::abi::{self, compile, layout};

#[test]
fn compiles_alone_in_every_standard() {
    let dir = abi::scratch("alone").expect("scratch directory");
    let results: Vec<_> = compile::STANDARDS.iter().map(|s| compile::alone(&abi::header_path(), s, &dir)).collect();
    let bad = dir.join("bad.h");
    std::fs::write(&bad, "size_t f(void);\n").expect("planted header");
    let blind: Vec<_> = compile::STANDARDS.iter().map(|s| compile::alone(&bad, s, &dir)).collect();
    let _ = std::fs::remove_dir_all(&dir);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert!(blind.iter().all(Result::is_err), "a header that needs another one was accepted");
}

#[test]
fn means_the_same_in_c_and_rust() {
    let header = std::fs::read_to_string(abi::header_path()).expect("include/smc.h");
    if !layout::declares_api(&header) {
        eprintln!("skipped: smc.h declares no function yet");
        return;
    }
    let (structs, constants) = (layout::structs(), layout::constants());
    let missing = layout::unlisted(&header, &structs, &constants);
    assert!(missing.is_empty(), "add to conformance/src/abi/layout.rs: {missing:?}");
    let dir = abi::scratch("means").expect("scratch directory");
    let wrong = layout::compare(&abi::header_path(), &structs, &constants, &dir);
    let _ = std::fs::remove_dir_all(&dir);
    assert_eq!(wrong, Ok(Vec::new()));
}

#[cfg(feature = "tasks")]
#[test]
fn is_what_the_sources_give() {
    let committed = std::fs::read_to_string(abi::header_path()).expect("include/smc.h");
    let diff = smc_conformance::repo::diff(&committed, &abi::header::generate().expect("cbindgen"));
    assert!(diff.is_empty(), "include/smc.h is not current; run `smc-tasks header`:\n{diff}");
}
