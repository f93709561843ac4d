//! The consumer group that divides partitions among workers. Its consumer fetches nothing.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tally_core::time::Position;
use tokio::sync::watch;

use super::{KafkaSettings, TopicError};
use crate::limits::{REVOKE_WAIT_MS, SESSION_TIMEOUT_MS};

/// How often the polling thread checks whether to stop.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// A change of the partitions that this worker owns.
#[derive(Debug)]
pub enum MembershipEvent {
    /// These are owned now.
    Assigned(Vec<u32>),
    /// These are about to go to another worker. The rebalance waits until `done` is dropped, or for a bounded time.
    Revoked {
        /// The partitions.
        partitions: Vec<u32>,
        /// Dropped once the worker has released them.
        done: SyncSender<()>,
    },
    /// These were taken away, because the group did not hear from this worker in time.
    Lost(Vec<u32>),
}

/// Membership in the group. When it is dropped, the polling thread leaves the group and closes the consumer. Nobody has
/// to wait for that thread: the client library sets no limit to the time it takes while brokers do not answer.
pub struct Membership {
    consumer: Arc<BaseConsumer<GroupContext>>,
    topic: String,
    /// Ends when the group is left and the consumer is closed.
    left: watch::Receiver<()>,
    /// Dropped last: the polling thread then has the only reference to the consumer.
    _polling: SyncSender<()>,
}

struct GroupContext {
    events: Box<dyn Fn(MembershipEvent) + Send + Sync>,
}

impl ClientContext for GroupContext {}

impl ConsumerContext for GroupContext {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(list) = rebalance else { return };
        let partitions = partitions(list);
        if partitions.is_empty() {
            return;
        }
        if consumer.assignment_lost() {
            return (self.events)(MembershipEvent::Lost(partitions));
        }
        let (done, wait) = sync_channel(0);
        (self.events)(MembershipEvent::Revoked { partitions, done });
        // Ends when the sender is dropped. After the time-out the store refuses what the worker still persists.
        let _ = wait.recv_timeout(Duration::from_millis(REVOKE_WAIT_MS));
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Assign(list) = rebalance else { return };
        // Records are read by the tailer, from positions of the store.
        if let Err(error) = consumer.pause(list) {
            tracing::debug!(%error, "the group's consumer could not be paused");
        }
        let partitions = partitions(list);
        if !partitions.is_empty() {
            (self.events)(MembershipEvent::Assigned(partitions));
        }
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<u32> {
    list.elements().iter().map(|element| element.partition() as u32).collect()
}

impl Membership {
    /// Joins the group `group`, with the worker's address as its client id. `events` is called on a thread of its own
    /// and must not block.
    pub fn join(
        settings: &KafkaSettings,
        group: &str,
        address: &str,
        events: impl Fn(MembershipEvent) + Send + Sync + 'static,
    ) -> Result<Membership, TopicError> {
        let mut config = settings.client();
        config
            .set("group.id", group)
            .set("client.id", address)
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", SESSION_TIMEOUT_MS.to_string())
            .set("heartbeat.interval.ms", (SESSION_TIMEOUT_MS / 6).to_string())
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "latest")
            .set("fetch.message.max.bytes", "1024")
            .set("queued.max.messages.kbytes", "1");
        let context = GroupContext { events: Box::new(events) };
        let failed = |error| TopicError::new(settings, &error);
        let consumer: BaseConsumer<GroupContext> = config.create_with_context(context).map_err(failed)?;
        consumer.subscribe(&[&settings.topic]).map_err(failed)?;
        let consumer = Arc::new(consumer);
        let (polling, dropped) = sync_channel::<()>(0);
        let (closed, left) = watch::channel(());
        let started = std::thread::Builder::new().name("tally-group".to_owned()).spawn({
            let consumer = Arc::clone(&consumer);
            move || {
                let mut last = String::new();
                while dropped.try_recv() == Err(TryRecvError::Empty) {
                    let Some(Err(error)) = consumer.poll(POLL_EVERY) else { continue };
                    let error = error.to_string();
                    // It repeats while the group cannot be joined.
                    if error != last {
                        tracing::warn!(%error, "Kafka does not let this worker join the group of workers");
                        last = error;
                    }
                }
                // Closing it revokes the partitions and leaves the group.
                drop(consumer);
                drop(closed);
            }
        });
        started.map_err(|error| TopicError::Other(error.to_string()))?;
        Ok(Membership { consumer, topic: settings.topic.clone(), left, _polling: polling })
    }

    /// A receiver whose channel is closed once the group is left.
    pub fn left(&self) -> watch::Receiver<()> {
        self.left.clone()
    }

    /// Tells the group how far a partition is persisted, for tools that show lag. Nothing depends on it.
    pub fn commit(&self, partition: u32, position: Position) {
        let mut list = TopicPartitionList::new();
        let added = list.add_partition_offset(&self.topic, partition as i32, Offset::Offset(position.0 as i64));
        if let Err(error) = added.and_then(|()| self.consumer.commit(&list, CommitMode::Async)) {
            tracing::debug!(partition, %error, "an offset was not committed");
        }
    }
}
