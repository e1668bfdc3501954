//! Version of the library.

/// Version of the running library as `major << 16 | minor << 8 | patch`.
///
/// A program compares it with the version it was built against: the same major number means that every function and
/// structure it knows is there and unchanged. Never fails, never blocks; may be called at any time in any thread, in a
/// signal handler too.
#[unsafe(no_mangle)]
pub extern "C" fn smc_version() -> u32 {
    const VERSION: u32 = number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | number(env!("CARGO_PKG_VERSION_PATCH"));
    VERSION
}

/// Decimal digits as a number, at compile time: an index out of bounds would not compile.
#[allow(clippy::indexing_slicing)]
const fn number(s: &str) -> u32 {
    let b = s.as_bytes();
    let mut v = 0;
    let mut i = 0;
    while i < b.len() {
        v = v * 10 + (b[i] - b'0') as u32;
        i += 1;
    }
    v
}

#[cfg(test)]
mod tests {
    #[test]
    fn version_is_the_packages() {
        let v = super::smc_version();
        assert_eq!(format!("{}.{}.{}", v >> 16, v >> 8 & 0xff, v & 0xff), env!("CARGO_PKG_VERSION"));
    }
}
