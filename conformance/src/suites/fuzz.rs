//! Mutated input for every parser that reads what others wrote: nothing panics, and what is accepted means what it says.

use crate::runner::{Case, Cost, Ctx, Verdict};
use smc_engine::base::config::parse_size;
use smc_engine::base::{PAGE, Status};
use smc_engine::link::faulty::Plan;
use smc_engine::link::mgmt::codec::{decode, encode, frame_len};
use smc_engine::link::mgmt::message::{Message, RegionDesc};
use smc_engine::link::{Access, MemoryKind};
use smc_engine::policy::path;
use std::time::{Duration, Instant};

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("fuzz_management_messages", |c| run(c, &messages(), message)).timeout(30).cost(Cost::Quick),
    Case::new("fuzz_link_models", |c| run(c, &texts(MODELS), model)).timeout(30).cost(Cost::Quick),
    Case::new("fuzz_paths", |c| run(c, &texts(PATHS), name)).timeout(30).cost(Cost::Quick),
    Case::new("fuzz_sizes", |c| run(c, &texts(SIZES), size)).timeout(30).cost(Cost::Quick),
];

const MODELS: &[&str] = &[
    "wire",
    "wire,latency_ns=2000,gap_ns=10,gbps=100",
    "faulty,seed=7,loss_ppm=1000,partial_ppm=5,delay_ppm=9,delay_ns=100000,reorder_ppm=500000",
    "faulty,seed=18446744073709551615",
];
const PATHS: &[&str] = &[
    "/smc/local/grads",
    "/smc/node7:7470/a.b-c_d?policy=line&page=64k&acquire=10ms&onerror=value",
    "/smc/[fe80::1]:1/x?through=bounded&window=256&resident=1g&dirty=0&age=1s&wait=60m&fill=255",
    "/smc/10.0.0.1:65535/weights?policy=through&onerror=waitvalue",
];
const SIZES: &[&str] = &["4096", "64K", "2MiB", "1 g", "18446744073709551615", "16777215 t", " 7kb "];

fn texts(list: &[&str]) -> Vec<Vec<u8>> {
    list.iter().map(|t| t.as_bytes().to_vec()).collect()
}

fn messages() -> Vec<Vec<u8>> {
    let region = RegionDesc {
        name: "grads".into(),
        len: 1 << 30,
        access: Access::ReadWrite,
        kind: MemoryKind::Device,
        pid: 7,
        clients: 2,
        generation: 3,
        incarnation: 4,
    };
    let all = [
        Message::Hello { min: 1, max: 9 },
        Message::Welcome { version: 2, pid: 4 },
        Message::error(Status::PERMISSION, "not for you"),
        Message::List { start: 16 },
        Message::Names { next: 0, regions: vec![region.clone(); 3] },
        Message::Open { name: "grads".into(), want: Access::ReadOnly },
        Message::Opened { region },
        Message::Close,
        Message::Ended,
        Message::Moved { generation: 8 },
        Message::Revoked { reason: "gone".into() },
        Message::Ping { token: 1 },
        Message::Pong { token: u64::MAX },
        Message::DeviceFlush { off: 4096, len: 64 },
    ];
    all.iter().map(encode).collect()
}

/// Mutates seeds until the time is up; `check` says what is wrong with one input.
fn run(ctx: &mut Ctx, corpus: &[Vec<u8>], check: fn(&[u8]) -> Result<bool, String>) -> Verdict {
    let (start, time) = (Instant::now(), Duration::from_millis(ctx.scale(500, 3_000, 60_000)));
    let mut rng = ctx.rng(0xf022);
    let (mut tried, mut accepted) = (0u64, 0u64);
    for input in corpus {
        match check(input) {
            Ok(true) => {}
            other => return Verdict::Fail(format!("the seed {:?} is refused: {other:?}", show(input))),
        }
    }
    while start.elapsed() < time {
        for _ in 0..256 {
            let input = mutate(corpus, &mut rng);
            match check(&input) {
                Ok(ok) => accepted += u64::from(ok),
                Err(why) => return Verdict::Fail(format!("{}: {why}", show(&input))),
            }
            tried += 1;
        }
    }
    println!("{tried} inputs, {accepted} accepted");
    // Both ways out are taken, or the mutations are of no use.
    if accepted == 0 || accepted == tried {
        return Verdict::Fail(format!("blind: {accepted} of {tried} inputs were accepted"));
    }
    Verdict::Pass
}

fn show(input: &[u8]) -> String {
    input.escape_ascii().to_string()
}

/// One to four small changes of a seed: flips, interesting values, cuts, repeats, pieces of another seed.
fn mutate(corpus: &[Vec<u8>], rng: &mut fastrand::Rng) -> Vec<u8> {
    const BYTES: [u8; 10] = [0, 1, 0x7f, 0x80, 0xff, b'=', b',', b'/', b'9', b'?'];
    let mut out = corpus[rng.usize(..corpus.len())].clone();
    for _ in 0..rng.usize(1..5) {
        let at = rng.usize(..out.len() + 1);
        match rng.u32(0..8) {
            0 if at < out.len() => out[at] ^= 1 << rng.u32(0..8),
            1 if at < out.len() => out[at] = BYTES[rng.usize(..BYTES.len())],
            2 if at < out.len() => out[at] = out[at].wrapping_add(rng.u8(0..3).wrapping_sub(1)),
            3 => out.insert(at, BYTES[rng.usize(..BYTES.len())]),
            4 => out.truncate(at),
            5 if at < out.len() => drop(out.remove(at)),
            6 => {
                let other = &corpus[rng.usize(..corpus.len())];
                let from = rng.usize(..other.len() + 1);
                out.truncate(at);
                out.extend_from_slice(&other[from..]);
            }
            7 => {
                let piece = out[at..].to_vec();
                out.extend_from_slice(&piece);
                out.truncate(70_000);
            }
            _ => {}
        }
    }
    out
}

fn ensure(ok: bool, why: impl Into<String>) -> Result<(), String> {
    if ok { Ok(()) } else { Err(why.into()) }
}

/// A message that decodes is one that encodes to something that decodes to itself.
fn message(bytes: &[u8]) -> Result<bool, String> {
    let announced = frame_len(bytes);
    let Ok(m) = decode(bytes) else { return Ok(false) };
    ensure(announced.is_ok_and(|n| n == Some(bytes.len())), "decoded, but the frame length says otherwise")?;
    let again = decode(&encode(&m));
    ensure(again.as_ref() == Ok(&m), format!("{m:?} became {again:?}"))?;
    if let Message::Open { name, .. } = &m {
        ensure(path::is_region_name(name), format!("accepted the name {name:?}"))?;
    }
    Ok(true)
}

fn model(bytes: &[u8]) -> Result<bool, String> {
    let text = String::from_utf8_lossy(bytes);
    match Plan::parse(&text) {
        Err(e) => {
            ensure(!e.why.is_empty() && !e.remedy.is_empty(), "refused without a reason or remedy").map(|()| false)
        }
        Ok(p) => {
            let rates = [p.loss_ppm, p.partial_ppm, p.delay_ppm, p.reorder_ppm];
            ensure(rates.iter().all(|r| *r <= 1_000_000), format!("a rate beyond all: {p:?}"))?;
            ensure(p.wire.is_none_or(|w| w.gbps > 0), format!("a wire without speed: {p:?}"))?;
            // The model must stand any operation number.
            (0..3).for_each(|n| _ = p.fate(u64::MAX - n));
            Ok(true)
        }
    }
}

fn name(bytes: &[u8]) -> Result<bool, String> {
    match path::parse(bytes) {
        Err(e) => ensure(!e.to_string().is_empty() && !e.status().is_ok(), "refused without a reason").map(|()| false),
        Ok(p) => {
            ensure(path::is_region_name(&p.name), format!("accepted the name {:?}", p.name))?;
            let o = &p.options;
            ensure(o.page_unit.is_power_of_two() && (PAGE..=2 << 20).contains(&o.page_unit), "a bad page unit")?;
            ensure(o.window <= 256, "a window beyond 256")?;
            ensure(o.resident_limit == 0 || o.resident_limit >= 1 << 16, "a resident limit below 64 KiB")?;
            ensure(o.wait_ms <= 3_600_000, "a wait beyond an hour")?;
            Ok(true)
        }
    }
}

fn size(bytes: &[u8]) -> Result<bool, String> {
    let text = String::from_utf8_lossy(bytes);
    let Some(n) = parse_size(&text) else { return Ok(false) };
    let digits: String = text.trim().chars().take_while(char::is_ascii_digit).collect();
    let number: u64 = digits.parse().map_err(|e| format!("{n} from no number: {e}"))?;
    let factor = n.checked_div(number).unwrap_or(1);
    let known = [0, 10, 20, 30, 40].iter().any(|s| factor == 1 << s) && number.checked_mul(factor) == Some(n);
    ensure(known, format!("{text:?} became {n}"))?;
    Ok(true)
}
