//! Concurrent reads of one counter become one request to its worker.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tally_core::key::Key;
use tally_core::surface::EngineError;
use tokio::sync::OnceCell;

use super::read_counter::ReadCounter;
use crate::limits::SHARED_READS_MAX;

/// The requests to workers that others can join.
#[derive(Debug, Default)]
pub struct SharedReads {
    open: Mutex<HashMap<Key, Arc<SharedRead>>>,
}

/// A request for counters of one partition. The first caller to poll it makes it. If that caller is canceled, the next
/// one does; an error is shared like an answer.
#[derive(Debug)]
pub struct SharedRead {
    /// The counters.
    pub keys: Vec<Key>,
    /// One per counter.
    pub answer: OnceCell<Result<Vec<ReadCounter>, EngineError>>,
    /// Changes with `SharedReads::open` locked.
    callers: AtomicUsize,
}

/// A caller's share of a request. Others can join the request until it is answered, or until all callers are gone.
pub struct JoinedRead<'a> {
    reads: &'a SharedReads,
    /// The request.
    pub read: Arc<SharedRead>,
    /// The caller's keys, as indexes into the keys of the request.
    pub places: Vec<usize>,
}

impl SharedReads {
    /// Joins the requests that are in flight, and opens one for the other keys.
    pub fn join<'k>(&self, keys: impl Iterator<Item = &'k Key>) -> Vec<JoinedRead<'_>> {
        let mut open = self.open.lock();
        let mut joined: Vec<JoinedRead<'_>> = Vec::new();
        let mut lacking = Vec::new();
        for key in keys {
            match open.get(key).filter(|read| read.answer.get().is_none()) {
                Some(read) => self.add(&mut joined, read, key),
                None => lacking.push(key.clone()),
            }
        }
        if lacking.is_empty() {
            return joined;
        }
        let places = (0..lacking.len()).collect();
        let read = Arc::new(SharedRead { keys: lacking, answer: OnceCell::new(), callers: AtomicUsize::new(1) });
        if open.len() + read.keys.len() <= SHARED_READS_MAX {
            open.extend(read.keys.iter().map(|key| (key.clone(), Arc::clone(&read))));
        }
        joined.push(JoinedRead { reads: self, read, places });
        joined
    }

    fn add<'a>(&'a self, joined: &mut Vec<JoinedRead<'a>>, read: &Arc<SharedRead>, key: &Key) {
        let Some(place) = read.keys.iter().position(|known| known == key) else { return };
        match joined.iter_mut().find(|known| Arc::ptr_eq(&known.read, read)) {
            Some(known) => known.places.push(place),
            None => {
                read.callers.fetch_add(1, Ordering::Relaxed);
                joined.push(JoinedRead { reads: self, read: Arc::clone(read), places: vec![place] });
            }
        }
    }
}

impl Drop for JoinedRead<'_> {
    fn drop(&mut self) {
        let mut open = self.reads.open.lock();
        let is_last = self.read.callers.fetch_sub(1, Ordering::Relaxed) == 1;
        if is_last || self.read.answer.get().is_some() {
            for key in &self.read.keys {
                if open.get(key).is_some_and(|known| Arc::ptr_eq(known, &self.read)) {
                    open.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn keys(names: &[&str]) -> Vec<Key> {
        names.iter().map(|name| Key::new(*name).unwrap()).collect()
    }

    #[test]
    fn callers_join_what_is_under_way_and_open_the_rest() {
        let reads = SharedReads::default();
        let (ab, bc) = (keys(&["a", "b"]), keys(&["b", "c"]));
        let first = reads.join(ab.iter());
        let second = reads.join(bc.iter());
        assert_eq!((first.len(), second.len()), (1, 2));
        assert!(Arc::ptr_eq(&first[0].read, &second[0].read));
        assert_eq!((&second[0].places, &second[1].read.keys), (&vec![1], &keys(&["c"])));
        drop(first);
        assert!(Arc::ptr_eq(&second[0].read, &reads.join(ab.iter())[0].read), "the second caller is still there");
        drop(second);
        assert!(reads.open.lock().is_empty());
    }

    #[test]
    fn nobody_joins_a_request_that_is_answered() {
        let reads = SharedReads::default();
        let a = keys(&["a"]);
        let first = reads.join(a.iter());
        first[0].read.answer.set(Ok(Vec::new())).unwrap();
        let second = reads.join(a.iter());
        assert!(!Arc::ptr_eq(&first[0].read, &second[0].read));
        drop(first);
        assert!(Arc::ptr_eq(&second[0].read, &reads.join(a.iter())[0].read), "it leaves the newer one open");
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_leaves_the_request_to_the_next_one() {
        let reads = SharedReads::default();
        let a = keys(&["a"]);
        let (mut first, mut second) = (reads.join(a.iter()), reads.join(a.iter()));
        let (first, second) = (first.remove(0), second.remove(0));
        let stuck = first.read.answer.get_or_init(std::future::pending);
        let follower = second.read.answer.get_or_init(async || Err(EngineError::Closing));
        tokio::select! {
            biased;
            _ = stuck => unreachable!(),
            () = std::future::ready(()) => {}
        }
        assert_eq!(follower.await.as_ref().unwrap_err(), &EngineError::Closing);
    }
}
