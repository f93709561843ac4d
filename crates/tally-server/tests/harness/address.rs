//! The address of a server that is killed and restarted: clients wait here for the next one.

#![allow(dead_code, reason = "only the kill tests restart a server under load")]

use std::sync::{Condvar, Mutex};

use super::wait::PATIENCE;

/// Where the server is; it changes with every restart.
pub struct Address {
    current: Mutex<String>,
    changed: Condvar,
}

impl Address {
    /// The address of a server that runs.
    pub fn new(address: &str) -> Address {
        Address { current: Mutex::new(address.to_owned()), changed: Condvar::new() }
    }

    /// Where the server is, or was last.
    pub fn get(&self) -> String {
        self.current.lock().unwrap().clone()
    }

    /// The server was restarted and is here now.
    pub fn set(&self, address: &str) {
        address.clone_into(&mut self.current.lock().unwrap());
        self.changed.notify_all();
    }

    /// The address of the next server, once the one at `gone` has been replaced.
    pub fn after(&self, gone: &str) -> String {
        let current = self.current.lock().unwrap();
        let waited = self.changed.wait_timeout_while(current, PATIENCE, |current| *current == gone).unwrap();
        assert!(!waited.1.timed_out(), "the server at {gone} was not replaced within {PATIENCE:?}");
        waited.0.clone()
    }
}
