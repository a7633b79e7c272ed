//! Planted bugs: classic defects that the project's own rigs must find.
//!
//! With the feature `planted`, a test chooses one [`Defect`] and the engine and its stores have it from then on. A rig
//! that runs over it without noticing is broken, however green it looks. Without the feature [`is`] is `false` for the
//! compiler, and the defects are not in the program.

/// A classic of queues, leases and journals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Defect {
    /// A finish is accepted whatever its claim number.
    ClaimIgnored = 1,
    /// A finish is accepted whichever node sends it.
    NodeIgnored,
    /// A rescue gives jobs back that have ended meanwhile.
    RescueUnchecked,
    /// A job that is retried loses its unique key.
    KeyDropped,
    /// An enqueue is acknowledged before it is committed.
    EarlyAnswer,
    /// A node judges others by their leases although it was itself cut off.
    BlindRescue,
    /// Claims whose answer was lost stay with a node that does not know of them.
    ClaimForgotten,
    /// A timer that is due is promoted and stays where it was.
    TimerKept,
    /// A cancellation is forgotten if the job's claim ends at the same time.
    CancelLost,
    /// Several suspects run on one node at once.
    SuspectsTogether,
    /// A record is accepted whatever its claim number.
    StaleRecord,
    /// Of records that share a commit, only the first is stored; all are acknowledged.
    RecordLost,
    /// A suspension does not look into the inbox: a message that came before it wakes nobody.
    SuspendBlind,
    /// The end of a child is not told to a parent that does not wait for it yet.
    ChildForgotten,
    /// A cancellation is forgotten if the job is suspended at the same time.
    SuspendUncancelled,
    /// That a message was read is not stored with what came of it.
    ReadTwice,
    /// A suspended handler goes on although the store refused its suspension.
    CachedUnconfirmed,
    /// A step's result is returned before it is recorded.
    ResultEarly,
    /// A job ends before all that it has handed in is recorded.
    EndEarly,
    /// Who won a race is not recorded.
    WinnerUnrecorded,
    /// What the losers of a race have recorded stays.
    LoserKept,
    /// The state after a turn is stored before the steps of that turn are.
    TurnEarly,
    /// A token is good as often as somebody comes with it.
    TokenReplayed,
    /// A step that is not recorded begins, whatever else is recorded that the code does not ask for.
    DriftIgnored,
    /// A retry from a step leaves what the step itself has recorded.
    RewindKept,
    /// A retry from a step is applied whatever the claim number.
    RewindRepeated,
    /// The body of a step that runs again does not take back what it said before.
    ResetForgotten,
    /// That the handler has said something is not recorded.
    PushUncounted,
    /// An id that belongs to another job is taken for a repeat of its own enqueue.
    IdTakenSilently,
    /// One job whose row is damaged fails every claim that meets it.
    UnreadableStops,
    /// A job that is set aside because it cannot be read counts a crash.
    UnreadableCrashes,
    /// A dropped signal leaves nothing behind: a repeat of it is stored again.
    DropForgotten,
    /// A signal that does not fit its wait stays unread.
    UnfitKept,
    /// A node claims on while its outcomes are not stored.
    OutcomesPileUp,
    /// A job that was only claimed ahead counts a crash when its node is lost.
    AheadCrashes,
    /// A job whose node was lost is claimed ahead again, and so its crashes may never count.
    LostAhead,
    /// The body of a step begins although its process did not run for longer than its lease.
    LeaseUnchecked,
    /// A change of a schedule is accepted whatever version it was decided on.
    ScheduleUnchecked,
    /// A fire is marked as dealt with, and its job is enqueued afterwards.
    FireTorn,
    /// Missed fires enqueue one job, whatever their policy is.
    MissedIgnored,
    /// A schedule that is resumed fires for the time in which it was paused.
    ResumeCatchesUp,
    /// A suspension keeps the units of its job's limits although nobody has asked for that.
    LimitKeptOnSuspend,
    /// A rescue keeps the units of the limits of the jobs that it returns.
    LimitKeptOnRescue,
    /// The end of a job gives its units of limits back twice.
    LimitGivenTwice,
    /// Room at a limit key that a claim leaves is not passed on to the groups that wait there.
    RoomNotPassedOn,
    /// A group that has given a job loses its turn, although more of its jobs wait.
    TurnDropped,
    /// Time that lets a group in at a limit key fills its bucket of tokens again.
    TokensTwice,
    /// A total that is introduced does not count the jobs that run already.
    TotalUncounted,
}

impl Defect {
    /// All of them.
    pub const ALL: [Defect; 48] = [
        Defect::ClaimIgnored,
        Defect::NodeIgnored,
        Defect::RescueUnchecked,
        Defect::KeyDropped,
        Defect::EarlyAnswer,
        Defect::BlindRescue,
        Defect::ClaimForgotten,
        Defect::TimerKept,
        Defect::CancelLost,
        Defect::SuspectsTogether,
        Defect::StaleRecord,
        Defect::RecordLost,
        Defect::SuspendBlind,
        Defect::ChildForgotten,
        Defect::SuspendUncancelled,
        Defect::ReadTwice,
        Defect::CachedUnconfirmed,
        Defect::ResultEarly,
        Defect::EndEarly,
        Defect::WinnerUnrecorded,
        Defect::LoserKept,
        Defect::TurnEarly,
        Defect::TokenReplayed,
        Defect::DriftIgnored,
        Defect::RewindKept,
        Defect::RewindRepeated,
        Defect::ResetForgotten,
        Defect::PushUncounted,
        Defect::IdTakenSilently,
        Defect::UnreadableStops,
        Defect::UnreadableCrashes,
        Defect::DropForgotten,
        Defect::UnfitKept,
        Defect::OutcomesPileUp,
        Defect::AheadCrashes,
        Defect::LostAhead,
        Defect::LeaseUnchecked,
        Defect::ScheduleUnchecked,
        Defect::FireTorn,
        Defect::MissedIgnored,
        Defect::ResumeCatchesUp,
        Defect::LimitKeptOnSuspend,
        Defect::LimitKeptOnRescue,
        Defect::LimitGivenTwice,
        Defect::RoomNotPassedOn,
        Defect::TurnDropped,
        Defect::TokensTwice,
        Defect::TotalUncounted,
    ];
}

#[cfg(feature = "planted")]
static CHOSEN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Plants a defect into this process, in place of the one that was there.
#[cfg(feature = "planted")]
pub fn choose(defect: Option<Defect>) {
    CHOSEN.store(defect.map_or(0, |defect| defect as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether a defect is planted.
#[cfg(feature = "planted")]
pub fn is(defect: Defect) -> bool {
    CHOSEN.load(std::sync::atomic::Ordering::SeqCst) == defect as u8
}

/// Whether a defect is planted: never, in this build.
#[cfg(not(feature = "planted"))]
pub const fn is(_defect: Defect) -> bool {
    false
}
