//! Scopes of workflows: races, maps, loops and branches, code that changes under them, and tokens.
//!
//! Of a scope the history says nothing: what is recorded as `a` while there are records `a/…` is one, and `a#turn=7` is
//! the state of the loop `a` after seven turns.

use std::collections::BTreeMap;

use mainspring_core::job::{Reason, State};
use mainspring_core::journal::EntryKind;

use super::BrokenRule;
use super::workflows::flows;
use crate::checker::evidence::{EventIndex, Evidence};
use crate::checker::workflow::Write;
use crate::history::{EndKind, Line};

/// Between the key of a loop and the number of turns that are done.
const TURN: &str = "#turn=";

/// Whether a write was there when a body began, or a handler went on, under a claim.
fn known(write: &Write<'_>, at: EventIndex, claim: u32) -> bool {
    write.claim < claim || (write.claim == claim && write.at < at)
}

/// Where something was recorded under a key that these know of, and was not removed since.
fn recorded<'a>(
    written: &[Write<'a>],
    key: &str,
    knows: impl Fn(&Write<'_>) -> bool,
) -> Option<(EventIndex, &'a Line)> {
    let mut there = None;
    for write in written.iter().filter(|write| knows(write)) {
        if write.writes.forget.iter().any(|forgotten| forgotten.as_str() == key) {
            there = None;
        }
        if let Some(line) = write.writes.entries.iter().find(|line| line.key.as_str() == key) {
            there.get_or_insert((write.at, line));
        }
    }
    there
}

/// The scopes around a key, from the outermost on: each with what follows its name.
fn around(key: &str) -> impl Iterator<Item = (&str, &str)> {
    key.match_indices('/').map(|(at, _)| (&key[..at], &key[at + 1..]))
}

/// The loop and the number of turns that a key stands for.
pub(super) fn turn(key: &str) -> Option<(&str, u64)> {
    let (key, turns) = key.rsplit_once(TURN)?;
    Some((key, turns.parse().ok()?))
}

/// Who has won a race is recorded once: whoever comes to it later goes that way.
pub(super) fn winner(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence).filter(|(_, _, flow)| !flow.decided.is_empty()) {
        let written = facts.written();
        for decided in &flow.decided {
            let there = recorded(&written, decided.key, |write| known(write, decided.at, decided.claim));
            let Some((at, line)) = there else { continue };
            if line.digest.is_some_and(|digest| digest != decided.digest) {
                let what = format!("`{}` was decided otherwise before claim {}", decided.key, decided.claim);
                broken.push(BrokenRule::job(*id, what, vec![at, decided.at]));
            }
        }
    }
}

/// When a scope has a result, or a turn of a loop has left its state, no body inside of it begins any more: not of losers
/// either.
pub(super) fn inside(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        if !flow.entered.iter().any(|entered| entered.key.contains('/')) {
            continue;
        }
        let written = facts.written();
        for entered in &flow.entered {
            let knows = |write: &Write<'_>| known(write, entered.at, entered.claim);
            for (scope, rest) in around(entered.key) {
                let ended = recorded(&written, scope, knows);
                if let Some((at, _)) = ended.filter(|(_, line)| line.kind == EntryKind::Value) {
                    let what = format!("`{scope}` has ended, and `{}` began", entered.key);
                    broken.push(BrokenRule::job(*id, what, vec![at, entered.at]));
                }
                let Some(number) = rest.split('/').next().and_then(|turn| turn.parse::<u64>().ok()) else {
                    continue;
                };
                let lines = written.iter().filter(|write| knows(write));
                let mut states =
                    lines.flat_map(|write| write.writes.entries.iter().map(move |line| (write.at, line)));
                let done = states.find(|(at, line)| {
                    turn(line.key.as_str()).is_some_and(|(key, turns)| key == scope && number <= turns)
                        && !facts.was_taken_back(scope, *at, entered.at)
                });
                if let Some((at, _)) = done {
                    let what = format!("turn {number} of `{scope}` was done, and `{}` began", entered.key);
                    broken.push(BrokenRule::job(*id, what, vec![at, entered.at]));
                }
            }
        }
    }
}

/// Writes, without those that came twice or late: what these leave behind does no harm.
fn firsts<'w, 'a>(written: &'w [Write<'a>]) -> impl Iterator<Item = &'w Write<'a>> {
    let repeated = |at: usize| {
        let write = &written[at];
        written[..at].iter().any(|first| first.claim == write.claim && first.writes == write.writes)
    };
    (0..written.len()).filter(move |at| !repeated(*at)).map(|at| &written[at])
}

/// The commit that records the result of a scope, or the state after a turn, removes what was recorded on the way there: so
/// a race keeps nothing of its losers, and a loop costs no more than one turn.
pub(super) fn left(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts, _) in flows(evidence) {
        let written = facts.written();
        let mut journal: BTreeMap<&str, (EventIndex, &Line)> = BTreeMap::new();
        for write in firsts(&written) {
            for key in &write.writes.forget {
                journal.remove(key.as_str());
            }
            for line in &write.writes.entries {
                journal.entry(line.key.as_str()).or_insert((write.at, line));
            }
            for line in &write.writes.entries {
                let stays = match turn(line.key.as_str()) {
                    Some((key, turns)) => of_turns(&journal, key, turns),
                    // Children of losers are cancelled first: what was decided is recorded before that, by itself.
                    None => of_scope(&journal, line)
                        .filter(|_| !inner(&journal, line).any(|(_, inner)| inner.kind == EntryKind::Child)),
                };
                if let Some(key) = stays {
                    let what = format!("`{key}` stays, and `{}` is recorded in its place", line.key);
                    broken.push(BrokenRule::job(*id, what, vec![journal[key].0, write.at]));
                }
            }
        }
        let succeeded = facts.ends().into_iter().find(|end| end.how == EndKind::Succeed);
        let Some(end) = succeeded else { continue };
        if let Some(key) = journal.values().find_map(|(_, line)| of_scope(&journal, line)) {
            let what = format!("`{key}` has stayed to the end, and its scope has a result");
            broken.push(BrokenRule::job(*id, what, vec![journal[key].0, end.at]));
        }
    }
}

type Journal<'j> = BTreeMap<&'j str, (EventIndex, &'j Line)>;

/// What is recorded inside of a scope.
fn inner<'m, 'j>(journal: &'m Journal<'j>, scope: &Line) -> impl Iterator<Item = (&'j str, &'j Line)> + 'm {
    let prefix = format!("{}/", scope.key);
    let from =
        journal.range::<str, _>((std::ops::Bound::Included(prefix.as_str()), std::ops::Bound::Unbounded));
    let lines: Vec<_> = from.map(|(key, (_, line))| (*key, *line)).collect();
    lines.into_iter().take_while(move |(key, _)| key.starts_with(&prefix))
}

/// Something that a scope with a result has not taken along.
fn of_scope<'j>(journal: &Journal<'j>, scope: &Line) -> Option<&'j str> {
    if scope.kind != EntryKind::Value {
        return None;
    }
    inner(journal, scope).find(|(_, line)| !reaches(journal, line, true)).map(|(key, _)| key)
}

/// Whether a record reaches beyond its scope: the start of a child that was not seen to end, and what was read.
fn reaches(journal: &Journal<'_>, line: &Line, reads: bool) -> bool {
    match line.kind {
        EntryKind::Child => !journal.contains_key(format!("{}#result", line.key).as_str()),
        EntryKind::Received => reads,
        _ => false,
    }
}

/// Something of earlier turns.
fn of_turns<'j>(journal: &Journal<'j>, loops: &str, turns: u64) -> Option<&'j str> {
    let earlier = |key: &str| {
        let state = turn(key).is_some_and(|(key, number)| key == loops && number < turns);
        let within = key.strip_prefix(loops).and_then(|rest| rest.strip_prefix('/'));
        let number =
            within.and_then(|rest| rest.split('/').next()).and_then(|number| number.parse::<u64>().ok());
        state || number.is_some_and(|number| number <= turns)
    };
    let stays =
        |(key, (_, line)): &(&&str, &(EventIndex, &Line))| earlier(key) && !reaches(journal, line, false);
    journal.iter().find(stays).map(|(key, _)| *key)
}

/// The state after a turn is recorded once, and after that the state after the next.
pub(super) fn turns(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    if !evidence.terms.exact {
        return;
    }
    for (id, facts, flow) in flows(evidence) {
        let written = facts.written();
        let mut last: BTreeMap<&str, (EventIndex, u64)> = BTreeMap::new();
        for write in firsts(&written) {
            if let Some(rewind) = flow.rewinds.iter().find(|rewind| rewind.at == write.at) {
                // The state before the last is not kept: a loop that has lost it begins anew.
                last.retain(|key, _| !rewind.reaches(key));
            }
            let states = write.writes.entries.iter().filter_map(|line| turn(line.key.as_str()));
            for (key, number) in states {
                let before = last.insert(key, (write.at, number));
                let expected = before.map_or(1, |(_, number)| number + 1);
                // Whoever shares a state goes on from there.
                let shared = flow.shares.is_some_and(|(at, _)| at == write.at);
                if number != expected && !shared {
                    let what = format!("turn {number} of `{key}` is recorded in place of turn {expected}");
                    let events = before.map(|(at, _)| at).into_iter().chain([write.at]).collect();
                    broken.push(BrokenRule::job(*id, what, events));
                }
            }
        }
    }
}

/// A step that is recorded does not begin because the code calls it otherwise by now.
pub(super) fn renamed(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence).filter(|(_, _, flow)| !flow.renamed.is_empty()) {
        let written = facts.written();
        for entered in &flow.entered {
            let names = flow.renamed.iter().find_map(|(from, to, _)| match entered.key {
                key if key == *from => Some(*to),
                key if key == *to => Some(*from),
                _ => None,
            });
            let Some(other) = names else { continue };
            let there = recorded(&written, other, |write| known(write, entered.at, entered.claim));
            if let Some((at, _)) = there {
                let what = format!("`{other}` was recorded, and began again as `{}`", entered.key);
                broken.push(BrokenRule::job(*id, what, vec![at, entered.at]));
            }
        }
    }
}

/// A workflow is held because its code has changed only if it has, and the code does not say so.
pub(super) fn held(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        let Some(job) = facts.found else { continue };
        let drifted = job.status.state == State::Suspended && job.status.reason == Some(Reason::Drift);
        if drifted && flow.renamed.iter().all(|(_, _, declared)| *declared) {
            let last = facts.finished.last().map(|end| end.at);
            broken.push(BrokenRule::job(
                *id,
                "held, and its code fits what is recorded",
                last.into_iter().collect(),
            ));
        }
    }
}

/// Whoever comes with a token, and however often: it is good once. A step that is done again makes another.
pub(super) fn tokens(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, _, flow) in flows(evidence) {
        let mut good: BTreeMap<&str, Vec<EventIndex>> = BTreeMap::new();
        for (at, key, _) in flow.redeemed.iter().filter(|(_, _, good)| *good) {
            let before = good.entry(key).or_default();
            let again = flow.rewinds.iter().filter(|rewind| rewind.at < *at && rewind.reaches(key)).count();
            before.push(*at);
            if before.len() > 1 + again {
                let what = format!("the token of `{key}` was good {} times", before.len());
                broken.push(BrokenRule::job(*id, what, before.clone()));
            }
        }
    }
}
