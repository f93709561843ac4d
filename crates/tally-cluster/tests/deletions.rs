//! Deleting many `best-effort` counters in one call.
#![allow(clippy::unwrap_used)]

mod cluster;

use cluster::{PARTITIONS, TestServices, wait_until};
use tally_cluster::kafka::Tailer;
use tally_cluster::policy::ShardPolicy;
use tally_core::consistency::Consistency;
use tally_core::event::{Change, Correction, Field};
use tally_core::key::Key;
use tally_core::surface::{Engine, ReadOptions, SubmitOptions};

const COUNTERS: usize = 100;

#[test]
fn a_call_that_deletes_many_counters_knows_which_existed_and_makes_few_appends() {
    let services = TestServices::shared();
    let mut place = services.place(1);
    place.policies.set(b"views", ShardPolicy::default());
    services.runtime.block_on(async {
        let (api, worker) = (place.api().await, place.worker().await);
        wait_until("all partitions", async || match worker.hosted().len() {
            hosted if hosted == PARTITIONS as usize => Ok(()),
            hosted => Err(format!("{hosted} hosted")),
        });
        let keys: Vec<Key> = (0..COUNTERS).map(|number| Key::new(format!("views:{number}")).unwrap()).collect();
        let options = SubmitOptions::new(Consistency::BestEffort);
        let mut events = api.events();
        keys.iter().for_each(|key| events.add(key.as_ref(), 2));
        api.submit(events, options).await.unwrap();
        let exact = ReadOptions::new(Consistency::Exact);
        // Summed, so that the worker has nothing to append meanwhile.
        assert!(api.read(keys.clone(), exact.clone()).await.unwrap().iter().all(|reading| reading.value == 2));

        // As DEL does it. One key does not exist, and one is listed twice.
        let absent = Key::new("views:absent").unwrap();
        let why = Correction::new("test", "because").unwrap();
        let mut events = api.events();
        let deleted: Vec<&Key> = keys.iter().chain([&absent, &keys[0]]).collect();
        for key in &deleted {
            events.push(key.as_ref(), Change::Read(Field::Value), None, None);
            events.push(key.as_ref(), Change::Delete(why.clone()), None, None);
        }
        let tailer = Tailer::new(&place.kafka).unwrap();
        let ends = || (0..PARTITIONS).map(|partition| tailer.end(partition).unwrap().0).sum::<u64>();
        let before = tokio::task::block_in_place(ends);
        let receipt = api.submit(events, options).await.unwrap();
        let appended = tokio::task::block_in_place(ends) - before;
        let existed: Vec<bool> = receipt.outcomes.iter().step_by(2).map(|read| read.exists).collect();
        assert_eq!(receipt.outcomes.len(), 2 * deleted.len());
        assert_eq!(existed, [vec![true; COUNTERS], vec![false; 2]].concat());
        assert!(receipt.outcomes.iter().step_by(2).take(COUNTERS).all(|read| read.value == 2));
        assert!(appended < 20, "{appended} appends");
        assert!(api.read(keys, exact).await.unwrap().iter().all(|reading| !reading.exists));
    });
}
