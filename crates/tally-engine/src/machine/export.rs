//! Reading everything that the engine has, page by page, for a move to another engine.
//!
//! Keys and request ids come from the store, so the caller has the engine write a checkpoint first. Counters come from
//! memory or the store, as they are now.

use std::collections::BTreeSet;

use tally_core::event::RequestId;
use tally_core::key::{Key, KeyRef};
use tally_core::limits::PAGE_ITEMS_MAX;
use tally_core::missing_keys::MissingKeys;
use tally_core::partition::Partition;
use tally_core::record::{self, REQUEST_PREFIX};
use tally_core::surface::{CounterSnapshot, EngineError, KeyPage, RequestCursor, RequestPage};
use tally_core::time::Position;

use super::read::{LIST_SLICE, read_error, yield_now};
use super::{Durability, Machine, PARTITION};
use crate::host::{MalformedRecord, list_snapshots};
use crate::store::StoreError;

impl Machine {
    /// The position that a checkpoint must reach to include every applied batch, unless the store is there already.
    pub fn checkpoint_target(&self) -> Option<Position> {
        let applied = self.state.lock().applied;
        Some(applied).filter(|applied| *applied > self.store.position())
    }

    /// The keys of stored counters and ledgers, in order.
    pub fn all_keys(&self, after: Option<&Key>, limit: usize) -> Result<KeyPage, EngineError> {
        let limit = limit.clamp(1, PAGE_ITEMS_MAX);
        let mut found = BTreeSet::new();
        let from = after.map_or(&[][..], Key::as_bytes);
        let counters = self.stored_after(&record::counter_key(from), record::counter_of, limit, &mut found);
        let head_prefix = [record::HEAD_PREFIX, from].concat();
        let heads = counters.and_then(|()| self.stored_after(&head_prefix, record::head_of, limit, &mut found));
        heads.map_err(|error| self.unreadable(&error))?;
        let more = found.len() > limit;
        let keys: Vec<Key> = found.into_iter().take(limit).collect();
        Ok(KeyPage { next: keys.last().filter(|_| more).cloned(), keys })
    }

    /// Adds the next keys of one family after the store key `after`: one more than `limit`, to tell whether there are
    /// more.
    fn stored_after(
        &self,
        after: &[u8],
        key_of: impl for<'k> Fn(&'k [u8]) -> Option<KeyRef<'k>>,
        limit: usize,
        found: &mut BTreeSet<Key>,
    ) -> Result<(), StoreError> {
        let mut scan = self.store.scan(after);
        let mut taken = 0;
        while taken <= limit
            && let Some((store_key, _)) = scan.next_entry()?
        {
            if store_key == after {
                continue;
            }
            let Some(key) = key_of(store_key) else { break };
            found.insert(key.to_key());
            taken += 1;
        }
        Ok(())
    }

    /// Counters with the ends of their ledgers.
    pub async fn snapshots(&self, keys: &[Key]) -> Result<Vec<CounterSnapshot>, EngineError> {
        let (snapshots, wait) = {
            let list = |partition: &Partition, _, missing: &mut MissingKeys| list_snapshots(partition, keys, missing);
            let (mut state, fetched) = self.lock_with(list).map_err(|error| self.unreadable(&error))?;
            self.refuse_if_poisoned()?;
            let now = self.now_at(&state);
            let snapshot = |key: &Key| fetched.snapshot(&state.partition, key.as_ref(), now);
            let snapshots = keys.iter().map(snapshot).collect::<Result<Vec<_>, _>>();
            let snapshots = snapshots.map_err(|error| self.store_failed(&mut state, &error.into()))?;
            (snapshots, self.wait_for(&state, keys, Durability::Flushed))
        };
        if let Some(wait) = wait {
            wait.await.map_err(read_error)?;
        }
        Ok(snapshots)
    }

    /// The stored request ids that have not expired, in order.
    pub async fn requests(&self, after: RequestCursor, limit: usize) -> Result<RequestPage, EngineError> {
        let limit = limit.clamp(1, PAGE_ITEMS_MAX);
        if after.partition > PARTITION {
            return Ok(RequestPage::default());
        }
        let after = after.after.map_or_else(|| REQUEST_PREFIX.to_vec(), |id| record::request_key(id).to_vec());
        let now = self.now_at(&self.state.lock());
        let mut requests = Vec::new();
        let mut next = None;
        let mut scan = self.store.scan(&after);
        let mut expired = 0;
        while let Some((store_key, value)) = scan.next_entry().map_err(|error| self.unreadable(&error))? {
            if store_key == after {
                continue;
            }
            let Some(id) = store_key.strip_prefix(REQUEST_PREFIX).and_then(|id| id.try_into().ok()) else { break };
            let first = record::read_request(value)
                .ok_or_else(|| self.unreadable(&StoreError::from(MalformedRecord::new(store_key))))?;
            if first.is_expired(now) {
                expired += 1;
                if expired % LIST_SLICE == 0 {
                    yield_now().await;
                }
                continue;
            }
            if requests.len() == limit {
                next = requests.last().map(|(id, _)| RequestCursor { partition: PARTITION, after: Some(*id) });
                break;
            }
            requests.push((RequestId(id), first));
        }
        Ok(RequestPage { requests, next })
    }
}
