//! The list of what every store does about limits.

/// Makes one `#[test]` per behavior of limits, as [`conformance_tests!`](crate::conformance_tests) does for all others.
#[macro_export]
macro_rules! limit_conformance_tests {
    ($factory:path) => {
        $crate::conformance_tests! {
            @each $factory;
            limit_settings {
                limit_is_kept_as_it_was_set,
                seeds_follow_their_revision,
                seed_never_undoes_a_persons_edit,
                pause_of_a_limit_is_no_edit,
                changes_of_limits_are_remembered,
                limits_are_bounded,
                bad_settings_of_limits_are_refused,
                job_with_an_unknown_limit_is_refused,
                limits_of_jobs_survive,
                deleted_limit_holds_back_nobody,
                limit_keys_are_listed_in_pages,
            }
            limit_claims {
                limited_job_is_ready,
                claims_never_exceed_the_maximum,
                each_key_has_its_own_room,
                limit_holds_over_queues_and_kinds,
                claim_takes_all_units_or_none,
                job_that_takes_more_than_the_maximum_waits,
                several_limits_are_taken_together,
                job_blocked_at_one_key_holds_up_nobody_at_another,
                room_that_a_blocked_job_leaves_is_used_at_once,
                every_group_at_a_key_has_its_turn,
                group_keeps_its_order,
                urgent_group_comes_first,
                plain_and_limited_jobs_both_get_some,
                limited_jobs_are_claimed_for_free_slots,
                adopted_claims_take_nothing_twice,
                paused_queue_holds_up_no_other_at_its_key,
                stranded_jobs_hold_up_no_others_at_their_key,
                suspects_hold_up_no_others_at_their_key,
                limited_suspects_are_bounded,
                priority_of_a_limited_job_changes_its_place,
                limits_hold_for_jobs_that_come_back,
                every_limited_job_is_claimed_in_the_end,
                limit_without_bounds_admits_all,
            }
            limit_ends {
                every_outcome_gives_back,
                release_gives_back,
                suspension_that_is_over_gives_back,
                disowned_claims_give_back,
                retired_node_gives_back,
                rescue_gives_back,
                unreadable_limited_job_gives_back,
                units_are_given_back_once,
                ends_of_one_batch_give_back_together,
                cancelled_claim_gives_back,
                suspended_job_can_keep_its_units,
                keeper_whose_wait_is_over_goes_on,
                keeper_that_is_lost_gives_back,
                waiting_keeper_holds_until_it_ends,
                keeper_that_others_end_gives_back,
                waiting_limited_job_holds_nothing,
                turn_of_a_job_that_goes_away_is_passed_on,
                child_gets_the_room_of_its_waiting_parent,
            }
            limit_changes {
                raised_maximum_lets_the_next_in,
                lowered_maximum_ends_nobody,
                maximum_of_zero_admits_nobody,
                paused_limit_lets_nobody_in,
                paused_key_lets_nobody_in,
                key_can_have_a_maximum_of_its_own,
                removed_maximum_lets_all_in,
                rate_admits_its_burst_and_then_one_per_interval,
                keys_have_tokens_of_their_own,
                tokens_are_not_given_back,
                rate_and_maximum_hold_together,
                changed_rate_holds_at_once,
                clock_that_went_back_delays_a_rate_by_its_burst_at_most,
                many_keys_are_due_together,
                idle_limit_keys_are_pruned,
            }
            limit_views {
                key_shows_holders_and_waiters,
                waiting_job_says_what_is_in_its_way,
                job_behind_a_rate_says_when,
            }
            totals {
                total_of_a_queue_holds_over_all_nodes,
                total_of_a_kind_holds_over_all_queues,
                total_counts_jobs_that_ran_before,
                changed_total_holds_at_once,
                every_end_leaves_room_in_a_total,
                limited_jobs_count_in_totals,
                total_holds_up_no_other_line_at_a_key,
                totals_are_listed_and_remembered,
                job_behind_a_total_says_so,
            }
        }
    };
}
