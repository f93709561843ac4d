//! The contract suite: what every engine must do, written once against [`Engine`] and run over each of them.
//!
//! A behaviour is a function whose name is a sentence. It starts an engine of its own through a [`Host`], so
//! behaviours do not see each other and may run side by side. An engine's tests call [`contract!`], which makes one
//! test of each; [`run_all`] runs them one after the other where tests cannot be generated.

mod block_on;
pub mod bounds;
mod call;
pub mod closing;
pub mod concurrency;
pub mod corrections;
pub mod counting;
pub mod crowd;
pub mod edges;
pub mod expiry;
pub mod groups;
pub mod listing;
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

/// Why a behaviour was not seen.
pub type Failure = Box<dyn Error + Send + Sync>;

/// What a behaviour comes to.
pub type Verdict = Result<(), Failure>;

/// How long an engine may take for its background work, by its own clock. Generous: the machine may have other work.
pub const BACKGROUND_MS_MAX: u64 = 60_000;

/// Where engines of one kind can be started and stopped.
pub trait Host: Sync {
    /// The engine under test.
    type Engine: Engine;
    /// What outlives an engine: its files, its topics. Dropping it cleans up.
    type Data: Sync;

    /// A place with nothing in it.
    fn prepare(&self) -> Result<Self::Data, Failure>;

    /// Starts an engine on what the place holds.
    fn start(&self, data: &Self::Data) -> Result<Self::Engine, Failure>;

    /// Makes the engine refuse new work and finish what it has accepted; returns once all of that is durable and
    /// another engine may be started on the same place.
    fn stop(&self, engine: &Self::Engine) -> Verdict;

    /// How events are submitted, unless a behaviour says otherwise.
    fn submit_options(&self) -> SubmitOptions {
        SubmitOptions::new(Consistency::Exact)
    }
}

/// Hands the list of all behaviours to another macro, after whatever it was given itself.
#[doc(hidden)]
#[macro_export]
macro_rules! each_behaviour {
    ($run:ident, $host:expr) => {
        $crate::$run! { $host;
            counting::increments_and_decrements_sum_up,
            counting::an_unknown_counter_reads_zero_and_does_not_exist,
            counting::every_event_gets_the_running_value_of_its_counter,
            counting::one_key_of_a_large_submission_gets_every_value_on_the_way,
            counting::an_empty_submission_changes_nothing,
            counting::a_key_is_any_bytes,
            counting::a_read_answers_in_the_order_asked,
            counting::what_was_counted_survives_a_restart,
            counting::each_consistency_sees_what_it_has_acknowledged,
            edges::an_increment_beyond_the_range_is_refused_and_changes_nothing,
            edges::of_combined_increments_near_the_edge_exactly_those_that_fit_are_applied,
            edges::of_combined_decrements_near_the_edge_exactly_those_that_fit_are_applied,
            edges::concurrent_increments_near_the_edge_fill_it_exactly,
            edges::a_run_of_equal_increments_has_one_outcome,
            edges::concurrent_runs_near_the_edge_fill_it_exactly,
            edges::order_holds_where_combined_increments_do_not_fit,
            edges::the_whole_range_can_be_crossed,
            order::changes_of_one_submission_happen_in_order,
            order::a_counter_deleted_and_counted_again_starts_from_zero,
            order::a_refused_event_leaves_the_others_alone,
            order::increments_around_a_correction_are_not_moved_across_it,
            requests::a_repeat_returns_the_first_outcome,
            requests::a_repeat_within_one_submission_counts_once,
            requests::the_same_id_with_another_payload_is_refused,
            requests::the_same_id_in_another_namespace_is_another_request,
            requests::concurrent_repeats_count_once,
            requests::a_request_is_remembered_across_a_restart,
            requests::a_refused_request_stays_refused,
            requests::a_repeated_correction_makes_one_ledger_entry,
            requests::a_retry_may_come_from_another_actor,
            corrections::a_set_makes_the_value_what_it_says,
            corrections::compare_and_set_needs_the_expected_value,
            corrections::a_reset_brings_the_value_back_to_zero,
            corrections::an_adjustment_adds_and_is_recorded,
            corrections::a_deleted_counter_does_not_exist,
            corrections::the_ledger_is_a_verifiable_chain,
            corrections::the_ledger_survives_deletion_and_restart,
            corrections::the_ledger_is_read_in_pages,
            corrections::what_was_refused_is_not_in_the_ledger,
            bounds::a_bound_refuses_what_would_cross_it,
            bounds::a_saturating_bound_applies_what_fits,
            bounds::a_value_beyond_a_bound_may_come_back,
            bounds::concurrent_reservations_never_oversell,
            corrections::a_set_may_depend_on_whether_the_counter_exists,
            expiry::an_expired_counter_does_not_exist,
            expiry::an_expired_counter_starts_afresh_and_its_ledger_goes_on,
            expiry::a_counter_expires_by_itself,
            expiry::a_set_keeps_removes_or_gives_an_expiry,
            expiry::an_increment_may_bring_an_expiry,
            expiry::an_expiry_changes_only_if_its_condition_holds,
            expiry::an_expiry_survives_a_restart,
            groups::a_look_sees_what_is_before_it_and_not_what_is_after_it,
            groups::a_look_changes_nothing_and_is_not_remembered,
            groups::events_of_a_group_get_their_own_outcomes,
            groups::nothing_comes_between_the_events_of_a_group,
            groups::a_group_stays_whole_where_an_earlier_increment_overflows,
            reads::events_that_only_read_are_answered_at_once,
            reads::a_token_that_was_never_given_out_is_not_met,
            crowd::the_count_is_exact_across_restarts,
            crowd::expired_counters_leave_the_count,
            crowd::a_sample_is_a_counter_that_exists,
            listing::counters_are_listed_in_key_order,
            listing::a_listing_is_read_in_pages_without_gaps_or_repeats,
            listing::a_prefix_selects_its_keys_alone,
            listing::a_listing_holds_what_was_just_created_and_not_what_was_deleted,
            listing::a_listing_is_the_same_after_a_restart,
            listing::stored_and_fresh_counters_are_listed_together,
            statistics::statistics_follow_the_history,
            statistics::corrections_count_in_the_sums_and_extremes,
            statistics::times_of_creation_and_change_are_kept,
            statistics::statistics_survive_a_restart,
            concurrency::a_hot_counter_hammered_by_many_threads_is_exact,
            concurrency::random_counters_hammered_by_many_threads_are_exact,
            concurrency::outstanding_submissions_of_one_thread_all_resolve,
            concurrency::a_dropped_submission_is_not_taken_back,
            concurrency::what_was_acknowledged_is_read_by_every_thread,
            concurrency::readings_never_go_back_while_a_counter_grows,
            closing::a_stopped_engine_refuses_work,
            closing::stopping_under_load_loses_and_adds_nothing,
            closing::stopping_while_others_look_comes_to_an_end,
            closing::an_engine_can_be_restarted_again_and_again,
        }
    };
}

/// Makes one `#[test]` of every behaviour, against the host that the expression builds.
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

/// Runs every behaviour; the first that is not seen ends it and is named.
pub fn run_all<H: Host>(host: &H) -> Verdict {
    for (name, behaviour) in each_behaviour!(list_of, host) {
        behaviour(host).map_err(|failure| format!("{name}: {failure}"))?;
    }
    Ok(())
}
