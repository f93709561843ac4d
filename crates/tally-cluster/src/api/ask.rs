//! Asking workers.

use std::time::Duration;

use futures_util::future::select_ok;
use tally_core::surface::EngineError;
use tally_core::time::Position;

use super::Cluster;
use super::lane::BatchOutcomes;
use crate::limits::WORKER_WAIT_MS;
use crate::rpc::{RpcCallError, RpcError, RpcRequest, RpcResponse};

/// Pause before the owner of a partition is looked up and asked again.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Standbys are asked if the owner has not answered for this long.
const STANDBY_AFTER: Duration = Duration::from_millis(250);

const UNEXPECTED_RESPONSE: &str = "the worker sent an unexpected response; run the same version of Tally on all nodes";

/// A worker sent a response that does not match the request. Nothing was changed.
pub(super) fn unexpected_response() -> EngineError {
    EngineError::Unavailable(UNEXPECTED_RESPONSE.to_owned())
}

impl Cluster {
    /// Asks the worker that hosts the partition. Follows the partition to its next owner, within a bounded time.
    pub(super) async fn ask(&self, partition: u32, request: RpcRequest) -> Result<RpcResponse, String> {
        self.ask_within(Duration::from_millis(WORKER_WAIT_MS), partition, request).await
    }

    /// Like [`Cluster::ask`], with another bound.
    pub(super) async fn ask_within(
        &self,
        wait: Duration,
        partition: u32,
        request: RpcRequest,
    ) -> Result<RpcResponse, String> {
        let deadline = tokio::time::Instant::now() + wait;
        let mut why = "no worker owns the partition".to_owned();
        loop {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() {
                return Err(why);
            }
            let route = self.routes.get(partition);
            if let Some(owner) = route.owner {
                match self.call_any(&owner, &route.standbys, &request, deadline).await {
                    Ok(response) => return Ok(response),
                    Err(RpcCallError::Worker(RpcError::NotHosted { owner: Some(next) })) if next != owner => {
                        self.routes.set_owner(partition, &next);
                        continue;
                    }
                    Err(RpcCallError::Worker(error @ (RpcError::Gone | RpcError::Failed(_)))) => {
                        return Err(error.to_string());
                    }
                    Err(error) => why = error.to_string(),
                }
            }
            tokio::time::sleep(RETRY_AFTER.min(left)).await;
            // A hanging Redis or PostgreSQL must not make the call wait longer.
            let _ = tokio::time::timeout_at(deadline, self.routes.refresh_for_waiting(RETRY_AFTER)).await;
        }
    }

    /// Asks the owner, and standbys as well if it fails or is slow. Every answer is correct, so the first one is
    /// returned. If there is none, returns the owner's error.
    async fn call_any(
        &self,
        owner: &str,
        standbys: &[String],
        request: &RpcRequest,
        deadline: tokio::time::Instant,
    ) -> Result<RpcResponse, RpcCallError> {
        let owners = self.workers.call(owner, request, deadline);
        let others: Vec<&String> = standbys.iter().filter(|standby| *standby != owner).collect();
        if others.is_empty() {
            return owners.await;
        }
        let mut owners = Box::pin(owners);
        let early = tokio::time::timeout(STANDBY_AFTER, &mut owners).await;
        // A standby may have outcomes that the owner lacks because it took over later.
        if let Ok(response @ (Ok(_) | Err(RpcCallError::Worker(RpcError::Failed(_))))) = early {
            return response;
        }
        let asked = others.into_iter().map(|standby| Box::pin(self.workers.call(standby, request, deadline)));
        let mut standbys = Box::pin(select_ok(asked));
        match early {
            Ok(owners) => standbys.await.map(|(response, _)| response).or(owners),
            Err(_) => {
                // Neither may be polled again once it has failed.
                let (mut owners_error, mut has_standbys) = (None, true);
                loop {
                    tokio::select! {
                        answered = &mut owners, if owners_error.is_none() => match answered {
                            Err(error) if has_standbys => owners_error = Some(error),
                            answered => return answered,
                        },
                        answered = &mut standbys, if has_standbys => match (answered, owners_error.take()) {
                            (Ok((response, _)), _) => return Ok(response),
                            (Err(_), Some(error)) => return Err(error),
                            (Err(_), None) => has_standbys = false,
                        },
                    }
                }
            }
        }
    }

    /// The outcomes of the batch that ends at `end`. The batch is in the journal, so if no worker returns them, the
    /// outcome is unknown.
    pub(super) async fn ask_outcomes(&self, partition: u32, end: Position) -> Result<BatchOutcomes, EngineError> {
        let request = RpcRequest::Outcomes { partition, offset: end.0.saturating_sub(1) };
        match self.ask(partition, request).await {
            Ok(RpcResponse::Outcomes { at, outcomes, .. }) => Ok(BatchOutcomes { at, outcomes }),
            Ok(_) => Err(EngineError::OutcomeUnknown(UNEXPECTED_RESPONSE.to_owned())),
            Err(why) => Err(EngineError::OutcomeUnknown(format!("it is in the journal, but {why}"))),
        }
    }
}
