//! More counters than fit in memory.
#![allow(clippy::unwrap_used)]

use tally_contract::block_on;
use tally_core::key::{Key, KeyRef};
use tally_core::limits::{CALL_EVENTS_MAX, MEMORY_BYTES_MIN};
use tally_core::surface::{Engine, MetricValue, ReadOptions, SubmitOptions};
use tally_engine::{Config, Embedded};

/// Enough to fill the smallest budget more than twice.
const COUNTERS: u64 = 900_000;

fn gauge(engine: &Embedded, name: &str) -> f64 {
    let metric = engine.metrics().into_iter().find(|metric| metric.name == name);
    let Some(MetricValue::Gauge(value)) = metric.map(|metric| metric.value) else { return f64::NAN };
    value
}

/// Adds one to each counter, `call_events` per call, in an order given by `stride`.
fn add_to_all(engine: &Embedded, stride: u64, call_events: u64) {
    let mut number = 0;
    for _ in 0..COUNTERS.div_ceil(call_events) {
        let mut events = engine.events();
        for _ in 0..call_events {
            events.add(KeyRef::new(format!("k:{number}").as_bytes()).unwrap(), 1);
            number = (number + stride) % COUNTERS;
        }
        let receipt = block_on(engine.submit(events, SubmitOptions::default())).unwrap();
        assert!(receipt.outcomes.iter().all(|outcome| outcome.refusal.is_none()));
    }
}

#[test]
fn counters_beyond_the_memory_budget_are_evicted_and_read_back_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config::new(dir.path(), MEMORY_BYTES_MIN);
    let engine = Embedded::open(&config, &mut |_, _| {}).unwrap();
    // 700001 is coprime to the number of counters, so every counter is visited, in scattered order.
    for (round, (stride, call_events)) in [(1, 600), (700_001, CALL_EVENTS_MAX as u64)].into_iter().enumerate() {
        add_to_all(&engine, stride, call_events);
        assert!(gauge(&engine, "tally_resident_counters") < 0.8 * COUNTERS as f64);
        assert!(gauge(&engine, "tally_memory_bytes") < MEMORY_BYTES_MIN as f64);
        for sample in (0..COUNTERS).step_by(9_973) {
            let key = Key::new(format!("k:{sample}")).unwrap();
            let readings = block_on(engine.read(vec![key], ReadOptions::default())).unwrap();
            assert_eq!(readings[0].value, round as i64 + 1, "k:{sample}");
        }
    }
    engine.close().unwrap();
}
