//! Stops a partition whose applying thread panics.

use tokio::sync::watch;

use super::host::HostError;

/// Records a panic of the current thread as the partition's failure when it is dropped. Without it the partition would
/// stay owned, and callers would wait for it forever.
pub struct FailOnPanic<'a>(pub &'a watch::Sender<Option<HostError>>);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.send_replace(Some(HostError::Panicked));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]

    use super::*;

    #[test]
    fn a_panic_is_the_failure_of_the_partition_and_an_orderly_end_is_none() {
        let failure = watch::Sender::new(None);
        let run = |panics: bool| {
            let _guard = FailOnPanic(&failure);
            assert!(!panics, "a bug");
        };
        let run_in_thread = |panics| std::thread::scope(|scope| scope.spawn(move || run(panics)).join());
        assert!(run_in_thread(false).is_ok());
        assert!(failure.borrow().is_none());
        assert!(run_in_thread(true).is_err());
        assert!(matches!(*failure.borrow(), Some(HostError::Panicked)));
    }
}
