//! The messages.

use crate::base::Status;
use crate::link::{Access, MemoryKind, RegionInfo};

/// Longest region name in bytes.
pub const MAX_NAME: usize = 200;
/// Longest text for people in bytes; longer ones are cut when encoded.
pub const MAX_TEXT: usize = 512;
/// Most regions in one [`Message::Names`].
pub const MAX_NAMES: usize = 16;
/// Most queue pairs of one client of one region.
pub const MAX_LANES: usize = 16;
/// Bytes of what a connection request proves itself with.
pub const TOKEN: usize = 16;

/// One side of an RC queue pair, as the other side must know it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Endpoint {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// Packet sequence number it starts to send with, 24 bits.
    pub psn: u32,
    /// Address of its port.
    pub gid: [u8; 16],
    /// Address of its port in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Largest packet its port can take, as the verbs number it: 1 (256 bytes) to 5 (4096).
    pub mtu: u8,
    /// RDMA READs and atomics it can answer at a time.
    pub reads: u8,
}

/// A region as the exporter describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionDesc {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub len: u64,
    /// Access granted (in `Opened`), or the most a client can get (in `Names`).
    pub access: Access,
    /// What lies behind it.
    pub kind: MemoryKind,
    /// The exporter's process.
    pub pid: u32,
    /// Clients that have it open.
    pub clients: u32,
    /// How often the memory has moved.
    pub generation: u64,
    /// Names the content: another number is other memory.
    pub incarnation: u64,
}

impl RegionDesc {
    /// The part the transport contract knows.
    pub fn info(&self) -> RegionInfo {
        let (name, len, access) = (self.name.clone(), self.len, self.access);
        let (kind, clients, pid, incarnation) = (self.kind, self.clients, self.pid, self.incarnation);
        RegionInfo { name, len, access, kind, clients, pid, incarnation }
    }
}

/// One management message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Client: the versions I speak.
    Hello {
        /// Oldest.
        min: u16,
        /// Newest.
        max: u16,
    },
    /// Exporter: we speak this one.
    Welcome {
        /// The version of all that follows.
        version: u16,
        /// The exporter's process.
        pid: u32,
    },
    /// Either: refused; the connection may be closed after it.
    Error {
        /// The cause.
        status: Status,
        /// For people.
        text: String,
    },
    /// Client: what do you export, from the `start`-th on?
    List {
        /// Index to start at.
        start: u32,
    },
    /// Exporter: at most [`MAX_NAMES`] regions.
    Names {
        /// Ask again from here; 0 when this was the last part.
        next: u32,
        /// The regions.
        regions: Vec<RegionDesc>,
    },
    /// Client: open this region.
    Open {
        /// Its name.
        name: String,
        /// Access wanted; less is refused.
        want: Access,
    },
    /// Exporter: here it is. With two descriptors: the home and the control page.
    Opened {
        /// What it is.
        region: RegionDesc,
    },
    /// Client: done with it.
    Close,
    /// Exporter: the memory has moved. With one descriptor: the new home. Over a network without one: the key and the queue pairs
    /// are dead, and the client connects anew; if he has asked to already and has no answer yet, that answer is coming, and is good.
    Moved {
        /// Generation of the new home.
        generation: u64,
    },
    /// Exporter: your access has ended. Over a network the key is dead before this is said.
    Revoked {
        /// For people.
        reason: String,
    },
    /// Client: are you there?
    Ping {
        /// Comes back in the answer.
        token: u64,
    },
    /// Exporter: yes.
    Pong {
        /// From the question.
        token: u64,
    },
    /// Client: make arrived bytes visible to running kernels (reserved; answered by NOT_SUPPORTED).
    DeviceFlush {
        /// First byte.
        off: u64,
        /// Bytes.
        len: u64,
    },
    /// Exporter: the export has ended. The name may come back.
    Ended,
    /// Client of an opened region, over a network: my queue pairs. Those of an earlier `Connect` of this connection are gone. Has exactly one
    /// answer, `Connected` or `Error`, which may be long in coming while the memory is registered, or moved.
    Connect {
        /// At least one, at most [`MAX_LANES`].
        lanes: Vec<Endpoint>,
    },
    /// Client of an opened region, over a network: my queue pairs will come by the connection manager (rdma_cm). Otherwise as `Connect`: those
    /// that there were are gone, and the one answer is `Arranged` or `Error`. Exporters that do not know it close the connection.
    Arrange {
        /// How many: at least one, at most [`MAX_LANES`].
        lanes: u8,
    },
    /// Exporter: they are expected, for a few seconds, and where the region lies.
    Arranged {
        /// Remote address of the region's first byte.
        addr: u64,
        /// Remote key, good for this client's queue pairs only.
        rkey: u32,
        /// The memory may be flushed.
        flush: bool,
        /// Address to connect to, an IPv4 one as IPv6 maps it; zeros: the one that the client has called.
        at: [u8; 16],
        /// The connection manager's port, in the space of TCP.
        port: u16,
        /// What each request is to carry, followed by the number of its lane; good once for each.
        token: [u8; TOKEN],
    },
    /// Exporter: my queue pairs, in the same order, ready to be used, and where the region lies.
    Connected {
        /// Remote address of the region's first byte.
        addr: u64,
        /// Remote key, good for this client's queue pairs only.
        rkey: u32,
        /// The memory may be flushed.
        flush: bool,
        /// As many as in the question.
        lanes: Vec<Endpoint>,
    },
}

impl Message {
    /// An error message.
    pub fn error(status: Status, text: impl Into<String>) -> Message {
        Message::Error { status, text: text.into() }
    }

    /// Number on the wire.
    pub fn number(&self) -> u16 {
        match self {
            Message::Hello { .. } => 1,
            Message::Welcome { .. } => 2,
            Message::Error { .. } => 3,
            Message::List { .. } => 4,
            Message::Names { .. } => 5,
            Message::Open { .. } => 6,
            Message::Opened { .. } => 7,
            Message::Close => 8,
            Message::Moved { .. } => 9,
            Message::Revoked { .. } => 10,
            Message::Ping { .. } => 11,
            Message::Pong { .. } => 12,
            Message::DeviceFlush { .. } => 13,
            Message::Ended => 14,
            Message::Connect { .. } => 15,
            Message::Connected { .. } => 16,
            Message::Arrange { .. } => 17,
            Message::Arranged { .. } => 18,
        }
    }
}

/// True for a legal region name: 1 to [`MAX_NAME`] bytes of `[A-Za-z0-9._-]`, not starting with a dot.
pub fn valid_name(name: &str) -> bool {
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(ok)
}
