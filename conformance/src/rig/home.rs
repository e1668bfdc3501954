//! Homes that the suites can look at and change past every cache.

use super::{Card, Valve, net};
use crate::runner::Over;
use smc_engine::base::{HomeOff, PAGE, Status};
use smc_engine::core::export::{Export, ExportOptions, Exporter, Memory};
use smc_engine::link::embedded::EmbeddedLink;
use smc_engine::link::failover::{Failover, Path};
use smc_engine::link::faulty::{Faulty, Plan};
use smc_engine::link::loopback::Loopback;
use smc_engine::link::{Access, Link, RegionKey};
use smc_engine::sys::clock::Deadline;
use smc_engine::sys::mem::{Mapping, RW};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A home and a link to it.
pub struct Home {
    /// Kind, for failures.
    pub name: &'static str,
    /// The link to it.
    pub link: Arc<dyn Link>,
    plain: Arc<dyn Link>,
    /// Name of the region on the link.
    pub region: String,
    /// Bytes.
    pub len: usize,
    base: usize,
    _keep: Arc<Keep>,
}

/// What keeps the memory.
enum Keep {
    Loopback { _link: Arc<Loopback> },
    Export { export: Export },
    Restartable { export: Mutex<Option<Export>>, memory: Mapping },
    Elsewhere { look: Option<(Arc<dyn Link>, RegionKey)> },
}

/// A name nobody else on this host uses.
pub fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("suite-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The link of an exported region of this process, as this run chooses it.
fn link_here() -> (&'static str, Arc<dyn Link>) {
    match Over::now() {
        Over::Here => ("embedded", Arc::new(EmbeddedLink::connect_local())),
        Over::Verbs => ("verbs", net::connect(net::listen())),
    }
}

impl Home {
    /// In this process, every operation a copy. In a run over a device: [`Home::embedded`], if it is whole pages.
    pub fn loopback(len: usize, seed: u64) -> Home {
        if Over::now() == Over::Verbs && len.is_multiple_of(PAGE) {
            return Home::embedded(len, seed);
        }
        let link = Arc::new(Loopback::new(len).expect("a loopback home"));
        let base = link.home() as usize;
        let keep = Arc::new(Keep::Loopback { _link: link.clone() });
        let plain = link.clone();
        Home { name: "loopback", link, plain, region: "t".into(), len, base, _keep: keep }
    }

    /// Exported by this process's exporter threads and reached by the embedded link, or over a device in such a run. Whole
    /// pages.
    pub fn embedded(len: usize, _seed: u64) -> Home {
        let region = fresh_name();
        let exporter = Exporter::get().expect("an exporter");
        let export = exporter.export(&region, Memory::New(len), ExportOptions::default()).expect("an export");
        let (base, len) = (export.base() as usize, export.len());
        let (name, link) = link_here();
        let plain = link.clone();
        Home { name, link, plain, region, len, base, _keep: Arc::new(Keep::Export { export }) }
    }

    /// As [`Home::embedded`], on memory that outlives the export: [`Home::end`] and [`Home::restart`] it. Whole pages.
    pub fn restartable(len: usize, _seed: u64) -> Home {
        let memory = Mapping::anonymous(len.next_multiple_of(PAGE), RW).expect("memory");
        let (base, len) = (memory.addr(), memory.len());
        let keep = Arc::new(Keep::Restartable { export: Mutex::default(), memory });
        let (name, link) = link_here();
        let plain = link.clone();
        let home = Home { name, link, plain, region: fresh_name(), len, base, _keep: keep };
        home.restart(1);
        home
    }

    /// The exporter ends; its memory can be looked at all the same.
    pub fn end(&self) {
        if let Keep::Restartable { export, .. } = &*self._keep {
            drop(export.lock().expect("the export").take());
        }
    }

    /// The exporter comes back with what the memory holds, as this incarnation.
    pub fn restart(&self, incarnation: u64) {
        if let Keep::Restartable { export, memory } = &*self._keep {
            let options = ExportOptions { incarnation, ..ExportOptions::default() };
            // SAFETY: whole pages of private memory that the home owns; only raw copies touch them.
            let at = unsafe { Memory::at(memory.ptr(), memory.len()) };
            let exporter = Exporter::get().expect("an exporter");
            *export.lock().expect("the export") = Some(exporter.export(&self.region, at, options).expect("an export"));
        }
    }

    /// A loopback that holds half of the writes back until the fence.
    pub fn reordering(len: usize, seed: u64) -> Home {
        let plan = Plan { seed, reorder_ppm: 500_000, ..Plan::default() };
        Home::loopback(len, seed).behind("reordering", plan)
    }

    /// A loopback behind the wire model.
    pub fn wired(len: usize, seed: u64) -> Home {
        Home::loopback(len, seed).behind("wire", Plan::wire_only())
    }

    /// This home behind a plan of faults.
    pub fn behind(self, name: &'static str, plan: Plan) -> Home {
        Home { name, link: Arc::new(Faulty::new(self.link.clone(), plan)), ..self }
    }

    /// This home behind a card that takes registrations of `limit` bytes in all.
    pub fn with_card(self, limit: u64) -> (Home, Arc<Card>) {
        let card = Arc::new(Card::new(self.link.clone(), limit));
        (Home { name: "card", link: card.clone(), ..self }, card)
    }

    /// This home behind a valve that the case turns.
    pub fn with_valve(self) -> (Home, Arc<Valve>) {
        let valve = Arc::new(Valve::new(self.link.clone()));
        (Home { link: valve.clone(), ..self }, valve)
    }

    /// The same home by its own link, past every wrapper.
    pub fn plain(&self) -> Home {
        let (name, region, keep) = (self.name, self.region.clone(), self._keep.clone());
        Home {
            name,
            link: self.plain.clone(),
            plain: self.plain.clone(),
            region,
            len: self.len,
            base: self.base,
            _keep: keep,
        }
    }

    /// This home, and `other` as its second path.
    pub fn or_over(self, other: &Home) -> Home {
        let first = Path { link: self.link.clone(), name: None };
        let second = Path { link: other.link.clone(), name: Some(other.region.clone()) };
        Home { name: "failover", link: Arc::new(Failover::new(first, second)), ..self }
    }

    /// Another link object to the same home, so that two nodes share nothing but it.
    pub fn twin(&self) -> Home {
        let (name, region, keep) = (self.name, self.region.clone(), self._keep.clone());
        Home {
            name,
            link: self.link.clone(),
            plain: self.plain.clone(),
            region,
            len: self.len,
            base: self.base,
            _keep: keep,
        }
    }

    /// A home in another process: it can be reached by the link, and not be looked at.
    pub fn unseen(link: Arc<dyn Link>, region: String, len: usize) -> Home {
        let (plain, name) = (link.clone(), link.name());
        Home { name, link, plain, region, len, base: 0, _keep: Arc::new(Keep::Elsewhere { look: None }) }
    }

    /// A home in another process of this host, looked at and changed by an embedded link of its own.
    pub fn seen(link: Arc<dyn Link>, region: String, len: usize) -> Home {
        let own: Arc<dyn Link> = Arc::new(EmbeddedLink::connect_local());
        let opened = own.open(&region, Access::ReadWrite, Deadline::in_ms(20_000)).expect("the child's export");
        let keep = Keep::Elsewhere { look: Some((own, opened.key)) };
        Home { _keep: Arc::new(keep), ..Home::unseen(link, region, len) }
    }

    /// The exporter takes the memory away from every client. For exported homes.
    pub fn revoke(&self) {
        if let Keep::Restartable { export, .. } = &*self._keep
            && let Some(e) = &*export.lock().expect("the export")
        {
            e.revoke_all("the case says so", true).expect("a revocation");
        }
        if let Keep::Export { export } = &*self._keep {
            // Without userfaultfd the exporter cannot hold its writers still; the case vouches that none is left.
            if let Err(e) = export.revoke_all("the case says so", false) {
                assert_eq!(e.status, Status::BUSY, "{e}");
                export.revoke_all("the case says so", true).expect("a revocation");
            }
        }
    }

    /// Copy of the home's bytes.
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        if let Keep::Elsewhere { look: Some((own, key)) } = &*self._keep {
            // SAFETY: the buffer has `len` bytes.
            let s = unsafe { own.fetch(*key, HomeOff(at as u64), out.as_mut_ptr(), len, Deadline::in_ms(5000)) };
            assert_eq!(s, Status::OK, "look at the home in another process");
            return out;
        }
        assert!(self.base != 0 && at + len <= self.len, "outside the home");
        // SAFETY: the range was checked; the memory lives as long as `_keep`.
        unsafe { std::ptr::copy_nonoverlapping((self.base + at) as *const u8, out.as_mut_ptr(), len) };
        out
    }

    /// The home's word.
    pub fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at, 8).try_into().expect("8 bytes"))
    }

    /// Another node's store, at the home at once.
    pub fn poke(&self, at: usize, bytes: &[u8]) {
        if let Keep::Elsewhere { look: Some((own, key)) } = &*self._keep {
            let (from, len) = (bytes.as_ptr(), bytes.len());
            // SAFETY: the slice is valid for its length.
            let s = unsafe { own.put(*key, HomeOff(at as u64), from, len, Deadline::in_ms(5000)) };
            return assert_eq!(s, Status::OK, "change the home in another process");
        }
        assert!(self.base != 0 && at + bytes.len() <= self.len, "outside the home");
        // SAFETY: as in `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.base + at) as *mut u8, bytes.len()) };
    }

    /// [`Home::poke`] of a word.
    pub fn set(&self, at: usize, value: u64) {
        self.poke(at, &value.to_le_bytes());
    }

    /// Every page begins with its own number plus one.
    pub fn numbered(self) -> Home {
        (0..self.len / PAGE).for_each(|p| self.set(p * PAGE, p as u64 + 1));
        self
    }
}
