//! The journal's end, asked for by many reads at once.

use tally_core::time::Position;
use tokio::sync::{mpsc, oneshot};

use crate::kafka::{Tailer, TopicError};
use crate::limits::READS_WAITING_MAX;

/// Answers where a partition of the journal ends. Questions that arrive while one is asked share the next one.
#[derive(Clone)]
pub struct Ends {
    questions: mpsc::Sender<oneshot::Sender<Result<Position, TopicError>>>,
}

impl Ends {
    /// Answers for one partition, until it is dropped.
    pub fn new(tailer: Tailer, partition: u32) -> Ends {
        let (questions, mut asked) = mpsc::channel::<oneshot::Sender<_>>(READS_WAITING_MAX);
        tokio::spawn(async move {
            let mut waiting = Vec::new();
            while asked.recv_many(&mut waiting, READS_WAITING_MAX).await > 0 {
                let tailer = tailer.clone();
                let end = tokio::task::spawn_blocking(move || tailer.end(partition)).await;
                let end = end.unwrap_or_else(|error| Err(TopicError::Other(error.to_string())));
                for answer in waiting.drain(..) {
                    // The reader may have given up.
                    let _ = answer.send(end.clone());
                }
            }
        });
        Ends { questions }
    }

    /// A position that is not before anything acknowledged until now. `None` if too many wait already.
    pub async fn now(&self) -> Option<Result<Position, TopicError>> {
        let (answer, end) = oneshot::channel();
        self.questions.try_send(answer).ok()?;
        end.await.ok()
    }
}
