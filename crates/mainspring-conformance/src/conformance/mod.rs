//! The conformance suite: every behaviour of a store, one function per fact.
//!
//! Each module covers one part of the [`Store`](mainspring_core::store::Store) trait; each public function takes a
//! [`Harness`] around a fresh store and panics if the fact that it is named by does not hold. A store is tested by
//! `mainspring_conformance::conformance_tests!(factory)`, where `factory` is a `fn() -> Harness`.
//!
//! # Invariants
//! - Every behaviour is in the list of [`conformance_tests!`](crate::conformance_tests); a test looks after that.
//! - After every behaviour the store is sound: its self-check is empty and its counts are exact.

pub mod cancel;
pub mod claim;
pub mod claim_facts;
pub mod drop_signals;
pub mod enqueue;
pub mod extreme_texts;
pub mod family;
pub mod finish;
pub mod fork;
pub mod handles;
pub mod journal;
pub mod keys;
mod limit_calls;
pub mod limit_changes;
pub mod limit_claims;
pub mod limit_ends;
mod limit_list;
pub mod limit_settings;
pub mod limit_views;
pub mod list;
pub mod nodes;
pub mod output;
pub mod places;
pub mod queues;
pub mod races;
pub mod read_back;
pub mod rescue;
pub mod rewind;
pub mod schedules;
pub mod signal;
pub mod suspend;
pub mod sweep;
pub mod totals;
pub mod unreadable;
pub mod verbs;
mod workflow_calls;
pub mod workflow_races;

use crate::executor::block_on;
use crate::harness::Harness;

/// Runs one behaviour on a fresh store, then asserts that the store is sound.
pub fn run(factory: impl FnOnce() -> Harness, behaviour: impl AsyncFnOnce(&Harness)) {
    let harness = factory();
    block_on(async {
        behaviour(&harness).await;
        harness.assert_sound().await;
    });
}

/// Makes one `#[test]` per behaviour, in one module per part of the trait.
///
/// Takes the path of a `fn() -> Harness` that opens a fresh store.
#[macro_export]
macro_rules! conformance_tests {
    ($factory:path) => {
        $crate::conformance_tests! {
            @each $factory;
            enqueue {
                new_job_is_ready,
                every_option_survives,
                repeated_enqueue_is_stored_once,
                repeated_enqueue_of_an_ended_job_changes_nothing,
                same_id_twice_in_one_batch_is_stored_once,
                id_of_another_job_is_taken,
                taken_ids_do_not_fail_their_batch,
                repeated_batch_is_told_as_one,
                receipts_come_in_order_of_the_batch,
                empty_batch_is_accepted,
                full_batch_is_stored,
                delayed_job_is_scheduled,
                job_for_a_point_in_time_is_scheduled,
                job_due_now_or_in_the_past_is_ready,
                longest_delay_is_kept,
                lines_are_bounded,
            }
            extreme_texts {
                hostile_options_are_data,
                hostile_labels_and_node_names_are_data,
                hostile_words_of_handlers_and_operators_are_data,
                payload_of_a_mebibyte_survives,
                inputs_beyond_a_bound_are_read_by_themselves,
                empty_payload_survives,
                payload_that_is_not_text_survives,
                longest_texts_survive,
                large_and_small_jobs_share_a_batch,
            }
            keys {
                held_key_keeps_the_existing_job,
                held_key_rejects_who_asks_for_it,
                key_belongs_to_one_kind,
                key_holds_across_queues,
                keys_are_taken_in_order_of_the_batch,
                replace_cancels_a_waiting_holder,
                replace_keeps_a_running_holder,
                replace_keeps_an_ended_holder,
                replace_works_within_a_batch,
                repeated_replace_replaces_nothing,
                replaced_holder_leaves_no_period,
                key_until_started_is_free_after_the_claim,
                key_until_finished_is_held_through_retries,
                key_is_free_when_a_waiting_job_ends,
                key_is_held_for_its_period,
                key_is_not_taken_again_by_a_retry,
                period_begins_once,
                jobs_that_share_a_key_are_all_retried,
                key_of_a_pruned_job_is_held_for_its_period,
                key_of_a_deleted_job_is_free,
                deleting_a_former_holder_frees_nothing,
                key_is_held_through_crashes_and_releases,
            }
            claim {
                claim_makes_a_job_run,
                claim_of_nothing_is_empty,
                claimed_job_is_not_claimed_again,
                higher_priority_is_claimed_first,
                first_in_is_first_out,
                kinds_of_one_queue_are_merged_by_time,
                returned_work_is_claimed_before_fresh,
                suspects_are_claimed_first,
                suspects_are_limited_over_all_queues,
                suspects_are_limited_over_all_kinds,
                each_queue_has_its_own_limit,
                one_queue_does_not_use_the_slots_of_another,
                kinds_a_node_does_not_handle_are_skipped,
                labels_a_node_lacks_are_skipped,
                labels_of_later_count_from_their_time,
                lines_are_those_of_ready_jobs,
                paused_queue_gives_nothing,
                unknown_queue_gives_nothing,
                claim_numbers_grow_by_one,
                repeated_batch_is_adopted,
                repeated_empty_batch_claims,
                claim_renews_the_lease,
                lapsed_node_can_claim,
                node_that_is_gone_cannot_claim,
                backoff_is_the_jobs_or_the_queues,
                late_job_is_still_claimed,
                jobs_are_claimed_after_the_clock_went_back,
                every_waiting_job_is_claimed_in_the_end,
            }
            finish {
                success_keeps_the_result,
                success_needs_no_result,
                retry_counts_and_waits,
                retry_without_delay_is_due_at_once,
                failure_keeps_its_reason,
                snooze_counts_nothing,
                release_counts_nothing,
                released_jobs_keep_their_priority,
                handler_cancels_in_its_own_words,
                stale_claim_cannot_complete,
                other_node_cannot_complete,
                unknown_claim_cannot_complete,
                finish_after_rescue_is_lost,
                lapsed_node_can_finish,
                repeated_finish_is_applied_once,
                finish_twice_in_one_batch_is_applied_once,
                repeated_retry_is_applied_after_the_next_claim,
                repeated_failure_is_applied_after_an_operators_retry,
                ended_job_takes_no_other_outcome,
                repeated_release_or_snooze_is_lost,
                one_stale_finish_does_not_fail_its_batch,
                one_batch_holds_every_outcome,
                errors_are_bounded,
                outcome_resets_crashes_and_release_keeps_them,
                ended_job_has_no_deadline,
                empty_finish_is_accepted,
            }
            claim_facts {
                end_keeps_when_and_where_its_claim_began,
                ends_of_a_batch_keep_when_and_where_their_claims_began,
                job_that_its_rescue_cancels_keeps_its_claim,
                end_of_a_waiting_job_has_no_claim,
                job_that_runs_again_shows_its_own_claim,
                errors_keep_when_and_where_their_claims_began,
                crash_is_noted_and_is_no_failure,
                each_crash_is_noted,
                claim_that_was_no_run_notes_no_crash,
                notes_of_crashes_are_bounded,
                retry_of_a_crashed_claim_is_lost,
                crash_is_not_what_went_wrong_last,
                outcome_that_tells_of_a_crash_is_refused,
                entries_keep_how_long_they_took,
                forks_keep_how_long_their_entries_took,
            }
            nodes {
                registered_node_is_listed,
                repeated_registration_gives_the_same_number,
                node_numbers_grow,
                renewal_extends_the_lease,
                node_is_backed_up_until_a_renewal_says_otherwise,
                node_is_listed_with_its_last_report,
                node_serves_the_queues_of_its_last_report,
                lapsed_lease_is_extended,
                node_that_is_gone_cannot_renew,
                stuck_mark_lasts_as_long_as_the_claim,
                foreign_await_is_shown_until_the_handler_goes_on,
                cleared_suspect_counts_one_crash,
                clearing_adds_no_crash,
                stale_marks_are_ignored,
                retiring_gives_everything_back,
                retiring_again_is_no_error,
                suspect_that_is_given_back_is_still_one,
                disown_releases_what_is_not_kept,
                disown_does_not_keep_stale_claims,
                progress_is_kept,
                stale_progress_is_ignored,
                largest_progress_survives,
            }
            cancel {
                waiting_job_is_cancelled_at_once,
                empty_reason_leaves_no_note,
                running_job_is_flagged_and_its_node_told,
                first_reason_stays,
                flag_needs_no_reason,
                terminal_outcome_wins_over_a_cancellation,
                flagged_retry_is_cancelled,
                flagged_snooze_is_cancelled,
                flagged_claim_that_is_given_back_is_cancelled,
                flagged_claim_of_a_dead_node_is_cancelled,
                flag_ends_with_the_claim,
            }
            rescue {
                jobs_of_a_dead_node_go_back,
                jobs_that_were_claimed_ahead_count_no_crash,
                free_slots_are_counted_per_queue,
                a_killer_that_is_claimed_ahead_is_quarantined_at_the_fourth_death,
                rescued_jobs_are_claimed_first,
                live_node_is_not_expired,
                rescue_needs_a_steady_rescuer,
                rescue_after_a_silence_judges_nobody,
                steadiness_is_measured_by_the_dead_nodes_lease,
                rescue_needs_a_live_rescuer,
                rescuer_does_not_expire_itself,
                idle_lapsed_node_is_not_expired,
                node_is_expired_once,
                all_dead_nodes_are_expired_together,
                third_crash_quarantines,
                resumed_job_begins_without_crashes,
                crashes_with_an_outcome_between_do_not_add_up,
                longest_crashed_claim_is_told,
                more_than_a_batch_takes_another_call,
                shortest_lease_of_the_living_is_told,
                expired_node_stays_expired,
            }
            sweep {
                due_jobs_are_promoted,
                promotion_is_limited,
                promoted_job_stands_in_line,
                empty_sweeps_have_no_next,
                deadline_fails_waiting_jobs,
                deadline_leaves_running_jobs_alone,
                expiry_is_limited_and_tells_the_next,
                ended_jobs_are_kept_for_their_retention,
                each_queue_has_its_own_retention,
                changed_retention_counts_for_ended_jobs,
                pruning_is_limited,
                pruned_job_is_gone,
                only_ended_jobs_are_pruned,
                nodes_that_went_are_forgotten,
            }
            places {
                every_operation_on_every_place_is_as_the_machine_says,
            }
            verbs {
                every_verb_from_every_state_is_as_the_machine_says,
                answers_come_in_order_of_the_ids,
                verb_reaches_a_whole_batch,
                retry_clears_the_counts_and_keeps_the_errors,
                retry_runs_a_scheduled_job_now,
                retried_and_resumed_jobs_stand_in_line,
                job_can_be_cancelled_retried_and_cancelled_again,
                held_job_keeps_its_time,
                held_job_is_not_claimed,
                failing_keeps_the_operators_words,
                holding_keeps_the_operators_words_until_it_is_over,
                reprioritised_job_moves_in_its_line,
                reprioritised_job_keeps_its_priority,
                reprioritised_job_keeps_its_class,
                deleted_job_is_gone,
            }
            fork {
                shared_journal_comes_with_the_first_claim,
                repeated_fork_is_the_first_one,
                forks_of_one_batch_do_not_meet,
                shared_journal_is_gone_with_its_job,
                child_with_a_journal_is_refused,
            }
            rewind {
                job_runs_again_with_what_was_recorded_before_the_step,
                repeated_rewind_changes_nothing,
                records_go_and_stay_as_the_cut_says,
                signals_that_were_read_after_the_step_are_unread_again,
                children_that_lost_their_start_are_cancelled,
                rewound_child_still_belongs_to_its_parent,
            }
            journal {
                recorded_entries_come_with_the_next_claim,
                entries_tell_the_claim_that_recorded_them,
                plain_job_has_no_journal,
                entry_never_changes,
                repeated_recording_is_harmless,
                stale_claim_cannot_record,
                other_node_cannot_record,
                unknown_claim_cannot_record,
                node_that_is_gone_cannot_record,
                lapsed_node_can_record,
                one_stale_recording_does_not_fail_its_batch,
                recordings_of_one_batch_are_written_in_order,
                full_batch_is_recorded,
                empty_recording_is_accepted,
                forgotten_entry_may_be_recorded_again,
                recording_resets_crashes,
                recording_forgets_how_long_lost_claims_lasted,
                flagged_claim_can_record,
                hostile_keys_are_data,
                values_that_are_not_text_survive,
                value_of_the_largest_size_survives,
                values_beyond_the_budget_are_read,
                values_come_in_order_of_the_keys,
                journals_of_two_jobs_do_not_meet,
                journal_survives_every_way_to_the_next_claim,
                journal_survives_quarantine,
                adopted_claims_bring_the_journal,
                journal_is_gone_with_a_deleted_job,
                journal_is_gone_with_a_pruned_job,
                recorded_error_is_no_failure,
            }
            output {
                output_is_read_in_its_order,
                output_of_silent_and_unknown_jobs,
                output_is_read_in_pages,
                repeated_output_is_said_once,
                stale_claim_says_nothing,
                reset_tells_where_its_step_began,
                idle_output_resets_no_crashes,
                output_is_stored_with_a_suspension,
                oldest_output_is_gone,
                output_tells_progress_and_the_end,
                output_is_gone_with_a_deleted_job,
                output_is_gone_with_a_pruned_job,
            }
            suspend {
                suspended_job_holds_nothing,
                each_reason_is_kept,
                reason_of_others_is_refused,
                hostile_suspensions_are_data,
                writes_are_stored_with_the_suspension,
                suspension_resets_crashes,
                flagged_suspension_is_cancelled,
                stale_suspension_is_refused,
                repeated_suspension_is_lost,
                suspensions_share_a_batch,
                job_waits_again_and_again,
                suspended_job_outlives_its_node,
                deadline_fails_a_suspended_job,
                deadline_that_passed_fails_a_suspended_job,
                held_job_is_woken_by_nobody,
                resumed_sleeper_runs_at_once,
                waiting_job_is_resumed_by_an_operator,
                waiting_job_is_ended_by_an_operator,
                every_verb_on_a_suspension_is_as_the_machine_says,
                reprioritised_job_keeps_its_waits,
                key_is_held_while_suspended,
                replace_cancels_a_suspended_holder,
                drift_is_woken_by_people_only,
                sleeper_is_woken_when_its_time_has_come,
                woken_job_goes_before_fresh,
                next_is_the_earliest_of_timers_and_sleepers,
                promotion_of_sleepers_is_limited,
                time_that_has_passed_wakes_at_once,
                message_before_the_time_ends_the_wait,
                message_after_the_time_wakes_nobody,
                longest_sleep_is_kept,
            }
            drop_signals {
                unread_signals_are_dropped_by_name_and_sender,
                senders_of_dropped_signals_are_remembered,
                job_woken_by_a_dropped_signal_suspends_again,
                dropped_signal_does_not_count_for_a_wait,
                claim_may_read_what_was_dropped_meanwhile,
                signals_of_any_job_are_dropped,
            }
            signal {
                signal_before_the_first_claim_comes_with_it,
                signal_to_a_running_job_is_in_its_inbox,
                signal_wakes_the_job_that_waits_for_it,
                signal_of_another_name_wakes_nobody,
                signal_is_no_end_of_a_child,
                one_of_several_waits_is_enough,
                several_are_as_many_as_were_asked_for,
                signals_of_one_batch_wake_together,
                messages_come_in_order,
                sender_is_heard_once,
                read_message_is_not_given_again,
                signal_and_suspension_meet_in_either_order,
                job_that_is_woken_as_it_suspends_goes_first,
                signal_before_the_first_claim_wakes_a_later_suspension,
                signal_wakes_only_who_waits,
                message_alone_comes_with_the_next_claim,
                unread_signals_are_bounded,
                senders_are_remembered_up_to_a_bound,
                signal_tells_what_it_found,
                answers_to_signals_come_in_order,
                signals_reach_a_whole_batch_of_jobs,
                unread_messages_survive_a_failed_attempt,
                hostile_signals_are_data,
                senders_are_told_apart_by_their_exact_text,
                inbox_is_read_in_pages,
                large_messages_come_in_several_pages,
                messages_of_a_whole_claim_are_bounded,
                inboxes_come_in_order_of_the_claims,
            }
            family {
                child_starts_with_its_record,
                children_stand_in_line,
                child_is_started_once,
                job_that_is_there_does_not_become_a_child,
                child_of_another_entry_is_not_started_again,
                taken_child_does_not_fail_its_batch,
                child_with_a_unique_key_is_refused,
                lines_of_children_are_bounded,
                many_children_start_and_end_together,
                end_of_a_child_wakes_its_parent,
                end_of_another_child_wakes_nobody,
                first_child_to_end_is_enough,
                child_that_ended_before_the_suspension_wakes_it,
                parent_that_does_not_run_finds_the_message,
                every_end_of_a_running_child_is_told,
                end_of_a_flagged_child_without_its_node_is_told,
                every_end_of_a_waiting_child_is_told,
                reason_of_an_end_is_the_note_or_the_last_error,
                child_that_goes_on_tells_nothing,
                end_is_told_once,
                repeated_end_is_told_once,
                parent_that_has_ended_is_told_for_later,
                child_of_a_parent_that_is_gone_ends_quietly,
                waiting_children_end_with_their_parent,
                running_children_are_flagged_when_their_parent_ends,
                abandoned_children_go_on,
                end_of_a_parent_changes_no_other_end,
                children_outlive_attempts_of_their_parent,
                grandchildren_end_with_their_grandparent,
                grandchildren_outlive_a_child_that_runs,
                late_parent_and_late_child_both_end,
                parent_and_child_finish_in_one_call,
                parent_and_child_are_changed_in_one_call,
                deleting_an_ended_parent_changes_no_child,
                parent_that_ends_again_ends_its_children_again,
                story_tells_of_children,
            }
            read_back {
                unknown_job_is_missing,
                job_is_open_until_it_ends,
                result_of_a_success_is_seen,
                reason_of_a_failure_is_seen,
                sights_come_in_order_of_the_ids,
                story_tells_what_was_recorded_and_sent,
                long_values_of_a_story_are_left_out,
                story_is_bounded,
                inbox_of_a_story_is_bounded,
            }
            workflow_races {
                signal_and_suspension_always_wake,
                end_of_a_child_and_suspension_always_wake,
                signals_at_once_wake_once,
                one_signal_at_once_is_stored_once,
                signals_in_opposite_orders_all_arrive,
                signal_and_claim_lose_no_message,
                signal_and_time_wake_once,
                hold_and_signal_always_hold,
                suspension_and_cancel_always_cancel,
                record_and_rescue_agree,
                records_at_once_are_all_stored,
                parent_and_running_child_end_at_once,
                parent_and_waiting_child_end_at_once,
                child_that_starts_as_its_parent_ends_does_not_outlive_it,
                children_that_end_in_opposite_orders_all_tell,
            }
            unreadable {
                unreadable_job_is_set_aside_alone,
                unreadable_job_holds_up_nobody,
                unreadable_job_says_so,
                unreadable_job_does_not_let_the_less_urgent_pass,
                unreadable_job_is_resumed_once_it_is_mended,
                unreadable_job_can_be_ended,
                unreadable_job_is_not_held,
                damaged_job_is_not_resumed_unseen,
                job_that_is_damaged_while_it_runs_is_found_by_the_next_claim,
                repeated_claim_sets_unreadable_jobs_aside,
            }
            list {
                unknown_job_is_none,
                empty_store_lists_nothing,
                newest_is_listed_first,
                pages_have_no_gap_and_no_duplicate,
                pages_are_steady_while_others_come_and_go,
                page_is_capped,
                bad_cursor_is_refused,
                each_filter_gives_what_it_says,
                filters_combine,
                error_text_is_that_of_the_last_error,
                listing_follows_every_move,
                rare_job_is_found_behind_many_others,
            }
            queues {
                queue_is_known_once_it_was_named,
                empty_queue_is_still_known,
                deleted_queue_is_gone_with_its_settings,
                deleted_queue_is_there_again_once_it_is_named,
                deleted_queue_is_there_while_it_has_jobs,
                queue_with_jobs_is_not_deleted,
                settings_change_one_by_one,
                settings_belong_to_one_queue,
                bad_retention_is_refused,
                bad_backoff_is_refused,
                pausing_leaves_running_jobs_alone,
                paused_queue_takes_jobs,
                counts_are_exact_through_a_life,
                counts_are_per_queue,
            }
            handles {
                ready_jobs_are_hinted,
                times_to_come_are_hinted,
                cancellation_is_hinted,
                message_to_a_running_job_is_hinted,
                woken_jobs_and_children_are_hinted,
                cancellation_of_a_child_is_hinted,
                dropped_listener_is_no_trouble,
                closed_store_refuses_every_call,
                handles_share_their_data,
                store_describes_itself,
            }
            schedules {
                schedule_survives_with_all_that_is_said_of_it,
                due_schedules_come_in_order_of_their_times,
                fire_enqueues_its_job_in_the_same_commit,
                second_node_fires_nothing_again,
                nodes_that_fire_at_once_make_one_job,
                ids_follow_from_the_fire_and_its_cause,
                change_between_look_and_fire_makes_it_stale,
                paused_schedule_is_not_due,
                ended_schedule_is_not_due,
                seed_never_undoes_a_person,
                refused_job_does_not_hold_up_its_schedule,
                overlap_is_decided_by_the_job_before,
                changes_are_remembered,
                next_fire_comes_with_the_sweep,
                schedules_are_listed_by_name,
                full_batch_of_schedules_fires_together,
                clock_that_leaps_fires_within_its_bound,
                bad_definition_is_refused,
            }
            races {
                claims_at_once_are_disjoint,
                finish_and_rescue_have_one_winner,
                renewal_and_rescue_have_one_winner,
                two_rescuers_rescue_once,
                job_beside_the_deletion_of_its_queue_is_kept,
                finish_and_cancel_leave_one_outcome,
                release_and_cancel_always_cancel,
                one_key_at_once_makes_one_job,
                one_id_at_once_makes_one_job,
                promotion_and_cancel_always_cancel,
                claim_and_delete_have_one_winner,
                one_finish_at_once_is_applied_once,
                handles_claim_disjointly,
            }
        }
    };
    (@each $factory:path; $($module:ident { $($name:ident,)* })*) => {
        $(
            mod $module {
                use super::*;

                $(
                    #[test]
                    fn $name() {
                        $crate::conformance::run($factory, $crate::conformance::$module::$name);
                    }
                )*
            }
        )*
    };
}

#[cfg(test)]
mod tests;
