//! Generation of `include/smc.h` with the pinned cbindgen.

use crate::repo;
use std::path::PathBuf;

/// The header as the sources in `src/capi` give it now.
pub fn generate() -> Result<String, String> {
    // cbindgen follows the modules in the order in which the root names them.
    generate_from(&[repo::root().join("src/capi/mod.rs")])
}

/// A header from these files and the repository's `cbindgen.toml`.
pub fn generate_from(files: &[PathBuf]) -> Result<String, String> {
    let config = cbindgen::Config::from_file(repo::root().join("cbindgen.toml"))?;
    let builder = files.iter().fold(cbindgen::Builder::new().with_config(config), |b, f| b.with_src(f));
    let bindings = builder.generate().map_err(|e| format!("cbindgen: {e}"))?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::compile::{STANDARDS, alone};

    const SAMPLE: &str = r#"
        /// A result.
        #[repr(i32)]
        pub enum smc_status { /// Success.
            Ok = 0, LinkDown = 300 }
        /// A region.
        pub struct smc_region { _p: [u8; 0] }
        /// Attributes.
        #[repr(C)]
        pub struct smc_attr { /// Bytes.
            pub struct_size: usize, pub flags: u32 }
        /// Opens a region.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn smc_open(name: *const std::ffi::c_char, attr: *const smc_attr, out: *mut *mut smc_region) -> smc_status { loop {} }
        /// Not part of the API.
        pub fn helper() {}
    "#;

    #[test]
    fn the_style_of_the_header() {
        let dir = crate::abi::scratch("header").unwrap();
        let source = dir.join("mod.rs");
        std::fs::write(&source, SAMPLE).unwrap();
        let text = generate_from(&[source]).unwrap();
        for words in [
            "SMC_STATUS_OK = 0",
            "SMC_STATUS_LINK_DOWN = 300",
            "typedef struct smc_region smc_region;",
            "size_t struct_size;",
            "#ifndef SMC_H",
            "extern \"C\"",
            "// Opens a region.",
        ] {
            assert!(text.contains(words), "`{words}` is not in:\n{text}");
        }
        assert!(text.contains("SMC_API") && !text.contains("helper"), "{text}");
        let header = dir.join("smc.h");
        std::fs::write(&header, &text).unwrap();
        let results: Vec<_> = STANDARDS.iter().map(|s| alone(&header, s, &dir)).collect();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(results.iter().all(Result::is_ok), "{results:?}\n{text}");
    }
}
