//! Every bound of the system, in one place.
//! A caller that exceeds a bound gets a typed error before anything is stored. So no payload, name, batch or history
//! grows without a decision.

use std::time::Duration;

/// Bytes of one job's input, unless configured otherwise.
pub const INPUT_BYTES: usize = 1 << 20;
/// Bytes of one job's result, unless configured otherwise.
pub const RESULT_BYTES: usize = 1 << 20;
/// The highest value that you can configure for [`INPUT_BYTES`] and [`RESULT_BYTES`]. Every store still reads and
/// writes a row of this size in one piece.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// Bytes of one error text that the store keeps. A cut text ends with a mark.
pub const ERROR_BYTES: usize = 16 << 10;
/// Sources of one error that an error text includes. A longer chain, or one that leads back to itself, is cut there.
pub const SOURCES: usize = 64;
/// Errors kept per job; the oldest go first.
pub const ERRORS_KEPT: usize = 32;
/// Bytes of a queue or kind name.
pub const NAME_BYTES: usize = 128;
/// Bytes of a tag or a label.
pub const TAG_BYTES: usize = 128;
/// Tags per job.
pub const TAGS: usize = 16;
/// Required labels per job, and labels per node.
pub const LABELS: usize = 16;
/// Headers per job.
pub const HEADERS: usize = 16;
/// Bytes of all header names and values of one job together.
pub const HEADER_BYTES: usize = 8 << 10;
/// Bytes of a unique key.
pub const KEY_BYTES: usize = 256;
/// Bytes of the text that explains a cancellation, a discard or an operator's verb, and of a text to find in errors.
pub const WHY_BYTES: usize = 1 << 10;
/// Bytes of a progress note.
pub const NOTE_BYTES: usize = 1 << 10;
/// Jobs per call of `enqueue_many`.
pub const BULK: usize = 100_000;
/// Jobs per store batch: larger calls are split, so that no transaction holds the writer for long.
pub const BATCH: usize = 1_000;
/// Bytes of payload per store batch; a batch ends where it would exceed this.
pub const BATCH_BYTES: usize = 16 << 20;
/// Bytes of outcomes that a node holds because the store does not take them. Above this, it claims nothing.
pub const UNSTORED_BYTES: usize = 4 * BATCH_BYTES;
/// Bytes of an input that comes with its claim: a whole batch of these is within [`BATCH_BYTES`]. For a larger input
/// the claim has only the size, and the node reads it when the handler starts.
pub const CLAIM_INPUT_BYTES: usize = 16 << 10;
/// Jobs of a filtered listing per page.
pub const PAGE: usize = 1_000;
/// Rows that one listing call reads before it returns what it has, with the position of the next page.
pub const SCAN: usize = 20_000;
/// The highest priority number (0 is claimed first).
pub const PRIORITY_MAX: u8 = 9;
/// Attempts per job, at most.
pub const ATTEMPTS_MAX: u16 = 10_000;
/// The longest delay, snooze or deadline of a job: ten years.
pub const DELAY: Duration = Duration::from_hours(10 * 366 * 24);
/// The shortest lease: below this, ordinary scheduling hiccups look like death.
pub const LEASE_MIN: Duration = Duration::from_millis(500);
/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_hours(1);
/// Bytes of one recorded result, unless configured otherwise (at most [`PAYLOAD_BYTES_MAX`]).
pub const STEP_BYTES: usize = 1 << 20;
/// Bytes of the key of a recorded operation: the names of all its scopes and its own.
pub const STEP_KEY_BYTES: usize = 1 << 10;
/// Records of one job.
pub const STEPS: usize = 100_000;
/// Records that a fork can share with its original: as many as a timeline shows.
pub const SHARED: usize = TIMELINE;
/// Bytes of recorded values that a fork can share, because one commit stores them all.
pub const SHARED_BYTES: usize = BATCH_BYTES;
/// Bytes of recorded values that come with the claim of one job. The node reads the rest when the handler needs it.
pub const PREFETCH_BYTES: usize = 256 << 10;
/// Bytes of one signal.
pub const SIGNAL_BYTES: usize = 64 << 10;
/// Unread signals of one job. The store refuses the next one.
pub const INBOX: usize = 10_000;
/// Read signals of one job whose senders the store remembers; the oldest go first.
pub const INBOX_READ: usize = 1_000;
/// Messages that one read of an inbox returns, at most. A page also ends where it would exceed [`PREFETCH_BYTES`], but
/// has at least one message. All messages that come with a claim are within [`BATCH_BYTES`].
pub const INBOX_PAGE: usize = 1_000;
/// Entries of a timeline that one call returns.
pub const TIMELINE: usize = 10_000;
/// Bytes of a value in a timeline.
pub const TIMELINE_VALUE_BYTES: usize = 4 << 10;
/// Bytes of one frame of a job's output.
pub const FRAME_BYTES: usize = 64 << 10;
/// Frames of one job's output that the store keeps; the oldest go first.
pub const FRAMES: usize = 10_000;
/// Bytes of one job's output that the store keeps; the oldest frames go first.
pub const FRAMES_BYTES: usize = 16 << 20;
/// Frames that one read of an output returns, at most. A page also ends where it would exceed [`PREFETCH_BYTES`].
pub const OUTPUT_PAGE: usize = 1_000;
/// Frames of one job on their way to the store, at most. The next `emit` waits.
pub const FRAMES_FLYING: usize = 64;
/// Bytes of the frames on their way.
pub const FRAMES_FLYING_BYTES: usize = 1 << 20;
/// Slots of one queue on one node.
pub const SLOTS: u32 = 100_000;
/// Queues one node serves.
pub const NODE_QUEUES: usize = 256;
/// Children of one pool.
pub const CHILDREN: u32 = 1_024;
/// Bytes that a line of a child may have beyond those of a result.
pub const CHILD_LINE_BYTES: usize = 64 << 10;
/// Bytes of the end of a child's standard error that the failure of its job shows.
pub const CHILD_STDERR_BYTES: usize = 8 << 10;
/// Kinds one node handles, aliases included.
pub const NODE_KINDS: usize = 4_096;
/// Bytes of a node's name.
pub const NODE_NAME_BYTES: usize = 256;
/// Distinct (queue, kind, required labels) combinations in one store; see [`crate::store`].
pub const LINES: usize = 10_000;
/// From this many crashes without progress a job is a suspect.
pub const SUSPECT_CRASHES: u16 = 2;
/// At this many crashes without progress a job is quarantined.
pub const QUARANTINE_CRASHES: u16 = 3;
/// How long a store remembers a node that was retired or expired, from its last renewal on.
pub const NODE_RETENTION: Duration = Duration::from_hours(24);
/// The shortest retention of finished jobs: results must outlive the callers that wait for them.
pub const RETENTION_MIN: Duration = Duration::from_mins(1);
/// Bytes of the name of a schedule.
pub const SCHEDULE_NAME_BYTES: usize = 100;
/// Bytes of the name of the person or program that makes a change.
pub const WHO_BYTES: usize = 128;
/// Changes of one schedule that the audit keeps; the oldest go first.
pub const AUDIT: usize = 100;
/// How far the last fire of a schedule may be ahead of the store's clock. Beyond this, the engine assumes that the
/// clock was wrong.
pub const CLOCK_AHEAD: Duration = Duration::from_hours(24);
/// Bytes of a cron expression.
pub const CRON_BYTES: usize = 512;
/// Times and expressions of one schedule.
pub const SCHEDULE_TIMES: usize = 16;
/// Exceptions of one schedule.
pub const SCHEDULE_EXCEPTIONS: usize = 64;
/// Excepted times in a row that a schedule skips to find its next fire: some years of days, or a year of hours.
pub const EXCEPTED: usize = 10_000;
/// The shortest time between two fires of `every`.
pub const PERIOD_MIN: Duration = Duration::from_secs(1);
/// The longest jitter of a schedule.
pub const JITTER: Duration = Duration::from_hours(24);
/// Missed fires of one schedule that each enqueue a job, at most.
pub const CATCH_UP: u16 = 100;
/// Limits in one store.
pub const LIMITS: usize = 1_000;
/// Limits that one job names.
pub const JOB_LIMITS: usize = 8;
/// Units that one job takes of all its limits together, and so of each of them.
pub const UNITS: u16 = 16;
/// Bytes of the key of a limit.
pub const LIMIT_KEY_BYTES: usize = 256;
/// The highest maximum of a limit, and the highest count and burst of a rate.
pub const LIMIT_MAX: u32 = 1_000_000;
/// Jobs that hold a limit key, or wait for it, that people see at once.
pub const LIMIT_JOBS: usize = 100;
/// Jobs that wait for a limit key are counted up to this.
pub const LIMIT_WAITING: usize = 10_000;
/// Limit keys per page.
pub const LIMIT_KEYS_PAGE: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_the_guide() {
        assert_eq!((INPUT_BYTES, RESULT_BYTES, PAYLOAD_BYTES_MAX), (1_048_576, 1_048_576, 16_777_216));
        assert_eq!((ERROR_BYTES, HEADER_BYTES, BATCH_BYTES), (16_384, 8_192, 16_777_216));
        assert_eq!((WHY_BYTES, NOTE_BYTES), (1_024, 1_024));
        assert_eq!((FRAME_BYTES, FRAMES, FRAMES_BYTES), (65_536, 10_000, 16_777_216));
        assert_eq!((STEP_BYTES, STEP_KEY_BYTES, SIGNAL_BYTES), (1_048_576, 1_024, 65_536));
        assert_eq!((PREFETCH_BYTES, TIMELINE_VALUE_BYTES, FRAMES_FLYING_BYTES), (262_144, 4_096, 1_048_576));
        assert_eq!((CRON_BYTES, SCHEDULE_TIMES, SCHEDULE_EXCEPTIONS, CATCH_UP), (512, 16, 64, 100));
        // Ten years, none of which is longer than 366 days.
        assert_eq!(DELAY.as_secs(), 10 * 366 * 86_400);
    }
}
