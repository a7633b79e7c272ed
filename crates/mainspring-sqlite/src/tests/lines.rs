//! Jobs whose line is none, neither where they are nor by themselves: they stop nobody, and anybody can end them.

use mainspring_core::id::JobId;
use mainspring_core::job::{Outcome, Reason, State, Status, Verb};
use mainspring_core::store::{Changed, Finish, Finished, Nodes, Operators, Producers};

use super::support::{Fixture, block_on, claim, job, registration};

const UNREADABLE: Status = Status::because(State::Suspended, Reason::Unreadable);

fn add(it: &Fixture) -> JobId {
    let job = job(&it.seams);
    let id = job.id;
    block_on(it.store.enqueue(vec![job])).expect("enqueued");
    id
}

fn status(it: &Fixture, id: JobId) -> Status {
    block_on(it.store.get(id)).expect("read").expect("a job").summary.status
}

/// Gives a job a line that is none, where it is in a place and by itself.
fn lose_line(it: &Fixture, place: &str, id: JobId) {
    let conn = it.raw();
    let bytes = id.as_bytes();
    let sql = format!(
        "UPDATE mainspring_{place} SET line = 999 WHERE no = (SELECT no FROM mainspring_jobs WHERE id = ?1)"
    );
    assert_eq!(conn.execute(&sql, [bytes]).expect("damage"), 1);
    conn.execute("UPDATE mainspring_jobs SET line = 999 WHERE id = ?1", [bytes]).expect("damage");
}

#[test]
fn a_job_whose_line_is_none_is_set_aside_alone_and_can_be_ended() {
    let it = Fixture::new();
    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    let change = |id, verb| block_on(it.store.change(vec![id], verb, false)).expect("changed").remove(0);
    for (batch, verb) in (1..).zip([Verb::Cancel { why: String::new() }, Verb::Delete]) {
        let (bad, unmet, good) = (add(&it), add(&it), add(&it));
        lose_line(&it, "ready", bad);
        lose_line(&it, "ready", unmet);
        assert!(
            matches!(change(unmet, verb.clone()), Changed::Applied { .. }),
            "{verb} before a claim meets it"
        );
        let claimed = block_on(it.store.claim(claim(node, batch))).expect("a claim").jobs;
        assert_eq!(claimed.iter().map(|job| job.claim.id).collect::<Vec<_>>(), [good]);
        assert_eq!(status(&it, bad), UNREADABLE);
        assert!(matches!(change(bad, Verb::Resume), Changed::Illegal(_)));
        assert!(matches!(change(bad, verb.clone()), Changed::Applied { .. }), "{verb}");
    }
}

#[test]
fn a_job_whose_line_is_lost_while_it_runs_ends_as_ever() {
    let it = Fixture::new();
    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    let (bad, good) = (add(&it), add(&it));
    let claimed = block_on(it.store.claim(claim(node, 1))).expect("a claim").jobs;
    lose_line(&it, "lease", bad);
    let outcome = |claim| Finish { claim, outcome: Outcome::Release };
    let finishes = claimed.iter().map(|job| outcome(job.claim)).collect();
    let told = block_on(it.store.finish(node, finishes)).expect("finished");
    assert_eq!(told, [Finished::Applied, Finished::Applied]);
    let claimed = block_on(it.store.claim(claim(node, 2))).expect("a claim").jobs;
    assert_eq!(claimed.iter().map(|job| job.claim.id).collect::<Vec<_>>(), [good]);
}
