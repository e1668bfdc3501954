//! Which signals a thread believes blocked.
//!
//! A fault while its signal is blocked ends the process, so a signal that serves faults is never blocked in the kernel.
//! Where the program blocks it, [`MARK`] is blocked instead: a signal that Linux does not raise on x86-64. The mark lies in
//! the thread's kernel mask, so the end of a handler, `siglongjmp`, `swapcontext`, new threads and fork children restore
//! and inherit it by themselves; and a signal that arrives meanwhile waits as one more signal of that number.
//!
//! The price is one bit. The mark itself is never blocked for its own sake, though it is said to be in a mask that blocks
//! everything; and where a process uses back ends of both kinds, SIGBUS and SIGSEGV count as blocked when one of them is.
//!
//! SIGTRAP is not kept open: it is opened for the one instruction that is stepped.

use crate::sys::signal::{self, bit};

/// Stands in a kernel mask for the signals that are kept open.
pub const MARK: i32 = signal::SIGSTKFLT;

/// Signals that must be open whenever a view is touched.
const FAULTS: u64 = bit(signal::SIGBUS) | bit(signal::SIGSEGV);

/// Signals that only a mask made by sigfillset(3) blocks, in all likelihood: the mark is believed blocked where these are.
const OF_A_FULL_SET: u64 = bit(signal::SIGPWR) | bit(signal::SIGXFSZ);

/// Of the owned signals those that are kept open.
pub fn kept_open(owned: u64) -> u64 {
    owned & FAULTS
}

/// The kernel's mask for what a program wants blocked.
pub fn to_kernel(mask: u64, owned: u64) -> u64 {
    let open = kept_open(owned);
    match (open, mask & open) {
        (0, _) => mask,
        (_, 0) => mask & !bit(MARK),
        _ => mask & !open | bit(MARK),
    }
}

/// What the kernel has to unblock for what a program wants unblocked.
pub fn to_unblock(mask: u64, owned: u64) -> u64 {
    // Ours are named as well: a thread may have blocked them before they were ours.
    let open = kept_open(owned);
    if open == 0 { mask } else { to_kernel(mask, owned) | mask & open }
}

/// What the kernel has to wait for when a program waits for `set`.
pub fn to_wait_for(set: u64, owned: u64) -> u64 {
    if set & kept_open(owned) != 0 { set | bit(MARK) } else { set }
}

/// What a program believes blocked when the kernel's mask is `mask`.
pub fn to_program(mask: u64, owned: u64) -> u64 {
    let open = kept_open(owned);
    if open == 0 {
        return mask;
    }
    let ours = if mask & (open | bit(MARK)) == 0 { 0 } else { open };
    let mark = if mask & OF_A_FULL_SET == OF_A_FULL_SET { bit(MARK) } else { 0 };
    mask & !bit(MARK) | ours | mark
}

/// The bit that says in a kernel mask that the program has `sig` blocked.
pub fn blocked_bit(sig: i32) -> u64 {
    if bit(sig) & FAULTS != 0 { bit(MARK) } else { bit(sig) }
}

/// True when the kernel would find `sig`, a fault's signal, blocked by the program. In doubt it is not: a program that
/// lives without the library lives with it.
pub fn fault_is_blocked(sig: i32, mask: u64, owned: u64) -> bool {
    mask & blocked_bit(sig) != 0 && kept_open(owned).count_ones() < 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUS: u64 = bit(signal::SIGBUS);
    const OWNED: u64 = BUS | bit(MARK);

    #[test]
    fn a_mask_comes_back_as_it_was_set() {
        let full = !0u64;
        for mask in [0, 1, BUS, BUS | 1, full, full & !BUS, full & !1, bit(signal::SIGSEGV), BUS | 0x00ff_0000] {
            let kernel = to_kernel(mask, OWNED);
            assert_eq!(kernel & BUS, 0, "{mask:x}: blocked in the kernel");
            assert_eq!(kernel & bit(MARK) != 0, mask & BUS != 0, "{mask:x}");
            let back = to_program(kernel, OWNED);
            assert_eq!(back, mask, "{mask:x}");
        }
    }

    #[test]
    fn without_owned_signals_masks_are_plain() {
        let trap = bit(signal::SIGTRAP);
        for mask in [0, BUS, bit(MARK), !0] {
            for owned in [0, trap] {
                assert_eq!([to_kernel(mask, owned), to_program(mask, owned), to_unblock(mask, owned)], [mask; 3]);
            }
        }
        assert_eq!(to_kernel(trap, OWNED | trap), trap, "a trap is blocked as it is");
    }

    #[test]
    fn unblocking_another_signal_leaves_the_mark() {
        assert_eq!(to_unblock(1, OWNED), 1);
        assert_eq!(to_unblock(bit(MARK), OWNED), 0, "the mark is not the program's");
        assert_eq!(to_unblock(BUS, OWNED), BUS | bit(MARK), "and what was blocked before is opened");
    }

    #[test]
    fn a_signal_blocked_before_it_was_ours_counts() {
        assert_eq!(to_program(BUS | 1, OWNED), BUS | 1);
        assert!(fault_is_blocked(signal::SIGBUS, bit(MARK), OWNED));
        assert!(!fault_is_blocked(signal::SIGBUS, bit(MARK), OWNED | bit(signal::SIGSEGV)), "in doubt it is open");
    }
}
