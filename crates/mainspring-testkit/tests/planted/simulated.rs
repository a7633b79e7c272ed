//! What the simulator finds.

use mainspring_core::planted::{self, Defect};
use mainspring_testkit::sim::{self, Kind};

/// Within how many seeds the simulator finds any of them. About one seed in eight shows the rarest: that many seeds do not by
/// chance miss what the simulator still looks for, whatever else changes in it.
const SEEDS: u64 = 400;

/// Those that the exhaustive model of limits and the conformance suite find; see `limits.rs`.
const OF_LIMITS: [Defect; 7] = [
    Defect::LimitKeptOnSuspend,
    Defect::LimitKeptOnRescue,
    Defect::LimitGivenTwice,
    Defect::RoomNotPassedOn,
    Defect::TurnDropped,
    Defect::TokensTwice,
    Defect::TotalUncounted,
];

/// Runs seeds until a promise is broken, and tells how.
#[expect(clippy::print_stdout, reason = "the story of a bug that was found is worth reading")]
fn caught(defect: Defect) {
    planted::choose(Some(defect));
    for seed in 0..SEEDS {
        let run = sim::run(Kind::Memory, seed);
        if let Some(violation) = run.violations.first() {
            println!("{defect:?}: {} of at most {SEEDS} seeds\n{violation}", seed + 1);
            return;
        }
    }
    panic!("{defect:?} was not noticed with any of the seeds 0..{SEEDS}");
}

macro_rules! caught {
    ($($name:ident: $defect:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                caught(Defect::$defect);
            }
        )+

        #[test]
        fn every_defect_has_its_test() {
            let tested = [$(Defect::$defect),+];
            let missing = Defect::ALL.iter().filter(|defect| !tested.contains(defect) && !OF_LIMITS.contains(defect));
            assert_eq!(missing.collect::<Vec<_>>(), Vec::<&Defect>::new());
        }
    };
}

caught! {
    claim_number_ignored_in_finish: ClaimIgnored,
    node_ignored_in_finish: NodeIgnored,
    rescue_without_a_state_check: RescueUnchecked,
    unique_key_dropped_on_retry: KeyDropped,
    acknowledgement_before_commit: EarlyAnswer,
    rescue_by_a_node_that_was_cut_off: BlindRescue,
    lost_claim_answer_not_adopted: ClaimForgotten,
    timer_promoted_twice: TimerKept,
    cancel_lost_when_it_meets_finish: CancelLost,
    suspects_run_together: SuspectsTogether,
    stale_record_accepted: StaleRecord,
    record_lost_in_a_batch: RecordLost,
    suspension_that_does_not_look_into_the_inbox: SuspendBlind,
    end_of_a_child_not_told_in_advance: ChildForgotten,
    cancel_lost_when_it_meets_a_suspension: SuspendUncancelled,
    message_read_twice: ReadTwice,
    cached_handler_resumes_without_its_suspension: CachedUnconfirmed,
    result_returned_before_it_is_recorded: ResultEarly,
    end_before_a_record_that_is_on_its_way: EndEarly,
    winner_of_a_race_not_recorded: WinnerUnrecorded,
    step_of_a_loser_kept: LoserKept,
    state_of_a_loop_stored_before_its_step: TurnEarly,
    token_good_twice: TokenReplayed,
    drift_ignored: DriftIgnored,
    record_of_a_step_kept_by_a_retry_from_it: RewindKept,
    retry_from_a_step_applied_twice: RewindRepeated,
    stream_that_is_not_taken_back: ResetForgotten,
    push_that_is_not_counted: PushUncounted,
    id_of_another_job_taken_for_a_repeat: IdTakenSilently,
    claim_fails_at_an_unreadable_row: UnreadableStops,
    unreadable_row_counts_a_crash: UnreadableCrashes,
    dropped_signal_forgotten: DropForgotten,
    signal_that_does_not_fit_kept: UnfitKept,
    claims_while_outcomes_are_not_stored: OutcomesPileUp,
    crash_counted_for_a_job_claimed_ahead: AheadCrashes,
    lost_job_claimed_ahead: LostAhead,
    body_begun_when_its_lease_has_lapsed: LeaseUnchecked,
    schedule_changed_as_it_was_before: ScheduleUnchecked,
    fire_marked_before_its_job_is_enqueued: FireTorn,
    policy_of_missed_fires_ignored: MissedIgnored,
    resumed_schedule_fires_for_its_pause: ResumeCatchesUp,
}
