//! The embedded engine with its threads, in a temporary directory.

use std::sync::{Mutex, PoisonError};

use tally_contract::{Failure, Host, Verdict};
use tally_core::limits::MEMORY_BYTES_MIN;
use tally_core::surface::{FlushBy, SubmitOptions};
use tally_engine::{Config, Embedded};
use tempfile::TempDir;

/// The engine that users get.
pub struct AsShipped;

/// The same engine, with submissions flushed on the calling thread.
pub struct FlushingHere;

/// A data directory and its latest engine.
pub struct Place {
    dir: TempDir,
    started: Mutex<Option<Embedded>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // A behaviour that leaves its engine running must not leave its threads and files behind.
        if let Some(engine) = self.started.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = engine.close();
        }
    }
}

impl Host for AsShipped {
    type Engine = Embedded;
    type Data = Place;

    fn prepare(&self) -> Result<Place, Failure> {
        Ok(Place { dir: tempfile::tempdir()?, started: Mutex::default() })
    }

    fn start(&self, place: &Place) -> Result<Embedded, Failure> {
        let config = Config::new(place.dir.path(), MEMORY_BYTES_MIN);
        let engine = Embedded::open(&config, &mut |_, _| {})?;
        *place.started.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine.clone());
        Ok(engine)
    }

    fn stop(&self, engine: &Embedded) -> Verdict {
        Ok(engine.close()?)
    }
}

impl Host for FlushingHere {
    type Engine = Embedded;
    type Data = Place;

    fn prepare(&self) -> Result<Place, Failure> {
        AsShipped.prepare()
    }

    fn start(&self, place: &Place) -> Result<Embedded, Failure> {
        AsShipped.start(place)
    }

    fn stop(&self, engine: &Embedded) -> Verdict {
        AsShipped.stop(engine)
    }

    fn submit_options(&self) -> SubmitOptions {
        SubmitOptions { flush: FlushBy::Caller, ..AsShipped.submit_options() }
    }
}
