//! Every edge, legal and illegal: the table below is written by hand and compared with the function over all pairs.

mod diagram;

use super::*;
use Reason as R;
use State as S;

/// All statuses that can exist.
fn statuses() -> Vec<Status> {
    let mut all = Vec::new();
    for &state in S::ALL {
        let reasons: Vec<_> = R::ALL.iter().copied().filter(|r| r.fits(state)).collect();
        if reasons.is_empty() {
            all.push(Status::plain(state));
        }
        all.extend(reasons.into_iter().map(|r| Status::because(state, r)));
    }
    all
}

/// All inputs that can exist.
fn inputs() -> Vec<Input> {
    let mut all = vec![
        Input::Unblock { later: false },
        Input::Unblock { later: true },
        Input::Skip,
        Input::Due,
        Input::Claim,
        Input::Succeed,
        Input::Retry,
        Input::Snooze,
        Input::Release,
        Input::Crash { quarantine: false },
        Input::Crash { quarantine: true },
        Input::Unreadable,
        Input::Wake,
        Input::Hold,
        Input::Resume { later: false },
        Input::Resume { later: true },
        Input::Revive,
        Input::Rewind,
    ];
    for &reason in R::ALL {
        all.extend([Input::Fail(reason), Input::Suspend(reason), Input::Cancel(reason), Input::Stop(reason)]);
    }
    all
}

/// The legal edges as text: `from input -> to`. What is not listed must be illegal.
fn expected() -> std::collections::BTreeSet<String> {
    let mut edges = std::collections::BTreeSet::new();
    let mut edge = |from: Status, input: Input, to: Status| {
        edges.insert(format!("{from} {input:?} -> {to}"));
    };
    let ready = Status::plain(S::Ready);
    let scheduled = Status::plain(S::Scheduled);
    let blocked = Status::plain(S::Blocked);
    let running = Status::plain(S::Running);
    let suspended = |r| Status::because(S::Suspended, r);
    let failed = |r| Status::because(S::Failed, r);
    let cancelled = |r| Status::because(S::Cancelled, r);

    edge(blocked, Input::Unblock { later: false }, ready);
    edge(blocked, Input::Unblock { later: true }, scheduled);
    edge(blocked, Input::Skip, Status::plain(S::Skipped));
    edge(scheduled, Input::Due, ready);
    edge(scheduled, Input::Revive, ready);
    edge(ready, Input::Claim, running);
    edge(running, Input::Succeed, Status::plain(S::Succeeded));
    for r in [R::Exhausted, R::Discarded, R::Expired] {
        edge(running, Input::Fail(r), failed(r));
    }
    edge(running, Input::Retry, scheduled);
    edge(running, Input::Snooze, scheduled);
    edge(running, Input::Release, ready);
    edge(running, Input::Crash { quarantine: false }, ready);
    edge(running, Input::Crash { quarantine: true }, suspended(R::Quarantine));
    edge(running, Input::Unreadable, suspended(R::Unreadable));
    for r in [R::Timer, R::Signal, R::Child, R::Approval, R::Budget, R::Drift] {
        edge(running, Input::Suspend(r), suspended(r));
    }
    for &r in R::ALL {
        edge(running, Input::Cancel(r), running);
    }
    for r in [R::Operator, R::Handler, R::Replaced, R::Parent] {
        edge(running, Input::Stop(r), cancelled(r));
    }
    for r in [R::Timer, R::Signal, R::Child, R::Approval, R::Budget] {
        edge(suspended(r), Input::Wake, ready);
        edge(suspended(r), Input::Hold, suspended(R::Hold));
    }
    for r in R::ALL.iter().copied().filter(|r| r.fits(S::Suspended)) {
        edge(suspended(r), Input::Resume { later: false }, ready);
        edge(suspended(r), Input::Resume { later: true }, if r == R::Hold { scheduled } else { ready });
    }
    let waiting: Vec<_> = statuses()
        .into_iter()
        .filter(|s| matches!(s.state, S::Blocked | S::Scheduled | S::Ready | S::Suspended))
        .collect();
    for from in waiting {
        for r in [R::Operator, R::Handler, R::Replaced, R::Parent] {
            edge(from, Input::Cancel(r), cancelled(r));
        }
        edge(from, Input::Fail(R::Expired), failed(R::Expired));
        if from.state == S::Suspended {
            edge(from, Input::Fail(R::Operator), failed(R::Operator));
        }
    }
    edge(scheduled, Input::Hold, suspended(R::Hold));
    edge(ready, Input::Hold, suspended(R::Hold));
    for r in [R::Exhausted, R::Discarded, R::Expired, R::Operator] {
        edge(failed(r), Input::Revive, ready);
    }
    for r in [R::Operator, R::Handler, R::Replaced, R::Parent] {
        edge(cancelled(r), Input::Revive, ready);
    }
    edge(Status::plain(S::Skipped), Input::Revive, ready);
    let again =
        |s: &Status| matches!(s.state, S::Scheduled | S::Ready | S::Suspended | S::Failed | S::Cancelled);
    for from in statuses().into_iter().filter(again) {
        edge(from, Input::Rewind, ready);
    }
    edges
}

#[test]
fn every_edge_is_as_the_table_says() {
    let mut found = std::collections::BTreeSet::new();
    for from in statuses() {
        for input in inputs() {
            if let Ok(to) = transition(from, input) {
                found.insert(format!("{from} {input:?} -> {to}"));
            }
        }
    }
    let expected = expected();
    let missing: Vec<_> = expected.difference(&found).collect();
    let surplus: Vec<_> = found.difference(&expected).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing: {missing:#?}\nsurplus: {surplus:#?}");
}

#[test]
fn what_comes_out_always_has_a_fitting_reason() {
    for from in statuses() {
        for input in inputs() {
            if let Ok(to) = transition(from, input) {
                let needs = matches!(to.state, S::Suspended | S::Failed | S::Cancelled);
                assert_eq!(to.reason.is_some_and(|r| r.fits(to.state)), needs, "{from} {input:?} -> {to}");
            }
        }
    }
}

#[test]
fn a_succeeded_job_never_changes() {
    for input in inputs() {
        assert!(transition(Status::plain(S::Succeeded), input).is_err(), "{input:?}");
    }
}

#[test]
fn only_jobs_that_are_not_running_can_be_deleted_or_get_another_priority() {
    for from in statuses() {
        let delete = Verb::Delete.apply(from, false);
        assert_eq!(delete == Ok(None), from.state != S::Running, "{from}");
        let set_priority = Verb::SetPriority(Priority::HIGHEST).apply(from, false);
        let waiting = !from.state.is_terminal() && from.state != S::Running;
        assert_eq!(set_priority == Ok(Some(from)), waiting, "{from}");
    }
}

#[test]
fn why_texts_are_bounded() {
    let cancel = |n| Verb::Cancel { why: "x".repeat(n) }.check();
    assert!(cancel(bounds::WHY_BYTES).is_ok());
    assert!(matches!(cancel(bounds::WHY_BYTES + 1), Err(Error::TooLarge { .. })));
    assert!(Verb::Fail { why: "a\0b".into() }.check().is_err());
    assert!(Verb::Recall { why: "a\0b".into() }.check().is_err());
    assert!(Verb::Hold { why: "a\0b".into() }.check().is_err());
}

#[test]
fn verbs_are_told_by_their_words() {
    let why = String::new;
    let verbs = [
        (Verb::Cancel { why: why() }, "cancel"),
        (Verb::Recall { why: why() }, "recall"),
        (Verb::Retry, "retry"),
        (Verb::Rewind { from: Key::new("a").expect("a key"), claim: 1 }, "rewind"),
        (Verb::Hold { why: String::new() }, "hold"),
        (Verb::Resume, "resume"),
        (Verb::Fail { why: why() }, "fail"),
        (Verb::Delete, "delete"),
        (Verb::SetPriority(Priority::HIGHEST), "set-priority"),
    ];
    for (verb, word) in verbs {
        assert_eq!(verb.to_string(), word);
    }
}
