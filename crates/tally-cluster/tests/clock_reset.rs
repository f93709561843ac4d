//! A broker whose clock is ahead for a moment, and how the cluster gets its time back.
#![allow(clippy::unwrap_used)]

mod cluster;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cluster::{PARTITIONS, TestServices, wait_until};
use tally_cluster::api::Cluster;
use tally_cluster::kafka::Appender;
use tally_core::consistency::Consistency;
use tally_core::event::{Change, Condition, Correction, Deadline, Expiry};
use tally_core::key::Key;
use tally_core::surface::{Engine, ReadOptions, SubmitOptions};
use tally_engine::clock::{Clock, SystemClock};
use tally_services::KafkaOptions;

const HOUR_MS: u64 = 3_600_000;

/// Preloaded into Java: moves the wall clock by the number of seconds in the file `CLOCK_OFFSET_FILE`, and does not
/// change the monotonic clocks.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    char text[32] = {0};
    int file = open(getenv("CLOCK_OFFSET_FILE"), O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    long length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
"#;

fn compile_shim(dir: &Path) -> String {
    let (source, library) = (dir.join("shim.c"), dir.join("shim.so"));
    std::fs::write(&source, SHIM).unwrap();
    let mut cc = Command::new("cc");
    let compiled = cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library.to_str().unwrap().to_owned()
}

/// How far the reading of a counter is ahead of the real time, or seems to be behind it.
async fn off_ms(api: &Cluster, key: &Key, consistency: Consistency) -> Result<u64, String> {
    let readings = api.read(vec![key.clone()], ReadOptions::new(consistency)).await;
    let reading = readings.map_err(|error| error.to_string())?.remove(0);
    assert_eq!(reading.value, 1);
    Ok(reading.as_of.since(SystemClock.wall()).max(reading.staleness_ms))
}

async fn expect_right_time(api: &Cluster, key: &Key) {
    wait_until("the right time", || async {
        for consistency in [Consistency::Exact, Consistency::Eventual] {
            match off_ms(api, key, consistency).await? {
                off if off > HOUR_MS => return Err(format!("{consistency:?}: {off} ms off")),
                _ => {}
            }
        }
        Ok(())
    });
}

#[test]
fn a_cluster_whose_broker_was_ahead_gets_its_time_back_by_a_reset_of_the_clock() {
    let dir = tempfile::tempdir().unwrap();
    let offset = dir.path().join("offset");
    let move_clock = |hours: u64| std::fs::write(&offset, (hours * 3_600).to_string()).unwrap();
    move_clock(0);
    let environment =
        vec![("LD_PRELOAD", compile_shim(dir.path())), ("CLOCK_OFFSET_FILE", offset.to_str().unwrap().to_owned())];
    let services = TestServices::start_with(&KafkaOptions { environment, ..KafkaOptions::default() });
    let place = services.place(1);
    services.runtime.block_on(async {
        let (worker, api) = (place.worker().await, place.api().await);
        wait_until("all partitions", || async {
            let hosted = worker.hosted().len();
            if hosted == PARTITIONS as usize { Ok(()) } else { Err(format!("{hosted} hosted")) }
        });
        // The tag keeps both in one partition.
        let (key, short) = (Key::new("{t}1").unwrap(), Key::new("{t}2").unwrap());
        let add = async || {
            let mut events = api.events();
            events.push(key.as_ref(), set_to_one(Expiry::Never), None, None);
            api.submit(events, SubmitOptions::new(Consistency::Exact)).await.unwrap()
        };
        add().await;
        expect_right_time(&api, &key).await;
        move_clock(10);
        wait_until("a record from the future", || async {
            match add().await.as_of.since(SystemClock.wall()) {
                ahead if ahead > 9 * HOUR_MS => Ok(()),
                ahead => Err(format!("{ahead} ms ahead")),
            }
        });
        move_clock(0);
        assert!(add().await.as_of.since(SystemClock.wall()) > 9 * HOUR_MS, "time does not go back by itself");
        worker.persist_all(Duration::from_secs(60)).await.unwrap();

        let appender = Appender::new(&place.kafka).unwrap();
        let reset_clocks = async || {
            for partition in 0..PARTITIONS {
                let appended = appender.reset_clock(partition).await.unwrap();
                assert!(appended.at.unwrap().since(SystemClock.wall()) < HOUR_MS);
            }
        };
        reset_clocks().await;
        expect_right_time(&api, &key).await;
        // Time passes again.
        let mut events = api.events();
        events.push(short.as_ref(), set_to_one(Expiry::At(Deadline::After(500))), None, None);
        api.submit(events, SubmitOptions::new(Consistency::Exact)).await.unwrap();
        wait_until("the expiry", || async {
            let read = api.read(vec![short.clone()], ReadOptions::new(Consistency::Exact)).await.unwrap();
            if read[0].value == 0 { Ok(()) } else { Err("it is there".to_owned()) }
        });
        // And stays right for the next owner, and for a new API node.
        worker.persist_all(Duration::from_secs(60)).await.unwrap();
        worker.stop().await;
        let (worker, next_api) = (place.worker().await, place.api().await);
        expect_right_time(&next_api, &key).await;
        // A node that learns the wrong time by its own appends, while there is no worker that could publish it.
        worker.stop().await;
        move_clock(10);
        let add_nothing = async || {
            let mut events = api.events();
            events.push(key.as_ref(), Change::Add(0), None, None);
            api.submit(events, SubmitOptions::new(Consistency::Eventual)).await.unwrap()
        };
        wait_until("a record from the future", || async {
            match add_nothing().await.as_of.since(SystemClock.wall()) {
                ahead if ahead > 9 * HOUR_MS => Ok(()),
                ahead => Err(format!("{ahead} ms ahead")),
            }
        });
        move_clock(0);
        reset_clocks().await;
        let _worker = place.worker().await;
        expect_right_time(&api, &key).await;
    });
}

fn set_to_one(expiry: Expiry) -> Change {
    Change::Set { value: 1, when: Condition::Always, expiry, why: Correction::new("test", "because").unwrap() }
}
