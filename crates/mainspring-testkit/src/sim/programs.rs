//! What workflows of a simulation do: programs made of parts, each with the values that it may come to.
//!
//! What a workflow returns follows from its program, and from which of a few things happened that may happen in peace too: a
//! wait timed out, an operator ended a child, one arm of a race was quicker. So its results are known beforehand, whatever
//! becomes of its nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use mainspring::Job;
use mainspring_core::seam::Rng;
use serde::{Deserialize, Serialize};

use super::world::{below, chance, pick};
use crate::history::{OutputFrame, digest};
use crate::rng::SeededRng;

/// A workflow.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "flow", result = u64, max_attempts = 40)]
pub(super) struct Flow(pub(super) Program);

/// What a workflow does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Program {
    /// What its values come from.
    pub(super) seed: u64,
    pub(super) parts: Vec<Part>,
    /// Whether it fails for good in the end.
    #[serde(default)]
    pub(super) doomed: bool,
}

/// A part of a workflow.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    /// Steps, one after the other.
    Chain(u64),
    /// A value is drawn, and two steps beside each other see it.
    Join,
    /// Two branches beside each other, with steps of the same names.
    Branches,
    /// A step fails; the workflow survives it and does something else.
    Saga,
    /// A step fails so often, and the workflow with it; maybe beside one that does not.
    Flaky { times: u32, beside: bool },
    /// It sleeps so many milliseconds.
    Sleep(u64),
    /// It waits for so many of these signals.
    Signals { need: usize, of: usize },
    /// It waits for one signal, and not longer than this.
    Timed { millis: u64, sent: Option<u64> },
    /// It waits for children. Some are not waited for, and go on without it.
    Children { programs: Vec<Program>, abandoned: usize },
    /// Something is done at most once.
    Once,
    /// Two ways at once.
    Race(Race),
    /// The same for so many items, some at a time; all of them, or as many as are enough.
    Map { items: usize, at_once: usize, enough: Option<usize> },
    /// So many turns, which take a nap each.
    Iterate { turns: usize, nap: u64 },
    /// A race inside of a branch beside another branch: a loop of maps against a nap and a branch.
    Nest { nap: u64 },
    /// A token is made and sent away; it waits for whoever comes with it, and not longer than this.
    Token { millis: u64 },
    /// The code changes while it sleeps.
    Edited { edit: Edit, millis: u64 },
    /// It says something, between its steps, in the body of one, and in the turns of a loop.
    Says(OutputPlan),
}

/// What is said, and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct OutputPlan {
    /// How many frames the body of its step says.
    pub(super) stream: usize,
    /// How often that body fails on its way.
    pub(super) fails: u32,
    /// Whether it is the step that is tried again then; otherwise the workflow is.
    pub(super) again: bool,
    /// How long it waits when it has said its first words.
    pub(super) nap: Option<u64>,
    /// Turns that say something.
    pub(super) turns: usize,
}

/// What is raced.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Race {
    /// A signal against time.
    Signal { millis: u64, sent: Option<u64> },
    /// Steps against steps, each after a nap.
    Steps { naps: [u64; 2] },
    /// A child against time.
    Child { program: Program, millis: u64 },
}

/// How the code changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Edit {
    /// A step has another name, and nothing says so.
    Renamed,
    /// A step has another name, and says which it had.
    Declared,
    /// There is one step more, which says so.
    Added,
    /// There is one step less, and the code says so.
    Retired,
}

/// What a child, or a step, that was ended from outside comes to.
pub(super) const INTERRUPTED: u64 = 1;
/// What a wait comes to whose time was up.
pub(super) const NOTHING: u64 = 2;

impl Program {
    /// What some workflow does, if its code changes after this time.
    pub(super) fn of(rng: &SeededRng, deploy: Option<Duration>) -> Self {
        let parts = 1 + below(rng, 3);
        let mut program = Program { seed: rng.next_u64() >> 20, parts: Vec::new(), doomed: false };
        for _ in 0..parts {
            program.parts.push(Part::of(rng, !program.has_children(), deploy));
        }
        // When an error was taken back, what was recorded until then is not missed by anybody.
        let flaky = |part: &Part| match part {
            Part::Flaky { .. } => true,
            Part::Says(speech) => speech.fails > 0 && !speech.again,
            _ => false,
        };
        let flaky = program.parts.iter().any(flaky);
        for part in &mut program.parts {
            if let Part::Edited { edit: edit @ Edit::Renamed, .. } = part
                && flaky
            {
                *edit = Edit::Declared;
            }
        }
        program
    }

    fn has_children(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Children { .. } | Part::Race(Race::Child { .. })))
    }

    fn child(rng: &SeededRng) -> Self {
        let mut parts = vec![Part::Chain(1 + rng.next_u64() % 2)];
        if chance(rng, 0.5) {
            parts.push(Part::Sleep(rng.next_u64() % 3_000));
        }
        Program { seed: rng.next_u64() >> 20, parts, doomed: chance(rng, 0.2) }
    }

    /// A value that belongs to a part.
    pub(super) fn value(&self, part: usize, number: usize) -> u64 {
        let mut bytes = self.seed.to_le_bytes().to_vec();
        bytes.extend([u8::try_from(part).unwrap_or(0), u8::try_from(number).unwrap_or(0)]);
        // Some way from what stands for other things.
        digest(&bytes) >> 16 | 1 << 48
    }

    /// All that it may return.
    fn results(&self) -> BTreeSet<u64> {
        if self.doomed {
            return BTreeSet::new();
        }
        let mut all = BTreeSet::from([0]);
        for (number, part) in self.parts.iter().enumerate() {
            let values = self.values(number, part);
            all = all.iter().flat_map(|so_far| values.iter().map(|value| joined(*so_far, *value))).collect();
        }
        all
    }

    fn values(&self, number: usize, part: &Part) -> BTreeSet<u64> {
        let value = |of: usize| self.value(number, of);
        let sum = |of: std::ops::Range<usize>| of.map(value).fold(0, u64::wrapping_add);
        match part {
            Part::Chain(steps) => BTreeSet::from([sum(0..usize::try_from(*steps).unwrap_or(0))]),
            Part::Join
            | Part::Flaky { beside: true, .. }
            | Part::Edited { edit: Edit::Renamed | Edit::Declared | Edit::Added, .. } => {
                BTreeSet::from([sum(0..2)])
            }
            Part::Branches => BTreeSet::from([sum(0..4)]),
            Part::Saga | Part::Flaky { beside: false, .. } => BTreeSet::from([value(0)]),
            Part::Sleep(_) | Part::Says(_) => BTreeSet::from([0]),
            Part::Signals { need, of } => chosen(*need, *of, &value),
            Part::Timed { sent, .. } => std::iter::once(NOTHING).chain(sent.map(|_| value(0))).collect(),
            Part::Children { programs, abandoned } => {
                let mut sums = BTreeSet::from([0]);
                for program in programs.iter().skip(*abandoned) {
                    let mut ends = program.results();
                    ends.insert(INTERRUPTED);
                    sums = sums.iter().flat_map(|sum| ends.iter().map(|end| joined(*sum, *end))).collect();
                }
                sums
            }
            Part::Once => BTreeSet::from([value(0), INTERRUPTED]),
            Part::Race(Race::Signal { sent, .. }) => {
                std::iter::once(value(1)).chain(sent.map(|_| value(0))).collect()
            }
            Part::Race(Race::Steps { .. }) => BTreeSet::from([value(0), value(1)]),
            Part::Race(Race::Child { program, .. }) => {
                program.results().into_iter().chain([INTERRUPTED, value(1)]).collect()
            }
            Part::Map { items, enough: None, .. } => BTreeSet::from([sum(0..*items)]),
            Part::Map { items, enough: Some(enough), .. } => chosen(*enough, *items, &value),
            Part::Iterate { turns, .. } => BTreeSet::from([sum(0..*turns)]),
            Part::Nest { .. } => {
                let looped = sum(0..2).wrapping_mul(2);
                [looped, value(2)].map(|inner| inner.wrapping_add(value(3))).into()
            }
            Part::Token { .. } => BTreeSet::from([NOTHING, value(0), value(1)]),
            Part::Edited { edit: Edit::Retired, .. } => BTreeSet::from([sum(0..2), value(1)]),
        }
    }

    /// What may be returned, as facts tell it.
    pub(super) fn expects(&self) -> Vec<u64> {
        self.results().iter().map(|result| digest(result.to_string().as_bytes())).collect()
    }
}

/// What so many of several may sum up to.
fn chosen(need: usize, of: usize, value: &dyn Fn(usize) -> u64) -> BTreeSet<u64> {
    let chosen = (0..1_usize << of).filter(|set| set.count_ones() as usize == need);
    chosen
        .map(|set| (0..of).filter(|one| set >> one & 1 == 1).map(value).fold(0, u64::wrapping_add))
        .collect()
}

pub(super) fn joined(one: u64, other: u64) -> u64 {
    one.wrapping_mul(31).wrapping_add(other)
}

impl Part {
    fn of(rng: &SeededRng, family: bool, deploy: Option<Duration>) -> Self {
        match below(rng, 22) {
            9 if family => {
                let programs: Vec<Program> = (0..=below(rng, 3)).map(|_| Program::child(rng)).collect();
                let abandoned = if chance(rng, 0.3) { below(rng, programs.len() + 1) } else { 0 };
                Part::Children { programs, abandoned }
            }
            0 | 1 => Part::Chain(1 + rng.next_u64() % 5),
            2 | 9 => Part::Join,
            3 => Part::Branches,
            4 => Part::Saga,
            5 => Part::Flaky { times: pick(rng, &[1, 2]), beside: chance(rng, 0.7) },
            6 => Part::Sleep(rng.next_u64() % 8_000),
            7 | 20 => {
                let of = 1 + below(rng, 3);
                Part::Signals { need: 1 + below(rng, of), of }
            }
            8 => {
                let (millis, sent) = sent(rng);
                Part::Timed { millis, sent }
            }
            10 => Part::Once,
            11 => {
                let (millis, sent) = sent(rng);
                Part::Race(Race::Signal { millis, sent })
            }
            12 if family => {
                Part::Race(Race::Child { program: Program::child(rng), millis: rng.next_u64() % 3_000 })
            }
            12 | 13 => Part::Race(Race::Steps { naps: [nap(rng), nap(rng)] }),
            14 => {
                let items = 1 + below(rng, 4);
                let enough = chance(rng, 0.4).then(|| 1 + below(rng, items));
                Part::Map { items, at_once: 1 + below(rng, 3), enough }
            }
            15 => Part::Iterate { turns: 1 + below(rng, 5), nap: nap(rng) },
            16 => Part::Nest { nap: rng.next_u64() % 2_000 },
            18 => Part::Says(OutputPlan {
                stream: 1 + below(rng, 6),
                fails: pick(rng, &[0, 0, 1, 2]),
                again: chance(rng, 0.5),
                nap: chance(rng, 0.4).then(|| rng.next_u64() % 3_000),
                turns: below(rng, 3),
            }),
            17 => Part::Token { millis: 500 + rng.next_u64() % 8_000 },
            _ => {
                let others = [Edit::Declared, Edit::Added, Edit::Retired];
                let edit = if chance(rng, 0.5) { Edit::Renamed } else { pick(rng, &others) };
                let some_time = 100 + rng.next_u64() % 15_000;
                // Most sleep until shortly after the change: who has come to his end by then does not notice it.
                let millis = match deploy.filter(|_| chance(rng, 0.8)) {
                    Some(left) => u64::try_from(left.as_millis()).unwrap_or(0) + some_time / 8,
                    None => some_time,
                };
                Part::Edited { edit, millis }
            }
        }
    }
}

/// No nap, or a short one.
fn nap(rng: &SeededRng) -> u64 {
    if chance(rng, 0.5) { rng.next_u64() % 500 } else { 0 }
}

/// How long a signal is waited for, and when it is sent: too early, too late, about when the time is up, or never.
fn sent(rng: &SeededRng) -> (u64, Option<u64>) {
    let millis = 100 + rng.next_u64() % 6_000;
    (millis, pick(rng, &[None, Some(0), Some(millis), Some(millis / 2), Some(millis * 2)]))
}

/// A signal that a workflow counts upon.
pub(super) struct Message {
    pub(super) name: String,
    /// The wait for it, as handlers come to it.
    pub(super) wait: String,
    pub(super) sender: String,
    pub(super) value: u64,
    pub(super) after: Option<Duration>,
    /// Whether nobody is stuck without it: its wait has an end, or there are more than it takes.
    pub(super) spare: bool,
}

impl Program {
    /// The names of all waits, as handlers come to them.
    pub(super) fn waits(&self) -> Vec<String> {
        let wait = |(number, part): (usize, &Part)| match part {
            Part::Signals { .. } | Part::Timed { .. } | Part::Token { .. } => Some(format!("signal{number}")),
            Part::Race(_) => Some(format!("race{number}")),
            Part::Sleep(_) | Part::Edited { .. } | Part::Says(OutputPlan { nap: Some(_), .. }) => {
                Some(format!("sleep{number}"))
            }
            Part::Children { .. } => Some(format!("child{number}")),
            _ => None,
        };
        self.parts.iter().enumerate().filter_map(wait).collect()
    }

    pub(super) fn senders(&self) -> Vec<Message> {
        let mut all = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let name = format!("signal{number}");
            let wait = if matches!(part, Part::Race(_)) { format!("race{number}") } else { name.clone() };
            let message = |of: usize, after, spare| Message {
                name: name.clone(),
                wait: wait.clone(),
                sender: format!("sender {of}"),
                value: self.value(number, of),
                after,
                spare,
            };
            match part {
                Part::Signals { need, of } => {
                    all.extend((0..*of).map(|one| message(one, None, one == 0 && need < of)));
                }
                Part::Timed { sent: Some(sent), .. } | Part::Race(Race::Signal { sent: Some(sent), .. }) => {
                    all.push(message(0, Some(Duration::from_millis(*sent)), true));
                }
                _ => {}
            }
        }
        all
    }

    /// All that it says, in order.
    pub(super) fn says(&self) -> Vec<OutputFrame> {
        let mut words = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let Part::Says(OutputPlan { stream, turns, .. }) = part else { continue };
            let step = format!("speak{number}");
            // The handler, the body of its step, the handler again, and its turns: as each says the next.
            let by = [None].into_iter().chain(std::iter::repeat_n(Some(&step), *stream));
            let by = by.chain(std::iter::repeat_n(None, 1 + turns));
            words.extend(by.enumerate().map(|(at, step)| OutputFrame {
                step: step.cloned(),
                digest: digest(self.value(number, at).to_string().as_bytes()),
            }));
        }
        words
    }

    /// Whether an attempt may fail without harm. A code that changes a name and does not say so counts upon what is recorded,
    /// and an error that is taken back takes some of that along.
    pub(super) fn bears_errors(&self) -> bool {
        !self.parts.iter().any(|part| matches!(part, Part::Edited { edit: Edit::Renamed, .. }))
    }

    /// Whether it sends tokens away.
    pub(super) fn asks(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Token { .. }))
    }

    /// Names of steps that the code changes on its way: before, after, and whether it says so.
    pub(super) fn renamed(&self) -> Vec<(String, String, bool)> {
        let renamed = |(number, part): (usize, &Part)| match part {
            Part::Edited { edit: edit @ (Edit::Renamed | Edit::Declared), .. } => {
                Some((format!("before{number}"), format!("earlier{number}"), *edit == Edit::Declared))
            }
            _ => None,
        };
        self.parts.iter().enumerate().filter_map(renamed).collect()
    }
}
