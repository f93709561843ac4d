//! The journal on a crashing disk: flushed frames survive byte for byte and in order, followed by at most a prefix of
//! the unflushed ones.
//!
//! `TALLY_SEED=n` reruns one seed, `TALLY_SEEDS=n` sets how many are tried.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io;
use std::sync::Arc;

use tally_core::time::Position;
use tally_engine::DirId;
use tally_engine::disk::{Disk, is_full};
use tally_engine::journal::{Group, JournalError, NoRoom, OnFrame, Recovered, Salt, Tail, Writer, inspect, recover};
use tally_sim::{Loss, Rng, SimDisk};

const SEEDS_DEFAULT: u64 = 2_000;
const ID: DirId = DirId::new(5);

#[test]
#[expect(clippy::disallowed_methods, reason = "the seeds to run are chosen by an environment variable")]
fn flushed_frames_survive_every_crash_followed_by_a_prefix_of_the_unflushed_ones() {
    let number = |name| std::env::var(name).ok().and_then(|value: String| value.parse::<u64>().ok());
    let seeds = match number("TALLY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TALLY_SEEDS").unwrap_or(SEEDS_DEFAULT),
    };
    let mut seen = Observed::default();
    for seed in seeds.clone() {
        let _named = Named(format!("TALLY_SEED={seed}"));
        let mut world = World::new(seed);
        for _ in 0..8 {
            world.live();
        }
        seen.add(&world.seen);
    }
    if seeds.end - seeds.start >= 500 {
        // A simulation in which nothing goes wrong proves nothing.
        println!("{seen:?}");
        let Observed { crashes, recoveries_crashed, torn, rolls, trims, full, failed_syncs, marks, .. } = seen;
        for count in [crashes, recoveries_crashed, torn, rolls, trims, full, failed_syncs, marks] {
            assert!(count > 20, "{seen:?}");
        }
    }
}

#[test]
fn a_crash_at_any_operation_of_rolls_trims_and_restarts_loses_no_flushed_frame() {
    let workload = |world: &mut World| {
        for _ in 0..2 {
            let Some(mut open) = world.open() else { return };
            for step in 0..12_u64 {
                world.append(&mut open, 40 + step as usize * 9);
                if world.flush(&mut open).is_err() || (step % 4 == 3 && world.trim(&mut open).is_err()) {
                    return;
                }
            }
        }
    };
    let mut calm = World::with_segment(0, 256);
    workload(&mut calm);
    let operations = calm.sim.operations();
    assert!(operations > 100);
    let losses = [Loss::Nothing, Loss::Everything, Loss::Later, Loss::LaterAndTorn, Loss::Some, Loss::Some, Loss::Some];
    for n in 1..=operations {
        for (seed, loss) in losses.into_iter().enumerate() {
            let _named = Named(format!("crash at operation {n}, {loss:?}, seed {seed}"));
            let mut world = World::with_segment(0, 256);
            world.sim = SimDisk::new(seed as u64);
            world.sim.crash_at(n);
            workload(&mut world);
            assert!(world.sim.crashed());
            world.sim.power_cut_losing(loss, n + seed as u64);
            let mut open = world.open().expect("no crash is left");
            world.append(&mut open, 100);
            world.flush(&mut open).unwrap();
            drop(open);
            world.sim.power_cut_losing(Loss::Everything, 0);
            world.open().expect("no crash is left");
        }
    }
}

/// Less than a page, some pages, or more than is written ahead; page-aligned or not.
fn segment_bytes(rng: &mut Rng) -> u64 {
    let aligned = match rng.below(20) {
        0..=11 => return 128 + 8 * rng.below(200),
        12..=17 => 4096 * (1 + rng.below(8)),
        _ => 4096 * (60 + rng.below(80)),
    };
    if rng.one_in(2) { aligned } else { aligned + 8 * rng.below(512) }
}

/// A disk, its expected content, and the faults to inject.
struct World {
    sim: SimDisk,
    rng: Rng,
    segment_bytes: u64,
    /// Every frame that was placed and is not known to be lost.
    frames: Vec<Placed>,
    /// How many of them were acknowledged; they are the first ones.
    acknowledged: usize,
    /// The position of the checkpoint.
    from: Position,
    seen: Observed,
}

struct Placed {
    position: Position,
    end: Position,
    payload: Vec<u8>,
}

/// One process lifetime.
struct Open {
    writer: Writer,
    tail: Tail,
}

#[derive(Debug, Default)]
struct Observed {
    crashes: u64,
    recoveries_crashed: u64,
    torn: u64,
    rolls: u64,
    trims: u64,
    full: u64,
    failed_syncs: u64,
    marks: u64,
    frames: u64,
}

impl World {
    fn new(seed: u64) -> World {
        World::with_segment(seed, segment_bytes(&mut Rng::new(seed ^ 0x5e9)))
    }

    fn with_segment(seed: u64, segment_bytes: u64) -> World {
        World {
            sim: SimDisk::new(seed),
            rng: Rng::new(seed),
            segment_bytes,
            frames: Vec::new(),
            acknowledged: 0,
            from: Position(0),
            seen: Observed::default(),
        }
    }

    /// Opens the journal, works on it and ends in a random way.
    fn live(&mut self) {
        if self.rng.one_in(4) {
            self.segment_bytes = segment_bytes(&mut self.rng);
        }
        if !self.rng.one_in(4) {
            self.sim.crash_at(self.sim.operations() + 1 + self.rng.below(80));
        }
        if let Some(mut open) = self.open() {
            for _ in 0..self.rng.below(40) {
                if self.step(&mut open).is_err() {
                    break;
                }
            }
        }
        self.die();
    }

    fn die(&mut self) {
        self.sim.set_capacity(u64::MAX);
        self.seen.crashes += u64::from(self.sim.crashed());
        if self.rng.one_in(4) {
            self.sim.restart();
        } else {
            self.sim.power_cut(self.rng.next_u64());
        }
    }

    /// Recovers and opens the writer; `None` if the disk crashed meanwhile.
    fn open(&mut self) -> Option<Open> {
        let disk = self.sim.disk();
        if !self.sim.crashed() {
            self.expect_inspection_to_change_nothing(&disk);
        }
        let (result, payloads) = replay(recover, &disk, self.from);
        let recovered = match result {
            Ok(recovered) => recovered,
            Err(error) => {
                assert!(self.sim.crashed(), "{error}");
                self.seen.recoveries_crashed += 1;
                return None;
            }
        };
        self.seen.torn += u64::from(recovered.truncated_bytes > 0);
        self.expect_prefix(&payloads);
        let skipped = self.frames.partition_point(|frame| frame.position < self.from);
        self.frames.truncate(skipped + payloads.len());
        self.acknowledged = self.frames.len();
        if let Some(last) = self.frames.last() {
            assert_eq!(recovered.end, last.end);
        }
        let writer = match Writer::create(disk, recovered.end, self.segment_bytes, Salt::new(7), ID) {
            Ok(writer) => writer,
            Err(error) => {
                assert!(self.sim.crashed(), "{error}");
                return None;
            }
        };
        Some(Open { tail: Tail::new(writer.reservation()), writer })
    }

    fn expect_inspection_to_change_nothing(&mut self, disk: &Arc<dyn Disk>) {
        let (before, operations) = (self.sim.contents(), self.sim.operations());
        let (result, payloads) = replay(inspect, disk, self.from);
        result.unwrap();
        self.expect_prefix(&payloads);
        assert_eq!(self.sim.operations(), operations);
        assert_eq!(self.sim.contents(), before);
    }

    /// Asserts that replay found every acknowledged frame, followed by a prefix of the others.
    fn expect_prefix(&self, replayed: &[(Position, Vec<u8>)]) {
        let skipped = self.frames.partition_point(|frame| frame.position < self.from);
        let expected = &self.frames[skipped..];
        let acknowledged = self.acknowledged - skipped;
        assert!(replayed.len() >= acknowledged, "{} of {acknowledged} acknowledged frames", replayed.len());
        assert!(replayed.len() <= expected.len(), "more frames than were ever placed");
        for ((position, payload), frame) in replayed.iter().zip(expected) {
            assert_eq!(*position, frame.position);
            assert_eq!(*payload, frame.payload, "at {position}");
        }
    }

    fn step(&mut self, open: &mut Open) -> io::Result<()> {
        match self.rng.below(13) {
            0..=5 => {
                let most = self.segment_bytes - 64;
                let len = if self.rng.one_in(5) { self.rng.below(most + 1) } else { self.rng.below(64.min(most)) };
                self.append(open, len as usize);
                Ok(())
            }
            6..=8 => self.flush(open),
            9 => self.trim(open),
            10 => {
                // Written or lost in a crash: either way, the record claims no more than is durable.
                self.seen.marks += u64::from(open.writer.end_file().write().unwrap_or(false));
                Ok(())
            }
            11 => {
                let slack = self.rng.below(3 * self.segment_bytes);
                let capacity = if self.rng.one_in(2) { u64::MAX } else { self.sim.used_bytes() + slack };
                self.sim.set_capacity(capacity);
                Ok(())
            }
            _ => {
                if self.rng.one_in(8) {
                    self.sim.fail_next_sync();
                }
                Ok(())
            }
        }
    }

    fn append(&mut self, open: &mut Open, len: usize) {
        let payload = self.rng.bytes(len);
        match open.tail.append(|out| out.extend_from_slice(&payload)) {
            Ok(placed) => {
                self.seen.rolls += u64::from(placed.rolls);
                self.seen.frames += 1;
                self.frames.push(Placed { position: placed.position, end: placed.end, payload });
            }
            Err(NoRoom) => self.seen.full += 1,
        }
    }

    fn flush(&mut self, open: &mut Open) -> io::Result<()> {
        match open.writer.flush(&mut open.tail.take(Group::default())) {
            Ok(flushed) => {
                self.acknowledged = self.frames.len();
                assert!(self.frames.last().is_none_or(|last| flushed >= last.end));
            }
            Err(error) => {
                self.seen.failed_syncs += u64::from(!self.sim.crashed());
                assert!(open.writer.sync().is_err(), "a failed flush poisons the writer");
                return Err(error);
            }
        }
        match open.writer.prepare_next() {
            Ok(fresh) => open.tail.add_spares(fresh),
            Err(error) if is_full(&error) => assert!(open.writer.needs_spare()),
            // A failed sync of a spare: nothing acknowledged depends on it.
            Err(error) if self.sim.crashed() => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    fn trim(&mut self, open: &mut Open) -> io::Result<()> {
        if let Some(last) = self.acknowledged.checked_sub(1) {
            let checkpoint = self.frames[last - self.rng.below(4.min(last as u64 + 1)) as usize].end;
            self.from = self.from.max(checkpoint);
        }
        self.seen.trims += u64::from(open.writer.trim(self.from)? > 0);
        assert!(open.writer.oldest() <= self.from);
        let names = self.sim.names()?;
        let spares = names.iter().filter(|name| name.starts_with("spare-")).count();
        assert!(spares <= 2, "{names:?}");
        Ok(())
    }
}

impl Observed {
    fn add(&mut self, other: &Observed) {
        self.crashes += other.crashes;
        self.recoveries_crashed += other.recoveries_crashed;
        self.torn += other.torn;
        self.rolls += other.rolls;
        self.trims += other.trims;
        self.full += other.full;
        self.failed_syncs += other.failed_syncs;
        self.marks += other.marks;
        self.frames += other.frames;
    }
}

type Pass =
    fn(&Arc<dyn Disk>, DirId, Position, &mut OnFrame<'_>, &mut dyn FnMut(u64, u64)) -> Result<Recovered, JournalError>;

type Replayed = Vec<(Position, Vec<u8>)>;

fn replay(pass: Pass, disk: &Arc<dyn Disk>, from: Position) -> (Result<Recovered, JournalError>, Replayed) {
    let mut payloads = Vec::new();
    let result = pass(
        disk,
        ID,
        from,
        &mut |frame| {
            payloads.push((frame.position, frame.payload.to_vec()));
            Ok(())
        },
        &mut |_, _| {},
    );
    (result, payloads)
}

/// Names the failing case.
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with {}", self.0);
        }
    }
}
