//! Masters of Redis that cannot be reached.

use super::*;

#[test]
fn a_live_read_that_cannot_reach_a_sub_counter_fails_or_says_that_it_is_partial() {
    let services = TestServices::start(1);
    // 64 sub-counters: every master has some.
    let count = ShardCount::Fixed(64);
    let policy = |on_unreachable| ShardPolicy { aggregation: Aggregation::Hybrid, on_unreachable, count, ..FIXED };
    let place = |on_unreachable| place(&services, policy(on_unreachable));
    let (partial, failing) = (place(OnUnreachable::Partial), place(OnUnreachable::Fail));
    services.runtime.block_on(async {
        let (api, worker) = (partial.api().await, partial.worker().await);
        hosted(&worker);
        // Its total and the list of active counters are on different masters.
        let masters = services.redis.masters();
        let owner = |name: String| {
            let slot = services.redis.cli(0, &["CLUSTER", "KEYSLOT", &name]).unwrap();
            let slot: u32 = slot.trim().parse().unwrap();
            let owns = |node: &&usize| {
                let nodes = services.redis.cli(**node, &["CLUSTER", "NODES"]).unwrap();
                let own = nodes.lines().find(|line| line.contains("myself")).unwrap().to_owned();
                own.split_whitespace().skip(8).any(|range| {
                    let (from, to) = range.split_once('-').unwrap_or((range, range));
                    (from.parse().unwrap()..=to.parse::<u32>().unwrap()).contains(&slot)
                })
            };
            *masters.iter().find(owns).unwrap()
        };
        let prefix = &partial.redis.prefix;
        let (live, of_total, of_list) = (0..)
            .find_map(|number| {
                let live = key(&format!("views:live{number}"));
                let partition = partition_of(live.as_ref(), PARTITIONS);
                let of_total = owner(format!("{prefix}:t:views:live{number}"));
                let of_list = owner(format!("{prefix}:a:{partition}"));
                (of_total != of_list).then_some((live, of_total, of_list))
            })
            .unwrap();
        join_all((0..512).map(|_| add(&api, &live, 1))).await;
        read_until(&api, &live, 512);
        let mut strict = failing.clone();
        strict.kafka = partial.kafka.clone();
        strict.postgres.clone_from(&partial.postgres);
        strict.redis = partial.redis.clone();
        let strict = strict.api().await;
        assert_eq!(read(&strict, &live, Consistency::BestEffort).await.unwrap().value, 512);

        // A master that has sub-counters, but neither the total nor the list of active counters.
        let paused = *masters.iter().find(|&&node| node != of_total && node != of_list).unwrap();
        services.redis.pause(paused);
        // At the same time, before a replica takes over.
        let (reading, failed) =
            tokio::join!(read(&api, &live, Consistency::BestEffort), read(&strict, &live, Consistency::BestEffort));
        services.redis.resume(paused);
        let reading = reading.unwrap();
        assert!(reading.partial && !reading.exact, "{reading:?}");
        assert!(
            matches!(&failed, Err(EngineError::Unavailable(why)) if why.contains("cannot be reached")),
            "{failed:?}"
        );

        // Nor is it answered by a worker without the sub-counters if the total cannot be reached, either.
        join_all((0..512).map(|_| add(&api, &live, 1))).await;
        wait_until("the value", async || match read(&strict, &live, Consistency::BestEffort).await {
            Ok(reading) if reading.value == 1024 => Ok(()),
            other => Err(format!("{other:?}")),
        });
        services.redis.pause(of_total);
        let (reading, failed) =
            tokio::join!(read(&api, &live, Consistency::BestEffort), read(&strict, &live, Consistency::BestEffort));
        services.redis.resume(of_total);
        assert!(reading.as_ref().is_ok_and(|reading| reading.partial), "{reading:?}");
        assert!(matches!(&failed, Err(EngineError::Unavailable(_))), "{failed:?}");
        read_until(&api, &live, 1024);

        // A part of a call that was made is not reported as refused because another part fails.
        services.kafka.pause(0);
        let mut call = api.events();
        call.push(live.as_ref(), Change::Add(100), None, None);
        let id = RequestId::new(live.as_ref(), b"1").unwrap();
        call.push(live.as_ref(), Change::Add(1), Some(id), None);
        let lost = api.submit(call, SubmitOptions::new(Consistency::BestEffort)).await;
        services.kafka.resume(0);
        assert!(matches!(lost, Err(EngineError::OutcomeUnknown(_))), "{lost:?}");
        worker.stop().await;
    });
}
