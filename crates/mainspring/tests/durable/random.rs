//! Random workflows, with crashes at random moments: they come to what they come to in peace, and what is recorded is not
//! done again.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::testing::TestEngine;
use mainspring::workflow::EntryKind;
use mainspring::{
    Backoff, Context, Enqueued, Error as EngineError, Failure, Job, NodeBuilder, Reason, State,
};
use serde::{Deserialize, Serialize};

use crate::support::{On, SECOND, on_every_store};

/// How many programs are tried.
const PROGRAMS: u64 = 120;
/// Signals of one name that a program may wait for.
const SIGNALS: usize = 64;
/// How long the lease of a node is.
const LEASE: Duration = SECOND;

/// What a workflow does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Op {
    /// A step that takes a while, and fails so often before it succeeds.
    Step { millis: u64, fails: u32 },
    /// A step that always fails, which the workflow survives.
    Survive { millis: u64 },
    /// A value is drawn; two steps beside each other must have seen the same.
    Draw,
    /// A sleep.
    Sleep(u64),
    /// A signal of this number.
    Signal(usize),
    /// A signal that nobody sends, with a time-out.
    Silence(u64),
    /// Operations in a scope of their own.
    Branch(Vec<Op>),
    /// Two lists of operations beside each other.
    Join(Vec<Op>, Vec<Op>),
    /// A child, which is waited for.
    Child(Vec<Op>),
    /// A list of operations against a sleep; who wins is not known beforehand.
    Race(Vec<Op>, u64),
    /// The same operations for so many items, so many at a time.
    Map(u64, usize, Vec<Op>),
    /// The same operations in so many turns.
    Iterate(u64, Vec<Op>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Job)]
#[job(kind = "program", result = String, max_attempts = 200)]
struct Program {
    ops: Vec<Op>,
}

/// Chance, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn ops(&mut self, depth: u64, signals: &mut usize) -> Vec<Op> {
        (0..=self.below(4)).map(|_| self.op(depth, signals)).collect()
    }

    fn op(&mut self, depth: u64, signals: &mut usize) -> Op {
        let kinds = if depth == 0 { 7 } else { 14 };
        match self.below(kinds) {
            0 | 1 => Op::Step { millis: self.below(80), fails: 0 },
            2 => Op::Step { millis: self.below(20), fails: u32::try_from(self.below(3)).expect("a few") },
            3 => Op::Survive { millis: self.below(20) },
            4 => Op::Draw,
            5 => Op::Sleep(self.below(400)),
            6 => match self.below(3) {
                0 => Op::Silence(self.below(300)),
                _ if *signals < SIGNALS => {
                    *signals += 1;
                    Op::Signal(*signals - 1)
                }
                _ => Op::Draw,
            },
            7 => Op::Branch(self.ops(depth - 1, signals)),
            8 | 9 => Op::Join(self.ops(depth - 1, signals), self.ops(depth - 1, signals)),
            // One that waits for a signal may never come to its end, and others would get what it was sent.
            10 => Op::Race(self.ops(depth - 1, &mut { SIGNALS }), self.below(400)),
            11 => {
                let (items, at_once) =
                    (1 + self.below(5), 1 + usize::try_from(self.below(3)).expect("a few"));
                Op::Map(items, at_once, self.ops(depth - 1, &mut { SIGNALS }))
            }
            12 => Op::Iterate(1 + self.below(4), self.ops(depth - 1, &mut { SIGNALS })),
            // Signals go to the workflow itself.
            _ => Op::Child(self.ops(0, &mut { SIGNALS })),
        }
    }
}

/// What a list of operations comes to.
fn expected(ops: &[Op]) -> String {
    let words: Vec<String> = ops
        .iter()
        .map(|op| match op {
            Op::Step { millis, .. } => format!("step {millis}"),
            Op::Survive { .. } => "survived".to_owned(),
            Op::Draw => "drawn".to_owned(),
            Op::Sleep(_) => "slept".to_owned(),
            Op::Signal(number) => format!("signal {number}"),
            Op::Silence(_) => "silence".to_owned(),
            Op::Branch(ops) => format!("({})", expected(ops)),
            Op::Join(left, right) => format!("({} | {})", expected(left), expected(right)),
            Op::Child(ops) => format!("[{}]", expected(ops)),
            Op::Race(..) => "raced".to_owned(),
            Op::Map(items, _, ops) => format!("{items} x ({})", expected(ops)),
            Op::Iterate(turns, ops) => format!("{turns} turns of ({})", expected(ops)),
        })
        .collect();
    words.join(", ")
}

/// How often each body of each job began.
type Bodies = Arc<Mutex<BTreeMap<(String, String), u32>>>;

/// One run: what its bodies need.
#[derive(Clone)]
struct Act {
    bodies: Bodies,
    job: String,
}

impl Act {
    fn enter(&self, key: &str) -> u32 {
        let mut bodies = self.bodies.lock().expect("the bodies");
        let count = bodies.entry((self.job.clone(), key.to_owned())).or_default();
        *count += 1;
        *count
    }

    /// A step that takes a while, and fails so often before it succeeds.
    async fn step(
        &self,
        ctx: &Context,
        path: &str,
        name: &str,
        (millis, fails): (u64, u32),
        value: &str,
    ) -> Result<String, EngineError> {
        let key = format!("{path}{name}");
        let clock = &ctx.engine().seams().clock;
        ctx.step(name, || async {
            let count = self.enter(&key);
            clock.sleep(Duration::from_millis(millis)).await;
            if count <= fails { Err(Failure::from("not yet")) } else { Ok(value.to_owned()) }
        })
        .await
    }
}

type Run<'a> = Pin<Box<dyn Future<Output = Result<String, Failure>> + Send + 'a>>;

fn run<'a>(ctx: &'a Context, act: &'a Act, path: &'a str, ops: &'a [Op]) -> Run<'a> {
    Box::pin(async move {
        let mut words = Vec::new();
        for (number, op) in ops.iter().enumerate() {
            words.push(one(ctx, act, path, number, op).await?);
        }
        Ok(words.join(", "))
    })
}

async fn one(ctx: &Context, act: &Act, path: &str, number: usize, op: &Op) -> Result<String, Failure> {
    let name = |what: &str| format!("{what}-{number}");
    let branch = |what: &str, ops: &[Op]| {
        let (act, ops, path) = (act.clone(), ops.to_vec(), format!("{path}{}/", name(what)));
        ctx.branch(&name(what), move |ctx| async move { run(&ctx, &act, &path, &ops).await })
    };
    Ok(match op {
        Op::Step { millis, fails } => {
            act.step(ctx, path, &name("step"), (*millis, *fails), &format!("step {millis}")).await?
        }
        Op::Survive { millis } => match act.step(ctx, path, &name("bad"), (*millis, u32::MAX), "").await {
            Err(EngineError::Step { .. }) => "survived".to_owned(),
            Err(other) => return Err(other.into()),
            Ok(_) => "a miracle".to_owned(),
        },
        Op::Draw => {
            let dice = ctx.random(&name("dice")).await?.to_string();
            let (left, right) = (name("left"), name("right"));
            let (left, right) = tokio::join!(
                act.step(ctx, path, &left, (5, 0), &dice),
                act.step(ctx, path, &right, (30, 0), &dice)
            );
            let (left, right) = (left?, right?);
            if left == dice && right == dice { "drawn".to_owned() } else { format!("{dice} {left} {right}") }
        }
        Op::Sleep(millis) => {
            ctx.sleep(&name("sleep"), Duration::from_millis(*millis)).await?;
            "slept".to_owned()
        }
        Op::Signal(signal) => {
            let sent: usize = ctx.signal(&*format!("signal-{signal}")).await?;
            format!("signal {sent}")
        }
        Op::Silence(millis) => {
            let wait = ctx.signal::<bool>("silence").key(number).timeout(Duration::from_millis(*millis));
            wait.await?.map_or("silence", |_| "a voice").to_owned()
        }
        Op::Branch(ops) => format!("({})", branch("branch", ops).await?),
        Op::Join(left, right) => {
            let (left, right) = tokio::join!(branch("one", left), branch("other", right));
            format!("({} | {})", left?, right?)
        }
        Op::Race(ops, millis) => {
            let (act, racer, nap) = (act.clone(), ops.clone(), Duration::from_millis(*millis));
            let inside = format!("{path}{}/racer/", name("race"));
            let race = ctx
                .race(&name("race"))
                .arm("racer", move |ctx| async move { run(&ctx, &act, &inside, &racer).await })
                .arm("clock", async |ctx| {
                    ctx.sleep("nap", nap).await?;
                    Ok("time".to_owned())
                });
            let won = race.await?;
            if won == "time" || won == expected(ops) { "raced".to_owned() } else { won }
        }
        Op::Map(items, at_once, ops) => {
            let results = ctx.map(
                &name("map"),
                0..*items,
                |item| *item,
                |ctx, item| {
                    let (act, ops) = (act.clone(), ops.clone());
                    let path = format!("{path}{}/{item}/", name("map"));
                    async move { run(&ctx, &act, &path, &ops).await }
                },
            );
            let results = results.concurrency(*at_once).await?;
            let all = results.iter().all(|result| *result == expected(ops));
            if all { format!("{items} x ({})", expected(ops)) } else { format!("{results:?}") }
        }
        Op::Iterate(turns, ops) => {
            let end = ctx.iterate(&name("loop"), 0, |ctx, turn: u64| {
                let (act, ops) = (act.clone(), ops.clone());
                let path = format!("{path}{}/{}/", name("loop"), turn + 1);
                async move {
                    let result = run(&ctx, &act, &path, &ops).await?;
                    if result != expected(&ops) {
                        return Ok(ControlFlow::Break(result));
                    }
                    let end = format!("{} turns of ({result})", turn + 1);
                    Ok(if turn + 1 == *turns {
                        ControlFlow::Break(end)
                    } else {
                        ControlFlow::Continue(turn + 1)
                    })
                }
            });
            end.await?
        }
        Op::Child(ops) => {
            let child = ctx.spawn(&name("child"), Program { ops: ops.clone() });
            let child =
                child.options(|child| child.backoff(Backoff::Fixed(Duration::from_millis(10)))).await?;
            format!("[{}]", child.result().await?)
        }
    })
}

fn node(node: NodeBuilder, bodies: &Bodies, cached: usize) -> NodeBuilder {
    let bodies = Arc::clone(bodies);
    let handler = move |ctx: Context, program: Program| {
        let act = Act { bodies: Arc::clone(&bodies), job: ctx.id().to_string() };
        async move { run(&ctx, &act, "", &program.ops).await }
    };
    node.handle(handler).queue("default", 8).lease(LEASE).cached_handlers(cached)
}

/// What the store has recorded of a job: its bodies must not begin again.
async fn recorded(test: &TestEngine, job: &Enqueued<Program>) -> Vec<String> {
    let timeline = test.store().timeline(job.id).await.expect("a timeline").unwrap_or_default();
    let done = timeline.entries.into_iter().filter(|entry| entry.kind == EntryKind::Value);
    done.map(|entry| entry.key.to_string()).collect()
}

/// Runs a program to its end; with crashes, if there are to be some.
async fn play(on: &On, seed: u64, crashes: bool, cached: usize) {
    let (mut dice, mut signals) = (Dice(seed), 0);
    let program = Program { ops: dice.ops(2, &mut signals) };
    let what = format!("program {seed}, cached {cached}, crashes {crashes}: {program:?}");
    let test = on.test(seed);
    let bodies = Bodies::default();
    test.node(|builder| node(builder, &bodies, cached)).await.expect("a node");
    let backoff = Backoff::Fixed(Duration::from_millis(10));
    let job = test.enqueue(program.clone()).backoff(backoff).await.expect("enqueued");
    let mut done: BTreeMap<String, u32> = BTreeMap::new();
    let mut unsent: Vec<usize> = (0..signals).collect();
    let count = |bodies: &Bodies, key: &str| {
        let bodies = bodies.lock().expect("the bodies");
        bodies.get(&(job.id.to_string(), key.to_owned())).copied().unwrap_or(0)
    };
    for round in 0..2_000 {
        let status = test.jobs().get(job.id).await.expect("there").summary.status;
        if status.state.is_terminal() {
            assert_eq!(status.state, State::Succeeded, "{what}");
            break;
        }
        assert!(round < 1_999, "it does not end: {status}, {what}");
        test.advance(Duration::from_millis(dice.below(60))).await.expect("time passes");
        if !unsent.is_empty() && dice.below(3) == 0 {
            let at = usize::try_from(dice.below(unsent.len() as u64)).expect("a few");
            let signal = unsent.swap_remove(at);
            for _ in 0..=dice.below(2) {
                let send = test.signal(job.id, &*format!("signal-{signal}"), &signal);
                send.sender(format!("sender {signal}")).await.expect("sent");
            }
        }
        if crashes && round < 60 && dice.below(6) == 0 {
            test.crash().await.expect("dead");
            for key in recorded(&test, &job).await {
                done.entry(key.clone()).or_insert_with(|| count(&bodies, &key));
            }
            test.node(|builder| node(builder, &bodies, cached)).await.expect("another node");
            test.advance(LEASE * 2).await.expect("the dead are found");
        }
        // Nobody can know who it was that crashed: an operator lets them go on.
        let filter = mainspring::admin::Filter {
            states: vec![State::Suspended],
            ..mainspring::admin::Filter::default()
        };
        let aside = test.jobs().list(filter).await.expect("a list").jobs;
        for one in aside.iter().filter(|one| one.status.reason == Some(Reason::Quarantine)) {
            test.jobs().resume(one.id).await.expect("it goes on");
        }
    }
    assert_eq!(test.outcome(&job).expect("it ended"), expected(&program.ops), "{what}");
    for (key, before) in done {
        assert_eq!(count(&bodies, &key), before, "`{key}` was recorded, and began again: {what}");
    }
    if !crashes {
        let bodies = bodies.lock().expect("the bodies");
        let often = bodies.iter().find(|((_, key), count)| {
            // A step that fails takes others along that were not recorded.
            **count > 1
                && !format!("{program:?}").contains("fails: 1")
                && !format!("{program:?}").contains("fails: 2")
                && !key.contains("bad")
        });
        assert!(often.is_none(), "{often:?} without a crash: {what}");
    }
}

on_every_store! {
    async fn programs_come_to_what_they_come_to_in_peace(on: &On) {
        let ways = [(true, 0), (false, 0), (true, 1_000), (false, 1_000)];
        for seed in on.some(0..PROGRAMS, 0..24, 2..6) {
            for (crashes, cached) in ways.into_iter().take(on.some(4, 4, 2)) {
                play(on, seed, crashes, cached).await;
            }
        }
    }
}
