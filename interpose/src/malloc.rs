//! The malloc family, passed through: seen by nobody yet, and as fast as without us.
//!
//! Each hook is one indirect jump. The slots start at a resolver, so there is no order of initialisation to get wrong,
//! no recursion, and an allocator that is loaded after this library (jemalloc, mimalloc) keeps working: the next
//! definition in search order is the real one. All slots are filled at once, so that a block never meets the `free`
//! of another allocator.

use crate::elf::Object;
use crate::heap;
use crate::table::{Family, Hook};
use libc::c_void;
use std::arch::naked_asm;

/// False for the names that are gone from today's libc, or not there yet.
const fn everywhere(name: &str) -> bool {
    !matches!(name.as_bytes(), b"cfree" | b"free_sized" | b"free_aligned_sized")
}

macro_rules! family {
    ($($name:ident, $slot:ident, $first:ident;)*) => {
        $(
            static $slot: Hook = Hook::starting_at(concat!(stringify!($name), "\0"), Family::Heap, everywhere(stringify!($name)), $first);

            /// Jumps to the real function of that name.
            ///
            /// # Safety
            /// As for the function of that name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                naked_asm!(".cfi_startproc", "endbr64", "jmp qword ptr [rip + {slot}]", ".cfi_endproc", slot = sym $slot)
            }

            crate::slot::first_call!($first, $slot, resolve);
        )*

        /// The family, for reports.
        pub static TABLE: &[&Hook] = &[$(&$slot),*];
    };
}

family! {
    malloc, MALLOC, first_malloc;
    calloc, CALLOC, first_calloc;
    realloc, REALLOC, first_realloc;
    reallocarray, REALLOCARRAY, first_reallocarray;
    free, FREE, first_free;
    posix_memalign, POSIX_MEMALIGN, first_posix_memalign;
    aligned_alloc, ALIGNED_ALLOC, first_aligned_alloc;
    memalign, MEMALIGN, first_memalign;
    valloc, VALLOC, first_valloc;
    pvalloc, PVALLOC, first_pvalloc;
    malloc_usable_size, MALLOC_USABLE_SIZE, first_malloc_usable_size;
    cfree, CFREE, first_cfree;
    free_sized, FREE_SIZED, first_free_sized;
    free_aligned_sized, FREE_ALIGNED_SIZED, first_free_aligned_sized;
}

/// Fills every slot. libc's own functions come first, in case the lookup itself needs memory.
pub extern "C" fn resolve() {
    // A hook that the self-test has armed: its slot, and no other, is at the stub.
    let armed = |h: &&&Hook| h.filled().is_null() && h.passed();
    if TABLE.iter().filter(armed).count() > 0 {
        return;
    }
    MALLOC.set(heap::__libc_malloc as *mut c_void);
    CALLOC.set(heap::__libc_calloc as *mut c_void);
    REALLOC.set(heap::__libc_realloc as *mut c_void);
    MEMALIGN.set(heap::__libc_memalign as *mut c_void);
    FREE.set(heap::__libc_free as *mut c_void);
    let free = FREE.next();
    for hook in TABLE.iter().filter(|h| h.required) {
        let next = hook.next();
        if !next.is_null() {
            hook.set(next);
        }
    }
    // Where the allocator does not define them each is free() of its first argument. Not by dlsym: a failure allocates.
    let allocator = Object::holding(free as usize);
    for hook in TABLE.iter().filter(|h| !h.required) {
        let own = allocator.and_then(|o| o.find(hook.c_name())).map_or(free, |p| p as *mut c_void);
        hook.set(if own.is_null() { heap::__libc_free as *mut c_void } else { own });
    }
}
