//! Bytes to messages and back. Strict: anything that `encode` would not produce is refused; nothing panics.

use super::message::{Endpoint, MAX_LANES, MAX_NAME, MAX_NAMES, MAX_TEXT, Message, RegionDesc, valid_name};
use crate::base::Status;
use crate::link::{Access, MemoryKind};

/// First word of every message: "SMC1" read as little endian.
pub const MAGIC: u32 = 0x3143_4d53;
/// Bytes of the header: magic u32, version u16, type u16, body length u32, zero u32.
pub const HEADER: usize = 16;
/// Longest message, header included.
pub const MAX_FRAME: usize = 4096;
/// Longest body.
pub const MAX_BODY: usize = MAX_FRAME - HEADER;

/// Why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// The first word is not the protocol's.
    #[error("not a libsmc message")]
    Magic,
    /// The header names a version this build does not speak.
    #[error("message of protocol version {0}")]
    Version(u16),
    /// The header names an unknown type.
    #[error("message of unknown type {0}")]
    Type(u16),
    /// Shorter or longer than its fields.
    #[error("message of the wrong length")]
    Length,
    /// A field outside its range.
    #[error("message with a bad field")]
    Field,
}

/// Length of the message that `head` begins, once its header is there; `None` when more bytes are needed.
pub fn frame_len(head: &[u8]) -> Result<Option<usize>, CodecError> {
    if head.len() < HEADER {
        return Ok(None);
    }
    let mut r = Reader(head);
    if r.u32()? != MAGIC {
        return Err(CodecError::Magic);
    }
    let (_version, _kind, len) = (r.u16()?, r.u16()?, r.u32()? as usize);
    if len > MAX_BODY { Err(CodecError::Length) } else { Ok(Some(HEADER + len)) }
}

/// The message as bytes, at most [`MAX_FRAME`].
pub fn encode(m: &Message) -> Vec<u8> {
    let mut w = Writer(Vec::with_capacity(128));
    w.u32(MAGIC);
    w.u16(super::VERSION_MAX);
    w.u16(m.number());
    w.u32(0);
    w.u32(0);
    body(&mut w, m);
    let len = (w.0.len() - HEADER) as u32;
    if let Some(field) = w.0.get_mut(8..12) {
        field.copy_from_slice(&len.to_le_bytes());
    }
    w.0
}

fn body(w: &mut Writer, m: &Message) {
    match m {
        Message::Hello { min, max } => {
            w.u16(*min);
            w.u16(*max);
        }
        Message::Welcome { version, pid } => {
            w.u16(*version);
            w.u32(*pid);
        }
        Message::Error { status, text } => {
            w.u32(status.0 as u32);
            w.text(text);
        }
        Message::List { start } => w.u32(*start),
        Message::Names { next, regions } => {
            w.u32(*next);
            w.u16(regions.len().min(MAX_NAMES) as u16);
            regions.iter().take(MAX_NAMES).for_each(|r| w.region(r));
        }
        Message::Open { name, want } => {
            w.name(name);
            w.u8(access_number(*want));
        }
        Message::Opened { region } => w.region(region),
        Message::Close | Message::Ended => {}
        Message::Moved { generation } => w.u64(*generation),
        Message::Revoked { reason } => w.text(reason),
        Message::Ping { token } | Message::Pong { token } => w.u64(*token),
        Message::DeviceFlush { off, len } => {
            w.u64(*off);
            w.u64(*len);
        }
        Message::Connect { lanes } => w.lanes(lanes),
        Message::Connected { addr, rkey, flush, lanes } => {
            w.u64(*addr);
            w.u32(*rkey);
            w.u8(u8::from(*flush));
            w.lanes(lanes);
        }
        Message::Arrange { lanes } => w.u8(*lanes),
        Message::Arranged { addr, rkey, flush, at, port, token } => {
            w.u64(*addr);
            w.u32(*rkey);
            w.u8(u8::from(*flush));
            w.0.extend_from_slice(at);
            w.u16(*port);
            w.0.extend_from_slice(token);
        }
    }
}

/// The message that exactly fills `bytes`.
pub fn decode(bytes: &[u8]) -> Result<Message, CodecError> {
    let mut r = Reader(bytes);
    if bytes.len() > MAX_FRAME {
        return Err(CodecError::Length);
    }
    if r.u32()? != MAGIC {
        return Err(CodecError::Magic);
    }
    let (version, kind, len, zero) = (r.u16()?, r.u16()?, r.u32()?, r.u32()?);
    // The greeting is readable in every version, so that two versions can at least tell each other so.
    if !(1..=3).contains(&kind) && !(super::VERSION_MIN..=super::VERSION_MAX).contains(&version) {
        return Err(CodecError::Version(version));
    }
    if len as usize != r.0.len() {
        return Err(CodecError::Length);
    }
    if zero != 0 {
        return Err(CodecError::Field);
    }
    let m = parse(&mut r, kind)?;
    if r.0.is_empty() { Ok(m) } else { Err(CodecError::Length) }
}

fn parse(r: &mut Reader<'_>, kind: u16) -> Result<Message, CodecError> {
    Ok(match kind {
        1 => Message::Hello { min: r.u16()?, max: r.u16()? },
        2 => Message::Welcome { version: r.u16()?, pid: r.u32()? },
        3 => Message::Error { status: Status(r.u32()? as i32), text: r.text()? },
        4 => Message::List { start: r.u32()? },
        5 => {
            let next = r.u32()?;
            let n = r.u16()? as usize;
            if n > MAX_NAMES {
                return Err(CodecError::Field);
            }
            Message::Names { next, regions: (0..n).map(|_| r.region()).collect::<Result<_, _>>()? }
        }
        6 => Message::Open { name: r.name()?, want: r.access()? },
        7 => Message::Opened { region: r.region()? },
        8 => Message::Close,
        9 => Message::Moved { generation: r.u64()? },
        10 => Message::Revoked { reason: r.text()? },
        11 => Message::Ping { token: r.u64()? },
        12 => Message::Pong { token: r.u64()? },
        13 => Message::DeviceFlush { off: r.u64()?, len: r.u64()? },
        14 => Message::Ended,
        15 => Message::Connect { lanes: r.lanes()? },
        16 => Message::Connected { addr: r.u64()?, rkey: r.u32()?, flush: r.flag()?, lanes: r.lanes()? },
        17 => Message::Arrange { lanes: r.count()? },
        18 => {
            let (addr, rkey, flush, at) = (r.u64()?, r.u32()?, r.flag()?, r.take()?);
            let port = Some(r.u16()?).filter(|p| *p != 0).ok_or(CodecError::Field)?;
            Message::Arranged { addr, rkey, flush, at, port, token: r.take()? }
        }
        other => return Err(CodecError::Type(other)),
    })
}

fn access_number(a: Access) -> u8 {
    match a {
        Access::ReadOnly => 1,
        Access::ReadWrite => 2,
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    fn u16(&mut self, v: u16) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    /// A length and as much of `s` as fits `max` bytes without cutting a character.
    fn bounded(&mut self, s: &str, max: usize) {
        let end = (0..=max.min(s.len())).rev().find(|n| s.is_char_boundary(*n)).unwrap_or(0);
        let cut = s.get(..end).unwrap_or_default();
        self.u16(cut.len() as u16);
        self.0.extend_from_slice(cut.as_bytes());
    }
    fn text(&mut self, s: &str) {
        self.bounded(s, MAX_TEXT);
    }
    fn name(&mut self, s: &str) {
        self.bounded(s, MAX_NAME);
    }
    fn region(&mut self, d: &RegionDesc) {
        self.name(&d.name);
        self.u64(d.len);
        self.u8(access_number(d.access));
        self.u8(d.kind as u32 as u8);
        self.u32(d.pid);
        self.u32(d.clients);
        self.u64(d.generation);
        self.u64(d.incarnation);
    }
    fn lanes(&mut self, lanes: &[Endpoint]) {
        self.u8(lanes.len().min(MAX_LANES) as u8);
        for e in lanes.iter().take(MAX_LANES) {
            self.u32(e.qpn);
            self.u32(e.psn);
            self.0.extend_from_slice(&e.gid);
            self.u16(e.lid);
            self.u8(e.mtu);
            self.u8(e.reads);
        }
    }
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(CodecError::Length)?;
        self.0 = rest;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8, CodecError> {
        self.take::<1>().map(|[b]| b)
    }
    /// One form for each value: what is read is what would be written.
    fn flag(&mut self) -> Result<bool, CodecError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CodecError::Field),
        }
    }
    fn u16(&mut self) -> Result<u16, CodecError> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Result<u32, CodecError> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, CodecError> {
        self.take().map(u64::from_le_bytes)
    }
    fn bounded(&mut self, max: usize) -> Result<String, CodecError> {
        let n = self.u16()? as usize;
        if n > max {
            return Err(CodecError::Field);
        }
        let (head, rest) = self.0.split_at_checked(n).ok_or(CodecError::Length)?;
        self.0 = rest;
        std::str::from_utf8(head).map(str::to_owned).map_err(|_| CodecError::Field)
    }
    fn text(&mut self) -> Result<String, CodecError> {
        self.bounded(MAX_TEXT)
    }
    fn name(&mut self) -> Result<String, CodecError> {
        self.bounded(MAX_NAME).and_then(|n| if valid_name(&n) { Ok(n) } else { Err(CodecError::Field) })
    }
    fn access(&mut self) -> Result<Access, CodecError> {
        match self.u8()? {
            1 => Ok(Access::ReadOnly),
            2 => Ok(Access::ReadWrite),
            _ => Err(CodecError::Field),
        }
    }
    fn kind(&mut self) -> Result<MemoryKind, CodecError> {
        match self.u8()? {
            1 => Ok(MemoryKind::System),
            2 => Ok(MemoryKind::Pinned),
            3 => Ok(MemoryKind::Device),
            _ => Err(CodecError::Field),
        }
    }
    fn region(&mut self) -> Result<RegionDesc, CodecError> {
        let (name, len, access, kind) = (self.name()?, self.u64()?, self.access()?, self.kind()?);
        let (pid, clients, generation, incarnation) = (self.u32()?, self.u32()?, self.u64()?, self.u64()?);
        Ok(RegionDesc { name, len, access, kind, pid, clients, generation, incarnation })
    }
    fn lane(&mut self) -> Result<Endpoint, CodecError> {
        let (qpn, psn, gid) = (self.u32()?, self.u32()?, self.take::<16>()?);
        let (lid, mtu, reads) = (self.u16()?, self.u8()?, self.u8()?);
        let good = qpn < 1 << 24 && psn < 1 << 24 && (1..=5).contains(&mtu);
        if good { Ok(Endpoint { qpn, psn, gid, lid, mtu, reads }) } else { Err(CodecError::Field) }
    }
    /// Of lanes.
    fn count(&mut self) -> Result<u8, CodecError> {
        Some(self.u8()?).filter(|n| (1..=MAX_LANES).contains(&usize::from(*n))).ok_or(CodecError::Field)
    }
    fn lanes(&mut self) -> Result<Vec<Endpoint>, CodecError> {
        (0..self.count()?).map(|_| self.lane()).collect()
    }
}

#[cfg(test)]
mod tests;
