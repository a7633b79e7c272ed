//! Signals: stored once, read once, and whoever waits for one is woken.

use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::id::{JobId, Row};
use mainspring_core::job::{Outcome, Reason, State, Verb, When};
use mainspring_core::journal::{Message, MessageBody, Signal, Signalled, Subject, Suspension, Wait, Writes};
use mainspring_core::store::{Finish, Finished, Retention};

use super::extreme_texts::HOSTILE;
use super::workflow_calls::{
    mails, name, reads, senders, signal, steps, suspended, until_signal, until_time, wait,
};
use crate::harness::{Harness, SECOND, because, cancel, claimed_ids, fail, plain, priority, retry, succeed};

/// A signal to a job that was never claimed comes with its first claim.
pub async fn signal_before_the_first_claim_comes_with_it(h: &Harness) {
    let id = h.put_one().await;
    let body = b"{\"by\":\"ada\"}".to_vec();
    let sent = Signal { body: body.clone(), ..signal(id, "approved", "ada") };
    assert_eq!(h.signal_all(vec![sent]).await, [Signalled::Stored]);
    let sent_at = h.now();
    h.advance(SECOND);
    assert_eq!(h.status(id).await, plain(State::Ready));
    let node = h.node().await;
    let claimed = h.take(node).await;
    let inbox = claimed.journal.as_ref().expect("a journal").inbox.clone();
    assert!(!inbox.more);
    let [message] = &inbox.messages[..] else { panic!("one message: {inbox:?}") };
    assert!(message.no > 0);
    assert_eq!(message.at, sent_at);
    assert_eq!(message.body, MessageBody::Signal { name: name("approved"), sender: "ada".into(), body });
    assert_eq!(h.mail(&claimed).await.len(), 1);
}

/// A signal to a running job is in its inbox, and stays there until it is read.
pub async fn signal_to_a_running_job_is_in_its_inbox(h: &Harness) {
    let (node, claim) = h.running().await;
    assert!(h.messages(claim).await.is_empty());
    h.send(claim.id, "go", "a").await;
    let messages = h.messages(claim).await;
    assert_eq!(senders(&messages), ["a"]);
    assert_eq!(h.messages(claim).await, messages);
    assert_eq!(h.status(claim.id).await, plain(State::Running));
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(h.mail(&claimed).await, messages);
}

/// A signal wakes the job that waits for it, which then goes before fresh ones.
pub async fn signal_wakes_the_job_that_waits_for_it(h: &Harness) {
    for reason in [Reason::Timer, Reason::Signal, Reason::Child, Reason::Approval, Reason::Budget] {
        let (node, id) = h.waiting(Suspension { reason, ..until_signal("go") }).await;
        let fresh = h.put(h.job_with(|job| job.priority = priority(0))).await;
        h.advance(SECOND);
        h.send(id, "go", "a").await;
        let record = h.get(id).await;
        assert_eq!((record.summary.status, record.waits.len()), (plain(State::Ready), 0));
        let claimed = h.claim(node, 2).await;
        assert_eq!(claimed_ids(&claimed), [id, fresh]);
        let messages = h.mail(&claimed[0]).await;
        assert_eq!((senders(&messages), messages[0].at), (vec!["a"], h.now()));
        for job in claimed {
            h.end(node, job.claim, succeed()).await;
        }
    }
}

/// A signal of another name is stored and wakes nobody; neither does one to another job.
pub async fn signal_of_another_name_wakes_nobody(h: &Harness) {
    let (node, id) = h.waiting(until_signal("go")).await;
    let (_, other) = h.waiting(until_signal("go")).await;
    for about in ["GO", "go ", "g", "go:go", "s:go"] {
        h.send(id, about, "a").await;
    }
    let waiting = because(State::Suspended, Reason::Signal);
    assert_eq!(h.status(id).await, waiting);
    h.send(id, "go", "a").await;
    assert_eq!((h.status(id).await, h.status(other).await), (plain(State::Ready), waiting));
    let claimed = h.take(node).await;
    assert_eq!(h.mail(&claimed).await.len(), 6);
}

/// A signal cannot pass for the end of a child.
pub async fn signal_is_no_end_of_a_child(h: &Harness) {
    let child = h.id();
    let waits = vec![Wait { subject: Subject::Child(child), need: 1 }];
    let (_, id) = h.waiting(Suspension { reason: Reason::Child, waits, ..until_signal("x") }).await;
    h.send(id, &format!("c:{child}"), "a").await;
    h.send(id, &child.to_string(), "a").await;
    assert_eq!(h.status(id).await, because(State::Suspended, Reason::Child));
}

/// One of several waits is enough.
pub async fn one_of_several_waits_is_enough(h: &Harness) {
    for about in ["yes", "no", "maybe"] {
        let waits = ["yes", "no", "maybe"].map(|about| wait(about, 1)).to_vec();
        let (_, id) = h.waiting(Suspension { waits, ..until_signal("x") }).await;
        h.send(id, about, "a").await;
        assert_eq!(h.status(id).await, plain(State::Ready), "{about}");
        h.apply(id, Verb::Delete).await;
    }
}

/// Who waits for several needs as many of one name, from different senders, that were not read before.
pub async fn several_are_as_many_as_were_asked_for(h: &Harness) {
    let (node, claim) = h.running().await;
    h.send(claim.id, "vote", "early").await;
    let read = reads(&h.messages(claim).await).read;
    let waits = vec![wait("vote", 3), wait("veto", 2)];
    let suspension = Suspension { waits, writes: Writes { read, ..Writes::default() }, ..until_signal("x") };
    h.suspend(node, claim, suspension).await;
    let id = claim.id;
    h.send(id, "vote", "a").await;
    h.send(id, "vote", "b").await;
    h.send(id, "veto", "c").await;
    for sender in ["a", "early"] {
        assert_eq!(h.signal(id, "vote", sender).await, Signalled::Repeated);
    }
    assert_eq!(h.status(id).await, because(State::Suspended, Reason::Signal));
    h.send(id, "vote", "d").await;
    assert_eq!(h.status(id).await, plain(State::Ready));
    let claimed = h.take(node).await;
    assert_eq!(senders(&h.mail(&claimed).await), ["a", "b", "c", "d"]);
}

/// Signals that come together count together.
pub async fn signals_of_one_batch_wake_together(h: &Harness) {
    let (node, id) = h.waiting(Suspension { waits: vec![wait("vote", 3)], ..until_signal("x") }).await;
    let batch = ["a", "b", "a", "c", "d"].map(|sender| signal(id, "vote", sender)).to_vec();
    let answers = h.signal_all(batch).await;
    let expected =
        [Signalled::Stored, Signalled::Stored, Signalled::Repeated, Signalled::Stored, Signalled::Stored];
    assert_eq!(answers, expected);
    let claimed = h.take(node).await;
    assert_eq!(senders(&h.mail(&claimed).await), ["a", "b", "c", "d"]);
    assert!(h.claim(node, 9).await.is_empty());
}

/// Messages are given in the order in which they came, with numbers that grow.
pub async fn messages_come_in_order(h: &Harness) {
    let (node, claim) = h.running().await;
    for batch in [["z", "y"], ["x", "a"], ["m", "b"]] {
        h.signal_all(batch.map(|sender| signal(claim.id, sender, sender)).to_vec()).await;
        h.advance(SECOND);
    }
    let messages = h.messages(claim).await;
    assert_eq!(senders(&messages), ["z", "y", "x", "a", "m", "b"]);
    assert!(messages.is_sorted_by(|one, next| one.no < next.no && one.at <= next.at));
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(h.mail(&claimed).await, messages);
}

/// A sender is heard once per name and job, also when the first signal has been read; the first body stays.
pub async fn sender_is_heard_once(h: &Harness) {
    let (node, claim) = h.running().await;
    let other = h.put_one().await;
    h.send(claim.id, "go", "a").await;
    let again = Signal { body: b"2".to_vec(), ..signal(claim.id, "go", "a") };
    assert_eq!(h.signal_all(vec![again.clone()]).await, [Signalled::Repeated]);
    h.send(claim.id, "go", "A").await;
    h.send(claim.id, "stop", "a").await;
    h.send(other, "go", "a").await;
    let messages = h.messages(claim).await;
    assert_eq!(senders(&messages), ["a", "A", "a"]);
    assert!(matches!(&messages[0].body, MessageBody::Signal { body, .. } if body == b"1"));
    h.record(node, claim, reads(&messages)).await;
    assert_eq!(h.signal_all(vec![again]).await, [Signalled::Repeated]);
    assert!(h.messages(claim).await.is_empty());
}

/// A message that was read is not given again, and wakes nobody.
pub async fn read_message_is_not_given_again(h: &Harness) {
    let (node, claim) = h.running().await;
    for sender in ["a", "b", "c"] {
        h.send(claim.id, "go", sender).await;
    }
    let messages = h.messages(claim).await;
    h.record(node, claim, reads(&messages[1..2])).await;
    assert_eq!(senders(&h.messages(claim).await), ["a", "c"]);
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(senders(&h.mail(&claimed).await), ["a", "c"]);
    // Numbers that are read already, or are no messages, do not matter.
    let read = messages.iter().map(|message| message.no).chain([i64::MAX, 0, -1]).collect();
    let suspension = Suspension { writes: Writes { read, ..Writes::default() }, ..until_signal("go") };
    h.suspend(node, claimed.claim, suspension).await;
    assert_eq!(h.status(claim.id).await, because(State::Suspended, Reason::Signal));
    h.send(claim.id, "go", "d").await;
    let claimed = h.take(node).await;
    assert_eq!(senders(&h.mail(&claimed).await), ["d"]);
}

/// A signal that came while the job ran wakes its suspension at once: who comes second sees the first.
pub async fn signal_and_suspension_meet_in_either_order(h: &Harness) {
    for early in [0, 1, 2] {
        let (node, claim) = h.running().await;
        let sends = ["a", "b"];
        for sender in &sends[..early] {
            h.send(claim.id, "go", sender).await;
        }
        let suspension = Suspension { waits: vec![wait("other", 1), wait("go", 2)], ..until_signal("x") };
        h.suspend(node, claim, Suspension { writes: steps(["a"]), ..suspension }).await;
        let expected =
            if early == 2 { plain(State::Ready) } else { because(State::Suspended, Reason::Signal) };
        assert_eq!(h.status(claim.id).await, expected);
        for sender in &sends[early..] {
            h.send(claim.id, "go", sender).await;
        }
        let record = h.get(claim.id).await;
        assert_eq!((record.summary.status, record.waits.len()), (plain(State::Ready), 0));
        assert_eq!((record.summary.run_at, record.note), (None, None));
        let claimed = h.take(node).await;
        assert_eq!(senders(&h.mail(&claimed).await), ["a", "b"]);
        assert_eq!(h.keys(&claimed).await, ["a"]);
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// A job that is woken as it suspends goes before fresh ones, as any that is woken.
pub async fn job_that_is_woken_as_it_suspends_goes_first(h: &Harness) {
    let (node, claim) = h.running().await;
    h.send(claim.id, "go", "a").await;
    let fresh = h.put_one().await;
    h.advance(SECOND);
    h.suspend(node, claim, until_signal("go")).await;
    assert_eq!(claimed_ids(&h.claim(node, 2).await), [claim.id, fresh]);
}

/// A signal that came before the first claim wakes a later suspension at once.
pub async fn signal_before_the_first_claim_wakes_a_later_suspension(h: &Harness) {
    let id = h.put_one().await;
    h.send(id, "go", "a").await;
    let node = h.node().await;
    for round in 1..4 {
        let claim = h.claim_one(node).await;
        assert_eq!(claim.number, round);
        h.suspend(node, claim, until_signal("go")).await;
        assert_eq!(h.status(id).await, plain(State::Ready));
    }
}

/// A signal makes nothing ready but what waits for it: not what is scheduled, held or in quarantine.
pub async fn signal_wakes_only_who_waits(h: &Harness) {
    let quarantined = h.put_one().await;
    h.crash(3).await;
    let scheduled = h.put(h.job_with(|job| job.run = Some(When::After(SECOND)))).await;
    let held = h.put_one().await;
    h.apply(held, Verb::Hold { why: String::new() }).await;
    let (_, sleeper) = h.waiting(until_time(h.now().after(SECOND))).await;
    let expected = [
        (quarantined, because(State::Suspended, Reason::Quarantine)),
        (scheduled, plain(State::Scheduled)),
        (held, because(State::Suspended, Reason::Hold)),
        (sleeper, because(State::Suspended, Reason::Timer)),
    ];
    for (id, status) in expected {
        let before = h.get(id).await;
        h.send(id, "go", "a").await;
        assert_eq!(h.get(id).await, before);
        assert_eq!(before.summary.status, status);
        assert_eq!(h.timeline(id).await.inbox.messages.len(), 1);
    }
}

/// A job that has nothing but a message has a journal in its next claim, wherever it was when the message came.
pub async fn message_alone_comes_with_the_next_claim(h: &Harness) {
    for place in ["scheduled", "held", "retried", "suspended", "quarantined", "running"] {
        let later = place == "scheduled" || place == "held";
        let id = h.put(h.job_with(|job| job.run = later.then_some(When::After(SECOND)))).await;
        let node = h.node().await;
        match place {
            "held" => h.apply(id, Verb::Hold { why: String::new() }).await,
            "quarantined" => h.crash(3).await,
            "retried" => {
                let claim = h.claim_one(node).await;
                h.end(node, claim, retry(SECOND)).await;
            }
            "suspended" => {
                let claim = h.claim_one(node).await;
                h.suspend(node, claim, until_time(h.now().after(SECOND))).await;
            }
            _ => {}
        }
        if place == "running" {
            let claim = h.claim_one(node).await;
            h.send(id, "go", "a").await;
            h.end(node, claim, Outcome::Release).await;
        } else {
            h.send(id, "go", "a").await;
        }
        if place == "held" || place == "quarantined" {
            h.apply(id, Verb::Resume).await;
        }
        h.advance(SECOND);
        h.promote().await;
        let claimed = h.take(node).await;
        assert_eq!((claimed.claim.id, h.mail(&claimed).await.len()), (id, 1), "{place}");
        h.end(node, claimed.claim, succeed()).await;
    }
}

/// Unread signals are as many as the bound, and the next is refused; ends of children do not count.
pub async fn unread_signals_are_bounded(h: &Harness) {
    let (node, claim, _) = h.parent().await;
    h.end_child(node, succeed()).await;
    let senders: Vec<_> = (0..bounds::INBOX).map(|number| number.to_string()).collect();
    for batch in senders.chunks(bounds::BATCH) {
        let batch = batch.iter().map(|sender| signal(claim.id, "go", sender)).collect();
        assert!(h.signal_all(batch).await.iter().all(|answer| *answer == Signalled::Stored));
    }
    assert_eq!(h.signal(claim.id, "go", "more").await, Signalled::Full);
    assert_eq!(h.signal(claim.id, "go", "7").await, Signalled::Repeated);
    let messages = h.messages(claim).await;
    assert_eq!(messages.len(), bounds::INBOX + 1);
    assert!(messages.is_sorted_by(|one, next| one.no < next.no));
    h.start(node, claim, h.child()).await;
    h.end_child(node, succeed()).await;
    // Reading the end of a child makes no room; reading a signal does, for one.
    h.record(node, claim, reads(&messages[..1])).await;
    assert_eq!(h.signal(claim.id, "go", "more").await, Signalled::Full);
    h.record(node, claim, reads(&messages[1..2])).await;
    let batch = ["more", "most"].map(|sender| signal(claim.id, "go", sender)).to_vec();
    assert_eq!(h.signal_all(batch).await, [Signalled::Stored, Signalled::Full]);
    assert_eq!(h.messages(claim).await.len(), bounds::INBOX + 1);
}

/// Of the signals that were read, the last so many keep their sender's key; ends of children keep theirs always.
pub async fn senders_are_remembered_up_to_a_bound(h: &Harness) {
    let (node, claim, _) = h.parent().await;
    h.end_child(node, succeed()).await;
    let count = bounds::INBOX_READ + 2;
    let senders: Vec<_> = (0..count).map(|number| number.to_string()).collect();
    for batch in senders.chunks(bounds::BATCH) {
        h.signal_all(batch.iter().map(|sender| signal(claim.id, "go", sender)).collect()).await;
    }
    let messages = h.messages(claim).await;
    assert_eq!(messages.len(), count + 1);
    for batch in messages.chunks(bounds::BATCH) {
        h.record(node, claim, reads(batch)).await;
    }
    assert_eq!(h.signal(claim.id, "go", "2").await, Signalled::Repeated);
    assert_eq!(h.signal(claim.id, "go", &(count - 1).to_string()).await, Signalled::Repeated);
    for forgotten in ["0", "1"] {
        assert_eq!(h.signal(claim.id, "go", forgotten).await, Signalled::Stored);
    }
    // Those that have not been read are not among them, and are not forgotten.
    let unread = h.messages(claim).await;
    assert_eq!(unread.len(), 2);
    h.record(node, claim, reads(&unread[..1])).await;
    assert_eq!(h.signal(claim.id, "go", "2").await, Signalled::Stored);
    assert_eq!(h.signal(claim.id, "go", "3").await, Signalled::Repeated);
    assert_eq!(h.messages(claim).await.len(), 2);
}

/// What a signal finds is told: no such job, one that has ended and how, or that it was sent before.
pub async fn signal_tells_what_it_found(h: &Harness) {
    assert_eq!(h.signal(h.id(), "go", "a").await, Signalled::NotFound);
    let ends = [
        (succeed(), plain(State::Succeeded)),
        (fail(), because(State::Failed, Reason::Exhausted)),
        (
            Outcome::Cancel { reason: Reason::Handler, why: String::new() },
            because(State::Cancelled, Reason::Handler),
        ),
    ];
    for (outcome, status) in ends {
        let (node, claim) = h.running().await;
        h.send(claim.id, "go", "unread").await;
        h.send(claim.id, "go", "read").await;
        h.record(node, claim, reads(&h.messages(claim).await[1..])).await;
        h.end(node, claim, outcome).await;
        assert_eq!(h.signal(claim.id, "go", "a").await, Signalled::Ended(status));
        assert_eq!(h.signal(claim.id, "go", "unread").await, Signalled::Repeated);
        assert_eq!(h.signal(claim.id, "go", "read").await, Signalled::Repeated);
        assert_eq!(h.timeline(claim.id).await.inbox.messages.len(), 1);
    }
    h.advance(Retention::default().failed.0);
    h.prune().await;
    assert_eq!(h.counts().await.total(State::Failed), 0);
    let id = h.put_one().await;
    h.apply(id, Verb::Delete).await;
    assert_eq!(h.signal(id, "go", "a").await, Signalled::NotFound);
}

/// Answers of one batch come in its order, whatever they are.
pub async fn answers_to_signals_come_in_order(h: &Harness) {
    let (_, waiting) = h.waiting(until_signal("go")).await;
    let ended = h.put_one().await;
    h.apply(ended, cancel("")).await;
    let ready = h.put_one().await;
    let batch = vec![
        signal(h.id(), "go", "a"),
        signal(ready, "go", "a"),
        signal(ended, "go", "a"),
        signal(waiting, "go", "a"),
        signal(ready, "go", "a"),
        signal(ready, "go", "b"),
    ];
    let expected = [
        Signalled::NotFound,
        Signalled::Stored,
        Signalled::Ended(because(State::Cancelled, Reason::Operator)),
        Signalled::Stored,
        Signalled::Repeated,
        Signalled::Stored,
    ];
    assert_eq!(h.signal_all(batch).await, expected);
    assert_eq!(h.status(waiting).await, plain(State::Ready));
    assert!(h.signal_all(Vec::new()).await.is_empty());
}

/// One batch of signals reaches as many jobs.
pub async fn signals_reach_a_whole_batch_of_jobs(h: &Harness) {
    let ids = h.put_many(bounds::BATCH).await;
    let node = h.node().await;
    let finishes = h
        .claim(node, bounds::BATCH)
        .await
        .into_iter()
        .map(|job| Finish { claim: job.claim, outcome: suspended(until_signal("go")) });
    let answers = h.store.finish(node, finishes.collect()).await.expect("finish");
    assert!(answers.iter().all(|answer| *answer == Finished::Applied));
    assert_eq!(h.counts().await.total(State::Suspended), bounds::BATCH as u64);
    let signals: Vec<_> = ids.iter().map(|id| signal(*id, "go", "a")).collect();
    let answers = h.signal_all(signals.clone()).await;
    assert!(answers.iter().all(|answer| *answer == Signalled::Stored));
    assert_eq!(h.counts().await.total(State::Ready), bounds::BATCH as u64);
    let answers = h.signal_all(signals).await;
    assert!(answers.iter().all(|answer| *answer == Signalled::Repeated));
}

/// What was not read is there after an attempt that failed; what it had read is not.
pub async fn unread_messages_survive_a_failed_attempt(h: &Harness) {
    let (node, claim) = h.running().await;
    for sender in ["a", "b"] {
        h.send(claim.id, "go", sender).await;
    }
    h.record(node, claim, reads(&h.messages(claim).await[..1])).await;
    h.end(node, claim, retry(Duration::ZERO)).await;
    h.send(claim.id, "go", "c").await;
    h.promote().await;
    let claimed = h.take(node).await;
    assert_eq!(senders(&h.mail(&claimed).await), ["b", "c"]);
}

/// Names, senders and bodies come back as they were, and are told apart by their exact text.
pub async fn hostile_signals_are_data(h: &Harness) {
    let (node, claim) = h.running().await;
    let mut bodies: Vec<Vec<u8>> = HOSTILE.iter().map(|text| text.as_bytes().to_vec()).collect();
    bodies.extend([Vec::new(), vec![0], vec![0xFF, 0, 0xC3, 0x28]]);
    let longest = ("n".repeat(bounds::NAME_BYTES), "s".repeat(bounds::KEY_BYTES));
    let mut sent = Vec::new();
    for (number, body) in bodies.into_iter().enumerate() {
        let text = HOSTILE[number % HOSTILE.len()];
        sent.push(Signal { body, ..signal(claim.id, text, &format!("{text}{number}")) });
    }
    let large = vec![b'x'; bounds::SIGNAL_BYTES];
    sent.push(Signal { body: large, ..signal(claim.id, &longest.0, &longest.1) });
    let answers = h.signal_all(sent.clone()).await;
    assert!(answers.iter().all(|answer| *answer == Signalled::Stored));
    let expected: Vec<_> = sent
        .into_iter()
        .map(|signal| MessageBody::Signal { name: signal.name, sender: signal.sender, body: signal.body })
        .collect();
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(mails(h.mail(&claimed).await), expected);
}

/// Senders that look alike are not the same.
pub async fn senders_are_told_apart_by_their_exact_text(h: &Harness) {
    let id = h.put_one().await;
    for sender in ["a", "A", "a ", " a", "\u{e9}", "e\u{301}", "1", "01", "1.0", "null", "a\tb", "a\nb"] {
        assert_eq!(h.signal(id, "go", sender).await, Signalled::Stored, "{sender:?}");
        assert_eq!(h.signal(id, "go", sender).await, Signalled::Repeated, "{sender:?}");
    }
}

/// An inbox is read in pages, from behind a message on, and says whether there is more.
pub async fn inbox_is_read_in_pages(h: &Harness) {
    let (node, claim) = h.running().await;
    let senders: Vec<_> = (0..bounds::INBOX_PAGE + 3).map(|number| number.to_string()).collect();
    for batch in senders.chunks(bounds::BATCH) {
        h.signal_all(batch.iter().map(|sender| signal(claim.id, "go", sender)).collect()).await;
    }
    let page = async |after| h.store.inbox(vec![(claim, after)]).await.expect("inbox").remove(0);
    let first = page(0).await;
    assert_eq!((first.messages.len(), first.more), (bounds::INBOX_PAGE, true));
    let last = |messages: &[Message]| messages.last().map_or(0, |message| message.no);
    let second = page(last(&first.messages)).await;
    assert_eq!((second.messages.len(), second.more), (3, false));
    let third = page(last(&second.messages)).await;
    assert_eq!((third.messages.len(), third.more), (0, false));
    h.record(node, claim, reads(&first.messages[..3])).await;
    let exact = page(0).await;
    assert_eq!((exact.messages.len(), exact.more), (bounds::INBOX_PAGE, false));
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    assert_eq!(h.mail(&claimed).await.len(), bounds::INBOX_PAGE);
}

/// Large messages come, in as many pages as they need.
pub async fn large_messages_come_in_several_pages(h: &Harness) {
    let (node, claim) = h.running().await;
    let count = 3 * bounds::PREFETCH_BYTES / bounds::SIGNAL_BYTES;
    let body = |number: usize| vec![u8::try_from(number).unwrap_or(0); bounds::SIGNAL_BYTES];
    for number in 0..count {
        let large = Signal { body: body(number), ..signal(claim.id, "go", &number.to_string()) };
        assert_eq!(h.signal_all(vec![large]).await, [Signalled::Stored]);
    }
    h.end(node, claim, Outcome::Release).await;
    let claimed = h.take(node).await;
    let messages = h.mail(&claimed).await;
    assert_eq!(messages.len(), count);
    for (number, message) in messages.iter().enumerate() {
        assert!(matches!(&message.body, MessageBody::Signal { body: got, .. } if *got == body(number)));
    }
}

/// A claim brings a bounded size of messages, whatever the size of the first of each job; the rest is read. So does one
/// that is repeated.
pub async fn messages_of_a_whole_claim_are_bounded(h: &Harness) {
    let count = bounds::BATCH_BYTES / bounds::SIGNAL_BYTES + 8;
    let ids = h.put_many(count).await;
    for some in ids.chunks(64) {
        let large = |id: &JobId| Signal { body: vec![b'1'; bounds::SIGNAL_BYTES], ..signal(*id, "go", "a") };
        h.signal_all(some.iter().map(large).collect()).await;
    }
    let node = h.node().await;
    let request = h.request(node, count);
    for _ in 0..2 {
        let claimed = h.claim_as(request.clone()).await;
        assert_eq!(claimed.len(), count);
        let journals = claimed.iter().filter_map(|job| job.journal.as_ref());
        let mails = journals.flat_map(|journal| &journal.inbox.messages);
        let bytes: usize = mails.map(|message| message.body.bytes()).sum();
        assert!(bytes <= bounds::BATCH_BYTES, "{bytes}");
        for job in claimed.iter().step_by(16).chain(claimed.last()) {
            assert_eq!(senders(&h.mail(job).await), ["a"]);
        }
    }
}

/// Inboxes of several claims are read at once, each in its place; one that is unknown is empty.
pub async fn inboxes_come_in_order_of_the_claims(h: &Harness) {
    h.put_many(3).await;
    let node = h.node().await;
    let claims: Vec<_> = h.claim(node, 3).await.into_iter().map(|job| job.claim).collect();
    h.send(claims[0].id, "go", "a").await;
    h.send(claims[2].id, "go", "b").await;
    let mut unknown = claims[0];
    unknown.id = h.id();
    unknown.row = Row(999_999);
    let asked = vec![(claims[2], 0), (unknown, 0), (claims[1], 0), (claims[0], 0), (claims[2], i64::MAX)];
    let inboxes = h.store.inbox(asked).await.expect("inbox");
    let told: Vec<Vec<&str>> = inboxes.iter().map(|inbox| senders(&inbox.messages)).collect();
    assert_eq!(told, [vec!["b"], vec![], vec![], vec!["a"], vec![]]);
    assert!(inboxes.iter().all(|inbox| !inbox.more));
    assert!(h.store.inbox(Vec::new()).await.expect("inbox").is_empty());
}
