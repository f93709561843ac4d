//! Clocks: the system clocks behind a trait, and the engine's own slewed clock.
//!
//! The wall clock is set by operators, time servers and hypervisors and may jump by seconds or years. The engine's
//! clock starts at the wall clock, or at the time of the last batch if that is later, and then advances with the
//! monotonic clock. It is slewed towards the wall clock as by `adjtime`: while the two differ, it runs faster or slower
//! by at most one part in [`CLOCK_SLEW_PARTS`]. So durations are always nearly right, and a step of the wall clock
//! neither expires counters nor stops time.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tally_core::limits::{CLOCK_SLEW_PARTS, CLOCK_STEP_REPORTED_MS};
use tally_core::time::Millis;

/// Wall-clock and elapsed time. A trait, so that tests control time.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock, in milliseconds since the Unix epoch.
    fn wall(&self) -> Millis;
    /// Monotonic time since an arbitrary moment. Includes time in which the machine was suspended.
    fn elapsed(&self) -> Duration;
}

/// The clocks of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[expect(clippy::disallowed_methods, reason = "this is the clock the rest of the engine is given")]
fn system_time() -> SystemTime {
    SystemTime::now()
}

impl Clock for SystemClock {
    fn wall(&self) -> Millis {
        let since = system_time().duration_since(UNIX_EPOCH).unwrap_or_default();
        Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn elapsed(&self) -> Duration {
        #[cfg(target_os = "linux")]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let id = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(id);
        Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), u32::try_from(now.tv_nsec).unwrap_or_default())
    }
}

/// The engine's clock: monotonic, and follows the wall clock at a bounded rate.
pub(crate) struct SlewedClock {
    source: Arc<dyn Clock>,
    reading: Mutex<ClockReading>,
}

struct ClockReading {
    /// Nanoseconds since the Unix epoch.
    now: i128,
    /// The monotonic clock at that time.
    elapsed: Duration,
    /// Whether a large difference to the wall clock has been logged.
    is_off: bool,
}

const NANOS_PER_MILLI: i128 = 1_000_000;

impl SlewedClock {
    /// Starts at the wall clock, or at `last` if that is later.
    pub(crate) fn new(source: Arc<dyn Clock>, last: Millis) -> SlewedClock {
        let start = source.wall().max(last);
        let reading = ClockReading { now: nanos(start), elapsed: source.elapsed(), is_off: false };
        SlewedClock { source, reading: Mutex::new(reading) }
    }

    /// The current time.
    pub(crate) fn now(&self) -> Millis {
        let mut reading = self.reading.lock();
        let elapsed = self.source.elapsed().max(reading.elapsed);
        let passed = (elapsed - reading.elapsed).as_nanos() as i128;
        let expected = reading.now + passed;
        let offset = nanos(self.source.wall()) - expected;
        let most = passed / i128::from(CLOCK_SLEW_PARTS);
        reading.now = expected + offset.clamp(-most, most);
        reading.elapsed = elapsed;
        reading.report(offset / NANOS_PER_MILLI);
        Millis(u64::try_from(reading.now / NANOS_PER_MILLI).unwrap_or(u64::MAX))
    }

    /// Sets the clock to the wall clock, even if that is earlier.
    pub(crate) fn reset(&self) -> Millis {
        let mut reading = self.reading.lock();
        let wall = self.source.wall();
        *reading = ClockReading { now: nanos(wall), elapsed: self.source.elapsed(), is_off: false };
        wall
    }

    /// Monotonic time since an arbitrary moment.
    pub(crate) fn elapsed(&self) -> Duration {
        self.source.elapsed()
    }

    /// The wall clock.
    pub(crate) fn wall(&self) -> Millis {
        self.source.wall()
    }
}

impl ClockReading {
    /// Logs a step of the wall clock once, and once more when the clocks agree again.
    fn report(&mut self, offset_ms: i128) {
        let limit = i128::from(CLOCK_STEP_REPORTED_MS);
        if !self.is_off && offset_ms.abs() > limit {
            self.is_off = true;
            tracing::warn!(
                step_ms = offset_ms as i64,
                "the system clock has jumped; Tally's clock follows slowly. Durations are not affected; deadlines given as a time of \
                 day are off until the two agree"
            );
        } else if self.is_off && offset_ms.abs() <= limit / 2 {
            self.is_off = false;
            tracing::info!("Tally's clock agrees with the system clock again");
        }
    }
}

fn nanos(millis: Millis) -> i128 {
    i128::from(millis.0) * NANOS_PER_MILLI
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const START_MS: u64 = 1_700_000_000_000;
    const YEARS_MS: u64 = 10 * 365 * 24 * 3_600_000;

    #[derive(Default)]
    struct TestClock {
        wall_ms: AtomicU64,
        elapsed_ms: AtomicU64,
    }

    impl TestClock {
        fn at_start() -> Arc<TestClock> {
            Arc::new(TestClock { wall_ms: AtomicU64::new(START_MS), ..TestClock::default() })
        }

        fn pass(&self, ms: u64) {
            self.wall_ms.fetch_add(ms, Ordering::Relaxed);
            self.elapsed_ms.fetch_add(ms, Ordering::Relaxed);
        }

        fn step(&self, ms: i64) {
            self.wall_ms.fetch_add(ms as u64, Ordering::Relaxed);
        }
    }

    impl Clock for TestClock {
        fn wall(&self) -> Millis {
            Millis(self.wall_ms.load(Ordering::Relaxed))
        }

        fn elapsed(&self) -> Duration {
            Duration::from_millis(self.elapsed_ms.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn without_steps_the_clock_equals_the_wall_clock() {
        let source = TestClock::at_start();
        let clock = SlewedClock::new(source.clone(), Millis(0));
        for _ in 0..1000 {
            source.pass(7);
            assert_eq!(clock.now(), source.wall());
        }
    }

    #[test]
    fn a_step_of_any_size_changes_only_the_rate_and_by_a_sixteenth() {
        for step in [-5_000, 5_000, -3_600_000, 3_600_000, -(YEARS_MS as i64), YEARS_MS as i64] {
            let source = TestClock::at_start();
            let clock = SlewedClock::new(source.clone(), Millis(0));
            source.step(step);
            assert_eq!(clock.now().0, START_MS, "no time has passed");
            source.pass(16_000);
            let corrected = (step / 16_000).signum();
            let expected = if step.unsigned_abs() < 16_000 {
                16_000 + step.clamp(-1_000, 1_000)
            } else {
                16_000 + 1_000 * corrected
            };
            assert_eq!(clock.now().0 - START_MS, expected as u64, "{step}");
        }
    }

    #[test]
    fn a_small_step_is_slewed_away_and_time_never_goes_back() {
        let source = TestClock::at_start();
        let clock = SlewedClock::new(source.clone(), Millis(0));
        source.step(-2_000);
        let mut last = clock.now();
        for _ in 0..10_000 {
            source.pass(5);
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        assert_eq!(last, source.wall());
    }

    #[test]
    fn the_slew_does_not_depend_on_how_often_the_clock_is_read() {
        let (rare, frequent) = (TestClock::at_start(), TestClock::at_start());
        let clocks = [&rare, &frequent].map(|source| SlewedClock::new(source.clone(), Millis(0)));
        rare.step(60_000);
        frequent.step(60_000);
        for _ in 0..3_200 {
            rare.pass(1);
            frequent.pass(1);
            clocks[1].now();
        }
        assert_eq!(clocks[0].now(), clocks[1].now());
    }

    #[test]
    fn time_continues_from_a_stored_time_ahead_of_the_wall_clock_until_it_is_reset() {
        let source = TestClock::at_start();
        let clock = SlewedClock::new(source.clone(), Millis(START_MS + YEARS_MS));
        source.pass(16_000);
        assert_eq!(clock.now(), Millis(START_MS + YEARS_MS + 15_000));
        assert_eq!(clock.reset(), source.wall());
        source.pass(10);
        assert_eq!(clock.now(), source.wall());
    }
}
