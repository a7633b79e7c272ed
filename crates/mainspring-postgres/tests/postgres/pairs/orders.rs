//! All interleavings of two operations, held against what the model says.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainspring_core::store::Store;
use mainspring_postgres::{Durability, Options, Postgres, Time};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::postgres::Database;
use mainspring_testkit::seams::seams;

use super::stepping::{Locks, Stalled, SteppedActors};
use super::two_handles::{Operation, TwoHandles};

/// More interleavings than any pair has: where there are more, the search goes in circles.
const MOST: usize = 20_000;

/// Everything that belongs to jobs and nodes. Names stay, because handles know them for good.
const CLEAR: &str =
    "DELETE FROM mainspring.jobs; DELETE FROM mainspring.ready; DELETE FROM mainspring.timers;
    DELETE FROM mainspring.suspended; DELETE FROM mainspring.lease; DELETE FROM mainspring.done;
    DELETE FROM mainspring.superseded; DELETE FROM mainspring.errors; DELETE FROM mainspring.keys;
    DELETE FROM mainspring.steps; DELETE FROM mainspring.inbox; DELETE FROM mainspring.children;
    DELETE FROM mainspring.ends; DELETE FROM mainspring.deadlines; DELETE FROM mainspring.tags; DELETE FROM mainspring.progress;
    DELETE FROM mainspring.nodes; DELETE FROM mainspring.counts; DELETE FROM mainspring.count_deltas;
    DELETE FROM mainspring.limited; DELETE FROM mainspring.limited_jobs; DELETE FROM mainspring.group_turns;
    DELETE FROM mainspring.blocked_groups; DELETE FROM mainspring.kept_units; DELETE FROM mainspring.returned_units;
    UPDATE mainspring.limit_keys SET in_use = 0, blocked = 0, head = 0, tail = 0, line = 0, due = NULL, next_free = NULL";

/// Two operations that meet.
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    pub(crate) setup: fn(&mut TwoHandles),
    pub(crate) operations: [Operation; 2],
    /// What one of them may do instead, on the model, because it does not wait for what the other holds.
    pub(crate) instead: Vec<(usize, Operation)>,
    /// Other outcomes than those of the model that are right, made from them.
    pub(crate) also: Option<fn(&str) -> String>,
    /// Whether the first one's caller is gone: what it does after its first commit comes after all else.
    pub(crate) late: bool,
    /// Whether jobs have the pair's key.
    pub(crate) keyed: bool,
    /// Which of how many parts of its interleavings are to be run.
    part: (usize, usize),
}

impl Pair {
    pub(crate) fn new(
        name: &'static str,
        setup: fn(&mut TwoHandles),
        first: Operation,
        second: Operation,
    ) -> Self {
        Pair {
            name,
            setup,
            operations: [first, second],
            instead: Vec::new(),
            also: None,
            late: false,
            keyed: false,
            part: (0, 1),
        }
    }

    /// The first operation may also do this.
    pub(crate) fn or_first(mut self, operation: Operation) -> Self {
        self.instead.push((0, operation));
        self
    }

    /// The second operation may also do this.
    pub(crate) fn or_second(mut self, operation: Operation) -> Self {
        self.instead.push((1, operation));
        self
    }

    /// The first one's caller is gone; only what it has sent is still on its way.
    pub(crate) fn late(mut self) -> Self {
        self.late = true;
        self
    }

    /// What becomes of an outcome of the model by this is right as well.
    pub(crate) fn or_as(mut self, also: fn(&str) -> String) -> Self {
        self.also = Some(also);
        self
    }

    pub(crate) fn keyed(mut self) -> Self {
        self.keyed = true;
        self
    }

    /// Only every so many families of its interleavings: a family has its first free choices in common. Each part looks at
    /// the first of every family, to find the next, and counts only its own.
    pub(crate) fn part(mut self, number: usize, of: usize) -> Self {
        self.part = (number, of);
        self
    }

    /// What may come of it: both orders, one after the other.
    fn outcomes(&self) -> BTreeSet<String> {
        let mut casts = vec![self.operations.clone()];
        for (actor, operation) in &self.instead {
            let mut operations = self.operations.clone();
            operations[*actor] = operation.clone();
            casts.push(operations);
        }
        let mut outcomes = BTreeSet::new();
        for operations in casts {
            for order in [[0, 1], [1, 0]] {
                let mut world = TwoHandles::model();
                world.settings();
                (self.setup)(&mut world);
                let mut answers = [String::new(), String::new()];
                for actor in order {
                    answers[actor] = operations[actor].on(&world, actor);
                }
                outcomes.insert(outcome(&world, &answers, self.keyed));
            }
        }
        let also: Vec<String> =
            self.also.iter().flat_map(|also| outcomes.iter().map(|outcome| also(outcome))).collect();
        outcomes.extend(also);
        outcomes
    }
}

fn outcome(world: &TwoHandles, answers: &[String; 2], keyed: bool) -> String {
    format!("first: {}\nsecond: {}\n{}", answers[0], answers[1], world.view(keyed))
}

/// Says what is wrong with a world after an interleaving, by the answers and what was sent.
type Judge<'a> = dyn Fn(&TwoHandles, &[String; 2], &str) -> Result<(), String> + 'a;

/// One choice of the director.
#[derive(Clone, Copy)]
struct Choice {
    took: usize,
    /// Whether the other one could have gone instead.
    free: bool,
}

/// A database in which pairs meet.
pub(crate) struct PairDatabase {
    actors: Arc<SteppedActors>,
    stores: [Arc<dyn Store>; 2],
    clock: ManualClock,
    locks: Locks,
    // Last, because the stores are connected to it.
    _database: Database,
}

impl PairDatabase {
    pub(crate) fn new(database: Database) -> Self {
        let (actors, clock) = (Arc::<SteppedActors>::default(), ManualClock::new());
        let stores = [0, 1].map(|actor| -> Arc<dyn Store> {
            let options = Options::new(&database.url())
                .expect("an address")
                .time(Time::Clock)
                // What is written here is thrown away at once.
                .durability(Durability::Relaxed)
                .gate(actors.side(actor));
            Arc::new(block_on(Postgres::open(options, seams(&clock, 1))).expect("the store opens"))
        });
        let mut locks = Locks::new(&database.url());
        // Whoever cleans up takes locks that no operation takes.
        let tables = [
            "jobs",
            "ready",
            "timers",
            "suspended",
            "lease",
            "done",
            "keys",
            "nodes",
            "count_deltas",
            "steps",
            "inbox",
            "children",
            "ends",
            "limited",
            "limited_jobs",
            "group_turns",
            "blocked_groups",
            "kept_units",
            "returned_units",
            "limit_keys",
            "limit_groups",
            "limits",
            "audit",
        ];
        for table in tables {
            let sql = format!("ALTER TABLE mainspring.{table} SET (autovacuum_enabled = off)");
            locks.client.batch_execute(&sql).expect("a setting");
        }
        PairDatabase { actors, stores, clock, locks, _database: database }
    }

    /// Runs a pair in every interleaving of its part. Returns how many there are, or in which one something went wrong.
    pub(crate) fn run(&mut self, pair: &Pair) -> Result<usize, String> {
        let outcomes = pair.outcomes();
        TwoHandles::on(self.stores.clone(), self.clock.clone()).settings();
        // One after the other first: handles learn names, and no statement is planned in the middle of a play.
        for order in [[0, 1], [1, 0]] {
            let world = self.world(pair);
            let mut answers = [String::new(), String::new()];
            for actor in order {
                answers[actor] = pair.operations[actor].on(&world, actor);
            }
            judge(&outcomes, &outcome(&world, &answers, pair.keyed), "one after the other")?;
        }
        self.interleave(pair, &|world, answers, trace| {
            judge(&outcomes, &outcome(world, answers, pair.keyed), trace)
        })
    }

    /// The same, where something else is asked of every interleaving than what the model says.
    pub(crate) fn run_judged(&mut self, pair: &Pair, judge: &Judge<'_>) -> Result<usize, String> {
        for order in [[0, 1], [1, 0]] {
            let world = self.world(pair);
            let mut answers = [String::new(), String::new()];
            for actor in order {
                answers[actor] = pair.operations[actor].on(&world, actor);
            }
            judge(&world, &answers, "one after the other")?;
        }
        self.interleave(pair, judge)
    }

    fn interleave(&mut self, pair: &Pair, judge: &Judge<'_>) -> Result<usize, String> {
        let (number, of) = pair.part;
        let (mut prefix, mut count, mut family): (Vec<usize>, usize, usize) = (Vec::new(), 0, 0);
        for _ in 0..MOST {
            let world = self.world(pair);
            let (answers, choices, trace) = self.play(pair, &world, &prefix)?;
            judge(&world, &answers, &trace)?;
            let mine = family % of == number;
            count += usize::from(mine);
            let shared = family_ends(&choices);
            let looked_at = if mine { choices.len() } else { shared };
            let again = |choice: &Choice| choice.free && choice.took == 0;
            let Some(last) = choices[..looked_at].iter().rposition(again) else { return Ok(count) };
            family += usize::from(last < shared);
            prefix = choices[..last].iter().map(|choice| choice.took).chain([1]).collect();
        }
        Err("there is no end of interleavings".to_owned())
    }

    fn world(&mut self, pair: &Pair) -> TwoHandles {
        self.locks.client.batch_execute(CLEAR).expect("an empty store");
        let mut world = TwoHandles::on(self.stores.clone(), self.clock.clone());
        (pair.setup)(&mut world);
        world
    }

    /// Plays one interleaving: as the prefix says, then the first before the second.
    fn play(
        &mut self,
        pair: &Pair,
        world: &TwoHandles,
        prefix: &[usize],
    ) -> Result<([String; 2], Vec<Choice>, String), String> {
        let (mut choices, mut trace) = (Vec::new(), String::new());
        for actor in 0..2 {
            self.actors.set_on(actor, true);
        }
        let (actors, locks) = (&*self.actors, &mut self.locks);
        let answers = std::thread::scope(|scope| {
            let threads = [0, 1].map(|actor| {
                scope.spawn(move || {
                    let answer = pair.operations[actor].on(world, actor);
                    actors.set_on(actor, false);
                    answer
                })
            });
            let directed = direct(actors, locks, (prefix, pair.late), &mut choices, &mut trace);
            if directed.is_err() {
                (0..2).for_each(|actor| actors.open(actor));
            }
            let answers = threads.map(|thread| thread.join().expect("an actor panicked"));
            directed.map(|()| answers)
        })?;
        if prefix.iter().zip(&choices).any(|(wanted, choice)| *wanted != choice.took) {
            return Err(format!("an interleaving cannot be repeated\n{trace}"));
        }
        Ok((answers, choices, trace))
    }
}

/// Lets one actor after the other go on until both have ended.
fn direct(
    actors: &SteppedActors,
    locks: &mut Locks,
    (prefix, late): (&[usize], bool),
    choices: &mut Vec<Choice>,
    trace: &mut String,
) -> Result<(), String> {
    let (mut waiting, mut asleep, mut gone) = (0, None, false);
    loop {
        let (still, now_waiting) = actors.still(locks, waiting);
        waiting = now_waiting;
        let at_gates = match still {
            Stalled::Over => return Ok(()),
            Stalled::Deadlock => return Err(format!("they wait for each other\n{trace}")),
            Stalled::AtGates(at_gates) => at_gates,
        };
        let alone = usize::from(asleep == Some(0) || gone);
        let wanted = prefix.get(choices.len()).copied().unwrap_or(alone);
        let took = if at_gates[wanted] { wanted } else { 1 - wanted };
        let free = at_gates == [true, true] && asleep != Some(1 - took) && !gone;
        choices.push(Choice { took, free });
        let wants = [actors.wants(0), actors.wants(1)];
        let weight = |actor: usize| wants[actor].as_ref().map(|(_, weight)| weight);
        // That the first goes here was tried before. Until something happens that it would notice, or that would notice
        // it, it would only be that again.
        if free && took == 1 {
            asleep = Some(0);
        }
        if let (Some(sleeper), Some(mine)) = (asleep, weight(took)) {
            let noticed = weight(sleeper).is_none_or(|other| other.matters_to(mine));
            if sleeper == took || noticed {
                asleep = None;
            }
        }
        actors.permit(took);
        gone |= late && took == 0 && wants[0].as_ref().is_some_and(|(text, _)| text == "COMMIT");
        let sent = wants[took].as_ref().map_or("", |(text, _)| text.as_str());
        // The beginnings of many statements are alike; what they are about comes later.
        let words: Vec<&str> = sent.split("AS now)").last().unwrap_or(sent).split_whitespace().collect();
        let start: String = words.join(" ").chars().take(100).collect();
        let _ = writeln!(trace, "  {} {start}", ["first: ", "second:"][took]);
    }
}

/// Where the choices end that an interleaving has in common with its family.
fn family_ends(choices: &[Choice]) -> usize {
    /// How many those are: more make for parts of the same size, and for more families whose first is looked at for nothing.
    const COMMON: usize = 5;
    let free = choices.iter().enumerate().filter(|(_, choice)| choice.free);
    free.map(|(at, _)| at + 1).nth(COMMON - 1).unwrap_or(choices.len())
}

fn judge(outcomes: &BTreeSet<String>, found: &str, trace: &str) -> Result<(), String> {
    if outcomes.contains(found) {
        return Ok(());
    }
    let allowed: Vec<&str> = outcomes.iter().map(String::as_str).collect();
    Err(format!("{trace}\n--- Postgres:\n{found}\n--- the model, one of:\n{}", allowed.join("\n--- or:\n")))
}

/// Runs pairs and prints how many interleavings each of them has; fails with all that went wrong.
pub(crate) fn run_all(mut database: PairDatabase, pairs: Vec<Pair>) {
    static TOTAL: AtomicUsize = AtomicUsize::new(0);
    let mut wrong = Vec::new();
    for pair in pairs {
        match database.run(&pair) {
            Ok(count) => {
                let total = TOTAL.fetch_add(count, Ordering::Relaxed) + count;
                println!("{}: {count} interleavings ({total} so far)", pair.name);
            }
            Err(why) => {
                println!("{}: WRONG", pair.name);
                wrong.push(format!("=== {}\n{why}", pair.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
