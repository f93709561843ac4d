//! Tests of the simulated disk.
#![allow(clippy::unwrap_used)]

use super::*;
use tally_engine::disk::is_full;

fn file_with(sim: &SimDisk, name: &str, synced: &[u8]) -> Arc<dyn DiskFile> {
    let file = sim.create(name).unwrap();
    file.write_at(0, synced).unwrap();
    file.sync().unwrap();
    sim.sync_names().unwrap();
    file
}

fn content(sim: &SimDisk, name: &str) -> Option<Vec<u8>> {
    sim.contents().remove(name)
}

#[test]
fn synced_changes_survive_every_power_cut_and_unsynced_ones_may_not() {
    for seed in 0..200 {
        let sim = SimDisk::new(seed);
        let file = file_with(&sim, "a", b"synced");
        file.write_at(6, b", not synced").unwrap();
        sim.power_cut(seed);
        let found = content(&sim, "a").unwrap();
        assert!(b"synced, not synced".starts_with(&found[..]) && found.len() >= 6, "{found:?}");
    }
}

#[test]
fn each_kind_of_loss_loses_the_right_changes() {
    let after = |loss| {
        let sim = SimDisk::new(1);
        let file = file_with(&sim, "a", &[0; 2048]);
        file.write_at(0, &[1; 2048]).unwrap();
        sim.power_cut_losing(loss, 3);
        content(&sim, "a").unwrap()
    };
    assert_eq!(after(Loss::Nothing), [1; 2048]);
    assert_eq!(after(Loss::Everything), [0; 2048]);
    let later = after(Loss::Later);
    let kept = later.iter().take_while(|byte| **byte == 1).count();
    assert_eq!(kept % SECTOR_BYTES, 0);
    assert!(later[kept..].iter().all(|byte| *byte == 0));
}

#[test]
fn sectors_of_one_write_are_lost_independently() {
    let mut holes = 0;
    for seed in 0..100 {
        let sim = SimDisk::new(0);
        let file = file_with(&sim, "a", &[0; 2048]);
        file.write_at(100, &[1; 1900]).unwrap();
        sim.power_cut_losing(Loss::Some, seed);
        let found = content(&sim, "a").unwrap();
        for (index, sector) in found.chunks(SECTOR_BYTES).enumerate() {
            let written = if index == 0 { &sector[100..] } else { sector };
            let written = if index == 3 { &written[..2000 - 3 * SECTOR_BYTES] } else { written };
            assert!(written.iter().all(|byte| *byte == written[0]));
        }
        holes += u32::from(found[100] == 0 && found[1999] == 1);
    }
    assert!(holes > 10, "later sectors must sometimes survive earlier ones");
}

#[test]
fn a_torn_write_keeps_a_part_of_one_sector() {
    let torn = (0..100).filter(|seed| {
        let sim = SimDisk::new(0);
        let file = file_with(&sim, "a", &[0; 2048]);
        file.write_at(0, &[1; 2048]).unwrap();
        sim.power_cut_losing(Loss::LaterAndTorn, *seed);
        let found = content(&sim, "a").unwrap();
        let kept = found.iter().take_while(|byte| **byte == 1).count();
        assert!(found[kept..].iter().all(|byte| *byte == 0));
        kept % SECTOR_BYTES != 0
    });
    assert!(torn.count() > 50);
}

#[test]
fn names_are_durable_once_synced_and_unsynced_ones_are_lost_independently() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let sim = SimDisk::new(0);
        file_with(&sim, "old", b"old");
        file_with(&sim, "gone", b"gone");
        sim.create("new").unwrap();
        sim.remove("gone").unwrap();
        sim.power_cut_losing(Loss::Some, seed);
        seen.insert(sim.contents().into_keys().collect::<Vec<_>>());
    }
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|names| names.contains(&"old".to_owned())));
}

#[test]
fn a_rename_replaces_its_target_atomically() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let sim = SimDisk::new(0);
        file_with(&sim, "target", b"before");
        file_with(&sim, "fresh", b"after");
        sim.rename("fresh", "target").unwrap();
        assert_eq!(content(&sim, "target").unwrap(), b"after");
        sim.power_cut(seed);
        outcomes.insert((content(&sim, "target").unwrap(), content(&sim, "fresh").is_some()));
    }
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), [(b"after".to_vec(), false), (b"before".to_vec(), true)]);
}

#[test]
fn a_synced_file_may_vanish_if_its_name_is_not_durable() {
    let sim = SimDisk::new(0);
    let file = sim.create("a").unwrap();
    file.write_at(0, b"synced").unwrap();
    file.sync().unwrap();
    sim.power_cut_losing(Loss::Everything, 0);
    assert_eq!(content(&sim, "a"), None);
}

#[test]
fn handles_from_before_a_power_cut_are_invalid() {
    let sim = SimDisk::new(0);
    let file = file_with(&sim, "a", b"synced");
    sim.power_cut(0);
    assert!(file.len().is_err());
    assert!(file.write_at(0, b"x").is_err());
    assert_eq!(sim.open("a").unwrap().len().unwrap(), 6);
}

#[test]
fn a_restart_keeps_unsynced_changes_visible_and_makes_none_durable() {
    let sim = SimDisk::new(0);
    let file = file_with(&sim, "a", b"synced");
    file.write_at(0, b"cached").unwrap();
    sim.restart();
    assert!(file.len().is_err());
    assert_eq!(content(&sim, "a").unwrap(), b"cached");
    sim.power_cut_losing(Loss::Everything, 0);
    assert_eq!(content(&sim, "a").unwrap(), b"synced");
}

#[test]
fn a_removed_file_stays_readable_through_its_handle() {
    let sim = SimDisk::new(0);
    let file = file_with(&sim, "a", b"still here");
    sim.remove("a").unwrap();
    sim.sync_names().unwrap();
    let mut bytes = [0; 10];
    file.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still here");
    assert_eq!(sim.used_bytes(), 0);
    assert_eq!(sim.open("a").err().unwrap().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_crash_point_fails_its_operation_and_all_later_ones_until_the_power_cut() {
    for n in 1..=4 {
        let sim = SimDisk::new(n);
        sim.crash_at(n);
        let work = || {
            let file = sim.create("a")?;
            file.write_at(0, b"bytes")?;
            file.sync()?;
            sim.sync_names()
        };
        assert_eq!(work().unwrap_err().to_string(), "simulated crash");
        assert!(sim.crashed());
        assert_eq!(sim.operations(), n);
        assert!(sim.names().is_err());
        sim.power_cut(n);
        assert!(sim.names().is_ok());
        assert_eq!(sim.operations(), n);
    }
}

#[test]
fn after_a_failed_sync_bytes_may_be_visible_but_never_durable() {
    let mut lost = 0;
    for seed in 0..40 {
        let sim = SimDisk::new(seed);
        let file = file_with(&sim, "a", b"before");
        file.write_at(0, b"after!").unwrap();
        sim.fail_next_sync();
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
        file.sync().unwrap();
        assert_eq!(content(&sim, "a").unwrap(), b"after!");
        sim.power_cut_losing(Loss::Nothing, 0);
        lost += u32::from(content(&sim, "a").unwrap() == b"before");
    }
    assert!((5..35).contains(&lost), "{lost} of 40");
}

#[test]
fn a_full_disk_refuses_only_growth_until_there_is_space() {
    let sim = SimDisk::new(0);
    sim.set_capacity(1000);
    let file = sim.create("a").unwrap();
    file.allocate(900).unwrap();
    assert!(is_full(&file.write_at(850, &[0; 200]).unwrap_err()));
    assert!(is_full(&sim.create("b").unwrap().allocate(101).unwrap_err()));
    file.write_at(0, &[1; 900]).unwrap();
    sim.set_capacity(1050);
    file.write_at(850, &[0; 200]).unwrap();
    sim.remove("a").unwrap();
    sim.create("c").unwrap().allocate(1050).unwrap();
}

#[test]
fn a_flipped_bit_is_durable_and_changes_nothing_else() {
    let sim = SimDisk::new(0);
    file_with(&sim, "a", &[0; 4]);
    let before = sim.contents();
    sim.flip("a", 17).unwrap();
    sim.power_cut(0);
    assert_eq!(content(&sim, "a").unwrap(), [0, 0, 2, 0]);
    sim.flip("a", 17).unwrap();
    assert_eq!(sim.contents(), before);
    assert!(sim.flip("b", 0).is_err());
}

#[test]
fn the_same_seed_and_calls_give_the_same_disk() {
    let run = || {
        let sim = SimDisk::new(9);
        let file = file_with(&sim, "a", &[0; 4096]);
        file.write_at(0, &[1; 4096]).unwrap();
        sim.crash_at(sim.operations() + 1);
        let _ = file.write_at(2000, &[2; 2000]);
        sim.power_cut(11);
        sim.contents()
    };
    assert_eq!(run(), run());
}
