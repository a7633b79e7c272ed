//! Workflows as operators see them: the journal, what is waited for, signals, and hostile strings in all of them.

use std::time::Duration;

use mainspring::{Context, Engine, Job, JobId, Node};
use mainspring_testkit::postgres::Server;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::support::{Place, until};

/// What would take over a terminal that shows it.
const EVIL: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}";
/// The same without control characters, which names do not have.
const EVIL_NAME: &str = "it's\u{202e}; $(reboot)";

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "order", result = String)]
struct Order {
    name: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "parcel", result = String)]
struct Parcel {
    text: String,
}

async fn parcel(_ctx: Context, job: Parcel) -> mainspring::HandlerResult<String> {
    Ok(job.text)
}

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "talk")]
struct Talk {}

/// Says something, waits for a word, and says that.
async fn talk(ctx: Context, _job: Talk) -> mainspring::HandlerResult<()> {
    ctx.emit(format!("hello {EVIL}")).await?;
    let word: String = ctx.signal("word").await?;
    ctx.emit(word).await?;
    Ok(())
}

/// A little of everything; waits twice.
async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<String> {
    ctx.step("charge", async || Ok(EVIL.to_owned())).await?;
    let refused = ctx.step("reserve", async || Err::<(), _>(EVIL.into())).await;
    assert!(refused.is_err(), "the handler goes on");
    let pack = async |ctx: Context| Ok(ctx.step("pack", async || Ok("x".repeat(10_000))).key(7).await?);
    ctx.branch("goods", pack).await?;
    ctx.once("print", async || Ok(1)).await?;
    ctx.sleep("nap", Duration::from_millis(1)).await?;
    let parcel = ctx.spawn("ship", Parcel { text: EVIL.into() }).await?.result().await?;
    let late: Option<bool> = ctx.signal("late").timeout(Duration::from_millis(1)).await?;
    assert_eq!(late, None);
    let first: serde_json::Value = ctx.signal(job.name.as_str()).await?;
    let second: Option<bool> = ctx.signal("approved").timeout(Duration::from_hours(24)).await?;
    Ok(format!("{parcel} {first} {second:?}"))
}

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "party")]
struct Party {
    talks: u32,
}

/// Starts children that wait for a word, and waits itself.
async fn party(ctx: Context, job: Party) -> mainspring::HandlerResult<()> {
    for guest in 0..job.talks {
        ctx.spawn("guest", Talk {}).key(guest).await?;
    }
    Ok(ctx.signal("over").await?)
}

/// A node of the application, in a thread of its own. Both end with the test.
struct Application {
    runtime: tokio::runtime::Runtime,
    engine: Engine,
    node: Option<Node>,
}

impl Application {
    fn start(store: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let engine = runtime.block_on(Engine::open(store)).expect("a store");
        let node =
            engine.node().handle(order).handle(parcel).handle(talk).handle(party).queue("default", 4).start();
        let node = runtime.block_on(node).expect("a node");
        Application { runtime, engine, node: Some(node) }
    }

    fn enqueue(&self, name: &str) -> JobId {
        let job = self.engine.enqueue(Order { name: name.into() });
        self.runtime.block_on(job.into_future()).expect("enqueued").id
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            self.runtime.block_on(node.shutdown());
        }
        self.runtime.block_on(self.engine.close());
    }
}

/// Waits until a job waits for a signal of this name.
fn waits(place: &Place, id: &str, name: &str) {
    until(&format!("job {id} to wait for {name}"), || {
        let job = place.job(id);
        (job["state"] == "suspended" && job["waits"][0]["signal"] == name).then_some(())
    });
}

/// The life of a workflow, seen from the command line alone.
fn a_workflow_is_shown_signalled_and_ends(place: &Place, store: &str) {
    let application = Application::start(store);
    let id = application.enqueue(EVIL_NAME).to_string();
    waits(place, &id, EVIL_NAME);

    let why = place.run(&["why", &id]).ok();
    assert!(why.contains("waits for signal `it's\\u{202e}; $(reboot)`"), "{why}");
    assert!(
        why.contains(&format!("`mainspring signal {id} 'it'\\''s\\u{{202e}}; $(reboot)' JSON`")),
        "{why}"
    );
    let shown = place.run(&["job", &id]).ok();
    for part in [
        "claim 1: charge = \"\\u001b[2J",
        "claim 1: reserve: failed, and the handler continued: \\u{1b}[2J",
        "claim 1: goods = (10002 bytes)",
        "print: began; runs at most once",
        "print = 1",
        "nap: waits until ",
        "nap: the time has come",
        "ship: child ",
        " started; it is succeeded now",
        "ship: child succeeded: \"\\u001b[2J",
        "late: timed out, no signal came",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{shown:?}");

    // What was not waited for yet is kept; the same sender is one signal.
    let send = |args: &[&str]| place.run(&[&["signal", &id], args].concat());
    assert_eq!(send(&["approved", "true", "--sender", EVIL]).ok(), "signal `approved` is stored");
    let again = send(&["approved", "false", "--sender", EVIL]).ok();
    assert_eq!(again, "this sender has sent signal `approved` before; nothing changed");
    let told = place.json(&["signal", &id, "approved", "true", "--sender", EVIL]);
    assert_eq!((&told["sent"], &told["sender"], &told["id"]), (&json!("repeated"), &json!(EVIL), &json!(id)));
    let shown = place.run(&["job", &id]).ok();
    assert!(shown.contains("approved: signal true from \\u{1b}[2J"), "{shown}");
    assert!(shown.contains(", unread"), "{shown}");
    assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{shown:?}");
    let job = place.job(&id);
    assert_eq!(job["inbox"][0]["sender"], EVIL);
    assert_eq!(job["journal"][0]["value"], EVIL);
    let kinds = |kind: &str| {
        let journal = job["journal"].as_array().expect("a journal");
        journal.iter().filter(|entry| entry["kind"] == kind).count()
    };
    let all = ["value", "error", "begun", "until", "child", "received"];
    assert_eq!(all.map(kinds), [5, 1, 1, 2, 1, 1], "{job}");
    assert_eq!(job["children"][0]["state"], "succeeded");

    let sent = place.feed(&["signal", &id, EVIL_NAME, "-"], Some(format!("{EVIL:?}").as_bytes()));
    assert_eq!(sent.code, Some(2), "Rust's escapes are not JSON's");
    place.feed(&["signal", &id, EVIL_NAME, "-"], Some(json!(EVIL).to_string().as_bytes())).ok();
    let job = place.job_in(&id, "succeeded");
    assert_eq!(job["waits"], json!([]));
    let shown = place.run(&["job", &id]).ok();
    assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{shown:?}");
    assert!(shown.contains("approved: signal true from "), "{shown}");
    let complaint = send(&["approved", "true", "--sender", "another"]).refused(1);
    assert!(complaint.contains("it has succeeded"), "{complaint}");
    assert!(complaint.contains("nobody would read the signal"), "{complaint}");
}

#[test]
fn a_workflow_on_sqlite_is_shown_signalled_and_ends() {
    let place = Place::new();
    let store = format!("sqlite:{}", place.path("mainspring.db").display());
    a_workflow_is_shown_signalled_and_ends(&place, &store);
}

#[test]
fn a_workflow_on_postgres_is_shown_signalled_and_ends() {
    let database = Server::shared().and_then(|server| server.database()).expect("a database");
    let place = Place::at(&database.url());
    place.run(&["migrate"]).ok();
    a_workflow_is_shown_signalled_and_ends(&place, &database.url());
}

#[test]
fn what_a_job_says_is_tailed_by_another_process() {
    let place = Place::new();
    let store = format!("sqlite:{}", place.path("mainspring.db").display());
    let application = Application::start(&store);
    let job = application.engine.enqueue(Talk {});
    let id = application.runtime.block_on(job.into_future()).expect("enqueued").id.to_string();
    let mut tail = place.start(&["job", "tail", &id]);
    tail.says("hello \\u{1b}[2J");
    let mut other = place.start(&["job", &id, "tail"]);
    other.says("hello");
    other.signal(Signal::INT);
    assert!(other.ended().success(), "a reader may go at any time");
    place.run(&["signal", &id, "word", "\"bye\""]).ok();
    tail.says("bye");
    tail.says("-- the job has ended: succeeded");
    assert!(tail.ended().success());
    let shown = place.run(&["job", &id]).ok();
    assert!(shown.contains("2 frames; `mainspring job tail "), "{shown}");
    let rest = place.run(&["job", "tail", &id, "--after", "1", "--json"]).ok();
    let rest: serde_json::Value = serde_json::from_str(&rest).expect("one line");
    assert_eq!((&rest["position"], &rest["frame"]), (&json!(2), &json!("bye")));
    let complaint = place.run(&["job", "tail", "01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c"]).refused(3);
    assert!(complaint.contains(" not found"), "{complaint}");
}

#[test]
fn verbs_apply_to_a_workflow_that_waits() {
    let place = Place::new();
    let store = format!("sqlite:{}", place.path("mainspring.db").display());
    let application = Application::start(&store);
    let id = application.enqueue("go").to_string();
    waits(&place, &id, "go");
    let listed = place.run(&["jobs", "--reason", "signal"]).ok();
    assert!(listed.contains("suspended (signal)"), "{listed}");
    let verb = |args: &[&str]| place.run(&[&["job", &id], args].concat());

    let journal = place.job(&id)["journal"].clone();
    verb(&["retry"]).refused(1);
    verb(&["resume"]).ok();
    waits(&place, &id, "go");
    assert_eq!(place.job(&id)["journal"], journal, "it looked again, and did nothing again");
    verb(&["hold"]).ok();
    place.run(&["signal", &id, "go"]).ok();
    assert_eq!(place.job(&id)["reason"], "hold", "a held job is not woken");
    verb(&["resume"]).ok();
    waits(&place, &id, "approved");
    verb(&["fail", "--why", "too late"]).ok();
    assert_eq!(place.job(&id)["state"], "failed");
    verb(&["retry"]).ok();
    waits(&place, &id, "approved");
    verb(&["cancel"]).ok();
    assert_eq!(place.job(&id)["state"], "cancelled");
}

#[test]
fn a_workflow_is_forked_and_retried_from_a_step() {
    let place = Place::new();
    let store = format!("sqlite:{}", place.path("mainspring.db").display());
    let application = Application::start(&store);
    let id = application.enqueue("go").to_string();
    waits(&place, &id, "go");
    let verb = |args: &[&str]| place.run(&[&["job", &id], args].concat());
    let complaint = verb(&["fork", "--from", "nothing"]).refused(2);
    assert!(complaint.contains("`nothing` is not recorded; the job has `charge`, `reserve`"), "{complaint}");
    let dry = verb(&["fork", "--from", "nap", "--dry-run"]).ok();
    assert_eq!(dry, "would share 5 records: charge, reserve, goods, print (begun), print");
    let args = [
        "job",
        &id,
        "fork",
        "--from",
        "ship",
        "--input",
        r#"{"name":"other"}"#,
        "--result",
        r#"charge="paid""#,
    ];
    let fork = place.json(&args);
    let fork = fork["id"].as_str().expect("an id");
    waits(&place, fork, "other");
    let job = place.job(fork);
    assert_eq!(
        (&job["journal"][0]["value"], &job["journal"][0]["claim"]),
        (&json!("paid"), &json!(0)),
        "{job}"
    );
    assert_eq!((&job["forked"]["job"], &job["forked"]["step"]), (&json!(id), &json!("ship")));
    let shown = place.run(&["job", fork]).ok();
    assert!(shown.contains(&format!("forked from  {id} before ship")), "{shown}");
    verb(&["fork", "--result", "charge"]).refused(2);
    verb(&["fork", "--input", "{"]).refused(2);

    let before = place.job(&id)["claim"].as_u64().expect("a number");
    assert_eq!(
        verb(&["retry", "--from", "late", "--dry-run"]).ok(),
        "would remove 2 records: late (until), late"
    );
    assert_eq!(verb(&["retry", "--from", "late"]).ok(), "retry: 1 job");
    waits(&place, &id, "go");
    assert!(place.job(&id)["claim"].as_u64().expect("a number") >= before + 2);
    verb(&["retry", "--from", "go"]).refused(2);
}

#[test]
fn retry_says_which_children_stay_cancelled_and_how_to_start_them_again() {
    let place = Place::new();
    let store = format!("sqlite:{}", place.path("mainspring.db").display());
    let application = Application::start(&store);
    let talks = || {
        let jobs = place.json(&["jobs", "--kind", "talk", "--state", "suspended"]);
        jobs["jobs"].as_array().map(Vec::len)
    };
    // One more than a note names.
    for (count, words) in [(1_u32, "1 child stays cancelled"), (6, "6 children stay cancelled")] {
        let job = application.engine.enqueue(Party { talks: count });
        let id = application.runtime.block_on(job.into_future()).expect("enqueued").id.to_string();
        waits(&place, &id, "over");
        let open = usize::try_from(count).ok();
        until("the children to wait", || (talks() == open).then_some(()));
        let children = place.job(&id)["children"].clone();
        let first = children[0]["id"].as_str().expect("an id");
        place.run(&["job", &id, "fail", "--why", "too late"]).ok();

        let done = place.run(&["job", &id, "retry"]);
        assert_eq!((done.code, done.stdout.as_str()), (Some(0), "retry: 1 job\n"), "{done:?}");
        let note = format!("note: {words} since it ended: ");
        assert!(done.stderr.starts_with(&note) && done.stderr.contains(first), "{done:?}");
        assert_eq!(done.stderr.contains(", …\n"), count == 6, "{done:?}");
        let hint = format!("mainspring job {id} retry --from 'guest#=0'");
        assert!(
            done.stderr
                .contains(&format!("\nhint: if it needs their results, start them again with `{hint}`")),
            "{done:?}"
        );

        waits(&place, &id, "over");
        assert_eq!(talks(), Some(0), "they stay cancelled");
        let again = place.run(&["job", &id, "retry", "--from", "guest#=0"]);
        assert_eq!((again.code, again.stderr.as_str()), (Some(0), ""), "{again:?}");
        until("new children to wait", || (talks() == open).then_some(()));
        waits(&place, &id, "over");
        place.run(&["job", &id, "cancel"]).ok();
    }
}

#[test]
fn signals_that_cannot_be_are_refused() {
    let place = Place::new();
    let id = place.enqueue(&["a"]);
    let nobody = "01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c";
    let complaint = place.run(&["signal", nobody, "go"]).refused(3);
    assert!(complaint.contains(" not found"), "{complaint}");
    let huge = format!("\"{}\"", "x".repeat(1 << 16));
    let wrong: [(&[&str], &str); 8] = [
        (&["signal", "7", "go"], "is not a job id"),
        (&["signal", &id, ""], "invalid signal name"),
        (&["signal", &id, "a/b"], "invalid signal name"),
        (&["signal", &id, EVIL], "invalid signal name"),
        (&["signal", &id, "go", "{"], "is not JSON"),
        (&["signal", &id, "go", &huge], "signal is too large: 65538 exceeds the bound of 65536"),
        (&["signal", &id, "go", "--sender", ""], "invalid sender"),
        (&["signal", &id], "NAME"),
    ];
    for (args, said) in wrong {
        let complaint = place.run(args).refused(2);
        assert!(complaint.contains(said), "{args:?}: {complaint}");
        assert!(!complaint.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{complaint:?}");
    }
    place.feed(&["signal", &id, "go", "-"], Some(b"\"\xff\"")).refused(2);
    assert_eq!(place.job(&id)["inbox"], json!([]), "nothing was stored");
    // A number may be negative, and nothing at all is null.
    place.run(&["signal", &id, "go", "-7"]).ok();
    place.run(&["signal", &id, "go"]).ok();
    let inbox = place.job(&id)["inbox"].clone();
    assert_eq!((&inbox[0]["body"], &inbox[1]["body"]), (&json!(-7), &json!(null)));
    // What is wrong is told before a store is looked for, and none is made.
    let empty = Place::new();
    empty.run(&["signal", nobody, "go", "{"]).refused(2);
    empty.run(&["signal", nobody, "go"]).refused(4);
    assert!(!empty.path("mainspring.db").exists());
}

#[test]
fn only_what_is_held_for_drift_is_accepted_or_renamed() {
    let place = Place::new();
    let id = place.enqueue(&["a"]);
    for verb in [&["accept"][..], &["rename", "old", "new"]] {
        let complaint = place.run(&[&["job", &id], verb].concat()).refused(1);
        assert!(complaint.contains(verb[0]), "{complaint}");
    }
    let complaint = place.run(&["job", &id, "rename", "a/b", "c"]).refused(2);
    assert!(complaint.contains("step name"), "{complaint}");
}

#[test]
fn a_signal_that_a_job_does_not_wait_for_is_told_and_dropped() {
    let place = Place::new();
    let store = format!("sqlite:{}", place.path("mainspring.db").display());
    let application = Application::start(&store);
    let id = application.enqueue("go").to_string();
    waits(&place, &id, "go");
    let sent = place.run(&["signal", &id, "og", "1"]);
    assert!(
        sent.stderr.contains("note: the job does not wait for this signal; it waits for `go`"),
        "{sent:?}"
    );
    assert_eq!(sent.ok(), "signal `og` is stored");
    let dropped = place.run(&["job", &id, "drop-signal", "og"]);
    assert!(dropped.stderr.contains("note: a repeat from the same sender is not stored"), "{dropped:?}");
    assert_eq!(dropped.ok(), "dropped 1 signal `og`; the job now: the handler waits for signal `go`");
    let none = place.run(&["job", &id, "drop-signal", "og"]);
    assert!(none.stderr.contains("shows the signals that it has not read"), "{none:?}");
    let sent = place.run(&["signal", &id, "go", "1"]);
    assert!(!sent.stderr.contains("does not wait"), "{sent:?}");
    waits(&place, &id, "approved");
}

#[test]
fn unread_signals_are_dropped_by_name_and_sender() {
    let place = Place::new();
    let id = place.enqueue(&["a"]);
    for sender in ["ada", "bob"] {
        place.run(&["signal", &id, "go", "1", "--sender", sender]).ok();
    }
    place.run(&["signal", &id, "stop"]).ok();
    let dropped = place.run(&["job", &id, "drop-signal", "go", "--sender", "ada"]).ok();
    assert!(dropped.starts_with("dropped 1 signal `go` from ada; the job now: "), "{dropped}");
    let dropped = place.json(&["job", &id, "drop-signal", "go"]);
    assert_eq!((&dropped["dropped"], &dropped["signal"]), (&json!(1), &json!("go")));
    let dropped = place.run(&["job", &id, "drop-signal", "go"]).ok();
    assert!(dropped.starts_with("dropped 0 signals `go`; "), "{dropped}");
    let inbox = place.job(&id)["inbox"].clone();
    assert_eq!((inbox.as_array().map(Vec::len), &inbox[0]["signal"]), (Some(1), &json!("stop")), "{inbox}");
    let repeated = place.run(&["signal", &id, "go", "2", "--sender", "ada"]).ok();
    assert!(repeated.contains("has sent signal `go` before"), "{repeated}");
    place.run(&["job", &id, "drop-signal", "a/b"]).refused(2);
    place.run(&["job", "01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c", "drop-signal", "go"]).refused(3);
}
