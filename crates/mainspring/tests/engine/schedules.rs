//! Schedules: each fire enqueues one job, whatever nodes, clocks and people do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::schedule::{Missed, NewSchedule, Overlap, ScheduleWhy};
use mainspring::testing::TestEngine;
use mainspring::time::Timestamp;
use mainspring::{Context, Error, Job, JobId, Reason, State, Status, discard};
use serde::{Deserialize, Serialize};

use crate::faults::faulty;
use crate::faulty_store::Fault;
use crate::support::{Gate, Ledger, Work, state, status, work};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_hours(1);

/// A job that says which fire it is for.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "tick")]
struct Tick {
    fire: String,
    last: String,
}

fn tick() -> Tick {
    Tick { fire: "{{fire}}".into(), last: "{{last}}".into() }
}

/// What ticks were run, in order.
type Fires = Arc<Mutex<Vec<String>>>;

fn fires(fires: &Fires) -> Vec<String> {
    fires.lock().expect("the fires").clone()
}

fn noting(
    fires: &Fires,
) -> impl Fn(Context, Tick) -> std::future::Ready<mainspring::HandlerResult<()>> + use<> {
    let fires = Arc::clone(fires);
    move |_ctx, tick: Tick| {
        fires.lock().expect("the fires").push(format!("{} {}", tick.fire, tick.last));
        std::future::ready(Ok(()))
    }
}

async fn quick(_ctx: Context, job: Work) -> mainspring::HandlerResult<u64> {
    Ok(job.n)
}

fn every_ten_seconds() -> NewSchedule {
    NewSchedule::of("s", &work(1)).times("every 10s")
}

#[tokio::test]
async fn each_fire_enqueues_one_job_over_all_nodes() {
    let test = TestEngine::new();
    let ran = Fires::default();
    for _ in 0..3 {
        let minutely = NewSchedule::of("minutely", &tick()).times("* * * * *");
        test.node(|node| node.handle(noting(&ran)).schedule(minutely).queue("default", 2))
            .await
            .expect("a node");
    }
    test.advance(Duration::from_millis(179_999)).await.expect("time passes");
    let first_two = ["2026-01-01T00:01:00Z ", "2026-01-01T00:02:00Z 2026-01-01T00:01:00Z"];
    assert_eq!(fires(&ran), first_two);
    test.advance(Duration::from_millis(1)).await.expect("time passes");
    assert_eq!(fires(&ran).len(), 3, "the third, and not a millisecond early");
    test.advance(24 * HOUR).await.expect("time passes");
    assert_eq!(fires(&ran).len(), 3 + 24 * 60);
    assert_eq!(test.schedules().get("minutely").await.expect("it is there").state.fired, 3 + 24 * 60);
}

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "nightly", schedule = "30 2 * * *", zone = "Europe/Berlin")]
struct Nightly {}

#[tokio::test]
async fn the_derive_names_a_schedule_that_follows_its_zone() {
    let test = TestEngine::new();
    let nightly = |_ctx: Context, _job: Nightly| std::future::ready(mainspring::HandlerResult::Ok(()));
    test.node(|node| node.handle(nightly).queue("default", 1)).await.expect("a node");
    test.advance(24 * HOUR).await.expect("time passes");
    test.assert_enqueued::<Nightly>(|_| true);
    let next = test.schedules().next("nightly", 100).await.expect("fires");
    // Berlin changes its clocks on 29 March: what is skipped happens at 3, which is 1 in UTC.
    let times: Vec<_> = next
        .iter()
        .map(ToString::to_string)
        .filter(|at| at.starts_with("2026-03-2") || at.starts_with("2026-03-3"))
        .collect();
    assert!(times.contains(&"2026-03-28T01:30:00.000Z".to_owned()), "{times:?}");
    assert!(times.contains(&"2026-03-29T01:00:00.000Z".to_owned()), "{times:?}");
    assert!(times.contains(&"2026-03-30T00:30:00.000Z".to_owned()), "{times:?}");
}

#[tokio::test]
async fn what_is_wrong_with_a_schedule_keeps_its_node_from_starting() {
    let test = TestEngine::new();
    let refused = async |schedule: NewSchedule| {
        let node = test.node(|node| node.handle(quick).schedule(schedule).queue("default", 1)).await;
        node.expect_err("refused").to_string()
    };
    let of = |times: &str| NewSchedule::of("s", &work(1)).times(times);
    assert_eq!(
        refused(of("0 25 * * *")).await,
        "invalid cron expression: column 3: `25` is not a hour (0 to 23)"
    );
    assert!(refused(of("0 0 31 2 *")).await.contains("it never fires"));
    assert!(refused(of("@daily").zone("Europe/Berln")).await.contains("did you mean `Europe/Berlin`?"));
    assert!(refused(NewSchedule::of("s", &work(1))).await.contains("it names no times"));
    assert!(
        refused(of("@daily").overlap(Overlap::Skip).missed(Missed::All(2))).await.contains("overlap = allow")
    );
    let twice = test
        .node(|node| node.handle(quick).schedule(of("@daily")).schedule(of("@daily")).queue("default", 1))
        .await;
    assert!(twice.expect_err("refused").to_string().contains("named twice"));
    assert!(test.schedules().list().await.expect("schedules").is_empty());
}

#[tokio::test]
async fn missed_fires_follow_their_policy_when_a_node_is_back() {
    for (missed, jobs) in [(Missed::Skip, 0), (Missed::Once, 1), (Missed::All(5), 5)] {
        let test = TestEngine::new();
        test.schedules().set(every_ten_seconds().missed(missed)).await.expect("set");
        // An hour and five seconds: the last fire is within its grace, and yet it is not alone.
        test.leap(HOUR + 5 * SECOND).await.expect("time passes");
        let grace = usize::from(missed == Missed::Skip);
        test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
        test.run_until_idle().await.expect("idle");
        test.advance(SECOND).await.expect("time passes");
        let row = test.schedules().get("s").await.expect("it is there");
        assert!(test.enqueued::<Work>().len() <= jobs.max(6 * grace), "{missed}");
        assert!(test.enqueued::<Work>().len() >= jobs.max(grace), "{missed}");
        assert!(row.state.note.expect("a note").text.contains("missed"), "{missed}");
        assert_eq!(row.state.fired, test.enqueued::<Work>().len() as u64);
    }
}

#[tokio::test]
async fn overlapping_jobs_are_skipped_or_cancelled() {
    for overlap in [Overlap::Skip, Overlap::Cancel, Overlap::Allow] {
        let test = TestEngine::new();
        let gate = Gate::default();
        let passing = gate.clone();
        let waits = move |_ctx: Context, job: Work| {
            let gate = passing.clone();
            async move {
                gate.pass().await;
                mainspring::HandlerResult::Ok(job.n)
            }
        };
        let setup = every_ten_seconds().overlap(overlap);
        test.node(|node| node.handle(waits).schedule(setup).queue("default", 9)).await.expect("a node");
        test.advance(35 * SECOND).await.expect("time passes");
        let row = test.schedules().get("s").await.expect("it is there");
        let last = row.state.last_job.expect("a job");
        match overlap {
            Overlap::Skip => {
                assert_eq!((test.enqueued::<Work>().len(), row.state.fired), (1, 1));
                assert!(row.state.note.expect("a note").text.contains("has not ended"));
                let held = test.schedules().run("s").await.expect_err("held");
                assert!(matches!(held, Error::ScheduleHeld { job, .. } if job == last), "{held}");
                test.schedules().run_forced("s").await.expect("forced");
                test.run_until_idle().await.unwrap_or_default();
                assert_eq!(test.enqueued::<Work>().len(), 2);
            }
            Overlap::Cancel => {
                assert_eq!(test.enqueued::<Work>().len(), 3);
                assert_eq!(state(&test, last).await, State::Running);
                let counts = test.jobs().counts().await.expect("counts");
                assert_eq!((counts.total(State::Running), counts.total(State::Cancelled)), (1, 2));
            }
            Overlap::Allow => assert_eq!(gate.came(), 3),
        }
        gate.open();
    }
}

#[tokio::test]
async fn a_failed_job_pauses_a_schedule_that_wants_that() {
    let test = TestEngine::new();
    let fails = |_ctx: Context, _job: Work| {
        std::future::ready(mainspring::HandlerResult::<u64>::Err(discard("no").into()))
    };
    let setup = every_ten_seconds().pause_on_failure();
    test.node(|node| node.handle(fails).schedule(setup).queue("default", 1)).await.expect("a node");
    test.advance(60 * SECOND).await.expect("time passes");
    assert_eq!(test.enqueued::<Work>().len(), 1);
    match test.schedules().why("s").await.expect("a reason") {
        ScheduleWhy::Paused { by, note, .. } => {
            assert!(by == "pause_on_failure" && note.contains("failed"), "{note}");
        }
        why => panic!("{why}"),
    }
    test.schedules().resume("s").await.expect("resumed");
    let job: JobId = test.schedules().get("s").await.expect("it is there").state.last_job.expect("a job");
    assert_eq!(status(&test, job).await, Status::because(State::Failed, Reason::Discarded));
}

#[tokio::test]
async fn a_person_looks_at_schedules_and_changes_them() {
    let test = TestEngine::new();
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    let ann = || test.schedules().by("ann");
    ann().set(every_ten_seconds()).await.expect("set");
    test.advance(25 * SECOND).await.expect("time passes");
    assert_eq!(test.enqueued::<Work>().len(), 2);
    ann().pause("s", "the mail server moves").await.expect("paused");
    test.advance(HOUR).await.expect("time passes");
    assert_eq!(test.enqueued::<Work>().len(), 2);
    let why = test.schedules().why("s").await.expect("a reason").to_string();
    assert!(why.starts_with("ann paused it") && why.ends_with("the mail server moves"), "{why}");
    // By hand it runs, also while it is paused.
    let by_hand = ann().run("s").await.expect("a job");
    test.run_until_idle().await.expect("idle");
    assert_eq!(state(&test, by_hand).await, State::Succeeded);
    ann().resume("s").await.expect("resumed");
    test.advance(10 * SECOND).await.expect("time passes");
    assert_eq!(test.enqueued::<Work>().len(), 4, "and nothing is made up for");
    let from = test.now().before(HOUR);
    let jobs = ann().backfill("s", from, from.after(50 * SECOND)).await.expect("jobs");
    assert!(jobs.len() == 5 || jobs.len() == 6, "{}", jobs.len());
    let too_many = ann().backfill("s", from.before(24 * HOUR), from).await.expect_err("too many");
    assert!(matches!(too_many, Error::TooLarge { .. }), "{too_many}");
    let next = test.schedules().next("s", 3).await.expect("times");
    assert!(next.len() == 3 && next[0] > test.now() && next[1].since(next[0]) == 10 * SECOND);
    assert!(ann().delete("s").await.expect("deleted"));
    assert!(!ann().delete("s").await.expect("gone"));
    assert!(matches!(ann().pause("s", "").await, Err(Error::NoSchedule(_))));
    assert!(matches!(ann().run("s").await, Err(Error::NoSchedule(_))));
    let audit = test.schedules().audit("s").await.expect("entries");
    let verbs: Vec<_> = audit.iter().map(|it| it.verb.as_str()).collect();
    assert_eq!(verbs, ["delete", "backfill", "resume", "run", "pause", "set"]);
    assert!(audit.iter().all(|it| it.who == "ann"));
    test.advance(HOUR).await.expect("time passes");
    assert_eq!(test.enqueued::<Work>().len(), 4 + jobs.len());
}

#[tokio::test]
async fn code_does_not_undo_a_person() {
    let test = TestEngine::new();
    let start = async |times: &str, revision: u32| {
        let schedule = NewSchedule::of("s", &work(1)).times(times).revision(revision);
        let node = test
            .node(|node| node.handle(quick).schedule(schedule).queue("default", 1))
            .await
            .expect("a node");
        node.shutdown().await;
        test.schedules().get("s").await.expect("it is there").definition.rule.times[0].to_string()
    };
    assert_eq!(start("every 10s", 1).await, "every 10s");
    assert_eq!(start("every 20s", 1).await, "every 10s", "the same revision changes nothing");
    assert_eq!(start("every 30s", 2).await, "every 30s");
    assert_eq!(start("every 10s", 1).await, "every 30s", "nor does an older node");
    test.schedules().by("ann").set(NewSchedule::of("s", &work(1)).times("@daily")).await.expect("set");
    assert_eq!(start("every 40s", 3).await, "@daily");
}

#[tokio::test]
async fn a_schedule_that_code_no_longer_names_is_an_orphan_and_stays() {
    let test = TestEngine::new();
    let orphan = async || {
        let nodes = test.nodes().await.expect("nodes");
        test.schedules().get("s").await.expect("it is there").is_orphan(&nodes)
    };
    let naming =
        |node: mainspring::NodeBuilder| node.handle(quick).schedule(every_ten_seconds()).queue("default", 1);
    let bare = |node: mainspring::NodeBuilder| node.handle(quick).queue("default", 1);
    let first = test.node(naming).await.expect("a node");
    test.advance(SECOND).await.expect("time passes");
    let other = test.node(bare).await.expect("a node");
    assert!(!orphan().await, "the first node still names it");
    first.shutdown().await;
    assert!(orphan().await, "the other one was started later, and does not");
    let before = test.enqueued::<Work>().len();
    test.advance(10 * SECOND).await.expect("time passes");
    assert_eq!(test.enqueued::<Work>().len(), before + 1, "it fires on");
    let again = test.node(naming).await.expect("a node");
    assert!(!orphan().await, "code names it again");
    again.shutdown().await;
    other.shutdown().await;
    assert!(!orphan().await, "where no node lives, nobody can say");
    // What a person has made is nobody's orphan.
    test.schedules().set(NewSchedule::of("mine", &work(1)).times("@daily")).await.expect("set");
    let (mine, nodes) = (test.schedules().get("mine").await.expect("it is there"), test.nodes().await);
    assert!(!mine.is_orphan(&nodes.expect("nodes")));
}

/// Lesson A4: what was shown and what ran disagreed on the time zone.
#[tokio::test]
async fn what_is_announced_is_what_fires_where_clocks_change() {
    let test = TestEngine::new();
    // To the evening before clocks go forward in Berlin.
    test.leap(86 * 24 * HOUR + 22 * HOUR).await.expect("time passes");
    let ran = Fires::default();
    let berlin = NewSchedule::of("berlin", &tick()).times("15,45 1-3 * * *").zone("Europe/Berlin");
    let utc = NewSchedule::of("utc", &tick()).times("15,45 1-3 * * *");
    for schedule in [berlin, utc] {
        test.schedules().set(schedule).await.expect("set");
    }
    let mut announced = Vec::new();
    for name in ["berlin", "utc"] {
        announced.extend(test.schedules().next(name, 20).await.expect("fires"));
    }
    test.node(|node| node.handle(noting(&ran)).queue("default", 2)).await.expect("a node");
    test.advance(7 * HOUR).await.expect("time passes");
    let now = test.now();
    announced.retain(|at| *at <= now);
    announced.sort();
    let announced: Vec<_> = announced.iter().map(|at| at.to_string().replace(".000Z", "Z")).collect();
    let mut fired: Vec<_> =
        fires(&ran).iter().map(|run| run.split(' ').next().unwrap_or("").to_owned()).collect();
    fired.sort();
    assert_eq!(fired, announced);
    let gap = ["2026-03-29T00:15:00Z", "2026-03-29T00:45:00Z", "2026-03-29T01:00:00Z"];
    assert_eq!(fired[..3], gap, "what is skipped fires at the end of the gap");
}

/// How often each method of the store is called in an hour, with so many schedules that have nothing to do in it.
async fn calls_of_an_idle_hour(schedules: usize) -> Vec<(&'static str, usize)> {
    let (test, faulty) = faulty(1);
    let row = |number: usize| {
        let yearly = NewSchedule::of(format!("s{number}"), &work(1)).times("@yearly");
        (number, yearly)
    };
    if schedules > 0 {
        let (_, first) = row(0);
        let first = test.schedules().set(first).await.expect("set");
        for batch in (1..schedules).collect::<Vec<_>>().chunks(1_000) {
            let write = |number: &usize| {
                let name = mainspring::schedule::ScheduleName::new(format!("s{number}")).expect("a name");
                let row = mainspring::schedule::Schedule { name: name.clone(), ..first.clone() };
                mainspring_core::store::ScheduleWrite {
                    name,
                    expected: None,
                    row: Some(row),
                    jobs: Vec::new(),
                    audit: None,
                }
            };
            test.store().write_schedules(batch.iter().map(write).collect()).await.expect("written");
        }
        assert_eq!(test.schedules().list().await.expect("schedules").len(), schedules);
    }
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    test.advance(Duration::from_mins(1)).await.expect("time passes");
    let methods: Vec<&'static str> =
        mainspring_core::store::decorator::METHODS.iter().map(|method| method.name).collect();
    let before: Vec<usize> = methods.iter().map(|method| faulty.calls(method)).collect();
    test.advance(HOUR).await.expect("time passes");
    let calls = methods.iter().zip(before).map(|(method, before)| (*method, faulty.calls(method) - before));
    calls.collect()
}

#[tokio::test]
async fn ten_thousand_idle_schedules_cost_no_statement_of_their_own() {
    let (none, many) = (calls_of_an_idle_hour(0).await, calls_of_an_idle_hour(10_000).await);
    assert_eq!(many, none);
    assert!(none.iter().any(|(method, calls)| *method == "promote" && *calls > 10), "{none:?}");
}

/// The store's clock, which goes wrong apart from everybody's own.
#[derive(Clone)]
struct WrongClock {
    base: Arc<dyn mainspring::seam::Clock>,
    off: Arc<std::sync::atomic::AtomicI64>,
}

impl WrongClock {
    fn jump(&self, by: i64) {
        self.off.fetch_add(by, std::sync::atomic::Ordering::SeqCst);
    }
}

impl mainspring::seam::Clock for WrongClock {
    fn now(&self) -> Timestamp {
        let off = self.off.load(std::sync::atomic::Ordering::SeqCst);
        Timestamp::from_micros(self.base.now().as_micros() + off)
    }

    fn monotonic(&self) -> Duration {
        self.base.monotonic()
    }

    fn sleep(&self, duration: Duration) -> mainspring::seam::Pending<'static, ()> {
        self.base.sleep(duration)
    }
}

/// A year ahead and back again: schedules fire from the present on, though one of them is due at that very moment and the look at
/// all of them fails once.
#[tokio::test]
async fn a_clock_that_was_a_year_ahead_is_forgiven() {
    const YEAR: i64 = 365 * 24 * 3_600 * 1_000_000;
    let mut parts = None;
    let test = TestEngine::on(1, |seams| {
        let clock = WrongClock { base: Arc::clone(&seams.clock), off: Arc::default() };
        let faulty =
            crate::faulty_store::Faulty::new(mainspring_core::memory::Memory::new(Arc::new(clock.clone())));
        parts = Some((clock, faulty.clone()));
        Arc::new(faulty)
    });
    let (clock, faulty) = parts.expect("the store was made");
    for (name, times) in [("hourly", "@hourly"), ("s", "every 10s")] {
        test.schedules().set(NewSchedule::of(name, &work(1)).times(times)).await.expect("set");
    }
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    test.advance(Duration::from_mins(1)).await.expect("time passes");
    clock.jump(YEAR);
    test.advance(Duration::from_mins(1)).await.expect("time passes");
    let ahead = test.schedules().get("hourly").await.expect("it is there").state.last_fire;
    assert!(ahead > test.now().after(300 * 24 * HOUR), "it has fired in the year to come");
    // The clock is right again while nobody looks, and something is due when somebody does.
    faulty.refuse("promote", true);
    clock.jump(-YEAR);
    test.schedules().set(NewSchedule::of("new", &work(1)).times("every 1s")).await.expect("set");
    test.advance(Duration::from_secs(30)).await.expect("time passes");
    faulty.refuse("promote", false);
    faulty.plan("list_schedules", &[Fault::Refuse]);
    test.advance(2 * HOUR).await.expect("time passes");
    for name in ["hourly", "s", "new"] {
        let row = test.schedules().get(name).await.expect("it is there");
        assert!(row.next_at.is_some_and(|at| at <= test.now().after(HOUR)), "{name}: {row:?}");
        assert!(row.state.last_fire.after(HOUR) >= test.now(), "{name}: {row:?}");
    }
    let note = test.schedules().get("hourly").await.expect("it is there").state.note.expect("a note");
    assert!(note.text.contains("far ahead"), "{}", note.text);
}

/// Lesson A4: a transient error while enqueuing disabled a schedule for good.
#[tokio::test]
async fn errors_and_lost_answers_stop_no_schedule() {
    let (test, faulty) = faulty(1);
    let ran = Ledger::default();
    let ledger = ran.clone();
    let count = move |_ctx: Context, job: Work| {
        ledger.add(job.n);
        std::future::ready(mainspring::HandlerResult::Ok(job.n))
    };
    test.node(|node| node.handle(count).schedule(every_ten_seconds()).queue("default", 1))
        .await
        .expect("a node");
    for (round, fault) in [Fault::Lose, Fault::Refuse, Fault::Break, Fault::Lose].into_iter().enumerate() {
        faulty.plan("write_schedules", &[fault, fault]);
        test.advance(10 * SECOND).await.expect("time passes");
        test.advance(5 * SECOND).await.expect("time passes");
        test.advance(5 * SECOND).await.expect("time passes");
        assert_eq!(ran.len(), 2 * (round + 1), "{fault:?}");
    }
    assert_eq!(test.schedules().get("s").await.expect("it is there").state.error, None);
}

/// Whoever has lost the answer to a change finds it in the audit, however late, and changes nothing again.
#[tokio::test]
async fn a_repeat_after_a_lost_answer_is_no_second_change() {
    let (test, faulty) = faulty(1);
    let schedules = test.schedules().by("ann");
    faulty.plan("write_schedules", &[Fault::Lose]);
    schedules.set(every_ten_seconds()).await.expect("set");
    // While it asks what became of the lost one, time passes.
    faulty.plan("write_schedules", &[Fault::Lose]);
    faulty.hang("audit", None, true);
    let (run, ()) = tokio::join!(schedules.run("s"), async {
        test.advance(7 * SECOND).await.expect("time passes");
        faulty.hang("audit", None, false);
    });
    let run = run.expect("it was run by hand");
    assert_eq!(test.assert_enqueued::<Work>(|_| true).id, run);
    assert_eq!(test.enqueued::<Work>().len(), 1);
    let (from, to) = (test.now().before(30 * SECOND), test.now());
    faulty.plan("write_schedules", &[Fault::Lose]);
    assert_eq!(schedules.backfill("s", from, to).await.expect("the fires of then").len(), 3);
    assert_eq!(test.enqueued::<Work>().len(), 1 + 3);
    faulty.plan("write_schedules", &[Fault::Lose]);
    schedules.pause("s", "").await.expect("paused");
    let verbs = |entries: Vec<mainspring::schedule::AuditEntry>| {
        entries.into_iter().rev().map(|entry| entry.verb).collect::<Vec<_>>()
    };
    let audit = async || verbs(test.schedules().audit("s").await.expect("entries"));
    assert_eq!(audit().await, ["set", "run", "backfill", "pause"]);
    faulty.plan("write_schedules", &[Fault::Lose]);
    assert!(schedules.delete("s").await.expect("deleted"));
    assert_eq!(audit().await.last().map(String::as_str), Some("delete"));
    // If nobody can say what became of it, that is what the caller is told.
    schedules.set(every_ten_seconds()).await.expect("set");
    faulty.plan("write_schedules", &[Fault::Lose]);
    faulty.refuse("audit", true);
    let unknown = schedules.run("s").await.expect_err("unknown");
    assert!(matches!(unknown, Error::OutcomeUnknown { .. }), "{unknown}");
}
