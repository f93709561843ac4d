//! Moving counters from one engine to another.

use tally_core::event::{Change, RequestId};
use tally_core::import::{Existing, ImportPart, ImportedCounter};
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::limits::IDEMPOTENCY_WINDOW_MS;
use tally_core::outcome::{Outcome, Refusal};
use tally_core::request_ids::FirstOutcome;
use tally_core::surface::{CounterSnapshot, Engine, RequestCursor};
use tally_core::time::Millis;

use crate::{Failure, Host, Running, Verdict, block_on};

/// A counter as one engine has it.
#[derive(Debug, PartialEq)]
struct Exported {
    key: Key,
    snapshot: CounterSnapshot,
    ledger: Vec<LedgerEntry>,
}

impl Exported {
    fn import(&self, existing: Existing) -> Result<Change, Failure> {
        let part = ImportPart::Last(self.snapshot.state);
        let imported = ImportedCounter::new(self.key.as_ref(), part, existing, self.ledger.clone())?;
        Ok(Change::Import(Box::new(imported)))
    }
}

/// Everything that the engine has, read in small pages.
fn export<H: Host>(running: &Running<'_, H>) -> Result<Vec<Exported>, Failure>
where
    H::Engine: Engine,
{
    let engine = running.engine();
    block_on(engine.sync_store())?;
    let mut keys = Vec::new();
    loop {
        let page = block_on(engine.all_keys(keys.last().cloned(), 3))?;
        assert!(page.keys.len() <= 3, "a page holds at most 3");
        keys.extend(page.keys);
        if page.next.is_none() {
            break;
        }
        assert_eq!(page.next.as_ref(), keys.last());
    }
    assert!(keys.is_sorted_by(|a, b| a < b), "in order, without repeats");
    let snapshots = block_on(engine.snapshots(keys.clone()))?;
    assert_eq!(snapshots.len(), keys.len());
    let mut exported = Vec::new();
    for (key, snapshot) in keys.into_iter().zip(snapshots) {
        let ledger = running.ledger(key.as_bytes(), 100)?;
        assert_eq!(ledger.len() as u64, snapshot.head.seq);
        if snapshot.state.is_some() || !ledger.is_empty() {
            exported.push(Exported { key, snapshot, ledger });
        }
    }
    Ok(exported)
}

fn import<H: Host>(running: &Running<'_, H>, from: &Exported, existing: Existing) -> Result<Outcome, Failure>
where
    H::Engine: Engine,
{
    running.event(from.key.as_bytes(), from.import(existing)?, None, None)
}

/// Counters of every kind: counted, corrected, expiring, and deleted with a ledger.
fn fill<H: Host>(running: &Running<'_, H>) -> Verdict
where
    H::Engine: Engine,
{
    for number in 0..7 {
        running.add(format!("c:{number}"), i64::from(number) - 3)?;
    }
    running.call().set("corrected", 10).adjust("corrected", -4).add("corrected", 5).send()?;
    running.call().add("expiring", 2).expire_after("expiring", 3_600_000).send()?;
    running.call().set("deleted", 8).delete("deleted").send()?;
    running.add(b"\xff\x00binary", i64::MAX)?;
    Ok(())
}

/// Values, statistics, times, expiries and ledgers are the same, and so is the ledger of a deleted counter.
pub fn an_imported_counter_is_as_it_was_exported<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let source = Running::fresh(host)?;
    fill(&source)?;
    let exported = export(&source)?;
    assert_eq!(exported.len(), 11);
    let source = source.restart()?;
    assert_eq!(export(&source)?, exported, "after a restart");
    let destination = Running::fresh(host)?;
    for counter in &exported {
        let outcome = import(&destination, counter, Existing::Refuse)?;
        assert_eq!((outcome.applied, outcome.refusal), (1, None), "{counter:?}");
        assert_eq!(outcome.exists, counter.snapshot.state.is_some());
    }
    assert_eq!(export(&destination)?, exported);
    assert_eq!(destination.count()?, 10);
    let destination = destination.restart()?;
    assert_eq!(export(&destination)?, exported, "after a restart");
    // The ledger continues.
    destination.call().set("deleted", 1).reset("corrected").send()?;
    assert_eq!((destination.ledger("deleted", 9)?.len(), destination.ledger("corrected", 9)?.len()), (3, 3));
    Ok(())
}

/// A second import of the same counters changes nothing, and says so.
pub fn importing_twice_changes_nothing<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let source = Running::fresh(host)?;
    fill(&source)?;
    let exported = export(&source)?;
    let destination = Running::fresh(host)?;
    for existing in [Existing::Refuse, Existing::Refuse, Existing::Replace] {
        for counter in &exported {
            import(&destination, counter, existing)?;
        }
        assert_eq!(export(&destination)?, exported);
    }
    for counter in &exported {
        let outcome = import(&destination, counter, Existing::Refuse)?;
        assert_eq!((outcome.applied, outcome.refusal), (0, None), "{counter:?}");
    }
    Ok(())
}

/// A counter with different contents stays as it is, unless the import replaces it. A ledger is extended and never
/// rewritten.
pub fn an_import_replaces_only_if_asked_to<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let source = Running::fresh(host)?;
    source.call().set("n", 5).send()?;
    let early = export(&source)?;
    source.call().add("n", 1).adjust("n", 10).send()?;
    let late = export(&source)?;
    let destination = Running::fresh(host)?;
    destination.add("n", 3)?;
    let refused = import(&destination, &early[0], Existing::Refuse)?;
    assert_eq!((refused.applied, refused.value, refused.refusal), (0, 3, Some(Refusal::NotExpected)));
    assert!(destination.ledger("n", 9)?.is_empty());
    assert_eq!(import(&destination, &early[0], Existing::Replace)?.value, 5);
    assert_eq!(import(&destination, &late[0], Existing::Refuse)?.refusal, Some(Refusal::NotExpected));
    assert_eq!(import(&destination, &late[0], Existing::Replace)?.value, 16);
    assert_eq!(export(&destination)?, late);
    let behind = import(&destination, &early[0], Existing::Replace)?;
    assert_eq!(behind.refusal, Some(Refusal::LedgerDiffers), "the ledger here is longer");
    destination.call().reset("m").send()?;
    source.call().set("m", 1).send()?;
    let other = export(&source)?;
    assert_eq!(import(&destination, &other[0], Existing::Replace)?.refusal, Some(Refusal::LedgerDiffers));
    assert_eq!(destination.value("m")?, 0);
    // What was deleted at the source since the first import is removed.
    source.call().delete("n").send()?;
    let deleted = export(&source)?;
    assert!(!import(&destination, &deleted[1], Existing::Replace)?.exists);
    assert!(!destination.read("n")?.exists);
    Ok(())
}

/// A ledger in several parts is the same as in one. Parts that were already imported are skipped, and a gap is refused.
pub fn a_long_ledger_is_imported_in_parts<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let source = Running::fresh(host)?;
    for number in 1..=9 {
        source.call().set("n", number).send()?;
    }
    let exported = export(&source)?;
    let Exported { key, snapshot, ledger } = &exported[0];
    let part = |from: usize, to: usize, part: ImportPart| -> Result<Change, Failure> {
        let imported = ImportedCounter::new(key.as_ref(), part, Existing::Refuse, ledger[from..to].to_vec())?;
        Ok(Change::Import(Box::new(imported)))
    };
    let destination = Running::fresh(host)?;
    let gap = destination.event("n", part(3, 6, ImportPart::Ledger)?, None, None)?;
    assert_eq!(gap.refusal, Some(Refusal::LedgerDiffers));
    let first = destination.event("n", part(0, 4, ImportPart::Ledger)?, None, None)?;
    assert_eq!((first.applied, first.exists), (1, false));
    let destination = destination.restart()?;
    for (from, to, applied) in [(0, 3, 0), (0, 4, 0), (2, 6, 1), (0, 2, 0)] {
        let outcome = destination.event("n", part(from, to, ImportPart::Ledger)?, None, None)?;
        assert_eq!((outcome.applied, outcome.refusal), (applied, None), "{from}..{to}");
    }
    let last = destination.event("n", part(6, 9, ImportPart::Last(snapshot.state))?, None, None)?;
    assert_eq!((last.value, last.applied), (9, 1));
    assert_eq!(export(&destination)?, exported);
    Ok(())
}

/// An existing counter and its ledger stay as they are, even if the refused ledger comes in several parts.
pub fn no_part_of_a_refused_ledger_is_imported<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let source = Running::fresh(host)?;
    for number in 1..=6 {
        source.call().set("n", number).send()?;
    }
    let exported = export(&source)?;
    let Exported { key, snapshot, ledger } = &exported[0];
    let destination = Running::fresh(host)?;
    destination.add("n", 7)?;
    let parts = [(0, 3, ImportPart::Ledger), (3, 6, ImportPart::Last(snapshot.state))];
    let import = |existing: Existing| -> Result<Vec<Outcome>, Failure> {
        let import = |(from, to, part): (usize, usize, ImportPart)| -> Result<Outcome, Failure> {
            let imported = ImportedCounter::new(key.as_ref(), part, existing, ledger[from..to].to_vec())?;
            destination.event("n", Change::Import(Box::new(imported)), None, None)
        };
        parts.into_iter().map(import).collect()
    };
    let refused = import(Existing::Refuse)?;
    assert_eq!(refused[0].refusal, Some(Refusal::NotExpected));
    assert!(refused[1].refusal.is_some());
    assert_eq!((destination.value("n")?, destination.ledger("n", 9)?.len()), (7, 0));
    assert!(import(Existing::Replace)?.iter().all(|outcome| outcome.refusal.is_none()));
    assert_eq!(export(&destination)?, exported);
    Ok(())
}

/// The clock of another server may have been ahead. Its request ids are not remembered for longer because of that.
pub fn an_imported_request_id_of_the_future_is_as_old_as_the_import<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let source = Running::fresh(host)?;
    let answered = source.add_once("id", "n", 5)?;
    let first = FirstOutcome::new(1, Millis(u64::MAX), &answered);
    let destination = Running::fresh(host)?;
    let now = destination.add("m", 1)?.at;
    let id = RequestId::new(KeyRef::new(b"n")?, b"id")?;
    let mut events = destination.engine().events();
    for route in destination.engine().routes() {
        events.push(route.as_ref(), Change::ImportRequest(first), Some(id), None);
    }
    block_on(destination.engine().submit(events, host.submit_options()))?;
    block_on(destination.engine().sync_store())?;
    let page = block_on(destination.engine().requests(RequestCursor { partition: 0, after: None }, 9))?;
    let imported = page.requests.iter().find(|(known, _)| *known == id).map(|(_, first)| first.at);
    let imported = imported.ok_or("the id was not imported")?;
    assert!(imported.since(now) < IDEMPOTENCY_WINDOW_MS, "{imported:?}");
    Ok(())
}

/// A retry at the destination of a request that the source answered gets the first outcome.
pub fn a_retry_after_a_move_counts_once<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let source = Running::fresh(host)?;
    let first = source.add_once("id", "a:n", 5)?;
    for number in 0..8 {
        source.add_once("id", format!("other{number}:n"), 1)?;
    }
    block_on(source.engine().sync_store())?;
    let mut requests = Vec::new();
    let mut cursor = Some(RequestCursor { partition: 0, after: None });
    while let Some(after) = cursor {
        let page = block_on(source.engine().requests(after, 2))?;
        assert!(page.requests.len() <= 2, "a page holds at most 2");
        requests.extend(page.requests);
        cursor = page.next;
    }
    assert_eq!(requests.len(), 9);
    let exported = export(&source)?;
    let destination = Running::fresh(host)?;
    for counter in &exported {
        import(&destination, counter, Existing::Refuse)?;
    }
    for applied in [1, 0] {
        let mut events = destination.engine().events();
        for (id, outcome) in &requests {
            for route in destination.engine().routes() {
                events.push(route.as_ref(), Change::ImportRequest(*outcome), Some(*id), None);
            }
        }
        let receipt = block_on(destination.engine().submit(events, host.submit_options()))?;
        assert!(receipt.outcomes.iter().all(|outcome| outcome.applied == applied && outcome.refusal.is_none()));
    }
    let destination = destination.restart()?;
    let retry = destination.add_once("id", "a:n", 5)?;
    assert_eq!((retry.value, retry.duplicate, retry.at), (first.value, Some(true), first.at));
    assert_eq!(destination.add_once("id", "a:n", 6)?.refusal, Some(Refusal::PayloadMismatch));
    assert_eq!(destination.value("a:n")?, 5);
    let known = RequestId::new(KeyRef::new(b"a:n")?, b"id")?;
    assert!(requests.iter().any(|(id, _)| *id == known));
    Ok(())
}
