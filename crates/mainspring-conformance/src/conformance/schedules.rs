//! Schedules: rows that are compared, written, and enqueue jobs in the same commit.

use mainspring_core::Error;
use mainspring_core::Uuid;
use mainspring_core::audit::{AuditEntry, Subject};
use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::job::{OnConflict, Options, PayloadBounds, Priority, State, Status, Unique, Until};
use mainspring_core::name::ScheduleName;
use mainspring_core::schedule::{
    Cause, Definition, Missed, Overlap, Rule, Schedule, Seed, Step, Template, Times, backfill, step,
};
use mainspring_core::store::{Receipt, ScheduleWrite, Written};
use mainspring_core::time::{Span, Timestamp};
use serde_json::json;

use crate::executor::{block_on, race};
use crate::harness::{Harness, MICRO, SECOND, kind, queue, succeed};

/// A name.
fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text).expect("a name")
}

/// Every ten seconds, a job of kind `k` for queue `q`.
fn definition() -> Definition {
    let job = Template {
        kind: kind("k"),
        queue: queue("q"),
        priority: Priority::default(),
        input: json!({ "fire": "{{fire}}", "of": "{{schedule}}" }),
        deadline: None,
        options: Options::default(),
    };
    Definition::new(Rule::new("every 10s".parse::<Times>().expect("times")), job)
}

/// A write of this row, as it was read.
fn write(row: Schedule) -> ScheduleWrite {
    let expected = (row.version > 0).then_some(row.version);
    ScheduleWrite { name: row.name.clone(), expected, row: Some(row), jobs: Vec::new(), audit: None }
}

fn new_schedule(h: &Harness, text: &str, change: impl FnOnce(&mut Definition)) -> Schedule {
    let mut definition = definition();
    change(&mut definition);
    Schedule::create(name(text), definition, h.id().uuid(), h.now())
}

async fn send(h: &Harness, writes: Vec<ScheduleWrite>) -> Vec<Written> {
    h.store.write_schedules(writes).await.expect("a write")
}

async fn send_one(h: &Harness, one: ScheduleWrite) -> Written {
    send(h, vec![one]).await.pop().expect("one answer")
}

/// Stores a schedule that must be new.
async fn create(h: &Harness, text: &str, change: impl FnOnce(&mut Definition)) -> Schedule {
    let row = new_schedule(h, text, change);
    assert_eq!(send_one(h, write(row)).await, Written::Stored(Vec::new()));
    find(h, text).await.expect("it was stored")
}

async fn find(h: &Harness, text: &str) -> Option<Schedule> {
    h.store.find_schedules(vec![name(text)]).await.expect("schedules").pop().expect("one answer")
}

async fn due(h: &Harness) -> Vec<String> {
    let due = h.store.due_schedules(10).await.expect("schedules");
    due.schedules.iter().map(|schedule| schedule.name.to_string()).collect()
}

/// What a node would do about a schedule that it has read.
fn fire(h: &Harness, schedule: &Schedule, before: Option<Status>) -> ScheduleWrite {
    match step(schedule, before, h.now()) {
        Step::Write(row, jobs) => ScheduleWrite { jobs, ..write(*row) },
        other => panic!("nothing to write: {other:?}"),
    }
}

fn ids(write: &ScheduleWrite) -> Vec<JobId> {
    write.jobs.iter().map(|job| job.id).collect()
}

/// Everything that is said of a schedule comes back, also what is hostile, and its version grows with every write.
pub async fn schedule_survives_with_all_that_is_said_of_it(h: &Harness) {
    let mut row = new_schedule(h, "nightly", |it| {
        it.rule = Rule::new("0 9 * * MON-FRI".parse::<Times>().expect("times"));
        it.rule.times.push("every 1h30m".parse().expect("times"));
        it.rule.zone = "Europe/Berlin".parse().expect("a zone");
        it.rule.except = vec!["2026-12-25".parse().expect("a day")];
        it.rule.until = Some(h.now().after(bounds::DELAY));
        it.rule.count = Some(u64::from(u32::MAX));
        it.rule.jitter = Some(Span(SECOND));
        it.missed = Missed::All(7);
        it.grace = Span(SECOND);
        it.pause_on_failure = true;
        it.job.input = json!({ "'; DROP TABLE jobs; --": "\u{0}\u{1f600}", "n": [1, null, true] });
        it.job.deadline = Some(Span(SECOND));
        it.job.options.max_attempts = 3;
    });
    row.state.seed = Some(Seed { revision: 3, by: "1.2 'x'".into(), seen: h.now() });
    row.state.edited_by = Some("größe\"".into());
    row = row.paused("who", "why \u{0}", h.now());
    assert_eq!(send_one(h, write(row.clone())).await, Written::Stored(Vec::new()));
    let found = find(h, "nightly").await.expect("it is stored");
    assert_eq!(found, Schedule { version: 1, ..row });
    assert_eq!(send_one(h, write(found)).await, Written::Stored(Vec::new()));
    assert_eq!(find(h, "nightly").await.map(|it| it.version), Some(2));
    assert_eq!(find(h, "other").await, None);
}

/// A schedule is due from its time on, not a microsecond before, and what is longest due comes first.
pub async fn due_schedules_come_in_order_of_their_times(h: &Harness) {
    for (text, every) in [("b", "every 20s"), ("c", "every 10s"), ("a", "every 20s"), ("d", "every 40s")] {
        create(h, text, |it| it.rule = Rule::new(every.parse::<Times>().expect("times"))).await;
    }
    let next = async |limit: usize| h.store.due_schedules(limit).await.expect("schedules").next;
    let first = next(9).await.expect("schedules to come");
    h.advance(first.since(h.now()).saturating_sub(MICRO));
    assert!(due(h).await.is_empty());
    h.advance(MICRO);
    assert!(due(h).await.contains(&"c".to_owned()));
    h.advance(SECOND * 40);
    let all = h.store.due_schedules(9).await.expect("schedules");
    assert_eq!((all.now, all.schedules.len(), all.next), (h.now(), 4, None));
    let times: Vec<_> = all.schedules.iter().map(|it| (it.next_at, it.name.clone())).collect();
    assert!(times.is_sorted(), "{times:?}");
    let some = h.store.due_schedules(2).await.expect("schedules");
    assert_eq!(some.schedules, all.schedules[..2]);
    assert_eq!(some.next, all.schedules[2].next_at);
}

/// The row and its job are there together, and the job is what the template says of that fire.
pub async fn fire_enqueues_its_job_in_the_same_commit(h: &Harness) {
    let schedule = create(h, "s", |_| ()).await;
    let fire_at = schedule.next_at.expect("it fires");
    h.advance(fire_at.since(h.now()));
    let write = fire(h, &schedule, None);
    let id = ids(&write)[0];
    assert_eq!(send_one(h, write).await, Written::Stored(vec![Receipt::Created]));
    let record = h.get(id).await;
    let input: serde_json::Value = serde_json::from_slice(&record.input).expect("json");
    let fire = input["fire"].as_str().expect("a time").replace('Z', ".000Z");
    assert_eq!((fire, input["of"].as_str()), (fire_at.to_string(), Some("s")));
    let headers = &record.summary.options.headers;
    assert_eq!(headers.get("schedule").map(String::as_str), Some("s"));
    assert_eq!(record.summary.options.tags[0].as_str(), "schedule=s");
    let row = find(h, "s").await.expect("it is there");
    assert_eq!((row.state.last_fire, row.state.last_job, row.state.fired), (fire_at, Some(id), 1));
    assert_eq!(row.next_at, Some(fire_at.after(SECOND * 10)));
    assert!(due(h).await.is_empty());
}

/// Of two nodes that fire from the same row one is accepted; the other's row and jobs are refused, and no others.
pub async fn second_node_fires_nothing_again(h: &Harness) {
    let schedule = create(h, "s", |_| ()).await;
    let other = create(h, "t", |_| ()).await;
    h.advance(SECOND * 10);
    let first = fire(h, &schedule, None);
    assert_eq!(send_one(h, first.clone()).await, Written::Stored(vec![Receipt::Created]));
    // As if it had decided otherwise: were it accepted, there would be another job.
    let mut second = fire(h, &schedule, None);
    second.jobs[0].id = h.id();
    let answers = send(h, vec![second, fire(h, &other, None)]).await;
    assert_eq!(answers, [Written::Stale, Written::Stored(vec![Receipt::Created])]);
    assert_eq!(h.counts().await.total(State::Ready), 2);
    assert_eq!(find(h, "s").await.map(|it| it.state.fired), Some(1));
    // The answer to the first was lost: its repeat is stale, and the fire has happened.
    assert_eq!(send_one(h, first).await, Written::Stale);
}

/// On real threads, through two handles: one job per fire.
pub async fn nodes_that_fire_at_once_make_one_job(h: &Harness) {
    create(h, "s", |it| it.overlap = Overlap::Allow).await;
    for round in 1..=20 {
        let schedule = find(h, "s").await.expect("it is there");
        h.advance(SECOND * 10);
        let other = h.other();
        let (mine, theirs) = (fire(h, &schedule, None), fire(h, &schedule, None));
        let answers = race::<Written>(vec![
            Box::new(|| block_on(send_one(h, mine))),
            Box::new(|| block_on(other.write_schedules(vec![theirs])).expect("a write").remove(0)),
        ]);
        let stored = answers.iter().filter(|answer| matches!(answer, Written::Stored(_))).count();
        assert_eq!(stored, 1, "{answers:?}");
        assert_eq!(h.counts().await.total(State::Ready), round);
        other.close().await;
    }
}

/// A fire that is decided again meets the same job; a run that somebody asks for, and a backfill, do not.
pub async fn ids_follow_from_the_fire_and_its_cause(h: &Harness) {
    let schedule = create(h, "s", |_| ()).await;
    let at = schedule.next_at.expect("it fires");
    let enqueue = async |row: &Schedule, cause| {
        let job = row.job(at, cause);
        (job.id, h.enqueue(job).await)
    };
    let (id, receipt) = enqueue(&schedule, Cause::Rule).await;
    assert_eq!((receipt, enqueue(&schedule, Cause::Rule).await), (Receipt::Created, (id, Receipt::Repeated)));
    let (one, two) = (h.id().uuid(), h.id().uuid());
    for request in [one, two] {
        assert_eq!(enqueue(&schedule, Cause::Request(request)).await.1, Receipt::Created);
        assert_eq!(enqueue(&schedule, Cause::Request(request)).await.1, Receipt::Repeated);
    }
    let jobs = backfill(&schedule, at, at.after(SECOND * 20), one).expect("few");
    assert_eq!(jobs.len(), 3);
    assert_eq!(h.enqueue_all(jobs).await, [Receipt::Repeated, Receipt::Created, Receipt::Created]);
    // Another schedule, and one of the same name that was made anew, have other ids.
    let other = create(h, "t", |_| ()).await;
    assert_eq!(enqueue(&other, Cause::Rule).await.1, Receipt::Created);
    let delete = ScheduleWrite { row: None, ..write(schedule) };
    assert_eq!(send_one(h, delete).await, Written::Stored(Vec::new()));
    assert_eq!(find(h, "s").await, None);
    let anew = create(h, "s", |_| ()).await;
    assert_eq!(anew.version, 1);
    assert_eq!(enqueue(&anew, Cause::Rule).await.1, Receipt::Created);
}

/// What was edited, paused or deleted between look and fire does not fire as it was read.
pub async fn change_between_look_and_fire_makes_it_stale(h: &Harness) {
    let changes: [fn(&Schedule, Timestamp) -> Option<Schedule>; 3] = [
        |row, now| Some(row.redefined(definition(), now)),
        |row, now| Some(row.paused("ann", "maintenance", now)),
        |_, _| None,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let schedule = create(h, &format!("s{number}"), |_| ()).await;
        h.advance(SECOND * 10);
        let late = fire(h, &schedule, None);
        let changed = ScheduleWrite { row: change(&schedule, h.now()), ..write(schedule) };
        assert_eq!(send_one(h, changed).await, Written::Stored(Vec::new()));
        assert_eq!(send_one(h, late).await, Written::Stale);
    }
    assert_eq!(h.counts().await.total(State::Ready), 0);
    // Neither is one deleted twice, nor made twice.
    let row = find(h, "s0").await.expect("it is there");
    let remove = ScheduleWrite { row: None, ..write(row) };
    assert_eq!(send_one(h, remove.clone()).await, Written::Stored(Vec::new()));
    assert_eq!(send_one(h, remove).await, Written::Stale);
    let made = write(new_schedule(h, "s0", |_| ()));
    assert_eq!(send_one(h, made.clone()).await, Written::Stored(Vec::new()));
    assert_eq!(send_one(h, made).await, Written::Stale);
}

/// A paused schedule is not due, keeps its note, and does not make up for the pause when it is resumed.
pub async fn paused_schedule_is_not_due(h: &Harness) {
    let schedule = create(h, "s", |_| ()).await;
    let paused = schedule.paused("ann", "the mail server moves", h.now());
    assert_eq!(send_one(h, write(paused)).await, Written::Stored(Vec::new()));
    h.advance(SECOND * 60);
    assert!(due(h).await.is_empty());
    let row = find(h, "s").await.expect("it is there");
    let pause = row.state.paused.clone().expect("it is paused");
    assert_eq!((pause.by.as_str(), pause.note.as_str()), ("ann", "the mail server moves"));
    let resumed = row.resumed(h.now());
    assert_eq!(send_one(h, write(resumed)).await, Written::Stored(Vec::new()));
    assert!(due(h).await.is_empty(), "what was due while it was paused does not happen");
    h.advance(SECOND * 10);
    assert_eq!(due(h).await, ["s"]);
}

/// One that has fired as often as it may, or whose end has come, is not due any more and stays to be seen.
pub async fn ended_schedule_is_not_due(h: &Harness) {
    create(h, "twice", |it| it.rule.count = Some(2)).await;
    for left in [1, 0] {
        h.advance(SECOND * 10);
        let row = find(h, "twice").await.expect("it is there");
        assert_eq!(send_one(h, fire(h, &row, None)).await, Written::Stored(vec![Receipt::Created]));
        assert_eq!(find(h, "twice").await.expect("it is there").has_ended(), left == 0);
    }
    h.advance(SECOND * 60);
    assert!(due(h).await.is_empty());
    let until = h.now().after(SECOND * 10);
    create(h, "until", |it| it.rule.until = Some(until)).await;
    h.advance(SECOND * 10);
    let row = find(h, "until").await.expect("it is there");
    assert_eq!(send_one(h, fire(h, &row, None)).await, Written::Stored(vec![Receipt::Created]));
    assert!(find(h, "until").await.expect("it is there").has_ended());
}

/// Code of a higher revision replaces what code of a lower one has said; what a person has said, no code undoes.
pub async fn seed_never_undoes_a_person(h: &Harness) {
    let seed = |revision| Seed { revision, by: format!("{revision}.0"), seen: Timestamp::EPOCH };
    let every =
        |text: &str| Definition { rule: Rule::new(text.parse::<Times>().expect("times")), ..definition() };
    let rule = |row: &Schedule| row.definition.rule.times[0].to_string();
    let save = async |row: Schedule| {
        assert_eq!(send_one(h, write(row)).await, Written::Stored(Vec::new()));
        find(h, "s").await.expect("it is there")
    };
    let mut row = new_schedule(h, "s", |_| ());
    row.state.seed = Some(seed(1));
    row = save(row).await;
    row = save(row.seeded(&every("every 20s"), &seed(2), h.now())).await;
    assert_eq!(rule(&row), "every 20s");
    for lower in [1, 2] {
        row = save(row.seeded(&every("every 30s"), &seed(lower), h.now())).await;
        assert_eq!(
            (rule(&row).as_str(), row.state.seed.as_ref().map(|seed| seed.revision)),
            ("every 20s", Some(2))
        );
        assert_eq!(row.state.seed.as_ref().map(|seed| seed.seen), Some(h.now()));
    }
    row = row.redefined(every("every 40s"), h.now());
    row.state.edited_by = Some("ann".into());
    row = save(row).await;
    row = save(row.seeded(&every("every 50s"), &seed(9), h.now())).await;
    assert_eq!((rule(&row).as_str(), row.state.seed.map(|seed| seed.revision)), ("every 40s", Some(9)));
}

/// A job that is refused does not keep the schedule from moving on, and its receipt says why.
pub async fn refused_job_does_not_hold_up_its_schedule(h: &Harness) {
    let unique = |on_conflict| Unique { key: "u".into(), until: Until::Finished, on_conflict };
    for (on_conflict, text) in [(OnConflict::Reject, "a"), (OnConflict::Keep, "b")] {
        create(h, text, |it| it.job.options.unique = Some(unique(on_conflict))).await;
    }
    let holder = h.put(h.job_with(|job| job.options.unique = Some(unique(OnConflict::Keep)))).await;
    h.advance(SECOND * 10);
    let due = h.store.due_schedules(9).await.expect("schedules").schedules;
    let answers = send(h, due.iter().map(|row| fire(h, row, None)).collect()).await;
    assert_eq!(
        answers,
        [Written::Stored(vec![Receipt::Rejected(holder)]), Written::Stored(vec![Receipt::Existing(holder)])]
    );
    assert_eq!(h.counts().await.total(State::Ready), 1);
    assert!(self::due(h).await.is_empty());
}

/// A previous job that has not ended holds up the next one by its own state, not by a key.
pub async fn overlap_is_decided_by_the_job_before(h: &Harness) {
    let schedule = create(h, "s", |it| it.overlap = Overlap::Skip).await;
    h.advance(SECOND * 10);
    let first = fire(h, &schedule, None);
    let id = ids(&first)[0];
    send(h, vec![first]).await;
    h.advance(SECOND * 10);
    let row = find(h, "s").await.expect("it is there");
    let skipped = fire(h, &row, Some(h.status(id).await));
    assert!(skipped.jobs.is_empty());
    send(h, vec![skipped]).await;
    let row = find(h, "s").await.expect("it is there");
    let note = row.state.note.clone().expect("a note").text;
    assert!(note.contains("skipped") && note.contains(&id.to_string()), "{note}");
    let node = h.node().await;
    let claim = h.claim_one(node).await;
    h.end(node, claim, succeed()).await;
    h.advance(SECOND * 10);
    assert_eq!(ids(&fire(h, &row, Some(h.status(id).await))).len(), 1);
}

/// Changes are remembered with who made them, the last first; of each schedule the last hundred, also when it is gone.
pub async fn changes_are_remembered(h: &Harness) {
    let entry = |who: &str, text: &str, verb: &str| AuditEntry {
        no: 0,
        at: Timestamp::EPOCH,
        who: who.into(),
        subject: Subject::Schedule(name(text)),
        verb: verb.into(),
        request: Some(Uuid::from_bytes([7; 16])),
        old: None,
        new: Some(json!({ "note": "'; --\u{0}" })),
    };
    let mut row = new_schedule(h, "s", |_| ());
    for number in 0..=bounds::AUDIT {
        let write = ScheduleWrite { audit: Some(entry("ann", "s", &format!("edit-{number}"))), ..write(row) };
        assert_eq!(send_one(h, write.clone()).await, Written::Stored(Vec::new()));
        assert_eq!(send_one(h, write).await, Written::Stale, "and is not remembered");
        row = find(h, "s").await.expect("it is there");
    }
    h.advance(SECOND);
    let other =
        ScheduleWrite { audit: Some(entry("bob", "t", "create")), ..write(new_schedule(h, "t", |_| ())) };
    send(h, vec![other, ScheduleWrite { row: None, audit: Some(entry("bob", "s", "delete")), ..write(row) }])
        .await;
    let of_s = h.store.audit(Some(Subject::Schedule(name("s"))), 1_000).await.expect("entries");
    assert_eq!(of_s.len(), bounds::AUDIT);
    assert_eq!((of_s[0].verb.as_str(), of_s[0].who.as_str(), of_s[0].at), ("delete", "bob", h.now()));
    assert_eq!((of_s[1].verb.as_str(), of_s.last().map(|it| it.verb.as_str())), ("edit-100", Some("edit-2")));
    assert_eq!((&of_s[1].new, of_s[1].request), (&entry("", "s", "").new, entry("", "s", "").request));
    let all = h.store.audit(None, 3).await.expect("entries");
    let verbs: Vec<_> = all.iter().map(|it| (it.subject.to_string(), it.verb.as_str())).collect();
    assert_eq!(verbs.len(), 3);
    assert!(
        verbs.contains(&("schedule/t".into(), "create")) && verbs.contains(&("schedule/s".into(), "delete")),
        "{verbs:?}"
    );
    assert!(all.is_sorted_by(|a, b| a.no > b.no));
}

/// What promotes jobs says when the next schedule is to be looked at, and a write hints it.
pub async fn next_fire_comes_with_the_sweep(h: &Harness) {
    let fire = async || h.store.promote(10).await.expect("a sweep").fire;
    assert_eq!(fire().await, None);
    let schedule = create(h, "s", |_| ()).await;
    assert_eq!(fire().await, schedule.next_at);
    send(h, vec![write(schedule.paused("ann", "", h.now()))]).await;
    assert_eq!(fire().await, None);
}

/// Schedules are listed by their names, in pages.
pub async fn schedules_are_listed_by_name(h: &Harness) {
    for text in ["b", "c", "a", "Z", "a.b"] {
        create(h, text, |_| ()).await;
    }
    let list = async |after: Option<&str>, limit| {
        let page = h.store.list_schedules(after.map(name), limit).await.expect("schedules");
        page.into_iter().map(|it| it.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 9).await, ["Z", "a", "a.b", "b", "c"]);
    assert_eq!(
        (list(None, 2).await, list(Some("a"), 2).await),
        (vec!["Z".into(), "a".into()], vec!["a.b".into(), "b".into()])
    );
    assert!(list(Some("c"), 2).await.is_empty());
}

/// A full batch of schedules fires in one commit, with one job each.
pub async fn full_batch_of_schedules_fires_together(h: &Harness) {
    let rows = (0..bounds::BATCH).map(|n| write(new_schedule(h, &format!("s{n:04}"), |_| ()))).collect();
    assert!(send(h, rows).await.iter().all(|it| *it == Written::Stored(Vec::new())));
    h.advance(SECOND * 10);
    let due = h.store.due_schedules(bounds::BATCH).await.expect("schedules");
    assert_eq!((due.schedules.len(), due.next), (bounds::BATCH, None));
    let answers = send(h, due.schedules.iter().map(|row| fire(h, row, None)).collect()).await;
    assert!(answers.iter().all(|it| *it == Written::Stored(vec![Receipt::Created])));
    assert_eq!(h.counts().await.total(State::Ready), bounds::BATCH as u64);
    assert!(self::due(h).await.is_empty());
}

/// A clock that leaps a year ahead makes no more jobs than the policy allows; one that goes back makes none.
pub async fn clock_that_leaps_fires_within_its_bound(h: &Harness) {
    let schedule = create(h, "s", |it| it.missed = Missed::All(bounds::CATCH_UP)).await;
    h.advance(SECOND * 86_400 * 365);
    let leap = fire(h, &schedule, None);
    assert_eq!(leap.jobs.len(), usize::from(bounds::CATCH_UP));
    let row = leap.row.clone().expect("a row");
    assert!(row.state.note.is_some_and(|note| note.text.contains("missed")));
    assert!(matches!(send_one(h, leap).await, Written::Stored(receipts) if receipts.len() == 100));
    // The clock goes back by an hour: nothing happens twice.
    let row = find(h, "s").await.expect("it is there");
    let hour = SECOND * 3_600;
    assert_eq!(step(&row, None, h.now().before(hour)), Step::Wait);
    // By a year: it does not wait for that long.
    match step(&row, None, h.now().before(hour * 24 * 364)) {
        Step::Write(row, jobs) => {
            assert!(jobs.is_empty() && row.state.last_fire < h.now().before(hour * 24 * 363));
            assert!(row.state.note.is_some_and(|note| note.text.contains("clock")));
        }
        other => panic!("{other:?}"),
    }
}

/// A definition is checked before it is stored: what is wrong is named.
pub async fn bad_definition_is_refused(h: &Harness) {
    let refused = |change: fn(&mut Definition)| {
        let mut it = definition();
        change(&mut it);
        it.check(&name("s"), &PayloadBounds::default(), h.now()).expect_err("refused").to_string()
    };
    definition().check(&name("s"), &PayloadBounds::default(), h.now()).expect("a good one");
    let all = refused(|it| (it.missed, it.overlap) = (Missed::All(2), Overlap::Skip));
    assert!(all.contains("overlap = allow"), "{all}");
    let input = refused(|it| it.job.input = json!("x".repeat(bounds::INPUT_BYTES)));
    assert!(input.contains("input"), "{input}");
    let attempts = refused(|it| it.job.options.max_attempts = 0);
    assert!(attempts.contains("max_attempts"), "{attempts}");
    let error = h.store.find_schedules(Vec::new()).await;
    assert!(!matches!(error, Err(Error::Corrupt { .. })));
}
