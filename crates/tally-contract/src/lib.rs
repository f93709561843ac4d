//! The contract suite: what every engine must do, written once against [`Engine`] and run against each implementation.
//!
//! A behaviour is a function whose name is a sentence. It starts its own engine through a [`Host`], so behaviours are
//! independent and may run in parallel. An engine's tests call [`contract!`], which generates one test per behaviour;
//! [`run_all`] runs them in sequence where tests cannot be generated.

mod block_on;
pub mod bounds;
mod call;
pub mod closing;
pub mod concurrency;
pub mod corrections;
pub mod count;
pub mod counting;
pub mod edges;
pub mod expiry;
pub mod groups;
pub mod listing;
pub mod moving;
pub mod order;
pub mod reads;
pub mod requests;
mod running;
pub mod statistics;

use std::error::Error;

pub use block_on::block_on;
pub use call::Call;
pub use running::Running;
use tally_core::consistency::Consistency;
use tally_core::surface::{Engine, SubmitOptions};

/// Why a behaviour failed.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The result of a behaviour.
pub type Verdict = Result<(), Failure>;

/// How long an engine may take for its background work, by its own clock. Generous, because the machine may be busy.
pub const BACKGROUND_MS_MAX: u64 = 60_000;

/// What an engine answers to calls below [`Consistency::Exact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeakerAnswers {
    /// The same as to exact ones.
    Exact,
    /// Estimates, marked as such.
    Estimates,
}

/// Starts and stops engines of one kind.
pub trait Host: Sync {
    /// The engine under test.
    type Engine: Engine;
    /// What outlives an engine: its files, its topics. Dropping it cleans up.
    type Data: Sync;

    /// Creates empty data.
    fn prepare(&self) -> Result<Self::Data, Failure>;

    /// Starts an engine on this data.
    fn start(&self, data: &Self::Data) -> Result<Self::Engine, Failure>;

    /// Makes the engine refuse new work and finish what it has accepted. Returns once all of that is durable and another
    /// engine may be started on the same data.
    fn stop(&self, engine: &Self::Engine) -> Verdict;

    /// Waits until listings and samples show everything acknowledged. They may be behind where they come from a store of
    /// their own.
    fn settle(&self, engine: &Self::Engine) -> Verdict {
        let _ = engine;
        Ok(())
    }

    /// What answers below [`Consistency::Exact`] are.
    fn weaker_answers(&self) -> WeakerAnswers {
        WeakerAnswers::Exact
    }

    /// The default options for submissions.
    fn submit_options(&self) -> SubmitOptions {
        SubmitOptions::new(Consistency::Exact)
    }
}

/// Passes its arguments and the list of all behaviours to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! each_behaviour {
    ($run:ident, $host:expr) => {
        $crate::$run! { $host;
            counting::increments_and_decrements_add_up,
            counting::an_unknown_counter_reads_zero_and_does_not_exist,
            counting::every_event_gets_the_running_value_of_its_counter,
            counting::every_increment_of_a_large_submission_gets_its_own_value,
            counting::an_empty_submission_changes_nothing,
            counting::a_key_may_be_any_bytes,
            counting::readings_are_in_the_order_of_the_keys,
            counting::values_survive_a_restart,
            counting::every_consistency_reads_its_own_acknowledged_writes,
            edges::an_increment_that_overflows_is_refused_and_changes_nothing,
            edges::combined_increments_are_applied_until_they_overflow,
            edges::combined_decrements_are_applied_until_they_overflow,
            edges::concurrent_increments_fill_the_range_exactly,
            edges::a_run_of_equal_increments_has_one_outcome,
            edges::concurrent_runs_fill_the_range_exactly,
            edges::events_stay_in_order_when_combined_increments_overflow,
            edges::the_whole_range_can_be_crossed,
            order::events_of_a_submission_are_applied_in_order,
            order::a_counter_recreated_after_deletion_starts_from_zero,
            order::a_refused_event_does_not_affect_the_others,
            order::increments_are_not_combined_across_a_correction,
            requests::a_repeat_returns_the_first_outcome,
            requests::a_repeat_within_one_submission_counts_once,
            requests::the_same_id_with_another_payload_is_refused,
            requests::the_same_id_in_another_namespace_is_another_request,
            requests::concurrent_repeats_count_once,
            requests::request_ids_survive_a_restart,
            requests::a_repeat_of_a_refused_request_is_refused,
            requests::a_repeated_correction_writes_one_ledger_entry,
            requests::a_retry_may_come_from_another_actor,
            corrections::a_set_replaces_the_value,
            corrections::compare_and_set_requires_the_expected_value,
            corrections::a_reset_sets_the_value_to_zero,
            corrections::an_adjustment_adds_and_is_recorded,
            corrections::a_deleted_counter_does_not_exist,
            corrections::the_ledger_is_a_verifiable_chain,
            corrections::the_ledger_survives_deletion_and_restart,
            corrections::the_ledger_is_read_in_pages,
            corrections::refused_corrections_are_not_in_the_ledger,
            bounds::a_change_that_would_cross_a_bound_is_refused,
            bounds::a_saturating_bound_applies_the_part_that_fits,
            bounds::a_value_out_of_bounds_may_move_back,
            bounds::concurrent_reservations_never_oversell,
            corrections::a_set_may_depend_on_whether_the_counter_exists,
            expiry::an_expired_counter_does_not_exist,
            expiry::an_expired_counter_starts_from_zero_and_keeps_its_ledger,
            expiry::a_counter_expires_without_being_touched,
            expiry::a_set_keeps_removes_or_replaces_the_expiry,
            expiry::an_increment_may_set_an_expiry,
            expiry::an_expiry_changes_only_if_its_condition_is_met,
            expiry::an_expiry_survives_a_restart,
            groups::a_read_sees_the_events_before_it_and_not_those_after_it,
            groups::a_read_changes_nothing_and_ignores_its_request_id,
            groups::every_event_of_a_group_gets_its_own_outcome,
            groups::no_event_comes_between_the_events_of_a_group,
            groups::a_group_stays_together_when_an_earlier_increment_overflows,
            reads::a_read_only_submission_sees_acknowledged_writes,
            reads::a_read_with_a_token_from_the_future_is_refused,
            count::the_count_is_exact_across_restarts,
            count::expired_counters_are_removed_from_the_count,
            count::a_sample_is_an_existing_counter,
            listing::counters_are_listed_in_key_order,
            listing::pages_of_a_listing_have_no_gaps_or_repeats,
            listing::a_prefix_selects_only_its_keys,
            listing::a_listing_shows_created_counters_and_no_deleted_ones,
            listing::a_listing_survives_a_restart,
            listing::old_and_new_counters_are_listed_together,
            moving::an_imported_counter_is_as_it_was_exported,
            moving::importing_twice_changes_nothing,
            moving::an_import_replaces_only_if_asked_to,
            moving::a_long_ledger_is_imported_in_parts,
            moving::a_retry_after_a_move_counts_once,
            statistics::statistics_cover_every_change,
            statistics::corrections_count_towards_sums_and_extremes,
            statistics::the_times_of_creation_and_last_change_are_kept,
            statistics::statistics_survive_a_restart,
            concurrency::a_hot_counter_hammered_by_many_threads_is_exact,
            concurrency::random_counters_hammered_by_many_threads_are_exact,
            concurrency::outstanding_submissions_of_one_thread_all_resolve,
            concurrency::dropping_a_submission_does_not_cancel_it,
            concurrency::acknowledged_writes_are_visible_to_every_thread,
            concurrency::reads_of_a_growing_counter_never_go_back,
            closing::a_stopped_engine_refuses_writes,
            closing::stopping_under_load_keeps_exactly_the_acknowledged_writes,
            closing::stopping_during_reads_finishes,
            closing::an_engine_can_be_restarted_repeatedly,
        }
    };
}

/// Generates one `#[test]` per behaviour, with the host that the expression creates.
#[macro_export]
macro_rules! contract {
    ($host:expr) => {
        $crate::each_behaviour!(tests_of, $host);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! tests_of {
    ($host:expr; $($module:ident :: $behaviour:ident,)*) => {
        $(#[test]
        fn $behaviour() -> $crate::Verdict {
            $crate::$module::$behaviour(&$host)
        })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! list_of {
    ($host:expr; $($module:ident :: $behaviour:ident,)*) => {
        [$((stringify!($behaviour), $crate::$module::$behaviour::<H> as fn(&H) -> Verdict)),*]
    };
}

/// Runs every behaviour, up to the first that fails.
pub fn run_all<H: Host>(host: &H) -> Verdict {
    for (name, behaviour) in each_behaviour!(list_of, host) {
        behaviour(host).map_err(|failure| format!("{name}: {failure}"))?;
    }
    Ok(())
}
