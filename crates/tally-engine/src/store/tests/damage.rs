//! Damage is detected wherever it is.

use std::sync::Arc;

use super::disk::MemDisk;
use super::{Changes, ID, checkpoint, open, put};
use crate::disk::Disk;
use crate::identity::DirId;
use crate::store::{Store, StoreError};

const RUN: &str = "run-0000000000000001.run";

/// Two blocks, a removal, and everything else a run has.
fn disk() -> Arc<MemDisk> {
    disk_with("a value", ID)
}

/// The same with this value, in a directory with this identity.
fn disk_with(value: &str, id: DirId) -> Arc<MemDisk> {
    let disk = MemDisk::new();
    let mut changes = put(0..30, value);
    changes.insert(vec![1], Some(vec![b'x'; 4096]));
    changes.insert(vec![2], None);
    changes.insert(vec![3], Some(vec![]));
    checkpoint(&Store::open(Arc::clone(&disk) as Arc<dyn Disk>, id).unwrap(), &changes, 42);
    disk
}

fn damage(disk: &MemDisk) -> (String, u64) {
    match Store::verify(disk, &|_, _| true, &mut |_, _| {}) {
        Err(StoreError::Damaged { file, offset, .. }) => (file, offset),
        Err(other) => panic!("not called damage: {other}"),
        Ok(_) => panic!("not found"),
    }
}

/// Flips every bit and returns the reported offsets, in order.
fn flip_every_bit(name: &str) -> Vec<u64> {
    let disk = disk();
    let mut places = Vec::new();
    for bit in 0..8 * disk.content(name).len() {
        disk.flip(name, bit);
        let (file, offset) = damage(&disk);
        assert!(file == name && offset <= bit as u64 / 8, "bit {bit}: {file} at {offset}");
        places.push(offset);
        disk.flip(name, bit);
    }
    places.dedup();
    places
}

#[test]
fn every_flipped_bit_of_a_run_is_detected_and_located() {
    let places = flip_every_bit(RUN);
    assert!(places.is_sorted());
    assert_eq!(places.len(), 7, "header, origin, two blocks, filter, index, footer: {places:?}");
}

#[test]
fn every_flipped_bit_of_the_manifest_is_detected_when_opening() {
    flip_every_bit("manifest");
    let disk = disk();
    disk.flip("manifest", 100);
    let error = Store::open(Arc::clone(&disk) as Arc<dyn Disk>, ID).err().unwrap();
    assert!(matches!(&error, StoreError::Damaged { file, .. } if file == "manifest"), "{error}");
    assert!(disk.file_names().contains(&RUN.into()), "a damaged manifest is no reason to remove runs");
}

#[test]
fn a_run_that_is_truncated_extended_replaced_or_missing_is_detected() {
    let disk = disk();
    let content = disk.content(RUN);
    for len in [0, 10, 24, 100, content.len() - 1] {
        disk.put(RUN, content[..len].to_vec());
        assert_eq!(damage(&disk), (RUN.into(), len as u64));
    }
    disk.put(RUN, [content.as_slice(), b"x"].concat());
    assert_eq!(damage(&disk), (RUN.into(), content.len() as u64));

    let other = MemDisk::new();
    checkpoint(&open(&other), &Changes::new(), 1);
    other.put(RUN, content);
    other.put("manifest", disk.content("manifest"));
    Store::verify(other.as_ref(), &|_, _| true, &mut |_, _| {}).unwrap();
    other.remove(RUN).unwrap();
    assert_eq!(damage(&other), (RUN.into(), 0));
}

#[test]
fn reading_a_damaged_block_is_an_error_and_other_blocks_still_read() {
    let disk = disk();
    let store = open(&disk);
    let block = 36 + 100;
    disk.flip(RUN, 8 * block);
    let in_damaged_block = 3u32.to_be_bytes();
    let Err(StoreError::Damaged { file, offset, .. }) = store.get(&in_damaged_block) else { panic!() };
    assert_eq!((file.as_str(), offset), (RUN, 36));
    assert!(store.get_many(&[in_damaged_block].iter().collect(), &mut |_, _| {}).is_err());
    assert_eq!(store.get(&[3]).unwrap(), Some(vec![]));
    let mut scan = store.scan(b"");
    assert!(scan.next().unwrap().is_err());
    assert!(scan.next().is_none());
}

/// The error of opening a disk whose run 1 was replaced by these bytes. A check must report the same.
fn refusal(disk: &Arc<MemDisk>, bytes: Vec<u8>) -> String {
    disk.put(RUN, bytes);
    let opened = Store::open(Arc::clone(disk) as Arc<dyn Disk>, ID).map(|_| ());
    let verified = Store::verify(disk.as_ref(), &|_, _| true, &mut |_, _| {}).map(|_| ());
    let refused = opened.unwrap_err().to_string();
    assert_eq!(refused, verified.unwrap_err().to_string());
    refused
}

#[test]
fn a_run_of_another_directory_is_refused() {
    let refused = refusal(&disk(), disk_with("a value", DirId::new(6)).content(RUN));
    assert_eq!(refused, format!("{RUN} is damaged at byte 24: the file belongs to another data directory"));
}

#[test]
fn another_run_of_the_same_directory_number_and_length_is_refused() {
    let refused = refusal(&disk(), disk_with("A VALUE", ID).content(RUN));
    assert!(refused.contains("the digest is not the one in the manifest"), "{refused}");
}

#[test]
fn an_intact_block_of_another_run_is_detected_by_check() {
    let (disk, other) = (disk(), disk_with("A VALUE", ID));
    let block = open(&disk).version().runs[0].index.block(0);
    let block = block.start as usize..block.end as usize;
    let mut mixed = disk.content(RUN);
    mixed[block.clone()].copy_from_slice(&other.content(RUN)[block.clone()]);
    assert_ne!(mixed, disk.content(RUN));
    disk.put(RUN, mixed);
    Store::open(Arc::clone(&disk) as Arc<dyn Disk>, ID).unwrap();
    assert_eq!(damage(&disk), (RUN.into(), block.start as u64));
}
