//! Stories: how a state came about, one line per step.
//!
//! The search keeps for each state the one it was found from. A story walks that way back, then tells it from the
//! beginning. Names were swapped on the way where nodes or jobs are alike; here each keeps the name it began with.

use std::fmt::Write as _;

use super::Violation;
use super::rules::{BrokenRule, render as tell_job};
use super::search::Search;
use super::state::State;
use super::step::{self, Delivery, Step};
use super::view::{PAIR, Swap, job_after, node_after};

/// How every story begins.
const BEGINNING: &str = "two jobs are ready, and no node runs";

/// The names of nodes and jobs at one point of a story.
#[derive(Clone, Copy, Default)]
struct Names(Swap);

impl Names {
    fn node(self, node: usize) -> &'static str {
        ["A", "B"][node_after(self.0, node)]
    }

    fn job(self, job: usize) -> String {
        format!("job {}", job_after(self.0, job) + 1)
    }

    fn jobs(self, set: u8) -> String {
        let mut jobs: Vec<_> = (0..PAIR).filter(|job| set & 1 << job != 0).map(|job| self.job(job)).collect();
        jobs.sort();
        jobs.join(" and ")
    }
}

/// Tells how a rule came to be broken: by a step that is tried from this state, or by the state itself.
pub(super) fn render(search: &mut Search<'_>, at: usize, broken: &BrokenRule, by_a_step: bool) -> Violation {
    let mut path = vec![at];
    while let Some(&at) = path.last().filter(|at| **at > 0) {
        path.push(search.parents[at] as usize);
    }
    path.reverse();
    let mut names = Names::default();
    let mut trace = vec![BEGINNING.to_owned()];
    for pair in path.windows(2) {
        let (from, to) = (State::unpack(search.states[pair[0]]), search.states[pair[1]]);
        let mut taken = None;
        let found = step::next(search.scope, &mut search.world, from, &mut |step, key, swap| {
            if key == to && taken.is_none() {
                taken = Some((step, swap));
            }
        });
        let Some((step, swap)) = taken.filter(|_| found.is_ok()) else { break };
        trace.push(line(from, step, names));
        names = Names(names.0 ^ swap);
    }
    let last = State::unpack(search.states[at]);
    if by_a_step {
        let tried = step::broken(search.scope, &mut search.world, last);
        if let Some(step) = tried {
            trace.push(line(last, step, names));
        }
    }
    let mut what = broken.what.clone();
    if let Some(job) = broken.job {
        what = format!("{}: {what}", names.job(job));
    }
    if !by_a_step {
        for (number, job) in search.world.sight(last.store).jobs.iter().enumerate() {
            let _ = write!(what, "; {} is {}", names.job(number), tell_job(job));
        }
    }
    Violation { rule: broken.rule.to_owned(), what, trace }
}

/// A rule that is broken before anything happens.
pub(super) fn of_the_beginning(broken: &BrokenRule) -> Violation {
    Violation { rule: broken.rule.to_owned(), what: broken.what.clone(), trace: vec![BEGINNING.to_owned()] }
}

fn line(from: State, step: Step, names: Names) -> String {
    let fate = |fate: Delivery| match fate {
        Delivery::Answered => "",
        Delivery::AnswerLost => "; the answer is lost",
        Delivery::NeverArrives => "; the request is lost",
    };
    match step {
        Step::Register(node) => format!("{} joins", names.node(node)),
        Step::Crash(node) => format!("{} crashes", names.node(node)),
        Step::Retire(node) => format!("{} retires", names.node(node)),
        Step::Renew(node) => format!("{} renews its lease", names.node(node)),
        Step::Claim { node, set, fate: it } => {
            format!("{} claims {}{}", names.node(node), names.jobs(set), fate(it))
        }
        Step::Repeat { node, fate: it } => {
            let asked = from.nodes[node].asked;
            format!(
                "{} claims {} again under the same number{}",
                names.node(node),
                names.jobs(asked),
                fate(it)
            )
        }
        Step::Disown { node, fate: it } => {
            format!("{} disowns what it does not know of{}", names.node(node), fate(it))
        }
        Step::Finish { node, job, end } => {
            let claim = from.nodes[node].held[job];
            format!("{} ends claim {claim} of {}: {end}", names.node(node), names.job(job))
        }
        Step::Send { node, job, end } => {
            let claim = from.nodes[node].held[job];
            format!("{} sends the end of claim {claim} of {}: {end}", names.node(node), names.job(job))
        }
        Step::Arrive { flight, fate: it } => match from.flights[flight] {
            Some(flight) => {
                let (claim, job, end) = (flight.claim, names.job(flight.job), flight.end);
                format!("the end of claim {claim} of {job} arrives: {end}{}", fate(it))
            }
            None => String::new(),
        },
        Step::Rescue(node) => format!("{} rescues", names.node(node)),
        Step::Promote => "what is due becomes ready".to_owned(),
        Step::Cancel(job) => format!("an operator cancels {}", names.job(job)),
        Step::Tick { overdue: false } => "half a lease goes by".to_owned(),
        Step::Tick { overdue: true } => "half a lease goes by, and not everybody renews".to_owned(),
    }
}
