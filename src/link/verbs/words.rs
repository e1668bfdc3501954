//! What a driver's numbers mean, in words.

use crate::base::Status;
use crate::sys::Errno;
use ibverbs_sys::ibv_wc_status as wc;

/// A work request's end: the number that a completion carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome(pub u32);

macro_rules! outcomes {
    ($($name:ident, $status:ident, $text:literal;)*) => {
        impl Outcome {
            /// What happened, for people.
            pub fn text(self) -> &'static str {
                match self.0 { $(wc::$name => $text,)* _ => "the device gave an unknown reason" }
            }

            /// The code for the caller of the link. Failures of the path are `LINK_DOWN`: a new pair of queues may work. So is a
            /// refused remote access: the link checks ranges and rights itself, so it means that the key has died, and the
            /// management path tells why.
            pub fn status(self) -> Status {
                match self.0 { $(wc::$name => Status::$status,)* _ => Status::LINK_DOWN }
            }
        }
    };
}

outcomes! {
    IBV_WC_SUCCESS, OK, "done";
    IBV_WC_LOC_LEN_ERR, INTERNAL, "a length that the port cannot send";
    IBV_WC_LOC_QP_OP_ERR, LINK_DOWN, "the queue pair could not do it: the port went down, or a bug";
    IBV_WC_LOC_PROT_ERR, INTERNAL, "local memory that is not registered any more";
    IBV_WC_WR_FLUSH_ERR, LINK_DOWN, "given up, because the queue pair had failed before";
    IBV_WC_LOC_ACCESS_ERR, INTERNAL, "local memory that is registered without the right to write";
    IBV_WC_BAD_RESP_ERR, LINK_DOWN, "an answer that does not belong to the request";
    IBV_WC_REM_INV_REQ_ERR, LINK_DOWN, "the other side does not take such requests";
    IBV_WC_REM_ACCESS_ERR, LINK_DOWN, "the other side's key does not allow it any more";
    IBV_WC_REM_OP_ERR, LINK_DOWN, "the other side's device could not do it";
    IBV_WC_RETRY_EXC_ERR, LINK_DOWN, "no answer after all retries: the other side or the path is down";
    IBV_WC_RNR_RETRY_EXC_ERR, LINK_DOWN, "the other side was never ready to receive";
    IBV_WC_REM_ABORT_ERR, LINK_DOWN, "the other side aborted it";
    IBV_WC_FATAL_ERR, LINK_DOWN, "the device has failed";
    IBV_WC_RESP_TIMEOUT_ERR, LINK_DOWN, "no answer in time";
    IBV_WC_GENERAL_ERR, LINK_DOWN, "the device failed without saying why";
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (completion status {})", self.text(), self.0)
    }
}

/// What was asked of the driver when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Create a queue pair.
    CreatePair,
    /// RESET to INIT.
    Init,
    /// INIT to RTR.
    Receive,
    /// RTR to RTS.
    Send,
    /// Register memory.
    Register,
    /// Anything else.
    Other,
}

/// Why a call failed: the number in words, as far as the call makes it plain. `lock_limit`: RLIMIT_MEMLOCK, `None` for no limit.
pub fn why(call: Call, e: Errno, lock_limit: Option<u64>) -> String {
    let limit = || match lock_limit {
        Some(n) => format!("RLIMIT_MEMLOCK is {n} bytes"),
        None => "RLIMIT_MEMLOCK is no limit here, so memory itself is short".into(),
    };
    match (call, e) {
        (Call::Register, Errno::NOMEM) => format!("{e}: the pages cannot be pinned; {}", limit()),
        (Call::Register, Errno::FAULT) => format!("{e}: the memory is not mapped, or not writable"),
        (Call::Register, Errno::INVAL) => format!("{e}: the device does not grant these rights to this memory"),
        (_, Errno::NOMEM) => format!("{e}: the device's or the process's memory is used up; {}", limit()),
        (Call::CreatePair, Errno::INVAL) => {
            format!("{e}: the queue is deeper, or its inline messages are longer, than the device can")
        }
        (Call::Init, Errno::INVAL) => format!("{e}: the device has no such port, or not these rights"),
        (Call::Receive, Errno::INVAL) => format!(
            "{e}: the other side's address does not fit this port (another kind of network or GID type?), its MTU is larger than ours, or \
             more READs at a time than the device can answer"
        ),
        (Call::Receive, Errno(110)) => format!("{e}: no answer to the address resolution of the other side's GID"),
        (Call::Send, Errno::INVAL) => format!("{e}: more READs at a time than the device can ask"),
        (_, Errno::IO | Errno::NODEV | Errno::BADF) => format!("{e}: the device has gone"),
        (_, Errno::PERM | Errno::ACCES) => format!("{e}: this user may not use the device (/dev/infiniband)"),
        _ => e.to_string(),
    }
}

/// The code for a failed call of a driver.
pub fn status(e: Errno) -> Status {
    match e {
        Errno::NOMEM => Status::NO_RESOURCES,
        Errno::IO | Errno::NODEV | Errno::BADF | Errno::TIMEDOUT => Status::LINK_DOWN,
        Errno::PERM | Errno::ACCES => Status::PERMISSION,
        Errno::OPNOTSUPP | Errno::NOSYS => Status::NOT_SUPPORTED,
        _ => Status::SYSTEM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_words() {
        for n in 0..24 {
            let o = Outcome(n);
            assert!(!o.text().is_empty());
            assert_eq!(o.status().is_ok(), n == 0, "{o}");
        }
        assert_eq!(Outcome(wc::IBV_WC_RETRY_EXC_ERR).status(), Status::LINK_DOWN);
        assert_eq!(Outcome(9999).text(), "the device gave an unknown reason");
    }

    #[test]
    fn memory_that_cannot_be_pinned_names_the_limit() {
        let text = why(Call::Register, Errno::NOMEM, Some(65536));
        assert!(text.contains("RLIMIT_MEMLOCK is 65536 bytes"), "{text}");
        assert!(why(Call::Register, Errno::NOMEM, None).contains("no limit"));
        assert!(why(Call::Receive, Errno::INVAL, None).contains("MTU"));
        assert_eq!(status(Errno::NODEV), Status::LINK_DOWN);
    }
}
