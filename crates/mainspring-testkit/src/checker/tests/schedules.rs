//! Schedules in good histories and in bad ones.

use mainspring_core::Uuid;
use mainspring_core::id::JobId;
use mainspring_core::name::{Kind, QueueName, ScheduleName};
use mainspring_core::schedule::{Definition, Missed, Overlap, Rule, Schedule, Template, Times};

use super::*;
use crate::history::{LookedSchedule, ScheduleChange, ScheduledJob};

/// Who fires.
const NODE: Actor = 1;
/// Who changes schedules by hand.
const PERSON: Actor = 2;

/// A schedule that fires every ten seconds.
fn schedule(change: impl FnOnce(&mut Definition)) -> Schedule {
    let rule = Rule::new("every 10s".parse::<Times>().expect("times"));
    let job = Template {
        kind: Kind::new("k").expect("a name"),
        queue: QueueName::new("q").expect("a name"),
        priority: Priority::default(),
        input: serde_json::Value::Null,
        deadline: None,
        options: Options::default(),
    };
    let mut definition = Definition::new(rule, job);
    change(&mut definition);
    let name = ScheduleName::new("s").expect("a name");
    let mut schedule = Schedule::create(name, definition, Uuid::from_bytes([9; 16]), at(0));
    schedule.version = 1;
    schedule
}

/// The row after it, up to a fire.
fn next(row: &Schedule, last_fire: usize, fired: u64) -> Schedule {
    let mut next = row.clone();
    next.version += 1;
    next.state.last_fire = at(last_fire);
    next.state.fired += fired;
    next
}

impl TestHistory {
    /// A row is accepted, with jobs for these fires; their ids follow from those.
    fn changed(&mut self, by: Actor, verb: Option<&str>, row: &Schedule, fires: &[usize]) -> &mut Self {
        let jobs: Vec<_> = fires
            .iter()
            .map(|fire| {
                let id = JobId::from_bytes([u8::try_from(*fire).expect("a small number"); 16]);
                ScheduledJob { id, fire: at(*fire), created: true }
            })
            .collect();
        for job in &jobs {
            self.see(by, Fact::Asked { id: job.id, unique: None, delay: 0 });
            self.see(by, Fact::Acknowledged { id: job.id, told: EnqueueAnswer::Created });
        }
        let expected = (row.version > 1).then(|| row.version - 1);
        let (name, row, verb) = (row.name.clone(), Some(Box::new(row.clone())), verb.map(str::to_owned));
        self.see(by, Fact::Scheduled(ScheduleChange { name, expected, row, verb, jobs }))
    }

    fn created(&mut self, row: &Schedule) -> &mut Self {
        self.changed(PERSON, Some("set"), row, &[])
    }

    /// A node looks at a time, and hands in a row.
    fn fired(&mut self, now: usize, row: &Schedule, fires: &[usize]) -> &mut Self {
        self.see(NODE, Fact::AskedWhatIsDue { now: at(now) });
        self.changed(NODE, None, row, fires)
    }

    /// All its jobs have ended well.
    fn all_done(&mut self, fires: &[usize]) -> &mut Self {
        for fire in fires {
            let job = u8::try_from(*fire).expect("a small number");
            self.claimed(NODE, job, 1);
            self.ended(NODE, job, 1, EndKind::Succeed, true);
            self.succeeded(job, 1);
        }
        self
    }

    fn breaks_schedules(&self, rule: &str) {
        assert_eq!(self.rules(EXACT), [rule]);
    }
}

#[test]
fn fires_in_time_and_missed_fires_by_their_policy_are_good() {
    for (missed, fires) in [
        (Missed::Skip, vec![60]),
        (Missed::Once, vec![60]),
        (Missed::All(2), vec![50, 60]),
        (Missed::All(9), vec![20, 30, 40, 50, 60]),
    ] {
        let mut history = TestHistory::default();
        history.joined(NODE);
        let row = schedule(|it| it.missed = missed);
        let first = next(&row, 10, 1);
        let second = next(&first, 60, fires.len() as u64);
        history.created(&row).fired(10, &first, &[10]).fired(65, &second, &fires);
        history.all_done(&[10]).all_done(&fires);
        let looked = LookedSchedule { now: at(75), open: false, row: Box::new(second) };
        history.see(0, Fact::LookedAtSchedule(looked));
        assert_eq!(history.rules(EXACT), [""; 0], "{missed}");
    }
}

#[test]
fn a_change_of_a_row_that_was_changed_meanwhile_is_found() {
    let mut history = TestHistory::default();
    history.joined(NODE);
    let row = schedule(|_| ());
    let paused = row.paused("ann", "", at(5));
    let paused = Schedule { version: 2, ..paused };
    // A node has seen the row before the pause, and writes over it.
    history.created(&row).changed(PERSON, Some("pause"), &paused, &[]).fired(10, &next(&row, 10, 1), &[10]);
    history.all_done(&[10]).breaks_schedules("a schedule is changed as it is");
}

#[test]
fn a_fire_that_happens_twice_is_found() {
    let row = schedule(|_| ());
    let first = next(&row, 10, 1);
    // Once more, with another job.
    let mut history = TestHistory::default();
    history.joined(NODE).created(&row).fired(10, &first, &[10]);
    let mut again = next(&first, 20, 2);
    history.fired(20, &again, &[10, 20]).all_done(&[20]);
    assert!(history.rules(EXACT).contains(&"every fire happens once"), "{:?}", history.rules(EXACT));
    // Its last fire goes back.
    let mut history = TestHistory::default();
    history.joined(NODE).created(&row).fired(10, &first, &[10]);
    again.state = row.state.clone();
    again.state.fired = 1;
    history.fired(11, &again, &[]).all_done(&[10]).breaks_schedules("every fire happens once");
    // It counts otherwise than it fires.
    let mut history = TestHistory::default();
    history.joined(NODE).created(&row).fired(10, &next(&row, 10, 0), &[10]).all_done(&[10]);
    history.breaks_schedules("every fire happens once");
}

#[test]
fn a_fire_while_it_is_paused_is_found() {
    let row = schedule(|_| ());
    let paused = Schedule { version: 2, ..row.paused("ann", "", at(5)) };
    let mut history = TestHistory::default();
    history.joined(NODE).created(&row).changed(PERSON, Some("pause"), &paused, &[]);
    history.fired(10, &next(&paused, 10, 1), &[10]).all_done(&[10]);
    history.breaks_schedules("every fire happens once");
}

#[test]
fn a_fire_for_the_time_of_a_pause_is_found() {
    let row = schedule(|_| ());
    let paused = Schedule { version: 2, ..row.paused("ann", "", at(5)) };
    let mut resumed = next(&paused, 0, 0);
    resumed.state.paused = None;
    let mut history = TestHistory::default();
    history.joined(NODE).created(&row).changed(PERSON, Some("pause"), &paused, &[]);
    history.see(PERSON, Fact::AskedWhatIsDue { now: at(15) });
    history.changed(PERSON, Some("resume"), &resumed, &[]).breaks_schedules("every fire happens once");
}

#[test]
fn an_early_fire_is_found() {
    let row = schedule(|_| ());
    let mut history = TestHistory::default();
    history.joined(NODE).created(&row).fired(9, &next(&row, 10, 1), &[10]).all_done(&[10]);
    assert!(history.rules(EXACT).contains(&"no fire is early"), "{:?}", history.rules(EXACT));
}

#[test]
fn missed_fires_against_their_policy_are_found() {
    for (missed, wrong) in [
        (Missed::Once, vec![50, 60]),
        (Missed::Once, vec![]),
        (Missed::Once, vec![50]),
        (Missed::All(2), vec![60]),
        (Missed::All(9), vec![20, 30, 50, 60]),
    ] {
        let row = schedule(|it| it.missed = missed);
        let first = next(&row, 10, 1);
        let second = next(&first, 60, wrong.len() as u64);
        let mut history = TestHistory::default();
        history.joined(NODE).created(&row).fired(10, &first, &[10]).fired(65, &second, &wrong);
        history.all_done(&[10]).all_done(&wrong);
        history.breaks_schedules("missed fires follow their policy");
    }
    // A fire later than its grace, though it is the only one.
    let row = schedule(|it| {
        it.missed = Missed::Skip;
        it.grace = mainspring_core::time::Span(Duration::from_secs(3));
    });
    let mut history = TestHistory::default();
    history.joined(NODE).created(&row).fired(15, &next(&row, 10, 1), &[10]).all_done(&[10]);
    history.breaks_schedules("missed fires follow their policy");
}

#[test]
fn jobs_that_overlap_are_found() {
    let row = schedule(|it| it.overlap = Overlap::Skip);
    let mut first = next(&row, 10, 1);
    first.state.last_job = Some(id(10));
    let mut second = next(&first, 20, 1);
    second.state.last_job = Some(id(20));
    let mut history = TestHistory::default();
    history.joined(NODE).created(&row).fired(10, &first, &[10]).fired(20, &second, &[20]);
    history.all_done(&[10, 20]).breaks_schedules("jobs of a schedule overlap as it says");
    // And a fire that is skipped beside a job that has ended.
    let mut history = TestHistory::default();
    history.joined(NODE).created(&row).fired(10, &first, &[10]).all_done(&[10]);
    let noted = next(&first, 10, 0);
    history.changed(NODE, None, &noted, &[]);
    history.fired(20, &next(&noted, 20, 0), &[]).breaks_schedules("jobs of a schedule overlap as it says");
}

#[test]
fn a_schedule_that_nodes_or_code_make_another_is_found() {
    let mut row = schedule(|_| ());
    row.state.edited_by = Some("ann".into());
    let other = schedule(|it| it.missed = Missed::Skip).definition;
    let changed = Schedule { definition: other, version: 2, ..row.clone() };
    for verb in [None, Some("seed")] {
        let mut history = TestHistory::default();
        history.created(&row).changed(NODE, verb, &changed, &[]);
        history.breaks_schedules("only people and code change what a schedule is");
    }
    let mut history = TestHistory::default();
    history.created(&row).changed(PERSON, Some("set"), &changed, &[]);
    assert_eq!(history.rules(EXACT), [""; 0]);
    let paused = Schedule { version: 2, ..row.paused("pause_on_failure", "", at(2)) };
    history = TestHistory::default();
    history.created(&row).changed(NODE, None, &paused, &[]);
    history.breaks_schedules("only people and code change what a schedule is");
}

#[test]
fn a_repeat_that_is_noted_as_another_request_is_found() {
    let row = schedule(|_| ());
    let mut history = TestHistory::default();
    history.joined(NODE).created(&row).changed(PERSON, Some("run"), &next(&row, 0, 0), &[5]);
    history.changed(PERSON, Some("run"), &next(&next(&row, 0, 0), 0, 0), &[5]).all_done(&[5]);
    history.breaks_schedules("a repeat of a request is no second one");
}

#[test]
fn a_schedule_that_does_not_fire_is_found() {
    let row = schedule(|_| ());
    let look = |row: &Schedule, now: usize| {
        let mut history = TestHistory::default();
        history.created(row);
        let looked = LookedSchedule { now: at(now), open: false, row: Box::new(row.clone()) };
        history.see(0, Fact::LookedAtSchedule(looked));
        history
    };
    look(&row, 60).breaks_schedules("schedules fire in time once faults are over");
    assert_eq!(look(&row, 15).rules(EXACT), [""; 0]);
    assert_eq!(look(&row.paused("ann", "", at(5)), 60).rules(EXACT), [""; 0]);
}
