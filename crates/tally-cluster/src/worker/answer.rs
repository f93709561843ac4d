//! Answering API nodes.

use std::sync::Arc;

use tally_core::key::Key;
use tally_core::time::Position;
use tokio::sync::Semaphore;

use super::WorkerShared;
use super::ends::EndError;
use super::host::{ExpiryBy, HostReading};
use super::hosting::Hosting;
use super::store::StoreFailure;
use crate::limits::{STANDBY_READS_MAX, STORE_READS_MAX, STORE_READS_WAITING_MAX};
use crate::rpc::{Need, PartitionStatus, Role, RpcError, RpcHandler, RpcRequest, RpcResponse};

impl RpcHandler for Arc<WorkerShared> {
    async fn handle(&self, request: RpcRequest) -> Result<RpcResponse, RpcError> {
        match request {
            RpcRequest::Outcomes { partition, offset } => {
                let hosting = self.hosting(partition)?;
                let end = Position(offset + 1);
                reach(&hosting, end).await?;
                let record = hosting.host.outcomes(end).ok_or(RpcError::Gone)?;
                Ok(RpcResponse::Outcomes { end, at: record.at, outcomes: record.outcomes.clone() })
            }
            RpcRequest::Read { partition, need, keys } => {
                let hosting = self.hosting(partition)?;
                match need {
                    Need::Refill => {
                        reach_reported_end(&hosting).await?;
                        if hosting.role() == Role::Owner {
                            hosting.host.note_read(&keys);
                        }
                    }
                    Need::Position(position) => {
                        check_position(&hosting, position).await?;
                        reach(&hosting, position).await?;
                    }
                    Need::End => reach_end(&hosting).await?,
                }
                let expiry = if need == Need::End { ExpiryBy::Journal } else { ExpiryBy::Brokers };
                // Taken before the read: everything that is summed by now is in the reading.
                let summed_at = hosting.summed_at();
                let reading = self.read(&hosting, keys, expiry).await?;
                Ok(RpcResponse::Read {
                    position: reading.position,
                    at: reading.as_of,
                    summed_at,
                    records: reading.records().collect(),
                })
            }
            RpcRequest::Ledger { key, partition, after, limit } => {
                let hosting = self.hosting(partition)?;
                reach_end(&hosting).await?;
                // Memory first: an entry that is persisted in between is then seen twice, not missed.
                let unsaved = hosting.host.unsaved_ledger(&key);
                let limit = limit as usize;
                let stored = self.services.pg.ledger(key.as_ref(), after, limit).await;
                let stored = stored.map_err(|error| RpcError::Failed(error.to_string()))?;
                let mut entries: std::collections::BTreeMap<u64, _> =
                    stored.into_iter().map(|entry| (entry.seq, entry)).collect();
                entries.extend(unsaved.into_iter().filter(|entry| entry.seq > after).map(|entry| (entry.seq, entry)));
                Ok(RpcResponse::Ledger { entries: entries.into_values().take(limit).collect() })
            }
            RpcRequest::Count { partition } => {
                let hosting = self.hosting(partition)?;
                reach_end(&hosting).await?;
                let (counters, at) = hosting.host.count();
                Ok(RpcResponse::Count { counters, at })
            }
            RpcRequest::Persist { partition } => {
                let hosting = self.owned(partition)?;
                self.sum_now(&hosting).await.map_err(RpcError::Failed)?;
                reach_end(&hosting).await?;
                self.persist(&hosting).await.map_err(|error| RpcError::Failed(error.to_string()))?;
                Ok(RpcResponse::Persisted { position: hosting.host.persisted() })
            }
            RpcRequest::Snapshots { partition, keys } => {
                let hosting = self.owned(partition)?;
                reach_end(&hosting).await?;
                let snapshots = self.store_reads.run(move || hosting.host.snapshots(&keys)).await?;
                let snapshots = snapshots.map_err(|error| RpcError::Failed(error.to_string()))?;
                Ok(RpcResponse::Snapshots { snapshots })
            }
            RpcRequest::Status => {
                let hosted: Vec<Arc<Hosting>> = self.hosted.lock().values().cloned().collect();
                let mut partitions = Vec::with_capacity(hosted.len());
                for hosting in hosted {
                    let end = hosting.ends.reported().await.ok();
                    partitions.push(PartitionStatus {
                        partition: hosting.host.partition,
                        epoch: hosting.epoch(),
                        applied: hosting.host.applied(),
                        persisted: hosting.host.persisted(),
                        end,
                        role: hosting.role(),
                    });
                }
                Ok(RpcResponse::Status { partitions })
            }
        }
    }
}

impl WorkerShared {
    /// A partition that this worker owns.
    fn owned(&self, partition: u32) -> Result<Arc<Hosting>, RpcError> {
        let hosting = self.hosting(partition)?;
        if hosting.role() == Role::Owner { Ok(hosting) } else { Err(RpcError::NotHosted { owner: None }) }
    }

    fn hosting(&self, partition: u32) -> Result<Arc<Hosting>, RpcError> {
        if let Some(hosting) = self.hosted.lock().get(&partition) {
            return Ok(Arc::clone(hosting));
        }
        let stopped = self.stopped.lock().get(&partition).cloned();
        Err(stopped.map_or(RpcError::NotHosted { owner: None }, RpcError::Failed))
    }

    async fn read(&self, hosting: &Arc<Hosting>, keys: Vec<Key>, expiry: ExpiryBy) -> Result<HostReading, RpcError> {
        if let Some(reading) = hosting.host.read_resident(&keys, expiry) {
            return Ok(reading);
        }
        let keys = Arc::new(keys);
        for _ in 0..STANDBY_READS_MAX {
            let reading = self.store_reads.run({
                let (hosting, keys) = (Arc::clone(hosting), Arc::clone(&keys));
                move || hosting.host.read(&keys, expiry)
            });
            match reading.await? {
                Ok(reading) => return Ok(reading),
                // The owner has stored more than this standby has applied, so it catches up first.
                Err(StoreFailure::Overtaken { stored, .. }) if hosting.role() == Role::Standby => {
                    reach(hosting, Position(stored)).await?;
                }
                Err(error) => return Err(RpcError::Failed(error.to_string())),
            }
        }
        Err(RpcError::Overloaded)
    }
}

/// Reads that may have to fetch from PostgreSQL. The number that run at once is limited, and so is the number that
/// wait.
pub struct StoreReads {
    running: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Default for StoreReads {
    fn default() -> Self {
        StoreReads {
            running: Arc::new(Semaphore::new(STORE_READS_MAX)),
            waiting: Semaphore::new(STORE_READS_WAITING_MAX),
        }
    }
}

impl StoreReads {
    /// Runs a blocking read once it is its turn.
    async fn run<T: Send + 'static>(&self, read: impl FnOnce() -> T + Send + 'static) -> Result<T, RpcError> {
        let failed = |error: &dyn std::fmt::Display| RpcError::Failed(error.to_string());
        let _waiting = self.waiting.try_acquire().map_err(|_| RpcError::Overloaded)?;
        let running = Arc::clone(&self.running).acquire_owned().await.map_err(|error| failed(&error))?;
        // A read that nobody waits for any more still occupies its thread.
        let read = move || {
            let _running = running;
            read()
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| failed(&error))
    }
}

async fn reach(hosting: &Hosting, position: Position) -> Result<(), RpcError> {
    hosting.host.reach_soon(position).await.map_err(RpcError::Failed)
}

/// Refuses a position that the journal does not have, so that nobody waits for it.
async fn check_position(hosting: &Hosting, position: Position) -> Result<(), RpcError> {
    if hosting.host.applied() >= position {
        return Ok(());
    }
    let end = hosting.ends.reported().await.map_err(unknown_end)?;
    if position > end {
        let (position, end) = (position.0, end.0);
        return Err(RpcError::Failed(format!("the token is of position {position}, but the journal ends at {end}")));
    }
    Ok(())
}

fn unknown_end(error: EndError) -> RpcError {
    match error {
        EndError::Overloaded => RpcError::Overloaded,
        EndError::Unavailable(why) => RpcError::Failed(why),
    }
}

/// Waits for everything that is acknowledged by now.
pub(super) async fn reach_end(hosting: &Hosting) -> Result<(), RpcError> {
    reach_asked(hosting, hosting.ends.barrier()).await
}

/// Waits for what is in the journal as far as its broker knows, which is enough for a reading that says how old it is.
async fn reach_reported_end(hosting: &Hosting) -> Result<(), RpcError> {
    reach_asked(hosting, hosting.ends.reported()).await
}

async fn reach_asked(hosting: &Hosting, end: impl Future<Output = Result<Position, EndError>>) -> Result<(), RpcError> {
    let asked_at = hosting.host.now();
    let end = end.await.map_err(unknown_end)?;
    reach(hosting, end).await?;
    hosting.host.note_end(end, asked_at);
    Ok(())
}
