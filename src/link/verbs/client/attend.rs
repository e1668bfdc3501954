//! The thread of a region ("smc-verbs"): connects it, hears what the exporter says, and makes new queue pairs when the old ones fail.
//!
//! ```text
//!   open ──► up ──── queue pairs fail ────► pause, doubled each time ──► new queue pairs on the same connection ──► up
//!             │└──── the home moves ──────► new queue pairs at once ──────────────────────────────────────────────► up
//!             │───── connection lost ─────► pause ──► connect, open; same length and incarnation? new queue pairs ──► up
//!             │                                                        └── other memory: down (STALE)
//!             └───── revoked ─────────────► down (REVOKED)
//! ```

use super::meet::Met;
use super::rig::Rig;
use super::session::Session;
use super::table::Table;
use super::talk::{Plan, Talk, Trouble};
use crate::base::{Error, Result, Status};
use crate::link::mgmt::{Message, RegionDesc};
use crate::link::{Opened, RegionKey, Ticket};
use crate::sys::channel::Sender;
use crate::sys::clock::{Deadline, nap, now};
use crate::sys::poll::{PollFd, poll};
use crate::sys::sync::SignalsBlocked;
use crate::sys::thread::{Wake, Waker};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Beat of the keep-alive.
const TICK_NS: u64 = 1_000_000_000;
/// An exporter silent for longer is lost.
const SILENT_NS: u64 = 5_000_000_000;
/// First pause before queue pairs are made anew; it doubles up to the second.
const PAUSE_MIN: u64 = 10_000_000;
const PAUSE_MAX: u64 = 2_000_000_000;
/// A region that was up for so long starts with the first pause again.
const STEADY_NS: u64 = 10_000_000_000;
/// Time for one try to connect.
const TRY_MS: u64 = 3000;
/// Work lanes of a region unless the user says otherwise, but one for each port at least.
const LANES: usize = 2;

/// The thread's state.
struct Attendant {
    plan: Plan,
    table: Arc<Table>,
    wake: Wake,
    session: Arc<Session>,
    key: RegionKey,
    desc: RegionDesc,
    talk: Option<Talk>,
    rig: Option<Arc<Rig>>,
    /// What the connection manager holds of the lanes.
    met: Option<Met>,
    /// The same of lanes that have failed, until others are connected.
    former: Option<Met>,
    pause: u64,
    up_at: u64,
    /// A READ on the fault lane that tells whether the queue pair works when nobody uses it.
    beat: Option<(Ticket, u64)>,
}

/// What a thread is started with.
pub(super) struct Start {
    pub plan: Plan,
    pub table: Arc<Table>,
    pub rigs: Arc<super::rig::Rigs>,
    pub lanes: Option<usize>,
    pub deadline: Deadline,
}

/// The body of the thread: opens the region, says how that went, and looks after it until it is closed.
pub(super) fn run(start: Start, wake: Wake, reply: &Sender<Result<Opened>>) {
    match begin(start, wake) {
        Ok((attendant, opened)) => {
            let key = opened.key;
            if reply.send(Ok(opened)).is_err() {
                // The caller gave up: nobody will ever close it.
                attendant.table.close(key);
                attendant.session.closing.store(true, SeqCst);
            }
            attendant.attend();
        }
        Err(e) => _ = reply.send(Err(e)),
    }
}

fn begin(start: Start, wake: Wake) -> Result<(Attendant, Opened)> {
    let Start { plan, table, rigs, lanes, deadline } = start;
    let (mut talk, desc) = Talk::open(&plan, deadline)?;
    let rig = rigs.get(talk.client.local())?;
    let bounce = rigs.bounce().ok_or_else(|| Error::of(Status::INTERNAL, "open a region"))?;
    let count = 1 + lanes.unwrap_or(LANES.max(rig.choice.ports.len()));
    let writable = plan.want == crate::link::Access::ReadWrite;
    let session = Arc::new(Session::new(desc.len, writable, count, rigs, bounce));
    let _ = session.thread.set(Waker::own());
    let met = talk.connect(&session, &rig, deadline)?;
    session.set_up();
    let Some(key) = table.install(session.clone()) else {
        take_down(&session);
        let why = format!("{} regions are open already", super::SLOTS);
        return Err(Error::new(Status::NO_RESOURCES, format!("open region \"{}\"", plan.name), why));
    };
    let mut info = desc.info();
    info.access = plan.want;
    let (talk, rig, beat) = (Some(talk), Some(rig), None);
    let a = Attendant {
        plan,
        table,
        wake,
        session,
        key,
        desc,
        talk,
        rig,
        met,
        former: None,
        pause: PAUSE_MIN,
        up_at: now(),
        beat,
    };
    Ok((a, Opened { key, info }))
}

fn take_down(session: &Session) {
    session.lanes.iter().for_each(|l| l.take_down(&session.trips));
}

impl Attendant {
    fn attend(mut self) {
        while let Some(trouble) = self.serve() {
            match &trouble {
                Trouble::Lanes | Trouble::Moved => self.session.set_retrying(Status::LINK_DOWN),
                Trouble::Lost(s) => self.session.set_retrying(*s),
                Trouble::Over(s) => self.session.set_down(*s),
            }
            self.drop_lanes();
            if !self.recover(trouble) {
                break;
            }
        }
        self.end();
    }

    fn closing(&self) -> bool {
        self.session.closing.load(SeqCst)
    }

    /// Flights end, and nothing is under way any more.
    fn drop_lanes(&mut self) {
        take_down(&self.session);
        self.former = self.met.take().or(self.former.take());
        self.forget_beat();
    }

    /// Looks after a region that is up; what ended that, or `None` when it was closed.
    fn serve(&mut self) -> Option<Trouble> {
        let mut tick = now() + TICK_NS;
        loop {
            if self.closing() {
                return None;
            }
            if self.session.lanes.iter().any(super::lane::Lane::is_broken) {
                return Some(Trouble::Lanes);
            }
            if let Some(trouble) = self.listen(tick.saturating_sub(now())) {
                return Some(trouble);
            }
            if now() >= tick {
                tick = now() + TICK_NS;
                if let Some(trouble) = self.tick() {
                    return Some(trouble);
                }
            }
        }
    }

    /// Sleeps until somebody says something, at most `ns`.
    fn listen(&mut self, ns: u64) -> Option<Trouble> {
        let mut fds = vec![PollFd::readable(self.wake.fd())];
        fds.extend(self.talk.as_ref().map(|t| t.client.watch()));
        fds.extend(self.met.as_ref().map(Met::watch));
        if poll(&mut fds, ns.div_ceil(1_000_000)).is_err() {
            nap(1_000_000);
        }
        self.wake.clear();
        if let Some(met) = &self.met {
            met.hear(|lane| _ = self.session.lanes.get(lane).map(super::lane::Lane::give_up));
        }
        self.talk.as_mut().and_then(Talk::hear)
    }

    /// Once a second: asks the exporter for an answer, and the fault lane for a byte.
    fn tick(&mut self) -> Option<Trouble> {
        let Some(talk) = &mut self.talk else { return Some(Trouble::Lost(Status::LINK_DOWN)) };
        if now().saturating_sub(talk.heard) > SILENT_NS {
            return Some(Trouble::Lost(Status::TIMED_OUT));
        }
        if let Err(e) = talk.client.tell(&Message::Ping { token: now() }) {
            return Some(Trouble::Lost(e.status));
        }
        let signals = SignalsBlocked::in_handler();
        self.session.lanes.iter().for_each(|l| l.poll(&signals, &self.session.trips));
        match self.beat {
            Some((ticket, since)) => {
                let trip = self.session.trips.find(ticket)?;
                match self.session.trips.ended(trip) {
                    Some(_) => self.forget_beat(),
                    None if now().saturating_sub(since) > SILENT_NS => return Some(Trouble::Lanes),
                    None => return None,
                }
            }
            None => self.beat = self.session.beat(&signals).map(|t| (t, now())),
        }
        None
    }

    fn forget_beat(&mut self) {
        if let Some((ticket, _)) = self.beat.take()
            && let Some(trip) = self.session.trips.find(ticket)
        {
            self.session.trips.forget(trip);
        }
    }

    /// Tries until the region is up again; false when it was closed.
    fn recover(&mut self, mut trouble: Trouble) -> bool {
        if now().saturating_sub(self.up_at) > STEADY_NS {
            self.pause = PAUSE_MIN;
        }
        loop {
            match trouble {
                Trouble::Over(s) => {
                    self.talk = None;
                    self.session.set_down(s);
                    while !self.closing() {
                        let _ = self.listen(60 * TICK_NS);
                    }
                    return false;
                }
                Trouble::Lost(s) => {
                    self.talk = None;
                    self.session.set_retrying(s);
                }
                Trouble::Lanes | Trouble::Moved => self.session.set_retrying(Status::LINK_DOWN),
            }
            // A move is no failure: neither waited after nor counted.
            if trouble != Trouble::Moved {
                let wait = self.pause;
                self.pause = (wait * 2).min(PAUSE_MAX);
                if let Some(news) = self.rest(wait) {
                    trouble = news;
                    continue;
                }
            }
            if self.closing() {
                return false;
            }
            match self.reconnect() {
                Ok(()) => {
                    self.up_at = now();
                    self.session.set_up();
                    return true;
                }
                Err(t) => trouble = t,
            }
            // What was connected in part.
            self.drop_lanes();
        }
    }

    /// Pauses; hears what changes the plan meanwhile.
    fn rest(&mut self, ns: u64) -> Option<Trouble> {
        let end = now().saturating_add(ns);
        while !self.closing() && now() < end {
            match self.listen(end.saturating_sub(now())) {
                // New queue pairs are about to be made anyway.
                None | Some(Trouble::Lanes) => {}
                // That was why they have failed: they can be had at once.
                Some(Trouble::Moved) => {
                    self.pause = PAUSE_MIN;
                    return None;
                }
                news => return news,
            }
        }
        None
    }

    fn reconnect(&mut self) -> std::result::Result<(), Trouble> {
        let deadline = Deadline::in_ms(TRY_MS);
        let again = self.talk.is_none();
        if again {
            let (talk, desc) = Talk::open(&self.plan, deadline).map_err(|e| of_opening(&e))?;
            if (desc.len, desc.incarnation) != (self.desc.len, self.desc.incarnation) {
                return Err(Trouble::Over(Status::STALE));
            }
            self.talk = Some(talk);
        }
        let local = self.talk.as_ref().and_then(|t| t.client.local());
        let rig = match &self.rig {
            Some(r) => r.clone(),
            None => self.session.rigs.get(local).map_err(|_| Trouble::Lanes)?,
        };
        self.rig = Some(rig.clone());
        let Some(talk) = &mut self.talk else { return Err(Trouble::Lost(Status::LINK_DOWN)) };
        match talk.connect(&self.session, &rig, deadline) {
            Ok(met) => {
                (self.met, self.former) = (met, None);
                if again {
                    self.session.attachments.fetch_add(1, SeqCst);
                }
                Ok(())
            }
            Err(e) if e.status == Status::REVOKED => Err(Trouble::Over(e.status)),
            Err(e) if e.status == Status::PEER_DEAD => Err(Trouble::Lost(e.status)),
            Err(e) => {
                let in_order = talk.in_order;
                if !rig.choice.device.is_there() {
                    // It may be another one when it comes back.
                    self.rig = None;
                    self.session.rigs.retire(&rig);
                }
                if in_order {
                    return Err(Trouble::Lanes);
                }
                Err(Trouble::Lost(if e.status.is_transient() { e.status } else { Status::LINK_DOWN }))
            }
        }
    }

    /// The region was closed: ends when nobody is in the session any more.
    fn end(mut self) {
        self.drop_lanes();
        // After the queue pairs: what they had under way is over.
        self.former = None;
        // Its last words are those of a close.
        self.talk = None;
        while !self.table.release(self.key) {
            take_down(&self.session);
            nap(200_000);
        }
    }
}

/// What a failed opening means for a region that was open before.
fn of_opening(e: &Error) -> Trouble {
    match e.status {
        s @ (Status::REVOKED | Status::STALE) => Trouble::Over(s),
        // The exporter is there, the export is not.
        Status::NOT_FOUND => Trouble::Lost(Status::PEER_DEAD),
        s => Trouble::Lost(s),
    }
}
