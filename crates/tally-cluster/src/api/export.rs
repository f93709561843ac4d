//! Reading everything that the cluster has, for a move to another engine.
//!
//! PostgreSQL lists keys and request ids. It is behind by up to `persist_every`, so the workers persist first: then
//! every key that was acknowledged before is listed. Counters are read from the workers, as of the journal's end.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use tally_core::key::Key;
use tally_core::limits::{CALL_KEYS_MAX, PAGE_ITEMS_MAX};
use tally_core::surface::{CounterSnapshot, EngineError, KeyPage, RequestCursor, RequestPage};

use super::Cluster;
use super::ask::unexpected_response;
use crate::limits::SETTLE_WAIT_MS;
use crate::postgres::PgError;
use crate::rpc::{RpcRequest, RpcResponse};

impl Cluster {
    pub(super) async fn persist_all(&self) -> Result<(), EngineError> {
        let wait = Duration::from_millis(SETTLE_WAIT_MS);
        let asked = (0..self.partitions).map(|partition| async move {
            match self.ask_within(wait, partition, RpcRequest::Persist { partition }).await {
                Ok(RpcResponse::Persisted { .. }) => Ok(()),
                Ok(_) => Err(unexpected_response()),
                Err(why) => Err(EngineError::Unavailable(why)),
            }
        });
        try_join_all(asked).await.map(|_| ())
    }

    pub(super) async fn stored_keys(&self, after: Option<&Key>, limit: usize) -> Result<KeyPage, EngineError> {
        let limit = limit.clamp(1, PAGE_ITEMS_MAX);
        let mut keys = self.services.pg.all_keys(after, limit + 1).await.map_err(|error| unavailable(&error))?;
        let more = keys.len() > limit;
        keys.truncate(limit);
        Ok(KeyPage { next: keys.last().filter(|_| more).cloned(), keys })
    }

    pub(super) async fn read_snapshots(&self, keys: &[Key]) -> Result<Vec<CounterSnapshot>, EngineError> {
        let mut by_partition: BTreeMap<u32, Vec<Key>> = BTreeMap::new();
        for key in keys {
            by_partition.entry(self.partition_of(key.as_ref())).or_default().push(key.clone());
        }
        let parts = by_partition.iter().flat_map(|(partition, keys)| {
            keys.chunks(CALL_KEYS_MAX).map(|keys| self.partition_snapshots(*partition, keys))
        });
        let found: BTreeMap<Key, CounterSnapshot> = try_join_all(parts).await?.into_iter().flatten().collect();
        let snapshots: Option<Vec<_>> = keys.iter().map(|key| found.get(key).cloned()).collect();
        snapshots.ok_or_else(|| EngineError::Unavailable("a counter was not answered for".to_owned()))
    }

    async fn partition_snapshots(
        &self,
        partition: u32,
        keys: &[Key],
    ) -> Result<Vec<(Key, CounterSnapshot)>, EngineError> {
        match self.ask(partition, RpcRequest::Snapshots { partition, keys: keys.to_vec() }).await {
            Ok(RpcResponse::Snapshots { snapshots }) if snapshots.len() == keys.len() => {
                Ok(keys.iter().cloned().zip(snapshots).collect())
            }
            Ok(_) => Err(unexpected_response()),
            Err(why) => Err(EngineError::Unavailable(why)),
        }
    }

    pub(super) async fn stored_requests(&self, after: RequestCursor, limit: usize) -> Result<RequestPage, EngineError> {
        let limit = limit.clamp(1, PAGE_ITEMS_MAX);
        let RequestCursor { partition, after } = after;
        if partition >= self.partitions {
            return Ok(RequestPage::default());
        }
        let requests = self
            .services
            .pg
            .requests(partition, after, self.clocks.now(partition), limit)
            .await
            .map_err(|error| unavailable(&error))?;
        let next = if requests.len() == limit {
            requests.last().map(|(id, _)| RequestCursor { partition, after: Some(*id) })
        } else {
            Some(RequestCursor { partition: partition + 1, after: None })
        };
        Ok(RequestPage { requests, next: next.filter(|next| next.partition < self.partitions) })
    }

    /// A key in each partition.
    pub(super) fn route_keys(&self) -> Vec<Key> {
        let mut routes = BTreeMap::new();
        for number in 0u64.. {
            if let Ok(key) = Key::new(format!("route:{number}")) {
                routes.entry(self.partition_of(key.as_ref())).or_insert(key);
            }
            if routes.len() == self.partitions as usize {
                break;
            }
        }
        routes.into_values().collect()
    }
}

fn unavailable(error: &PgError) -> EngineError {
    EngineError::Unavailable(error.to_string())
}
