//! Names in a loaded object, found without the loader's `dlsym`: that one is hooked here.
//!
//! `dladdr` leads to the object's first page, the headers there to PT_DYNAMIC, and that to its GNU hash table. Nothing is
//! allocated and `dlerror` is left alone, so this works before libc is initialised. `dl_iterate_phdr` only where nothing
//! else will do: ThreadSanitizer has one of its own, which jumps to NULL until it has looked up all names, by our `dlsym`.

use libc::{Elf64_Ehdr, Elf64_Phdr, c_char, c_int, c_void, dl_phdr_info, size_t};
use smc_engine::base::PAGE;
use smc_engine::sys::dl;
use std::ffi::CStr;

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_VERSYM: i64 = 0x6fff_fff0;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
/// Bit of a version number: this definition is not the default one of its name.
const HIDDEN: u16 = 0x8000;

unsafe extern "C" {
    // Made by the linker, visible inside only: the library's first byte, the one behind its last, its dynamic section.
    static __ehdr_start: u8;
    static _end: u8;
    static _DYNAMIC: u8;
}

/// True for an address inside this library.
pub fn inside(address: usize) -> bool {
    (&raw const __ehdr_start as usize..&raw const _end as usize).contains(&address)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// The tables of one loaded object. It must stay loaded: libc and libsmc do.
#[derive(Clone, Copy, Default)]
pub struct Object {
    base: usize,
    hash: usize,
    symbols: usize,
    strings: usize,
    versions: usize,
}

/// A loaded object as the loader describes it.
pub struct Loaded<'a> {
    /// Address of its first byte, less the address it was linked for.
    pub base: usize,
    headers: &'a [libc::Elf64_Phdr],
}

impl Loaded<'_> {
    /// Start and length of the segment that holds `address`.
    pub fn segment(&self, address: usize) -> Option<(usize, usize)> {
        let loads = self.headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let mut places = loads.map(|h| (self.base.wrapping_add(h.p_vaddr as usize), h.p_memsz as usize));
        places.find(|(start, len)| address.wrapping_sub(*start) < *len)
    }

    /// Address of the first header of that type.
    pub fn header(&self, kind: u32) -> Option<usize> {
        self.headers.iter().find(|h| h.p_type == kind).map(|h| self.base.wrapping_add(h.p_vaddr as usize))
    }
}

type Visitor<'a> = &'a mut dyn FnMut(&Loaded) -> bool;

extern "C" fn visit(info: *mut dl_phdr_info, _size: size_t, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid info for the duration of this call.
    let info = unsafe { &*info };
    // SAFETY: data is the visitor that `walk` passed, borrowed by nobody else.
    let visitor = unsafe { &mut *data.cast::<Visitor>() };
    // SAFETY: the loader's table has dlpi_phnum entries.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    c_int::from(visitor(&Loaded { base: info.dlpi_addr as usize, headers }))
}

/// Shows `visitor` each loaded object, in search order, until it says true.
pub fn walk(mut visitor: Visitor) {
    // SAFETY: visit matches the callback's type and the visitor outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut visitor).cast()) };
}

/// Reads a value of a loaded object's tables.
///
/// # Safety
/// `at` is inside a table of an object that is loaded.
unsafe fn get<T: Copy>(at: usize) -> T {
    // SAFETY: the caller vouches for the place.
    unsafe { (at as *const T).read_unaligned() }
}

fn tables(base: usize, mut at: usize) -> Option<Object> {
    let mut o = Object { base, ..Object::default() };
    loop {
        // SAFETY: the dynamic section ends in an entry of tag 0, where this loop ends.
        let d = unsafe { get::<Dynamic>(at) };
        // glibc has made addresses of these; another loader leaves them as offsets.
        let value = if d.value < base { base.wrapping_add(d.value) } else { d.value };
        match d.tag {
            0 => break,
            DT_STRTAB => o.strings = value,
            DT_SYMTAB => o.symbols = value,
            DT_VERSYM => o.versions = value,
            DT_GNU_HASH => o.hash = value,
            _ => {}
        }
        at = at.wrapping_add(size_of::<Dynamic>());
    }
    (o.hash != 0 && o.symbols != 0 && o.strings != 0).then_some(o)
}

impl Object {
    /// This library.
    pub fn own() -> Option<Object> {
        tables(&raw const __ehdr_start as usize, &raw const _DYNAMIC as usize)
    }

    /// The loaded object that holds `address`.
    pub fn holding(address: usize) -> Option<Object> {
        let start = dl::object_of(address)?;
        // SAFETY: the object is loaded, and its file header is where it starts.
        let head = unsafe { get::<Elf64_Ehdr>(start) };
        if !head.e_ident.starts_with(b"\x7fELF") || usize::from(head.e_phentsize) != size_of::<Elf64_Phdr>() {
            return None;
        }
        let table = start.wrapping_add(head.e_phoff as usize);
        // SAFETY: linkers put the program headers behind the file header, into the first segment.
        let header =
            |i: u16| unsafe { get::<Elf64_Phdr>(table.wrapping_add(usize::from(i) * size_of::<Elf64_Phdr>())) };
        let first = |kind| (0..head.e_phnum).map(header).find(|h| h.p_type == kind).map(|h| h.p_vaddr as usize);
        // A segment's start is rounded down to the page when it is mapped.
        let base = start.wrapping_sub(first(libc::PT_LOAD)? & !(PAGE - 1));
        tables(base, base.wrapping_add(first(libc::PT_DYNAMIC)?))
    }

    /// The first loaded object that defines `name`.
    fn defining(name: &CStr) -> Option<Object> {
        let mut found = None;
        walk(&mut |loaded| {
            found = loaded.header(libc::PT_DYNAMIC).and_then(|at| tables(loaded.base, at)).filter(|o| o.defines(name));
            found.is_some()
        });
        found
    }

    /// glibc. Other allocators define malloc and __libc_malloc; nobody else says which libc this is. In a program that is
    /// not position independent the address of a function of libc can be that of the program's own stub: then it is looked
    /// for by its definition.
    pub fn libc() -> Option<Object> {
        let by_address = Object::holding(libc::gnu_get_libc_version as *const () as usize);
        by_address.filter(|o| o.defines(c"gnu_get_libc_version")).or_else(|| Object::defining(c"gnu_get_libc_version"))
    }

    /// Address of the default definition of `name`; `None` when the object does not define it.
    pub fn find(&self, name: &CStr) -> Option<usize> {
        self.search(name, false)
    }

    /// True when the object defines `name`, if only for programs that were linked long ago.
    pub fn defines(&self, name: &CStr) -> bool {
        self.search(name, true).is_some()
    }

    fn search(&self, name: &CStr, old: bool) -> Option<usize> {
        let hash = name.to_bytes().iter().fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add(u32::from(*b)));
        // SAFETY: the header of the hash table: buckets, first symbol, words of the filter, shift.
        let [buckets, first, filter, _] = unsafe { get::<[u32; 4]>(self.hash) };
        if buckets == 0 {
            return None;
        }
        let table = self.hash.wrapping_add(16).wrapping_add(filter as usize * 8);
        // SAFETY: a bucket of the table.
        let mut i = unsafe { get::<u32>(table.wrapping_add((hash % buckets) as usize * 4)) };
        if i < first {
            return None;
        }
        let chain = table.wrapping_add(buckets as usize * 4);
        loop {
            // SAFETY: a chain goes on until a value with the lowest bit set, where this loop ends.
            let value = unsafe { get::<u32>(chain.wrapping_add((i - first) as usize * 4)) };
            if value | 1 == hash | 1
                && let Some(at) = self.definition(i as usize, name, old)
            {
                return Some(at);
            }
            if value & 1 != 0 {
                return None;
            }
            i += 1;
        }
    }

    /// Symbol number `i`, if it is the default definition of `name`, or with `old` any.
    fn definition(&self, i: usize, name: &CStr, old: bool) -> Option<usize> {
        // SAFETY: the hash table names symbols that exist.
        let s = unsafe { get::<Symbol>(self.symbols.wrapping_add(i * size_of::<Symbol>())) };
        // SAFETY: an offset of the string table, whose strings end in NUL.
        let found = unsafe { CStr::from_ptr(self.strings.wrapping_add(s.name as usize) as *const c_char) };
        let version = match self.versions {
            0 => 0,
            // SAFETY: the version table has one entry per symbol.
            t => unsafe { get::<u16>(t.wrapping_add(i * 2)) },
        };
        let fits = s.section != 0 && (old || version & HIDDEN == 0);
        (fits && found == name).then_some(self.base.wrapping_add(s.value))
    }
}
