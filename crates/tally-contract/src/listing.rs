//! Listing: every counter in key order, page by page.

use std::collections::BTreeMap;

use tally_core::key::Key;
use tally_core::limits::PAGE_ITEMS_MAX;

use crate::{Ability, Failure, Host, Running, Verdict};

fn listed<H: Host>(running: &Running<'_, H>, prefix: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, i64)>, Failure> {
    let items = running.list(prefix, limit)?;
    assert!(items.iter().all(|(_, reading)| reading.exists));
    Ok(items.into_iter().map(|(key, reading)| (key.as_bytes().to_vec(), reading.value)).collect())
}

fn expected(of: &BTreeMap<Vec<u8>, i64>, prefix: &[u8]) -> Vec<(Vec<u8>, i64)> {
    of.iter().filter(|(key, _)| key.starts_with(prefix)).map(|(key, value)| (key.clone(), *value)).collect()
}

/// A key that sorts after others: the largest byte, or the largest character where keys are text.
fn largest<H: Host>(running: &Running<'_, H>) -> &'static [u8] {
    if running.can(Ability::AnyBytes) { b"\xff" } else { "\u{10ffff}".as_bytes() }
}

/// Adds counters whose keys are difficult for prefixes and ordering.
fn fill<H: Host>(running: &Running<'_, H>, tag: &str) -> Result<BTreeMap<Vec<u8>, i64>, Failure> {
    let mut all = BTreeMap::new();
    let mut call = running.call();
    for number in 1..=60i64 {
        let text = format!("{tag}:{}", number * 7 % 60);
        let odd = [text.as_bytes(), largest(running), &[number as u8]].concat();
        for key in [text.into_bytes(), odd] {
            call = call.add(&key, number);
            all.insert(key, number);
        }
    }
    call = edges(running).iter().fold(call, |call, key| call.add(key, 1));
    call.send()?;
    Ok(all)
}

/// Keys before, among and after the others.
fn edges<H: Host>(running: &Running<'_, H>) -> [Vec<u8>; 5] {
    let largest = largest(running);
    [b"\0".to_vec(), largest.to_vec(), [largest, largest].concat(), b"a".to_vec(), b"b".to_vec()]
}

/// Keys are compared by their bytes.
pub fn counters_are_listed_in_key_order<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let mut all = fill(&running, "k")?;
    all.extend(edges(&running).map(|key| (key, 1)));
    assert_eq!(listed(&running, b"", PAGE_ITEMS_MAX)?, expected(&all, b""));
    Ok(())
}

/// This holds for every page size.
pub fn pages_of_a_listing_have_no_gaps_or_repeats<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let mut all = fill(&running, "k")?;
    all.extend(edges(&running).map(|key| (key, 1)));
    for limit in [1, 2, 3, 10, 124, 125, 126] {
        assert_eq!(listed(&running, b"", limit)?, expected(&all, b""), "pages of {limit}");
    }
    let exact = running.page(b"", None, all.len())?;
    assert!(exact.next.is_none() && exact.items.len() == all.len());
    let last = Key::new(&edges(&running)[2])?;
    let beyond = running.page(b"", Some(&last), 10)?;
    assert!(beyond.items.is_empty() && beyond.next.is_none());
    // A page may start after a key that does not exist.
    let missing = Key::new(b"aa")?;
    assert_eq!(running.page(b"", Some(&missing), 1)?.items[0].0.as_bytes(), b"b");
    Ok(())
}

/// A prefix is a prefix of bytes, independent of namespaces.
pub fn a_prefix_selects_only_its_keys<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let mut all = fill(&running, "k")?;
    all.append(&mut fill(&running, "kk")?);
    let odd = [b"k:", largest(&running)].concat();
    for prefix in [&b"k"[..], b"k:", b"k:1", b"k:11", b"kk", b"kk:5", b"nobody", &odd] {
        for limit in [1, 7, 1000] {
            assert_eq!(listed(&running, prefix, limit)?, expected(&all, prefix), "{prefix:?}");
        }
    }
    let before = Key::new(b"a")?;
    assert_eq!(running.page(b"k:", Some(&before), 1000)?.items.len(), 120);
    let past = Key::new(b"z")?;
    assert!(running.page(b"k:", Some(&past), 1000)?.items.is_empty());
    Ok(())
}

/// A listing reflects creations and deletions at once.
pub fn a_listing_shows_created_counters_and_no_deleted_ones<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    let mut all = BTreeMap::new();
    for round in 0..30i64 {
        let created = format!("k:{:02}", round * 11 % 30).into_bytes();
        running.add(&created, round + 1)?;
        all.insert(created, round + 1);
        if round % 3 == 2 {
            let deleted = format!("k:{:02}", (round - 1) * 11 % 30).into_bytes();
            running.call().delete(&deleted).send()?;
            all.remove(&deleted);
        }
        for limit in [1, 1000] {
            assert_eq!(listed(&running, b"k:", limit)?, expected(&all, b""), "round {round}");
        }
        if round % 10 == 9 {
            running = running.restart()?;
        }
    }
    Ok(())
}

/// Deleted counters stay deleted, and the page size makes no difference.
pub fn a_listing_survives_a_restart<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    fill(&running, "k")?;
    running.call().delete("k:3").delete("k:30").send()?;
    let before = listed(&running, b"", 10)?;
    assert_eq!(before.len(), 123);
    let running = running.restart()?;
    assert_eq!(listed(&running, b"", 10)?, before);
    let running = running.restart()?;
    assert_eq!(listed(&running, b"", 1000)?, before);
    Ok(())
}

/// Counters from before and after a restart, changed, deleted and recreated.
pub fn old_and_new_counters_are_listed_together<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let mut all = BTreeMap::new();
    let mut call = running.call();
    for number in 0..100i64 {
        call = call.add(format!("k:{number:03}"), 1);
        all.insert(format!("k:{number:03}").into_bytes(), 1);
    }
    call.send()?;
    let running = running.restart()?;
    let mut call = running.call();
    for number in (0..200i64).step_by(3) {
        let key = format!("k:{number:03}");
        match number % 4 {
            0 => {
                call = call.add(&key, 1);
                *all.entry(key.into_bytes()).or_insert(0) += 1;
            }
            1 => {
                call = call.delete(&key);
                all.remove(key.as_bytes());
            }
            2 => {
                call = call.delete(&key).add(&key, 5);
                all.insert(key.into_bytes(), 5);
            }
            _ => {}
        }
    }
    call.send()?;
    for limit in [1, 13, 1000] {
        assert_eq!(listed(&running, b"k:", limit)?, expected(&all, b""), "pages of {limit}");
    }
    Ok(())
}
