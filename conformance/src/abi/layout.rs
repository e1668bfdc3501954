//! Sizes, offsets and values of the C API's types, compared between Rust and C.
//!
//! C's side is a generated program that prints them. Adding a struct is one line in [`structs`]; the compiler then
//! insists that every field is listed, and [`unlisted`] that every struct of the header is.

use super::compile::run_c;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// One field as Rust sees it.
pub struct Field {
    /// Name, the same in C.
    pub name: &'static str,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// One struct as Rust sees it.
pub struct Struct {
    /// Name, the same in C.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Bytes.
    pub align: usize,
    /// All fields.
    pub fields: Vec<Field>,
}

/// One integer constant or enumerator as Rust sees it.
pub struct Constant {
    /// Name in C.
    pub name: String,
    /// Value.
    pub value: i64,
}

/// `row!(path::of::smc_struct { field, field })`: a [`Struct`]; it does not compile when a field is missing.
#[macro_export]
macro_rules! row {
    ($type:path { $($field:ident),* $(,)? }) => {{
        #[allow(dead_code)]
        fn every_field_is_listed(s: &$type) {
            let $type { $($field: _),* } = s;
        }
        fn size_of_field<T, F>(_: fn(&T) -> *const F) -> usize {
            std::mem::size_of::<F>()
        }
        $crate::abi::layout::Struct {
            name: stringify!($type).rsplit([':', ' ']).next().unwrap_or_default(),
            size: std::mem::size_of::<$type>(),
            align: std::mem::align_of::<$type>(),
            fields: vec![$($crate::abi::layout::Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($type, $field),
                size: size_of_field(|s: &$type| &raw const s.$field),
            }),*],
        }
    }};
}

/// Every struct with a body in `smc.h`: one line each.
#[rustfmt::skip]
pub fn structs() -> Vec<Struct> {
    use smc_engine::capi::{clients, coverage, failure, listen, types};
    vec![
        row!(types::smc_config { struct_size, fault, log, wait_ms, resident_limit }),
        row!(types::smc_export_attr { struct_size, name, address, length, access, kind, flags, allow_uid_count, allow_uids, incarnation, allow_clients, allow_client_count, reserved }),
        row!(clients::smc_client { struct_size, id, since_ns, pid, uid, access, reserved, name, address, device }),
        row!(listen::smc_listen_attr { struct_size, address, keys, device }),
        row!(types::smc_region_info { struct_size, name, length, access, kind, clients, pid }),
        row!(coverage::smc_hook_info { struct_size, name, family, announces, by, lost, hits, state, off, required, reserved }),
        row!(types::smc_map_attr { struct_size, access, policy, through, on_error, offset, length, address_hint, page_unit, resident_limit, dirty_limit, age_ms, acquire_ms, wait_ms, window, error_byte, readahead, fail_limit, second }),
        row!(failure::smc_range { offset, length }),
        row!(types::smc_stats { struct_size, faults, spurious_faults, pages_fetched, pages_prefetched, fetch_errors, pages_poisoned, pages_dropped, pages_evicted, pages_dirtied, pages_pushed, messages, bytes_written, bytes_fetched, pages_unchanged, releases, acquires, home_ops, write_errors, local_bytes, local_limit }),
    ]
}

/// `numbers!(smc_enum: SMC_ENUM { Variant, ... })`: constants of an enumeration as the engine has them.
macro_rules! numbers {
    ($type:ident: $($name:ident = $variant:ident),* $(,)?) => { numbers!(types $type: $($name = $variant),*) };
    ($room:ident $type:ident: $($name:ident = $variant:ident),* $(,)?) => {
        [$(Constant { name: stringify!($name).into(), value: $room::$type::$variant as i64 }),*]
    };
}

/// Every enumerator and numeric constant of `smc.h`.
pub fn constants() -> Vec<Constant> {
    use smc_engine::capi::{coverage, failure, types};
    let statuses = smc_engine::base::Status::ALL.iter();
    let mut all: Vec<Constant> =
        statuses.map(|s| Constant { name: format!("SMC_STATUS_{}", s.name()), value: i64::from(s.0) }).collect();
    all.extend(numbers!(smc_access: SMC_ACCESS_READ_ONLY = ReadOnly, SMC_ACCESS_READ_WRITE = ReadWrite));
    all.extend(
        numbers!(smc_memory: SMC_MEMORY_SYSTEM = System, SMC_MEMORY_PINNED = Pinned, SMC_MEMORY_DEVICE = Device),
    );
    all.extend(numbers!(smc_policy: SMC_POLICY_BYTE = Byte, SMC_POLICY_LINE = Line, SMC_POLICY_PAGE = Page));
    all.extend(numbers!(smc_through: SMC_THROUGH_OFF = Off, SMC_THROUGH_BOUNDED = Bounded, SMC_THROUGH_EXACT = Exact));
    all.extend(numbers!(smc_on_error: SMC_ON_ERROR_WAIT_VALUE = WaitValue, SMC_ON_ERROR_WAIT_SIGBUS = WaitSigbus,
        SMC_ON_ERROR_VALUE = Value, SMC_ON_ERROR_SIGBUS = Sigbus));
    all.extend(numbers!(smc_fault: SMC_FAULT_THREAD = Thread, SMC_FAULT_SIGBUS = Sigbus, SMC_FAULT_SYNC = Sync,
        SMC_FAULT_MPROTECT = Mprotect));
    all.extend(numbers!(smc_log: SMC_LOG_OFF = Off, SMC_LOG_ERROR = Error, SMC_LOG_INFO = Info, SMC_LOG_DEBUG = Debug));
    all.extend(numbers!(smc_cmp: SMC_CMP_EQ = Eq, SMC_CMP_NE = Ne, SMC_CMP_LT = Lt, SMC_CMP_LE = Le, SMC_CMP_GT = Gt,
        SMC_CMP_GE = Ge));
    all.extend(numbers!(failure smc_condition: SMC_CONDITION_OK = Ok, SMC_CONDITION_DEGRADED = Degraded,
        SMC_CONDITION_UNAVAILABLE = Unavailable));
    all.extend(numbers!(failure smc_which: SMC_WHICH_UNRELEASED = Unreleased, SMC_WHICH_LOST = Lost));
    all.extend(numbers!(smc_active: SMC_ACTIVE_NO = No, SMC_ACTIVE_DISABLED = Disabled, SMC_ACTIVE_YES = Yes));
    all.extend(numbers!(coverage smc_hook_state: SMC_HOOK_STATE_UNTESTED = Untested, SMC_HOOK_STATE_FIRES = Fires, SMC_HOOK_STATE_BOUND = Bound,
        SMC_HOOK_STATE_FORWARDED = Forwarded, SMC_HOOK_STATE_SHADOWED = Shadowed, SMC_HOOK_STATE_ABSENT = Absent));
    all.extend(numbers!(coverage smc_hook_off: SMC_HOOK_OFF_NOTHING = Nothing, SMC_HOOK_OFF_OPENING = Opening, SMC_HOOK_OFF_MAPPING = Mapping));
    let flag = |name: &str, value: u32| Constant { name: name.into(), value: value.into() };
    all.extend([
        flag("SMC_RELEASE_DEVICE", types::SMC_RELEASE_DEVICE),
        flag("SMC_EXPORT_ANY_USER", types::SMC_EXPORT_ANY_USER),
        flag("SMC_EXPORT_READ_ONLY", types::SMC_EXPORT_READ_ONLY),
        flag("SMC_EXPORT_PIN", types::SMC_EXPORT_PIN),
        flag("SMC_EXPORT_HOST_ONLY", types::SMC_EXPORT_HOST_ONLY),
        flag("SMC_REVOKE_QUIESCED", types::SMC_REVOKE_QUIESCED),
    ]);
    all
}

/// True once the header declares a function: before that there is nothing to compare.
pub fn declares_api(header: &str) -> bool {
    header.lines().any(|l| l.starts_with("SMC_API "))
}

/// Structs with a body and enumerators that `header` defines and the lists do not name.
pub fn unlisted(header: &str, structs: &[Struct], constants: &[Constant]) -> Vec<String> {
    let mut missing = Vec::new();
    for line in header.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix('{').and_then(struct_name)
            && !structs.iter().any(|s| s.name == name)
        {
            missing.push(format!("struct {name}"));
        }
        if let Some(name) = constant_name(line)
            && !constants.iter().any(|c| c.name == name)
        {
            missing.push(format!("constant {name}"));
        }
    }
    missing
}

fn struct_name(line: &str) -> Option<&str> {
    line.trim().trim_start_matches("typedef ").strip_prefix("struct ").map(str::trim)
}

/// Name of an enumerator line `SMC_X = 1,` or a definition `#define SMC_X 1`.
fn constant_name(line: &str) -> Option<&str> {
    let define = line.strip_prefix("#define ").and_then(|l| l.split_once(' '));
    let (name, value) = define.or_else(|| line.trim_end_matches(',').split_once(" = "))?;
    let numeric = value.trim().trim_start_matches(['-', '(']).starts_with(|c: char| c.is_ascii_digit());
    (name.starts_with("SMC_") && numeric).then_some(name)
}

/// Asks C for the same facts and returns every disagreement. `dir` takes the program.
pub fn compare(header: &Path, structs: &[Struct], constants: &[Constant], dir: &Path) -> Result<Vec<String>, String> {
    let said = run_c(&program(header, structs, constants), dir)?;
    let mut c: BTreeMap<&str, &str> = said.lines().filter_map(|l| l.split_once('=')).collect();
    let mut wrong = Vec::new();
    for (key, rust) in facts(structs, constants) {
        match c.remove(key.as_str()) {
            Some(value) if value == rust => {}
            Some(value) => wrong.push(format!("{key}: {rust} in Rust, {value} in C")),
            None => wrong.push(format!("{key}: {rust} in Rust, not printed by C")),
        }
    }
    Ok(wrong)
}

fn facts(structs: &[Struct], constants: &[Constant]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for s in structs {
        all.push((format!("size {}", s.name), s.size.to_string()));
        all.push((format!("align {}", s.name), s.align.to_string()));
        for f in &s.fields {
            all.push((format!("offset {}.{}", s.name, f.name), f.offset.to_string()));
            all.push((format!("size {}.{}", s.name, f.name), f.size.to_string()));
        }
    }
    all.extend(constants.iter().map(|c| (format!("value {}", c.name), c.value.to_string())));
    all
}

fn program(header: &Path, structs: &[Struct], constants: &[Constant]) -> String {
    let mut s =
        format!("#include \"{}\"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n", header.display());
    let mut print = |key: String, value: String| {
        let _ = writeln!(s, "    printf(\"{key}=%lld\\n\", (long long)({value}));");
    };
    for t in structs {
        let n = t.name;
        print(format!("size {n}"), format!("sizeof(struct {n})"));
        print(format!("align {n}"), format!("_Alignof(struct {n})"));
        for f in t.fields.iter().map(|f| f.name) {
            print(format!("offset {n}.{f}"), format!("offsetof(struct {n}, {f})"));
            print(format!("size {n}.{f}"), format!("sizeof(((struct {n} *)0)->{f})"));
        }
    }
    for c in constants {
        print(format!("value {}", c.name), c.name.clone());
    }
    s.push_str("    return 0;\n}\n");
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(non_camel_case_types)]
    #[repr(C)]
    struct smc_probe {
        small: u8,
        big: u64,
        tail: [u32; 3],
    }

    const GOOD: &str = "#include <stdint.h>\nenum smc_e {\n    SMC_E_A = 5,\n};\n\
        typedef struct smc_probe {\n    uint8_t small;\n    uint64_t big;\n    uint32_t tail[3];\n} smc_probe;\n";

    fn run(header: &str, value: i64) -> Vec<String> {
        let dir = crate::abi::scratch("layout").unwrap();
        let path = dir.join("h.h");
        std::fs::write(&path, header).unwrap();
        let wrong = compare(
            &path,
            &[row!(smc_probe { small, big, tail })],
            &[Constant { name: "SMC_E_A".into(), value }],
            &dir,
        );
        std::fs::remove_dir_all(&dir).unwrap();
        wrong.unwrap()
    }

    #[test]
    fn equal_layouts_agree() {
        assert_eq!(run(GOOD, 5), Vec::<String>::new());
    }

    #[test]
    fn planted_differences_are_found() {
        assert_eq!(run(GOOD, 6), ["value SMC_E_A: 6 in Rust, 5 in C"]);
        let narrow = run(&GOOD.replace("uint64_t big", "uint32_t big"), 5);
        assert!(narrow.contains(&"offset smc_probe.big: 8 in Rust, 4 in C".to_string()), "{narrow:?}");
        assert!(narrow.contains(&"size smc_probe.big: 8 in Rust, 4 in C".to_string()), "{narrow:?}");
        let grown = run(&GOOD.replace("} smc_probe", "int more; } smc_probe"), 5);
        assert_eq!(grown, Vec::<String>::new(), "a tail in the padding is the one thing sizes cannot show");
        let grown = run(&GOOD.replace("} smc_probe", "int more[2]; } smc_probe"), 5);
        assert_eq!(grown, ["size smc_probe: 32 in Rust, 40 in C"]);
    }

    #[test]
    fn what_is_not_listed_is_named() {
        assert_eq!(unlisted(GOOD, &[], &[]), ["constant SMC_E_A", "struct smc_probe"]);
        assert_eq!(unlisted("#define SMC_H\n#define SMC_MAX 16\n", &[], &[]), ["constant SMC_MAX"]);
        assert!(unlisted("struct smc_opaque;\ntypedef struct smc_opaque smc_opaque;\n", &[], &[]).is_empty());
    }
}
