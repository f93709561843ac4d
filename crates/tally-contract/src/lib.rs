//! The contract suite: what every engine must do, written once and run against each engine, and against each protocol
//! that an engine is called through.
//!
//! Behaviours call an [`EngineClient`]: an [`Engine`], or a client of one. What a protocol cannot express is an
//! [`Ability`] that its host [lacks](Host::lacks). Behaviours name the abilities that they need, and are skipped
//! without them; small parts of a behaviour are left out. Where an engine's answers are estimates,
//! [`Host::weaker_answers`] says so.
//!
//! A behaviour is a function whose name is a sentence. It starts its own engine through a [`Host`], so behaviours are
//! independent and may run in parallel. An engine's tests call [`contract!`], which generates one test per behaviour;
//! [`run_all`] runs them in sequence where tests cannot be generated.

mod ability;
mod block_on;
pub mod bounds;
mod call;
mod client;
pub mod closing;
pub mod concurrency;
pub mod corrections;
pub mod count;
pub mod counting;
pub mod edges;
pub mod expiry;
pub mod groups;
pub mod guards;
pub mod listing;
pub mod order;
pub mod reads;
pub mod requests;
mod running;
pub mod statistics;
pub mod transfer;

use std::error::Error;

pub use ability::{Ability, run, skipped};
pub use block_on::block_on;
pub use call::Call;
pub use client::{CallStep, EngineClient};
pub use running::Running;
use tally_core::consistency::Consistency;
use tally_core::key::Key;
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
    /// The engine under test, or a client of it.
    type Engine: EngineClient;
    /// What outlives an engine: its files, its topics. Dropping it cleans up.
    type Data: Sync;

    /// Creates empty data.
    fn prepare(&self) -> Result<Self::Data, Failure>;

    /// Starts an engine on this data.
    fn start(&self, data: &Self::Data) -> Result<Self::Engine, Failure>;

    /// Makes the engine refuse new work and finish what it has accepted. Returns once all of that is durable and
    /// another engine may be started on the same data.
    fn stop(&self, engine: &Self::Engine) -> Verdict;

    /// Waits until listings and samples show everything acknowledged. They may lag behind if they come from a separate
    /// store.
    fn sync_listings(&self, engine: &Self::Engine) -> Verdict {
        let _ = engine;
        Ok(())
    }

    /// What callers of these engines cannot do. Behaviours that need it are skipped.
    fn lacks(&self) -> Vec<Ability> {
        Vec::new()
    }

    /// The key under which a counter is stored, which is part of its ledger's hashes.
    fn stored_key(&self, data: &Self::Data, key: &Key) -> Result<Key, Failure> {
        let _ = data;
        Ok(key.clone())
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
            counting::increments_and_decrements_add_up [],
            counting::adding_zero_creates_a_counter_and_the_most_negative_number_fits [AnyDelta],
            counting::an_unknown_counter_reads_zero_and_does_not_exist [],
            counting::every_event_gets_the_running_value_of_its_counter [],
            counting::every_increment_of_a_large_submission_gets_its_own_value [],
            counting::an_empty_submission_changes_nothing [],
            counting::a_key_may_be_any_bytes [Restart AnyBytes AnyNamespace],
            counting::readings_are_in_the_order_of_the_keys [],
            counting::values_survive_a_restart [Restart],
            counting::every_consistency_reads_its_own_acknowledged_writes [Restart AnyConsistency],
            edges::an_increment_that_overflows_is_refused_and_changes_nothing [],
            edges::combined_increments_are_applied_until_they_overflow [],
            edges::combined_decrements_are_applied_until_they_overflow [],
            edges::concurrent_increments_fill_the_range_exactly [],
            edges::a_run_of_equal_increments_has_one_outcome [Runs],
            edges::concurrent_runs_fill_the_range_exactly [Runs],
            edges::events_stay_in_order_when_combined_increments_overflow [],
            edges::the_whole_range_can_be_crossed [Restart],
            order::events_of_a_submission_are_applied_in_order [Corrections],
            order::a_counter_recreated_after_deletion_starts_from_zero [Restart],
            order::a_refused_event_does_not_affect_the_others [Corrections],
            order::increments_are_not_combined_across_a_correction [],
            requests::a_repeat_returns_the_first_outcome [],
            requests::a_repeat_within_one_submission_counts_once [],
            requests::the_same_id_with_another_payload_is_refused [Corrections],
            requests::the_same_id_in_another_namespace_is_another_request [AnyNamespace],
            requests::concurrent_repeats_count_once [],
            requests::request_ids_survive_a_restart [Restart],
            requests::a_repeat_of_a_refused_request_is_refused [Restart Corrections],
            requests::a_repeated_correction_writes_one_ledger_entry [Corrections Ledger],
            requests::a_retry_may_come_from_another_actor [Corrections Actors],
            corrections::a_set_replaces_the_value [],
            corrections::compare_and_set_requires_the_expected_value [Corrections Ledger],
            corrections::a_reset_sets_the_value_to_zero [Corrections Ledger],
            corrections::an_adjustment_adds_and_is_recorded [Corrections Ledger],
            corrections::a_deleted_counter_does_not_exist [Restart],
            corrections::the_ledger_is_a_verifiable_chain [Corrections Ledger],
            corrections::the_ledger_survives_deletion_and_restart [Restart Corrections Ledger Actors],
            corrections::the_ledger_is_read_in_pages [Restart Ledger],
            corrections::refused_corrections_are_not_in_the_ledger [Corrections Ledger],
            bounds::a_change_that_would_cross_a_bound_is_refused [Bounds],
            bounds::a_saturating_bound_applies_the_part_that_fits [Bounds],
            bounds::a_value_out_of_bounds_may_move_back [Bounds],
            bounds::concurrent_reservations_never_oversell [Bounds],
            corrections::a_set_may_depend_on_whether_the_counter_exists [ConditionalSets],
            expiry::an_expired_counter_does_not_exist [Expiries ConditionalSets],
            expiry::an_expired_counter_starts_from_zero_and_keeps_its_ledger [Restart Expiries Corrections Statistics Ledger],
            expiry::a_counter_expires_without_being_touched [Expiries],
            expiry::a_set_keeps_removes_or_replaces_the_expiry [Expiries ConditionalSets],
            expiry::an_increment_may_set_an_expiry [Expiries],
            expiry::an_expiry_changes_only_if_its_condition_is_met [Expiries],
            expiry::an_expiry_survives_a_restart [Restart Expiries],
            groups::a_read_sees_the_events_before_it_and_not_those_after_it [],
            groups::a_read_changes_nothing_and_ignores_its_request_id [],
            groups::every_event_of_a_group_gets_its_own_outcome [Groups ConditionalSets],
            groups::no_event_comes_between_the_events_of_a_group [Groups],
            groups::a_group_stays_together_when_an_earlier_increment_overflows [Groups],
            count::the_count_is_exact_across_restarts [Restart Count ConditionalSets],
            count::expired_counters_are_removed_from_the_count [Restart Count Expiries],
            count::a_sample_is_an_existing_counter [Restart Count Expiries],
            listing::counters_are_listed_in_key_order [Listing],
            listing::pages_of_a_listing_have_no_gaps_or_repeats [Listing],
            listing::a_prefix_selects_only_its_keys [Listing],
            listing::a_listing_shows_created_counters_and_no_deleted_ones [Restart Listing],
            listing::a_listing_survives_a_restart [Restart Listing],
            listing::old_and_new_counters_are_listed_together [Restart Listing],
            statistics::statistics_cover_every_change [Statistics],
            statistics::corrections_count_towards_sums_and_extremes [Statistics Corrections Bounds],
            statistics::the_times_of_creation_and_last_change_are_kept [Restart Corrections],
            statistics::statistics_survive_a_restart [Restart Statistics],
            concurrency::a_hot_counter_hammered_by_many_threads_is_exact [],
            concurrency::random_counters_hammered_by_many_threads_are_exact [],
            concurrency::acknowledged_writes_are_visible_to_every_thread [],
            concurrency::reads_of_a_growing_counter_never_go_back [],
            closing::stopping_under_load_keeps_exactly_the_acknowledged_writes [Stop],
            closing::stopping_during_reads_finishes [Stop],
            closing::an_engine_can_be_restarted_repeatedly [Restart],
        }
    };
}

/// The same for behaviours that need more of an engine than its clients see: its futures, and what export and import
/// use.
#[doc(hidden)]
#[macro_export]
macro_rules! each_engine_behaviour {
    ($run:ident, $host:expr) => {
        $crate::$run! { $host;
            transfer::an_imported_counter_is_as_it_was_exported [],
            transfer::importing_twice_changes_nothing [],
            transfer::an_import_replaces_only_if_asked_to [],
            transfer::a_long_ledger_is_imported_in_parts [],
            transfer::no_part_of_a_refused_ledger_is_imported [],
            transfer::an_imported_request_id_of_the_future_is_as_old_as_the_import [],
            transfer::a_retry_after_a_move_counts_once [],
            guards::a_guard_holds_as_long_as_its_counter_does_not_change [],
            guards::a_guard_refuses_everything_behind_it_after_any_change [],
            guards::no_update_behind_a_guard_is_lost [],
            reads::a_read_only_submission_sees_acknowledged_writes [],
            reads::a_read_with_a_token_from_the_future_is_refused [],
            concurrency::outstanding_submissions_of_one_thread_all_resolve [],
            concurrency::dropping_a_submission_does_not_cancel_it [],
            closing::a_stopped_engine_refuses_writes [],
        }
    };
}

/// Generates one `#[test]` per behaviour. The expression creates the engine's host.
#[macro_export]
macro_rules! contract {
    ($host:expr) => {
        $crate::each_behaviour!(tests_of, $host);
        $crate::each_engine_behaviour!(tests_of, $host);
    };
}

/// The same for the host of a client. One more test, `exactly_these_are_skipped`, compares the behaviours that its
/// protocol cannot express with a list.
#[macro_export]
macro_rules! client_contract {
    ($host:expr, skips $skipped:expr) => {
        $crate::each_behaviour!(tests_of, $host);

        #[test]
        fn exactly_these_are_skipped() {
            let found = $crate::skipped(&$host, &$crate::each_behaviour!(needs_of, $host));
            assert_eq!(found, $skipped, "left: skipped, right: as declared");
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! tests_of {
    ($host:expr; $($module:ident :: $behaviour:ident [$($need:ident)*],)*) => {
        $(#[test]
        fn $behaviour() -> $crate::Verdict {
            let needs = &[$($crate::Ability::$need),*];
            $crate::run(&$host, stringify!($behaviour), needs, $crate::$module::$behaviour)
        })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! needs_of {
    ($host:expr; $($module:ident :: $behaviour:ident [$($need:ident)*],)*) => {
        [$((stringify!($behaviour), &[$($crate::Ability::$need),*] as &[$crate::Ability])),*]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! list_of {
    ($host:expr; $($module:ident :: $behaviour:ident [$($need:ident)*],)*) => {
        [$((stringify!($behaviour), $crate::$module::$behaviour::<H> as fn(&H) -> Verdict)),*]
    };
}

/// Runs every behaviour of an engine, up to the first that fails.
pub fn run_all<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let behaviours = each_behaviour!(list_of, host).into_iter().chain(each_engine_behaviour!(list_of, host));
    for (name, behaviour) in behaviours {
        behaviour(host).map_err(|failure| format!("{name}: {failure}"))?;
    }
    Ok(())
}
