//! The contract suite over the cluster engine: one API node and one worker on real Kafka, Redis Cluster and PostgreSQL.
#![allow(clippy::unwrap_used)]

mod cluster;

use std::sync::Arc;
use std::time::Duration;

use cluster::{PARTITIONS, TestPlace, TestServices};
use tally_cluster::api::Cluster;
use tally_cluster::worker::Worker;
use tally_contract::{Failure, Host, Verdict, WeakerAnswers};
use tally_core::batch::Events;
use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::{Reads, Receipt, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{
    CounterSnapshot, Engine, EngineError, Health, KeyPage, Metric, Page, PageRequest, ReadOptions, RequestCursor,
    RequestPage, SubmitOptions,
};
use tokio::runtime::Handle;

tally_contract::contract!(OneNode);

/// One API node and one worker.
struct OneNode;

/// An engine that runs its futures on the runtime: the suite has its own executor.
struct OnRuntime {
    cluster: Arc<Cluster>,
    worker: Worker,
    runtime: Handle,
}

impl Host for OneNode {
    type Engine = OnRuntime;
    type Data = TestPlace;

    fn prepare(&self) -> Result<TestPlace, Failure> {
        Ok(TestServices::shared().place(1))
    }

    fn start(&self, place: &TestPlace) -> Result<OnRuntime, Failure> {
        let runtime = TestServices::shared().runtime.handle().clone();
        let (cluster, worker) = runtime.block_on(async { (place.api().await, place.worker().await) });
        tally_services::wait_for("all partitions", || match worker.hosted().len() {
            hosted if hosted == PARTITIONS as usize => Ok(()),
            hosted => Err(format!("{hosted} hosted")),
        });
        Ok(OnRuntime { cluster: Arc::new(cluster), worker, runtime })
    }

    fn stop(&self, engine: &OnRuntime) -> Verdict {
        engine.runtime.block_on(async {
            engine.cluster.close().await;
            engine.worker.stop().await;
        });
        Ok(())
    }

    fn sync_listings(&self, engine: &OnRuntime) -> Verdict {
        Ok(engine.runtime.block_on(engine.worker.persist_all(Duration::from_secs(30)))?)
    }

    fn weaker_answers(&self) -> WeakerAnswers {
        WeakerAnswers::Estimates
    }
}

impl OnRuntime {
    /// Polls a future the way a task of the runtime is polled.
    fn on_runtime<F: Future>(&self, future: F) -> impl Future<Output = F::Output> {
        let mut future = Box::pin(future);
        std::future::poll_fn(move |context| {
            let _entered = self.runtime.enter();
            future.as_mut().poll(context)
        })
    }
}

impl Engine for OnRuntime {
    fn events(&self) -> Events {
        self.cluster.events()
    }

    async fn submit(&self, events: Events, options: SubmitOptions) -> Result<Receipt, EngineError> {
        self.on_runtime(self.cluster.submit(events, options)).await
    }

    async fn read_events(&self, events: Events, options: ReadOptions) -> Result<Reads, EngineError> {
        self.on_runtime(self.cluster.read_events(events, options)).await
    }

    async fn durable(&self, token: Token) -> Result<(), EngineError> {
        self.cluster.durable(token).await
    }

    async fn read(&self, keys: Vec<Key>, options: ReadOptions) -> Result<Vec<Reading>, EngineError> {
        self.on_runtime(self.cluster.read(keys, options)).await
    }

    async fn stats(&self, key: Key, options: ReadOptions) -> Result<Stats, EngineError> {
        self.on_runtime(self.cluster.stats(key, options)).await
    }

    async fn list(&self, page: PageRequest) -> Result<Page, EngineError> {
        self.on_runtime(self.cluster.list(page)).await
    }

    async fn ledger(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, EngineError> {
        self.on_runtime(self.cluster.ledger(key, after, limit)).await
    }

    async fn count(&self, options: ReadOptions) -> Result<u64, EngineError> {
        self.on_runtime(self.cluster.count(options)).await
    }

    async fn sample(&self, number: u64) -> Result<Option<Key>, EngineError> {
        self.on_runtime(self.cluster.sample(number)).await
    }

    async fn sync_store(&self) -> Result<(), EngineError> {
        self.on_runtime(self.cluster.sync_store()).await
    }

    async fn all_keys(&self, after: Option<Key>, limit: usize) -> Result<KeyPage, EngineError> {
        self.on_runtime(self.cluster.all_keys(after, limit)).await
    }

    async fn snapshots(&self, keys: Vec<Key>) -> Result<Vec<CounterSnapshot>, EngineError> {
        self.on_runtime(self.cluster.snapshots(keys)).await
    }

    async fn requests(&self, after: RequestCursor, limit: usize) -> Result<RequestPage, EngineError> {
        self.on_runtime(self.cluster.requests(after, limit)).await
    }

    fn routes(&self) -> Vec<Key> {
        self.cluster.routes()
    }

    fn health(&self) -> Health {
        self.cluster.health()
    }

    async fn poisoned(&self) -> String {
        self.cluster.poisoned().await
    }

    fn metrics(&self) -> Vec<Metric> {
        self.cluster.metrics()
    }
}
