//! The other side of the verbs baseline: a child of this program that registers memory and, for the staged path, copies
//! what arrives from its host buffer to where it belongs.

use super::raw::{Far, Lane, Memory};
use crate::out::cannot;
use smc_engine::base::config::DeviceWish;
use smc_engine::base::{Error, Result, Status};
use smc_engine::link::mgmt::message::Endpoint;
use smc_engine::link::verbs::Verb;
use smc_engine::sys::clock::Deadline;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Name of the probe that a child is.
pub const PROBE: &str = "verbs-peer";
/// Variable that tells the child how long its memory is.
const LEN: &str = "SMC_BENCH_PEER_LEN";

/// Memory of either side: data or home, then the host buffer of the staged path, then a page of words.
fn layout(len: usize) -> (usize, usize, usize) {
    (len, 2 * len, 2 * len + 4096)
}

/// A notice of the staged path in one word: a number that is never 0, and how much lies where, in units of 8 bytes.
fn notice(number: u64, off: usize, len: usize) -> u64 {
    ((number % 0xffff + 1) << 48) | ((off as u64 / 8) << 24) | (len as u64 / 8)
}

fn text(e: &Endpoint, far: Far) -> String {
    let gid: String = e.gid.iter().map(|b| format!("{b:02x}")).collect();
    format!("{} {} {gid} {} {} {} {} {}", e.qpn, e.psn, e.lid, e.mtu, e.reads, far.addr, far.rkey)
}

fn parse(line: &str) -> Option<(Endpoint, Far)> {
    let mut words = line.split_whitespace();
    let number = |w: Option<&str>| w.and_then(|w| w.parse::<u64>().ok());
    let (qpn, psn) = (number(words.next())? as u32, number(words.next())? as u32);
    let gid = u128::from_str_radix(words.next()?, 16).ok()?.to_be_bytes();
    let (lid, mtu, reads) = (number(words.next())? as u16, number(words.next())? as u8, number(words.next())? as u8);
    let far = Far { addr: number(words.next())?, rkey: number(words.next())? as u32 };
    Some((Endpoint { qpn, psn, gid, lid, mtu, reads }, far))
}

/// This side, with a connected child.
pub struct Peer {
    pub lane: Lane,
    /// Data, host buffer, words.
    pub memory: Memory,
    /// The child's memory.
    pub far: Far,
    len: usize,
    child: Child,
    number: u64,
}

impl Peer {
    /// Starts the child with a home of `len` bytes and connects to it.
    pub fn start(wish: &DeviceWish, len: usize) -> Result<Peer> {
        let attempt = "start the other side of the verbs baseline";
        let lane = Lane::new(wish)?;
        let memory = lane.memory(layout(len).2, false)?;
        let exe = std::env::current_exe().map_err(|e| cannot(attempt, e))?;
        let mut c = Command::new(exe);
        c.args(["bench", "--probe", PROBE]).env(LEN, len.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(name) = &wish.name {
            c.args(["--device", name]);
        }
        let mut child = c.spawn().map_err(|e| cannot(attempt, e))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(|e| cannot(attempt, e))?;
        }
        let Some((other, far)) = parse(&line) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::new(Status::SYSTEM, attempt, format!("it said {:?}", line.trim())));
        };
        (0..64).for_each(|i| memory.store(layout(len).1 + i * 8, 0));
        lane.connect(&other)?;
        let mut peer = Peer { lane, memory, far, len, child, number: 0 };
        let own = Far { addr: peer.memory.at(0) as u64, rkey: peer.memory.registered.rkey };
        peer.tell(&text(&peer.lane.endpoint(), own))?;
        Ok(peer)
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let Some(to) = &mut self.child.stdin else { return Err(Error::of(Status::INTERNAL, "talk to a bench child")) };
        writeln!(to, "{line}").map_err(|e| cannot("talk to a bench child", e))
    }

    /// A place in the child's home.
    pub fn home(&self, off: usize) -> Far {
        Far { addr: self.far.addr + off as u64, ..self.far }
    }

    /// The child looks for staged data from now on, or no longer.
    pub fn watch(&mut self, yes: bool) -> Result<()> {
        self.tell(if yes { "watch" } else { "rest" })?;
        // It answers with a word when it does.
        let (_, words, _) = layout(self.len);
        let deadline = Deadline::in_ms(5000);
        while yes && self.memory.load(words) == 0 {
            self.lane.poll();
            if deadline.passed() {
                return Err(Error::of(Status::TIMED_OUT, "wait for a bench child"));
            }
        }
        Ok(())
    }

    /// The staged path: copy `len` bytes of the data at `off` to the host buffer, send it with a notice behind it; the child
    /// copies it to its home and says so.
    pub fn staged(&mut self, off: usize, len: usize) -> Result<()> {
        let (stage, words, _) = layout(self.len);
        super::super::baseline::copy(self.memory.at(off), self.memory.at(stage), len);
        self.number += 1;
        let notice = notice(self.number, off, len);
        self.memory.store(words + 64, notice);
        let lkey = self.memory.registered.lkey;
        self.lane.post(Verb::Write, (self.memory.at(stage), lkey), self.home(stage), len)?;
        self.lane.post(Verb::Write, (self.memory.at(words + 64), lkey), self.home(words), 8)?;
        self.lane.wait(0)?;
        let deadline = Deadline::in_ms(10_000);
        while self.memory.load(words) != notice {
            self.lane.poll();
            if deadline.passed() {
                return Err(Error::of(Status::TIMED_OUT, "wait for the other side of the staged path"));
            }
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The child. It ends when its standard input does.
pub fn serve(wish: &DeviceWish) -> Result<()> {
    let len = std::env::var(LEN).ok().and_then(|n| n.parse().ok());
    let len: usize = len.ok_or_else(|| Error::of(Status::INVALID_ARGUMENT, "be the other side of a bench"))?;
    let (stage, words, all) = layout(len);
    let lane = Lane::new(wish)?;
    let memory = lane.memory(all, false)?;
    (0..8).for_each(|i| memory.store(words + i * 8, 0));
    let own = Far { addr: memory.at(0) as u64, rkey: memory.registered.rkey };
    crate::out::line(text(&lane.endpoint(), own));
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line).map_err(|e| cannot("read from the bench", e))?;
    let (other, far) = parse(&line).ok_or_else(|| Error::of(Status::PROTOCOL, "read from the bench"))?;
    lane.connect(&other)?;
    static WATCH: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(move || {
        for l in input.lines().map_while(std::result::Result::ok) {
            WATCH.store(l == "watch", SeqCst);
        }
        std::process::exit(0);
    });
    let answer = |word: u64| -> Result<()> {
        memory.store(words + 64, word);
        let there = Far { addr: far.addr + words as u64, ..far };
        lane.run(Verb::Write, (&memory, words + 64), there, 8)
    };
    let (mut seen, mut greeted) = (0, false);
    loop {
        if !WATCH.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        if !std::mem::replace(&mut greeted, true) {
            answer(u64::MAX)?;
        }
        lane.poll();
        let word = memory.load(words);
        if word != seen {
            seen = word;
            let (off, n) = ((word >> 24 & 0xff_ffff) as usize * 8, (word & 0xff_ffff) as usize * 8);
            if off + n <= len {
                super::super::baseline::copy(memory.at(stage), memory.at(off), n);
            }
            answer(word)?;
        }
    }
}
