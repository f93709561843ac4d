//! Reads by simulated callers, and the checks of their answers.

use std::task::{Context, Poll, Waker};

use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::Outcome;
use tally_core::reading::Reading;
use tally_core::surface::{EngineError, Page, PageRequest};
use tally_core::time::Millis;
use tally_engine::Durability;

use super::{Life, Pending};
use crate::call::push_all;
use crate::ensure;
use crate::model::{Event, Model};
use crate::world::Verdict;

/// A read that is not checked yet.
pub(super) struct PendingRead<'m> {
    pub(super) future: Pending<'m, ObservedRead>,
    expected: ObservedRead,
    /// Batches that must be flushed before the answer.
    needed: u64,
    pub(super) description: String,
}

/// The observable part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ObservedRead {
    Values(Vec<CounterView>),
    Outcomes(Vec<Outcome>),
    Page(Vec<(Key, i64)>, bool),
    Ledger(Vec<LedgerEntry>),
}

/// Value, existence, and the times of creation, last change and expiry.
type CounterView = (i64, bool, [Option<Millis>; 3]);

fn view_of(reading: &Reading) -> CounterView {
    (reading.value, reading.exists, [reading.created_at, reading.updated_at, reading.expires_at])
}

fn expected_view(model: &Model, key: &Key, now: Millis) -> CounterView {
    let Some(counter) = model.visible(key, now) else { return (0, false, [None; 3]) };
    (counter.value, true, [Some(Millis(counter.created)), Some(Millis(counter.updated)), counter.expires.map(Millis)])
}

impl Life<'_> {
    /// Submits these events, which are all reads.
    pub fn read_these(&mut self, events: &[Event], durability: Durability) {
        let world = &mut *self.world;
        world.observed.reads += 1;
        let (model, now) = (world.history.applied(), self.machine.now());
        let expected = ObservedRead::Outcomes(events.iter().map(|event| model.read(now, event)).collect());
        let needed = match durability {
            Durability::Applied => 0,
            Durability::Flushed => world.history.needed(|key| events.iter().any(|event| event.key == *key)),
        };
        let description = format!("{events:?} at {durability:?}");
        let mut call = self.machine.events();
        push_all(events, &mut call);
        let machine = self.machine;
        let future =
            Box::pin(
                async move { Ok(ObservedRead::Outcomes(machine.submit(call, durability, |_| {}).await?.outcomes)) },
            );
        self.reads.push(PendingRead { future, expected, needed, description });
        self.poll_last_read();
    }

    /// Starts a random read.
    pub fn ask(&mut self) -> Verdict {
        match self.world.rng.below(5) {
            0..=2 => self.ask_values(),
            3 => self.ask_page(),
            _ => self.ask_ledger(),
        }
        Ok(())
    }

    fn ask_values(&mut self) {
        let world = &mut *self.world;
        let keys: Vec<Key> = (0..=world.rng.below(4)).map(|_| world.workload.key(&mut world.rng)).collect();
        let durability = if world.rng.one_in(4) { Durability::Applied } else { Durability::Flushed };
        let model = world.history.applied();
        let now = self.machine.now();
        let expected = ObservedRead::Values(keys.iter().map(|key| expected_view(model, key, now)).collect());
        let needed = match durability {
            Durability::Applied => 0,
            Durability::Flushed => world.history.needed(|key| keys.contains(key)),
        };
        let description = format!("{keys:?} at {durability:?}");
        let machine = self.machine;
        let future = Box::pin(async move {
            let readings = machine.read(&keys, durability).await?;
            Ok(ObservedRead::Values(readings.iter().map(view_of).collect()))
        });
        self.reads.push(PendingRead { future, expected, needed, description });
        self.poll_last_read();
    }

    fn ask_page(&mut self) {
        let world = &mut *self.world;
        let prefix = [&b""[..], b"a", b"likes:", b"c:1"][world.rng.below(4) as usize].to_vec();
        let after = world.rng.one_in(2).then(|| world.workload.key(&mut world.rng));
        let limit = 1 + world.rng.below(4) as usize;
        let request = PageRequest { prefix, after, limit };
        let (expected, last) = page_of(world.history.applied(), self.machine.now(), &request);
        let needed = world.history.needed(|key| {
            let begins = key.as_bytes().starts_with(&request.prefix);
            begins
                && request.after.as_ref().is_none_or(|after| key > after)
                && last.as_ref().is_none_or(|last| key <= last)
        });
        let description = format!("{request:?}");
        let machine = self.machine;
        let future = Box::pin(async move {
            let Page { items, next } = machine.list(&request).await?;
            Ok(ObservedRead::Page(
                items.into_iter().map(|(key, reading)| (key, reading.value)).collect(),
                next.is_some(),
            ))
        });
        self.reads.push(PendingRead { future, expected, needed, description });
        self.poll_last_read();
    }

    fn ask_ledger(&mut self) {
        let world = &mut *self.world;
        let key = world.workload.key(&mut world.rng);
        let (after, limit) = (world.rng.below(3), 1 + world.rng.below(5) as usize);
        let entries = world.history.applied().ledger.get(&key).map_or(&[][..], Vec::as_slice);
        let page: Vec<LedgerEntry> = entries.iter().skip(after as usize).take(limit).cloned().collect();
        let needed = page.last().map_or(0, |entry| world.history.needed_for_ledger(&key, entry.seq));
        let description = format!("the ledger of {key:?} after {after}, {limit} entries");
        let machine = self.machine;
        let future = Box::pin(async move { Ok(ObservedRead::Ledger(machine.ledger(&key, after, limit).await?)) });
        self.reads.push(PendingRead { future, expected: ObservedRead::Ledger(page), needed, description });
        self.poll_last_read();
    }

    /// Polls the read that was just created: its expected answer is the state at this point.
    fn poll_last_read(&mut self) {
        let Some(read) = self.reads.last_mut() else { return };
        if let Poll::Ready(answer) = read.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            read.future = Box::pin(std::future::ready(answer));
        } else {
            self.world.observed.readings_withheld += 1;
        }
    }

    /// Checks the answer of a read.
    pub(super) fn check_answer(
        &mut self,
        read: &PendingRead<'_>,
        answer: Result<ObservedRead, EngineError>,
    ) -> Verdict {
        let description = &read.description;
        match answer {
            Ok(shown) => {
                ensure!(shown == read.expected, "{description}: {shown:?} instead of {:?}", read.expected);
                let flushed = self.world.history.flushed();
                ensure!(read.needed <= flushed, "{description}: {shown:?} was returned before it was durable");
                self.world.observed.readings += 1;
            }
            Err(EngineError::Poisoned(_)) => ensure!(self.is_poisoned(), "{description}: refused as if poisoned"),
            Err(EngineError::Unreadable(what)) => {
                ensure!(
                    self.world.disk.crashed(),
                    "{description}: unreadable, although the disk has not crashed: {what}"
                );
                self.stopped = true;
            }
            Err(error) => return Err(format!("{description}: {error:?}")),
        }
        Ok(())
    }
}

/// The expected page, and its last key if there are more.
fn page_of(model: &Model, now: Millis, request: &PageRequest) -> (ObservedRead, Option<Key>) {
    let follows = |key: &Key| request.after.as_ref().is_none_or(|after| key > after);
    let all = model.all_visible(now).filter(|(key, _)| follows(key));
    let mut matching = all.filter(|(key, _)| key.as_bytes().starts_with(&request.prefix));
    let items: Vec<(Key, i64)> =
        matching.by_ref().take(request.limit).map(|(key, counter)| (key.clone(), counter.value)).collect();
    let more = matching.next().is_some();
    let last = if more { items.last().map(|(key, _)| key.clone()) } else { None };
    (ObservedRead::Page(items, more), last)
}
