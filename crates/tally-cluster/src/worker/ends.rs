//! The journal's end, asked for by many reads at once.

use std::sync::Arc;

use tally_core::batch::{Batch, encode};
use tally_core::time::{Millis, Position};
use tokio::sync::{mpsc, oneshot};

use crate::kafka::{Appender, Tailer};
use crate::limits::READS_WAITING_MAX;

/// Why the journal's end is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndError {
    /// Too many reads wait for it already.
    #[error("too many reads wait for the journal's end")]
    Overloaded,
    /// Kafka does not answer.
    #[error("{0}")]
    Unavailable(String),
}

/// Finds out where a partition of the journal ends.
#[derive(Clone)]
pub struct Ends {
    reported: SharedQuestion,
    barrier: SharedQuestion,
}

impl Ends {
    /// For one partition, until it is dropped.
    pub fn new(tailer: Tailer, appender: Arc<Appender>, partition: u32) -> Ends {
        let reported = move || {
            let tailer = tailer.clone();
            async move {
                let end = tokio::task::spawn_blocking(move || tailer.end(partition)).await;
                end.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
            }
        };
        let mut empty = Vec::new();
        encode(&Batch::default(), Millis(0), &mut empty);
        let barrier = move || {
            let appending = appender.append(partition, &empty);
            async move {
                let appended = appending.map_err(|error| error.to_string())?.await;
                Ok(appended.map_err(|error| error.to_string())?.end)
            }
        };
        Ends { reported: SharedQuestion::new(reported), barrier: SharedQuestion::new(barrier) }
    }

    /// Where the journal ends, as its broker reports it. A broker that has lost its leadership without knowing may
    /// report an earlier end.
    pub async fn reported(&self) -> Result<Position, EndError> {
        self.reported.ask().await
    }

    /// A position after everything that is acknowledged by now: that of an empty batch, which is appended to find out.
    /// Only a broker that still leads the partition can acknowledge it.
    pub async fn barrier(&self) -> Result<Position, EndError> {
        self.barrier.ask().await
    }
}

/// A question whose answer concurrent callers share. Callers that arrive while it is being answered share the next
/// answer, because an answer must not be older than the call.
#[derive(Clone)]
struct SharedQuestion {
    callers: mpsc::Sender<oneshot::Sender<Result<Position, EndError>>>,
}

impl SharedQuestion {
    fn new<A: Future<Output = Result<Position, String>> + Send>(
        mut answer: impl FnMut() -> A + Send + 'static,
    ) -> SharedQuestion {
        let (callers, mut calls) = mpsc::channel::<oneshot::Sender<_>>(READS_WAITING_MAX);
        tokio::spawn(async move {
            let mut waiting = Vec::new();
            while calls.recv_many(&mut waiting, READS_WAITING_MAX).await > 0 {
                let end = answer().await.map_err(EndError::Unavailable);
                for caller in waiting.drain(..) {
                    // The caller may have given up.
                    let _ = caller.send(end.clone());
                }
            }
        });
        SharedQuestion { callers }
    }

    async fn ask(&self) -> Result<Position, EndError> {
        let (caller, end) = oneshot::channel();
        self.callers.try_send(caller).map_err(|_| EndError::Overloaded)?;
        end.await.unwrap_or(Err(EndError::Overloaded))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn those_that_ask_while_it_is_answered_share_the_next_answer() {
        let asked = Arc::new(AtomicU64::new(0));
        let allowed = Arc::new(Semaphore::new(0));
        let question = SharedQuestion::new({
            let (asked, allowed) = (Arc::clone(&asked), Arc::clone(&allowed));
            move || {
                let (number, allowed) = (asked.fetch_add(1, Ordering::Relaxed), Arc::clone(&allowed));
                async move {
                    allowed.acquire().await.map_err(|error| error.to_string())?.forget();
                    Ok(Position(number))
                }
            }
        });
        let mut first = Box::pin(question.ask());
        while asked.load(Ordering::Relaxed) == 0 {
            tokio::select! {
                biased;
                _ = &mut first => {}
                () = tokio::task::yield_now() => {}
            }
        }
        let others = join_all((0..5).map(|_| question.ask()));
        let let_it_answer = async {
            tokio::task::yield_now().await;
            allowed.add_permits(2);
        };
        let (first, others, ()) = tokio::join!(first, others, let_it_answer);
        assert_eq!(first, Ok(Position(0)));
        assert_eq!(others, vec![Ok(Position(1)); 5]);
    }
}
