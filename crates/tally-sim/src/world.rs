//! A world of one engine: its disk, its clock, its callers, and everything that must hold in it.
//!
//! The world goes through lives. A life begins by opening what the disk holds and comparing it with the history, goes
//! on step by step on one thread, and ends in a clean stop, a killed process or a power cut. Everything that happens
//! follows from the seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tally_core::key::Key;
use tally_core::reading::Stats;
use tally_core::surface::PageRequest;
use tally_core::time::Millis;
use tally_engine::check::check_disk;
use tally_engine::clock::Clock;
use tally_engine::{Durability, Machine, Settings};

use crate::disk::{Loss, SimDisk};
use crate::history::History;
use crate::life::{Life, at_once};
use crate::model;
use crate::rng::Rng;
use crate::workload::{SUBMISSIONS, Workload, counted};

/// What does not hold, in words.
pub type Verdict<T = ()> = Result<T, String>;

/// Returns what does not hold.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}

/// Clocks that stand still until they are told to go on.
#[derive(Debug, Default)]
pub struct SimClock {
    wall_ms: AtomicU64,
    elapsed_ms: AtomicU64,
}

impl SimClock {
    fn new(wall_ms: u64) -> SimClock {
        SimClock { wall_ms: AtomicU64::new(wall_ms), elapsed_ms: AtomicU64::new(0) }
    }

    /// Sets the wall clock back, as operators and time servers do.
    pub fn set_back(&self, ms: u64) {
        self.wall_ms.fetch_sub(ms, Ordering::Relaxed);
    }

    /// Sets the wall clock forward.
    pub fn set_forward(&self, ms: u64) {
        self.wall_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Lets time pass.
    pub fn advance(&self, ms: u64) {
        self.wall_ms.fetch_add(ms, Ordering::Relaxed);
        self.elapsed_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn wall(&self) -> Millis {
        Millis(self.wall_ms.load(Ordering::Relaxed))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.elapsed_ms.load(Ordering::Relaxed))
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How often things happened: a simulation that never gets into trouble proves nothing.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Observed {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Observed {
            /// Takes in what another world has seen.
            pub fn add(&mut self, other: &Observed) {
                $(self.$name += other.$name;)*
            }

            /// What happened least, and how often.
            #[must_use]
            pub fn rarest(&self) -> (u64, &'static str) {
                [$((self.$name, stringify!($name))),*].into_iter().min().unwrap_or_default()
            }
        }
    };
}

counts! {
    /// Power cuts.
    crashes,
    /// Power cuts while a crash was being recovered from.
    crashes_while_opening,
    /// Processes killed.
    kills,
    /// Clean stops.
    stops,
    /// Syncs made to fail.
    failed_syncs,
    /// Sealed batches that a crash took back.
    batches_lost,
    /// Sealed batches that survived although nobody was told.
    batches_found,
    /// Submissions acknowledged.
    acknowledged,
    /// Questions answered.
    readings,
    /// Questions that had to wait for a flush.
    readings_withheld,
    /// Submissions refused because the disk was full.
    refused_full,
    /// Flushes.
    flushes,
    /// Checkpoints in force.
    checkpoints,
    /// Checkpoints given up.
    checkpoints_failed,
    /// Merges.
    merges,
    /// Memory became whole after a restart, or had no room for all.
    warmed,
    /// Flushes that went on in another segment.
    rolls,
    /// Segments given up.
    trims,
    /// Submissions that only read.
    looks,
    /// Counters found to have expired and swept.
    sweeps,
    /// Steps of the wall clock.
    clock_steps,
    /// Increments refused because the value would overflow.
    overflows,
}

/// The world.
pub struct World {
    /// The disk.
    pub disk: SimDisk,
    /// The clock.
    pub clock: Arc<SimClock>,
    /// Where every choice comes from.
    pub rng: Rng,
    /// What callers draw from.
    pub workload: Workload,
    /// What happened.
    pub history: History,
    /// How often.
    pub seen: Observed,
    /// Requests that a crash took back, to be sent again.
    pub lost: Vec<model::Event>,
    /// Whether a sync was made to fail that nobody may have met yet.
    pub(crate) sync_fails: bool,
    settings: Settings,
}

impl World {
    /// An empty world.
    #[must_use]
    pub fn new(seed: u64, workload: Workload, segment_bytes: u64) -> World {
        World {
            disk: SimDisk::new(seed),
            clock: Arc::new(SimClock::new(1_700_000_000_000)),
            rng: Rng::new(seed),
            workload,
            history: History::default(),
            seen: Observed::default(),
            lost: Vec::new(),
            sync_fails: false,
            // The smallest memory that holds one chunk of counters.
            settings: Settings {
                memory_bytes: 1_400_000,
                segment_bytes,
                checkpoint_journal_bytes: 2 * segment_bytes,
                seed,
            },
        }
    }

    /// Opens what the disk holds. If the disk crashes meanwhile, cuts the power and tries again: that must work.
    /// What is found must be what the history says.
    pub fn open(&mut self) -> Verdict<Machine> {
        loop {
            let checked = check_disk(&self.disk.disk(), &mut |_, _| {});
            let clock = Arc::clone(&self.clock);
            let opened = Machine::open(self.disk.disk(), clock, self.settings, &mut |_, _| {});
            if self.disk.crashed() {
                self.seen.crashes_while_opening += 1;
                drop(opened);
                let seed = self.rng.next_u64();
                self.disk.power_cut(seed);
                continue;
            }
            if opened.is_err() && std::mem::take(&mut self.sync_fails) {
                continue;
            }
            let machine = opened.map_err(|error| format!("the disk does not open: {error}; check says {checked:?}"))?;
            checked.map_err(|error| format!("the disk opens, and check says: {error}"))?;
            self.recognise(&machine)?;
            return Ok(machine);
        }
    }

    /// Cuts the power.
    pub fn power_cut(&mut self, loss: Option<Loss>) {
        self.seen.crashes += 1;
        let seed = self.rng.next_u64();
        match loss {
            Some(loss) => self.disk.power_cut_losing(loss, seed),
            None => self.disk.power_cut(seed),
        }
    }

    /// Compares everything that can be seen of a machine that was just opened with the history.
    fn recognise(&mut self, machine: &Machine) -> Verdict {
        let key = Key::new(SUBMISSIONS).map_err(|error| error.to_string())?;
        let found = at_once(machine.read(&[key], Durability::Flushed))?.map_err(|error| error.to_string())?;
        let (sealed, flushed) = (self.history.sealed(), self.history.flushed());
        let mut lost = self.history.survived(found[0].value)?;
        self.seen.batches_found += self.history.flushed() - flushed;
        self.seen.batches_lost += sealed - self.history.flushed();
        self.lost.append(&mut lost);
        self.compare_all(machine)
    }

    /// Compares the whole state with the model, when nothing is on its way.
    pub fn compare_all(&mut self, machine: &Machine) -> Verdict {
        let model = self.history.applied();
        let now = machine.now();
        // Of a crowd a sample will do.
        let step = self.workload.keys.len().div_ceil(64);
        let first = self.rng.below(step as u64) as usize;
        for key in self.workload.keys.iter().skip(first).step_by(step) {
            let stats = at_once(machine.stats(key, Durability::Flushed))?.map_err(|error| error.to_string())?;
            compare_stats(&stats, model.seen(key, now), now).map_err(|what| format!("{key:?}: {what}"))?;
            let ledger = at_once(machine.ledger(key, 0, 1000))?.map_err(|error| error.to_string())?;
            let expected = model.ledger.get(key).map_or(&[][..], Vec::as_slice);
            ensure!(ledger == expected, "the ledger of {key:?} is {ledger:?} instead of {expected:?}");
        }
        let limit = [1, 3, 1000][self.rng.below(3) as usize].max(model.counters.len() / 20);
        compare_list(machine, model, now, limit)?;
        let exist = model.all_seen(now).count() as u64;
        let counted = at_once(machine.count(Durability::Flushed))?.map_err(|error| error.to_string())?;
        ensure!(counted >= exist, "{counted} counters, and {exist} exist");
        let sampled = at_once(machine.sample(self.rng.next_u64()))?.map_err(|error| error.to_string())?;
        let exists = sampled.as_ref().map(|key| model.seen(key, now).is_some());
        ensure!(exists == (exist > 0).then_some(true), "sampled {sampled:?} of {exist}");
        Ok(())
    }
}

fn compare_list(machine: &Machine, model: &model::Model, now: Millis, limit: usize) -> Verdict {
    let mut listed: Vec<(Key, i64)> = Vec::new();
    let mut after = None;
    loop {
        let request = PageRequest { prefix: Vec::new(), after, limit };
        let page = at_once(machine.list(&request))?.map_err(|error| error.to_string())?;
        listed.extend(page.items.into_iter().map(|(key, reading)| (key, reading.value)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let expected: Vec<(Key, i64)> = model.all_seen(now).map(|(key, life)| (key.clone(), life.value)).collect();
    let first = listed.iter().zip(&expected).position(|(found, expected)| found != expected);
    let at = first.unwrap_or(listed.len().min(expected.len()));
    let lengths = (listed.len(), expected.len());
    let (found, expected_there) = (listed.get(at), expected.get(at));
    ensure!(listed == expected, "listed is {found:?} instead of {expected_there:?} at {at}, of {lengths:?}");
    Ok(())
}

fn compare_stats(stats: &Stats, expected: Option<&model::Life>, now: Millis) -> Verdict {
    let Some(life) = expected else {
        let reading = stats.reading;
        ensure!(!reading.exists && reading.value == 0, "it exists: {stats:?}");
        return Ok(());
    };
    let cap = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
    let expected = (true, life.value, cap(life.plus), cap(life.minus), life.min, life.max);
    let reading = stats.reading;
    let found = (reading.exists, reading.value, stats.increments, stats.decrements, stats.min, stats.max);
    ensure!(found == expected, "found {found:?} instead of {expected:?}");
    let times = (reading.created_at, reading.updated_at);
    ensure!(times == (Some(Millis(life.created)), Some(Millis(life.updated))), "wrong times: {stats:?}, {life:?}");
    ensure!(reading.expires_at == life.expires.map(Millis), "wrong expiry: {stats:?}, {life:?}");
    if let Some(expected) = life.rates(now) {
        let found = [stats.rate_1s, stats.rate_1m, stats.rate_1h];
        ensure!(found == expected, "rates {found:?} instead of {expected:?}");
    }
    Ok(())
}

impl World {
    /// Makes sure that every counter exists, in a life of its own.
    pub fn fill(&mut self) -> Verdict {
        self.disk.set_capacity(u64::MAX);
        let machine = self.open()?;
        let now = machine.now();
        let missing = |key: &&Key| self.history.applied().seen(key, now).is_none();
        let missing: Vec<Key> = self.workload.keys.iter().filter(missing).cloned().collect();
        let mut life = Life::new(self, &machine);
        for some in missing.chunks(1000) {
            let events = some.iter().map(|key| model::Event::add(key, 1));
            life.submit_these(counted(events), Durability::Flushed)?;
            life.settle()?;
            life.whole_checkpoint()?;
            ensure!(!life.is_over() || life.world.sync_fails, "the engine stopped while nothing failed");
            if life.is_over() {
                break;
            }
        }
        life.answer()
    }

    /// Goes through one life: opens, lives for so many steps, and dies somehow.
    pub fn live(&mut self, steps: u64) -> Verdict {
        self.disk.set_capacity(u64::MAX);
        if self.rng.one_in(5) {
            self.crash_within(40);
        }
        let machine = self.open()?;
        let how = self.rng.below(8);
        let when = self.rng.below(steps.max(1));
        let mut life = Life::new(self, &machine);
        for step in 0..steps {
            match how {
                0..=2 if step == when => life.world.crash_within(60),
                3 if step == when => life.fail_a_sync(),
                4 if step == when => break,
                _ => {}
            }
            life.step().map_err(|what| format!("step {step}: {what}"))?;
            if life.is_over() {
                break;
            }
        }
        if how == 7 && !life.is_over() {
            life.stop()?;
        }
        drop(life);
        drop(machine);
        // A process that dies leaves the page cache behind; a power cut does not.
        if self.disk.crashed() || self.rng.one_in(2) {
            self.power_cut(None);
        } else {
            self.seen.kills += 1;
            self.disk.crash_at(u64::MAX);
        }
        Ok(())
    }

    /// Makes the disk crash at one of its next operations.
    pub fn crash_within(&mut self, operations: u64) {
        self.disk.crash_at(self.disk.operations() + 1 + self.rng.below(operations));
    }
}
