//! A simulated world with one engine: its disk, its clock, its callers, and the invariants.
//!
//! The engine goes through a sequence of lives. Each life opens the disk and compares its content with the history,
//! runs step by step on one thread, and ends in a clean stop, a killed process or a power cut. The seed determines all
//! of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tally_core::key::Key;
use tally_core::reading::Stats;
use tally_core::surface::PageRequest;
use tally_core::time::Millis;
use tally_engine::check::check_disk;
use tally_engine::clock::Clock;
use tally_engine::{Durability, Machine, OpenError, Settings};

use crate::disk::{Loss, SimDisk};
use crate::history::History;
use crate::life::{Life, ready};
use crate::model;
use crate::rng::Rng;
use crate::workload::{SUBMISSIONS, Workload, with_submission_count};

/// A result whose error describes the violated invariant.
pub type Verdict<T = ()> = Result<T, String>;

/// Returns an error with this message unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}

/// A wall clock and a monotonic clock that advance only when told to.
#[derive(Debug, Default)]
pub struct SimClock {
    wall_ms: AtomicU64,
    elapsed_ms: AtomicU64,
}

impl SimClock {
    fn new(wall_ms: u64) -> SimClock {
        SimClock { wall_ms: AtomicU64::new(wall_ms), elapsed_ms: AtomicU64::new(0) }
    }

    /// Sets the wall clock back, like an operator or a time server.
    pub fn set_back(&self, ms: u64) {
        self.wall_ms.fetch_sub(ms, Ordering::Relaxed);
    }

    /// Sets the wall clock forward.
    pub fn set_forward(&self, ms: u64) {
        self.wall_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Advances both clocks.
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
        /// How often each kind of event happened. A simulation in which nothing goes wrong proves nothing.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Observed {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Observed {
            /// Adds the counts of another world.
            pub fn add(&mut self, other: &Observed) {
                $(self.$name += other.$name;)*
            }

            /// The rarest kind of event and its count.
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
    /// Power cuts during recovery.
    crashes_while_opening,
    /// Processes killed.
    kills,
    /// Clean stops.
    stops,
    /// Syncs made to fail.
    failed_syncs,
    /// Sealed batches lost in a crash.
    batches_lost,
    /// Sealed batches that survived a crash without having been acknowledged.
    batches_found,
    /// Submissions acknowledged.
    acknowledged,
    /// Reads answered.
    readings,
    /// Reads that had to wait for a flush.
    readings_withheld,
    /// Submissions refused because the disk was full.
    refused_full,
    /// Flushes.
    flushes,
    /// Checkpoints completed.
    checkpoints,
    /// Checkpoints abandoned.
    checkpoints_failed,
    /// Merges.
    merges,
    /// Times that warming after a restart finished, because everything is resident or memory is full.
    warmed,
    /// Flushes that started a new segment.
    rolls,
    /// Times that segments were trimmed.
    trims,
    /// Read-only submissions.
    reads,
    /// Expired counters swept.
    sweeps,
    /// Steps of the wall clock.
    clock_steps,
    /// Increments refused because the value would overflow.
    overflows,
    /// Guards whose counter had not changed.
    guards_met,
    /// Guards whose counter had changed, or that followed a refused guard in their group.
    guards_refused,
}

/// The world.
pub struct World {
    /// The disk.
    pub disk: SimDisk,
    /// The clock.
    pub clock: Arc<SimClock>,
    /// The source of every random choice.
    pub rng: Rng,
    /// What callers submit.
    pub workload: Workload,
    /// The batches so far.
    pub history: History,
    /// How often each kind of event happened.
    pub observed: Observed,
    /// Requests lost in a crash, to be retried.
    pub lost: Vec<model::Event>,
    /// Whether the disk may still have a sync failure to inject.
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
            observed: Observed::default(),
            lost: Vec::new(),
            sync_fails: false,
            // Just enough memory for one chunk of counters.
            settings: Settings {
                memory_bytes: 1_400_000,
                segment_bytes,
                checkpoint_journal_bytes: 2 * segment_bytes,
                seed,
            },
        }
    }

    /// Opens the disk and compares the state with the history. If the disk crashes meanwhile, cuts the power and
    /// retries.
    pub fn open(&mut self) -> Verdict<Machine> {
        loop {
            let checked = check_disk(&self.disk.disk(), &mut |_, _| {});
            let clock = Arc::clone(&self.clock);
            let opened = Machine::open(self.disk.disk(), clock, self.settings, &mut |_, _| {});
            if self.disk.crashed() {
                self.observed.crashes_while_opening += 1;
                drop(opened);
                let seed = self.rng.next_u64();
                self.disk.power_cut(seed);
                continue;
            }
            if opened.is_err() && std::mem::take(&mut self.sync_fails) {
                continue;
            }
            let machine =
                opened.map_err(|error| format!("the disk does not open: {error}; the check reports {checked:?}"))?;
            checked.map_err(|error| format!("the disk opens, but the check reports: {error}"))?;
            self.check_recovery(&machine)?;
            return Ok(machine);
        }
    }

    /// Opens the disk with the default settings, and compares nothing.
    pub fn open_unchecked(&self) -> Result<Machine, OpenError> {
        let clock = Arc::clone(&self.clock);
        Machine::open(self.disk.disk(), clock, Settings::default(), &mut |_, _| {})
    }

    /// Cuts the power.
    pub fn power_cut(&mut self, loss: Option<Loss>) {
        self.observed.crashes += 1;
        let seed = self.rng.next_u64();
        match loss {
            Some(loss) => self.disk.power_cut_losing(loss, seed),
            None => self.disk.power_cut(seed),
        }
    }

    /// Compares the observable state of a freshly opened machine with the history.
    fn check_recovery(&mut self, machine: &Machine) -> Verdict {
        let key = Key::new(SUBMISSIONS).map_err(|error| error.to_string())?;
        let found = ready(machine.read(&[key], Durability::Flushed))?.map_err(|error| error.to_string())?;
        let (sealed, flushed) = (self.history.sealed(), self.history.flushed());
        let mut lost = self.history.survived(found[0].value)?;
        self.observed.batches_found += self.history.flushed() - flushed;
        self.observed.batches_lost += sealed - self.history.flushed();
        self.lost.append(&mut lost);
        self.compare_all(machine)
    }

    /// Compares the whole state with the model. No call may be in progress.
    pub fn compare_all(&mut self, machine: &Machine) -> Verdict {
        let model = self.history.applied();
        let now = machine.now();
        // A sample is enough if there are many counters.
        let step = self.workload.keys.len().div_ceil(64);
        let first = self.rng.below(step as u64) as usize;
        for key in self.workload.keys.iter().skip(first).step_by(step) {
            let stats = ready(machine.stats(key, Durability::Flushed))?.map_err(|error| error.to_string())?;
            compare_stats(&stats, model.visible(key, now), now).map_err(|what| format!("{key:?}: {what}"))?;
            let ledger = ready(machine.ledger(key, 0, 1000))?.map_err(|error| error.to_string())?;
            let expected = model.ledger.get(key).map_or(&[][..], Vec::as_slice);
            ensure!(ledger == expected, "the ledger of {key:?} is {ledger:?} instead of {expected:?}");
        }
        let limit = [1, 3, 1000][self.rng.below(3) as usize].max(model.counters.len() / 20);
        compare_list(machine, model, now, limit)?;
        let exist = model.all_visible(now).count() as u64;
        let counted = ready(machine.count(Durability::Flushed))?.map_err(|error| error.to_string())?;
        ensure!(counted >= exist, "the count is {counted}, but {exist} counters exist");
        let sampled = ready(machine.sample(self.rng.next_u64()))?.map_err(|error| error.to_string())?;
        let exists = sampled.as_ref().map(|key| model.visible(key, now).is_some());
        ensure!(exists == (exist > 0).then_some(true), "sampled {sampled:?} of {exist}");
        Ok(())
    }
}

fn compare_list(machine: &Machine, model: &model::Model, now: Millis, limit: usize) -> Verdict {
    let mut listed: Vec<(Key, i64)> = Vec::new();
    let mut after = None;
    loop {
        let request = PageRequest { prefix: Vec::new(), after, limit };
        let page = ready(machine.list(&request))?.map_err(|error| error.to_string())?;
        listed.extend(page.items.into_iter().map(|(key, reading)| (key, reading.value)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let expected: Vec<(Key, i64)> = model.all_visible(now).map(|(key, counter)| (key.clone(), counter.value)).collect();
    let first = listed.iter().zip(&expected).position(|(found, expected)| found != expected);
    let at = first.unwrap_or(listed.len().min(expected.len()));
    let lengths = (listed.len(), expected.len());
    let (found, expected_there) = (listed.get(at), expected.get(at));
    ensure!(listed == expected, "listed is {found:?} instead of {expected_there:?} at {at}, of {lengths:?}");
    Ok(())
}

fn compare_stats(stats: &Stats, expected: Option<&model::ModelCounter>, now: Millis) -> Verdict {
    let Some(counter) = expected else {
        let reading = stats.reading;
        ensure!(!reading.exists && reading.value == 0, "it exists: {stats:?}");
        return Ok(());
    };
    let cap = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
    let expected = (true, counter.value, cap(counter.plus), cap(counter.minus), counter.min, counter.max);
    let reading = stats.reading;
    let found = (reading.exists, reading.value, stats.increments, stats.decrements, stats.min, stats.max);
    ensure!(found == expected, "found {found:?} instead of {expected:?}");
    let times = (reading.created_at, reading.updated_at);
    ensure!(
        times == (Some(Millis(counter.created)), Some(Millis(counter.updated))),
        "wrong times: {stats:?}, {counter:?}"
    );
    ensure!(reading.expires_at == counter.expires.map(Millis), "wrong expiry: {stats:?}, {counter:?}");
    if let Some(expected) = counter.rates(now) {
        let found = [stats.rate_1s, stats.rate_1m, stats.rate_1h];
        ensure!(found == expected, "rates {found:?} instead of {expected:?}");
    }
    Ok(())
}

impl World {
    /// Creates every counter that does not exist, in a separate life.
    pub fn fill(&mut self) -> Verdict {
        self.disk.set_capacity(u64::MAX);
        let machine = self.open()?;
        let now = machine.now();
        let missing = |key: &&Key| self.history.applied().visible(key, now).is_none();
        let missing: Vec<Key> = self.workload.keys.iter().filter(missing).cloned().collect();
        let mut life = Life::new(self, &machine);
        for some in missing.chunks(1000) {
            let events = some.iter().map(|key| model::Event::add(key, 1));
            life.submit_these(with_submission_count(events), Durability::Flushed)?;
            life.flush_all()?;
            life.full_checkpoint()?;
            ensure!(!life.is_stopped() || life.world.sync_fails, "the engine stopped although nothing failed");
            if life.is_stopped() {
                break;
            }
        }
        life.check_answers()
    }

    /// Runs one life: opens the engine, performs `steps` steps, and ends it in a random way.
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
            if life.is_stopped() {
                break;
            }
        }
        if how == 7 && !life.is_stopped() {
            life.stop()?;
        }
        drop(life);
        drop(machine);
        // The page cache survives a killed process but not a power cut.
        if self.disk.crashed() || self.rng.one_in(2) {
            self.power_cut(None);
        } else {
            self.observed.kills += 1;
            self.disk.crash_at(u64::MAX);
        }
        Ok(())
    }

    /// Makes the disk crash within the next `operations` operations.
    pub fn crash_within(&mut self, operations: u64) {
        self.disk.crash_at(self.disk.operations() + 1 + self.rng.below(operations));
    }
}
