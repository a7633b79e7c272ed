//! Code that changes under running workflows: a corpus of edits, each with what must come of it.
//!
//! A workflow runs until it sleeps; then its code is another, and it is woken.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use mainspring::admin::ChangeReport;
use mainspring::testing::{TestEngine, verify_journal};
use mainspring::{Context, Failure, Reason, State};
use tokio::sync::Notify;

use crate::support::{Flow, HOUR, Ledger, On, flow, on_every_store, on_memory_and_sqlite, status};

/// A line of code.
#[derive(Clone)]
enum Statement {
    Step(&'static str),
    Added(&'static str),
    /// A step, and what it was called.
    Was(&'static str, &'static str),
    Retired(&'static str),
    /// A step with a key.
    Keyed(&'static str, u32),
    /// A sleep of an hour.
    Nap(&'static str),
    Branch(&'static str, Vec<Statement>),
    /// The first in a branch `one`, beside the second in the handler itself.
    Join(Vec<Statement>, Vec<Statement>),
    /// Items, some at a time, each with these lines.
    Map(&'static [u32], usize, Vec<Statement>),
    /// Arms, and one that is gone.
    Race(&'static [&'static str], Vec<Statement>, Option<&'static str>),
    /// A step whose result is text where it was a number.
    Text(&'static str),
    /// A wait for something that is not durable, beside these.
    Foreign(Arc<Notify>, Vec<Statement>),
}
use Statement::{Added, Branch, Foreign, Join, Keyed, Map, Nap, Race, Retired, Step, Text, Was};

type Run<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

fn run<'a>(ctx: &'a Context, ledger: &'a Ledger, code: &'a [Statement]) -> Run<'a> {
    Box::pin(async move {
        for line in code {
            let step = |name: &'static str| {
                ctx.step(name, move || async move {
                    ledger.add(name);
                    Ok(1)
                })
            };
            let _done: u64 = match line {
                Step(name) => step(name).await?,
                Added(name) => step(name).added().await?,
                Was(name, former) => step(name).renamed_from(former).await?,
                Keyed(name, key) => step(name).key(key).await?,
                Retired(name) => {
                    ctx.retired(name);
                    0
                }
                Text(name) => ctx.step(name, async || Ok(String::new())).await?.len() as u64,
                Nap(name) => {
                    ctx.sleep(name, HOUR).await?;
                    0
                }
                Branch(name, lines) => {
                    ctx.branch(name, move |ctx| async move { run(&ctx, ledger, lines).await }).await?;
                    0
                }
                Join(left, right) => {
                    let one = ctx.branch("one", move |ctx| async move { run(&ctx, ledger, left).await });
                    let (left, right) = tokio::join!(one, run(ctx, ledger, right));
                    left.and(right)?;
                    0
                }
                Map(items, at_once, lines) => {
                    let items = items.iter().copied();
                    let map = ctx.map(
                        "map",
                        items,
                        |item| *item,
                        |ctx, _| async move { run(&ctx, ledger, lines).await },
                    );
                    map.concurrency(*at_once).await?;
                    0
                }
                Race(arms, lines, gone) => {
                    let mut race = ctx.race("race");
                    for (at, name) in arms.iter().enumerate() {
                        race = race.arm(name, move |ctx| async move {
                            if at > 0 {
                                ctx.sleep("long", HOUR * 9).await?;
                            }
                            run(&ctx, ledger, lines).await
                        });
                    }
                    gone.iter().fold(race, |race, gone| race.retired(gone)).await?;
                    0
                }
                Foreign(notify, lines) => {
                    tokio::join!(notify.notified(), run(ctx, ledger, lines)).1?;
                    0
                }
            };
        }
        Ok(())
    })
}

/// What comes of an edit.
#[derive(Debug, PartialEq)]
enum Comes {
    /// It goes on to its end, and these steps ran, in any order.
    Ends(Vec<&'static str>),
    /// It is held, and this is said.
    Held(&'static str),
}
use Comes::{Ends, Held};

/// An engine on which a workflow with the first code has come to its sleep, and goes on with the second.
async fn edited(
    on: &On,
    before: &[Statement],
    after: &[Statement],
    ledger: &Ledger,
) -> (TestEngine, mainspring::Enqueued<Flow>) {
    let test = on.test(0);
    let code = Arc::new(Mutex::new(before.to_vec()));
    let (ours, effects) = (Arc::clone(&code), ledger.clone());
    let handler = move |ctx: Context, _job: Flow| {
        let (code, ledger) = (ours.lock().expect("the code").clone(), effects.clone());
        async move { run(&ctx, &ledger, &code).await.map(|()| String::new()) }
    };
    test.node(|node| node.handle(handler).queue("default", 4).cached_handlers(0)).await.expect("a node");
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(status(&test, job.id).await.reason, Some(Reason::Timer));
    *code.lock().expect("the code") = after.to_vec();
    test.advance(HOUR * 3).await.expect("idle");
    (test, job)
}

/// What it is, the code before and after it, and what comes of it.
type Edit = (&'static str, Vec<Statement>, Vec<Statement>, Comes);

/// Edits of what has scopes.
fn scopes() -> Vec<Edit> {
    let lines = || vec![Step("a"), Nap("nap")];
    vec![
        (
            "rename an arm",
            vec![Race(&["one", "other"], lines(), None)],
            vec![Race(&["first", "other"], lines(), None)],
            Held("asks for `first` in `race`, which is not recorded; recorded and not asked for: `one`"),
        ),
        (
            "an arm that is declared to be gone",
            vec![Race(&["one", "other"], lines(), None)],
            vec![Race(&["first", "other"], lines(), Some("one"))],
            Ends(vec!["a", "a"]),
        ),
        (
            "another arm",
            vec![Race(&["one"], lines(), None)],
            vec![Race(&["one", "other"], lines(), None)],
            Ends(vec!["a"]),
        ),
        (
            "a branch becomes a step",
            vec![Branch("b", lines())],
            vec![Step("b")],
            Held("`b` was a scope, and the code asks for none of its records"),
        ),
    ]
}

/// Edits of what is in a row: insert, delete, rename.
fn rows() -> Vec<Edit> {
    let nap = || Nap("nap");
    vec![
        ("nothing", vec![Step("a"), nap()], vec![Step("a"), nap(), Step("b")], Ends(vec!["a", "b"])),
        (
            "insert before what is recorded",
            vec![Step("a"), Step("b"), nap()],
            vec![Step("a"), Step("new"), Step("b"), nap()],
            Held("asks for `new`, which is not recorded; recorded and not asked for: `b`"),
        ),
        (
            "insert, declared",
            vec![Step("a"), Step("b"), nap()],
            vec![Step("a"), Added("new"), Step("b"), nap()],
            Ends(vec!["a", "b", "new"]),
        ),
        (
            "insert before the sleep",
            vec![Step("a"), nap()],
            vec![Step("a"), Step("new"), nap()],
            Held("asks for `new`"),
        ),
        (
            "insert behind the sleep",
            vec![Step("a"), nap(), Step("z")],
            vec![Step("a"), nap(), Step("new"), Step("z")],
            Ends(vec!["a", "new", "z"]),
        ),
        (
            "delete, with nothing new",
            vec![Step("a"), Step("b"), nap()],
            vec![Step("a"), nap()],
            Ends(vec!["a", "b"]),
        ),
        (
            "delete, and go on",
            vec![Step("a"), Step("b"), nap(), Step("z")],
            vec![Step("a"), nap(), Step("z")],
            Held("asks for `z`, which is not recorded; recorded and not asked for: `b`"),
        ),
        (
            "delete, declared",
            vec![Step("a"), Step("b"), nap(), Step("z")],
            vec![Step("a"), Retired("b"), nap(), Step("z")],
            Ends(vec!["a", "b", "z"]),
        ),
        (
            "rename",
            vec![Step("a"), nap()],
            vec![Step("b"), nap()],
            Held("asks for `b`, which is not recorded; recorded and not asked for: `a`"),
        ),
        (
            "rename, declared",
            vec![Step("a"), nap(), Step("z")],
            vec![Was("b", "a"), nap(), Step("z")],
            Ends(vec!["a", "z"]),
        ),
        (
            "rename, declared, of something else",
            vec![Keyed("a", 1), nap()],
            vec![Was("b", "a"), nap()],
            Held("asks for `b`"),
        ),
    ]
}

/// Edits of order, types and scopes.
fn order() -> Vec<Edit> {
    let nap = || Nap("nap");
    vec![
        (
            "reorder of what is recorded",
            vec![Step("a"), Step("b"), nap(), Step("z")],
            vec![Step("b"), Step("a"), nap(), Step("z")],
            Ends(vec!["a", "b", "z"]),
        ),
        (
            "reorder across the sleep",
            vec![Step("a"), nap(), Step("b")],
            vec![Step("b"), nap(), Step("a")],
            Held("asks for `b`"),
        ),
        (
            "rename of a wait",
            vec![Step("a"), nap()],
            vec![Step("a"), Nap("rest")],
            Held("asks for `rest`, which is not recorded; recorded and not asked for: `nap`"),
        ),
        ("retype", vec![Step("a"), nap()], vec![Text("a"), nap()], Held("the record of `a` is not a")),
        (
            "another way",
            vec![Branch("left", vec![Step("a")]), nap()],
            vec![Branch("right", vec![Step("a")]), nap()],
            Held("asks for `right`, which is not recorded; recorded and not asked for: `left`"),
        ),
        (
            "insert into a branch",
            vec![Branch("left", vec![Step("a"), Step("b"), nap()])],
            vec![Branch("left", vec![Step("new"), Step("a"), Step("b"), nap()])],
            Held("asks for `new` in `left`"),
        ),
        (
            "insert into a branch that has ended",
            vec![Branch("left", vec![Step("a")]), Step("b"), nap()],
            vec![Branch("left", vec![Step("new"), Step("a")]), Step("b"), nap()],
            Ends(vec!["a", "b"]),
        ),
        (
            "a loop of fewer turns",
            vec![Step("a"), Step("a"), Step("a"), nap(), Step("z")],
            vec![Step("a"), nap(), Step("z")],
            Held("asks for `z`, which is not recorded; recorded and not asked for: `a`"),
        ),
    ]
}

/// Edits of loops, keys, and what runs beside each other.
fn loops() -> Vec<Edit> {
    let nap = || Nap("nap");
    vec![
        (
            "a loop of more turns",
            vec![Step("a"), Step("b"), nap()],
            vec![Step("a"), Step("a"), Step("b"), nap(), Step("z")],
            Ends(vec!["a", "b", "a", "z"]),
        ),
        (
            "another order of keys",
            vec![Keyed("a", 1), Keyed("a", 2), nap(), Step("z")],
            vec![Keyed("a", 3), Keyed("a", 2), Keyed("a", 1), nap(), Step("z")],
            Ends(vec!["a", "a", "a", "z"]),
        ),
        (
            "more beside each other",
            vec![Step("a"), Step("b"), nap()],
            vec![Join(vec![Step("new")], vec![Step("a"), Step("b"), nap()])],
            Ends(vec!["a", "b", "new"]),
        ),
        (
            "another concurrency",
            vec![Map(&[1, 2, 3], 1, vec![Step("a"), nap()])],
            vec![Map(&[3, 2, 1], 2, vec![Step("a"), nap()])],
            Ends(vec!["a", "a", "a"]),
        ),
        (
            "more and fewer items",
            vec![Map(&[1, 2, 3], 3, vec![Step("a"), nap()]), Step("z")],
            vec![Map(&[2, 4], 3, vec![Step("a"), nap()]), Step("z")],
            Ends(vec!["a", "a", "a", "a", "z"]),
        ),
    ]
}

on_every_store! {
    async fn each_edit_is_harmless_or_seen(on: &On) {
        let corpus = rows().into_iter().chain(scopes()).chain(order()).chain(loops());
        for (edit, before, after, comes) in corpus.step_by(on.some(1, 1, 9)) {
            let ledger = Ledger::default();
            let (test, job) = edited(on, &before, &after, &ledger).await;
            let record = test.jobs().get(job.id).await.expect("there");
            match comes {
                Ends(mut steps) => {
                    assert_eq!(record.summary.status.state, State::Succeeded, "{edit}: {:?}", record.note);
                    let mut ran = ledger.entries();
                    ran.sort();
                    steps.sort_unstable();
                    assert_eq!(ran, steps, "{edit}");
                }
                Held(words) => {
                    assert_eq!(record.summary.status.reason, Some(Reason::Drift), "{edit}");
                    let note = record.note.unwrap_or_default();
                    assert!(note.contains(words), "{edit}: {note}");
                    assert!(!ledger.entries().iter().any(|step| ["new", "z"].contains(&step.as_str())), "{edit}");
                }
            }
        }
    }

    async fn an_operator_accepts_what_is_new(on: &On) {
        let ledger = Ledger::default();
        let after = [Step("new"), Step("a"), Nap("nap"), Step("z")];
        let (test, job) = edited(on, &[Step("a"), Nap("nap")], &after, &ledger).await;
        assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift));
        let dry = test.jobs().accept_drift(job.id).dry_run().await.expect("counted");
        assert_eq!(dry.changed, 1);
        test.run_until_idle().await.expect("idle");
        assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift));
        let missing = mainspring::JobId::from_uuid(mainspring::Uuid::nil());
        let report = test.jobs().accept_drift(vec![job.id, missing]).await.expect("accepted");
        assert_eq!(report, ChangeReport { changed: 1, refused: 0, missing: 1 });
        test.advance(HOUR * 2).await.expect("idle");
        assert_eq!(status(&test, job.id).await.state, State::Succeeded);
        assert_eq!(ledger.entries(), ["a", "new", "z"]);
        let refused = test.jobs().accept_drift(job.id).await;
        assert!(matches!(refused, Err(mainspring::Error::Illegal { .. })), "{refused:?}");
    }
}

on_memory_and_sqlite! {
    async fn an_operator_tells_what_something_was_called(on: &On) {
        let ledger = Ledger::default();
        let after = [Step("b"), Nap("nap"), Step("z"), Nap("again")];
        let (test, job) = edited(on, &[Step("a"), Nap("nap")], &after, &ledger).await;
        assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift));
        let bad = test.jobs().rename_step(job.id, "a", "b/c").await;
        assert!(matches!(bad, Err(mainspring::Error::Invalid { what: "step name", .. })), "{bad:?}");
        test.jobs().rename_step(job.id, "x", "y").await.expect("said, and of no use");
        test.run_until_idle().await.expect("idle");
        assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift));
        test.jobs().rename_step(job.id, "a", "b").await.expect("said");
        test.run_until_idle().await.expect("idle");
        assert_eq!(status(&test, job.id).await.reason, Some(Reason::Timer));
        // What was said holds for every later run.
        test.advance(HOUR * 2).await.expect("idle");
        assert_eq!(status(&test, job.id).await.state, State::Succeeded);
        assert_eq!(ledger.entries(), ["a", "z"]);
    }

    async fn beside_a_foreign_await_it_is_a_warning_alone(on: &On) {
        let (ledger, notify) = (Ledger::default(), Arc::new(Notify::new()));
        let after = [Foreign(Arc::clone(&notify), vec![Step("new"), Step("a")]), Step("z")];
        let (test, job) = edited(on, &[Step("a"), Nap("nap")], &after, &ledger).await;
        assert_eq!(status(&test, job.id).await.state, State::Running);
        assert_eq!(ledger.entries(), ["a", "new"]);
        notify.notify_one();
        test.run_until_idle().await.expect("idle");
        assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift), "`nap` is not asked for any more");
    }
}

/// The code that journals are verified against.
async fn today(ctx: Context, _job: Flow) -> mainspring::HandlerResult<String> {
    let one = ctx.branch("one", async |ctx| Ok(ctx.step("a", async || Ok(1_u64)).await?));
    let (one, b) = tokio::join!(one, ctx.step("b", async || Ok(2_u64)));
    let c: String = ctx.step("c", async || Ok(String::new())).await?;
    ctx.sleep("nap", HOUR).await?;
    Ok(format!("{} {} {c}", one?, b?))
}

#[tokio::test]
async fn journals_of_real_workflows_are_verified_without_running_a_body() {
    let line = |key: &str, value: &str| {
        format!(r#"{{"key":"{key}","kind":"value","claim":1,"overlapped":false,"value":{value}}}"#)
    };
    let verified = async |lines: &[String]| {
        let (id, lines) = ("01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c", lines.join(","));
        let json = format!(
            r#"{{"id":"{id}","kind":"flow","queue":"default","input":{{"n":1}},"journal_more":false,"journal":[{lines}]}}"#
        );
        verify_journal(json.as_bytes(), |node| node.handle(today).queue("default", 1)).await
    };
    let next = async |lines: &[String]| verified(lines).await.expect("it fits").next;
    assert_eq!(next(&[]).await, ["one/a", "b"]);
    assert_eq!(next(&[line("b", "2")]).await, ["one/a"]);
    assert_eq!(next(&[line("one/a", "1"), line("b", "2")]).await, ["c"]);
    assert_eq!(next(&[line("one", "1"), line("b", "2"), line("c", "\"x\"")]).await, ["nap"]);
    let whole = [line("one", "1"), line("b", "2"), line("c", "\"x\""), line("nap", "null")];
    assert!(next(&whole).await.is_empty());
    for (lines, words) in [
        ([line("a", "1"), line("b", "2")], "asks for `one`"),
        ([line("one", "1"), line("b", "\"two\"")], "is not a `u64`"),
    ] {
        let refused = verified(&lines).await.expect_err("it does not fit").to_string();
        assert!(refused.contains(words), "{refused}");
    }
    assert!(verify_journal(b"{}", |node| node.handle(today)).await.is_err());
}
