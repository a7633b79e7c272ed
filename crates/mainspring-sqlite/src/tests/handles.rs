//! Several handles on one file: what each learns of the others.

use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use mainspring_core::job::State;
use mainspring_core::name::QueueName;
use mainspring_core::store::{
    Hint, Listener, NodeState, Nodes, Operators, Producers, QueueChange, Rescue, Store,
};
use mainspring_core::time::Timestamp;

use super::support::{Fixture, block_on, claim, job, registration};
#[cfg(unix)]
use crate::{Options, Sqlite};

/// Passes hints on.
struct HintSender(Mutex<mpsc::Sender<Hint>>);

impl Listener for HintSender {
    fn hint(&self, hint: &Hint) {
        let _ = self.0.lock().expect("a lock").send(hint.clone());
    }
}

fn ear() -> (Arc<dyn Listener>, mpsc::Receiver<Hint>) {
    let (sender, receiver) = mpsc::channel();
    (Arc::new(HintSender(Mutex::new(sender))), receiver)
}

#[test]
fn foreign_commit_is_hinted_and_an_own_one_is_not() {
    let it = Fixture::new();
    let (listener, hints) = ear();
    it.store.subscribe(Arc::downgrade(&listener));
    for _ in 0..20 {
        block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    }
    let heard: Vec<Hint> = hints.try_iter().collect();
    assert_eq!(heard.len(), 20);
    assert!(heard.iter().all(|hint| matches!(hint, Hint::Ready(_))), "{heard:?}");
    block_on(it.other().enqueue(vec![job(&it.seams)])).expect("enqueued elsewhere");
    // The writer looks around by itself while anybody listens.
    let hint = hints.recv_timeout(Duration::from_mins(3)).expect("a hint");
    assert_eq!(hint, Hint::Foreign);
}

#[test]
fn foreign_commit_is_hinted_to_a_store_that_only_listens() {
    let it = Fixture::new();
    // The writer has gone to sleep with nobody listening.
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    std::iter::repeat_with(std::thread::yield_now).take(10_000).for_each(drop);
    let (listener, hints) = ear();
    it.store.subscribe(Arc::downgrade(&listener));
    block_on(it.other().enqueue(vec![job(&it.seams)])).expect("enqueued elsewhere");
    assert_eq!(hints.recv_timeout(Duration::from_mins(3)).expect("a hint"), Hint::Foreign);
}

#[test]
fn listener_that_is_gone_is_forgotten() {
    let it = Fixture::new();
    let (listener, hints) = ear();
    let weak: Weak<dyn Listener> = Arc::downgrade(&listener);
    it.store.subscribe(weak);
    drop(listener);
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    assert!(hints.try_recv().is_err());
}

#[cfg(unix)]
#[test]
fn a_handle_through_a_link_sees_that_the_others_live() {
    let it = Fixture::new();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let link = elsewhere.path().join("app.db");
    std::os::unix::fs::symlink(&it.path, &link).expect("a link");
    let linked = Sqlite::open(Options::new(&link), it.seams.clone()).expect("the same file");
    block_on(it.store.register(registration(&it.seams))).expect("a node");
    let by = block_on(linked.register(registration(&it.seams))).expect("another node").no;
    let rescue = Rescue { by, steady: Duration::ZERO, seen: Timestamp::MAX };
    assert!(block_on(linked.rescue(rescue)).expect("a rescue").expired.is_empty(), "it lives");
    block_on(linked.close());
    assert_eq!(std::fs::read_dir(elsewhere.path()).expect("listed").count(), 1, "nothing beside the link");
}

#[test]
fn names_and_settings_of_another_handle_are_known() {
    let it = Fixture::new();
    let other = it.other();
    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    // A line that this handle has never seen.
    block_on(other.enqueue(vec![job(&it.seams)])).expect("enqueued elsewhere");
    assert_eq!(block_on(it.store.claim(claim(node, 1))).expect("claimed").jobs.len(), 1);
    let pause = QueueChange { paused: Some(true), ..QueueChange::default() };
    block_on(other.configure(QueueName::new("q").expect("a name"), pause)).expect("paused elsewhere");
    block_on(other.enqueue(vec![job(&it.seams)])).expect("enqueued elsewhere");
    assert!(block_on(it.store.claim(claim(node, 2))).expect("claimed").jobs.is_empty());
}

#[test]
fn node_of_a_closed_handle_is_dead_at_once() {
    let it = Fixture::new();
    let other = it.other();
    let dead = block_on(other.register(registration(&it.seams))).expect("a node").no;
    block_on(other.enqueue(vec![job(&it.seams)])).expect("enqueued");
    assert_eq!(block_on(other.claim(claim(dead, 1))).expect("claimed").jobs.len(), 1);
    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    let rescue = Rescue { by: node, steady: Duration::ZERO, seen: Timestamp::MAX };
    assert!(block_on(it.store.rescue(rescue)).expect("a rescue").expired.is_empty(), "it lives");
    block_on(other.close());
    let rescued = block_on(it.store.rescue(rescue)).expect("a rescue");
    assert_eq!((rescued.expired, rescued.returned), (vec![dead], 1));
    it.assert_sound();
}

#[test]
fn live_nodes_of_this_handle_are_judged_by_their_lease() {
    let it = Fixture::new();
    let silent = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    block_on(it.store.enqueue(vec![job(&it.seams)])).expect("enqueued");
    block_on(it.store.claim(claim(silent, 1))).expect("claimed");
    it.clock.advance(Duration::from_secs(16));
    let hasty = Rescue { by: node, steady: Duration::from_secs(1), seen: Timestamp::MAX };
    assert!(block_on(it.store.rescue(hasty)).expect("a rescue").expired.is_empty());
    let steady = Rescue { by: node, steady: Duration::from_secs(15), seen: Timestamp::MAX };
    assert_eq!(block_on(it.store.rescue(steady)).expect("a rescue").expired, [silent]);
    let states: Vec<_> = block_on(it.store.nodes()).expect("nodes").iter().map(|node| node.state).collect();
    assert_eq!(states, [NodeState::Live, NodeState::Expired]);
    assert_eq!(block_on(it.store.counts()).expect("counts").total(State::Ready), 1);
}

/// The lock files of nodes beside a store.
#[cfg(unix)]
fn locks(it: &Fixture) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(it.path.parent().expect("a directory")).expect("listed");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut locks: Vec<_> = paths.filter(|path| path.to_string_lossy().contains("-node-")).collect();
    locks.sort();
    locks
}

#[cfg(unix)]
#[test]
fn living_node_whose_lock_file_is_removed_is_judged_by_its_lease() {
    let it = Fixture::new();
    let other = it.other();
    let living = block_on(other.register(registration(&it.seams))).expect("a node").no;
    block_on(other.enqueue(vec![job(&it.seams)])).expect("enqueued");
    assert_eq!(block_on(other.claim(claim(living, 1))).expect("claimed").jobs.len(), 1);
    let node = block_on(it.store.register(registration(&it.seams))).expect("a node").no;
    let files = locks(&it);
    assert_eq!(files.len(), 2);
    for path in &files {
        std::fs::remove_file(path).expect("removed");
    }
    let rescue = |by, steady| Rescue { by, steady, seen: Timestamp::MAX };
    let hasty = |by| rescue(by, Duration::ZERO);
    assert!(block_on(it.store.rescue(hasty(node))).expect("a rescue").expired.is_empty(), "missing");
    assert!(block_on(other.rescue(hasty(living))).expect("a rescue").expired.is_empty(), "missing");
    // A file of the same name is no proof either.
    for path in &files {
        std::fs::write(path, "").expect("written");
    }
    assert!(block_on(it.store.rescue(hasty(node))).expect("a rescue").expired.is_empty(), "another file");
    assert!(block_on(other.rescue(hasty(living))).expect("a rescue").expired.is_empty(), "another file");

    // Nothing but the lease is left to judge it by.
    it.clock.advance(Duration::from_secs(16));
    let steady = rescue(node, Duration::from_secs(15));
    assert_eq!(block_on(it.store.rescue(steady)).expect("a rescue").expired, [living]);

    // It joins anew with a fresh lock, which proves its death at once again.
    let living = block_on(other.register(registration(&it.seams))).expect("a node").no;
    assert_eq!(locks(&it).len(), 3);
    assert!(block_on(it.store.rescue(hasty(node))).expect("a rescue").expired.is_empty(), "it lives");
    block_on(other.close());
    assert_eq!(block_on(it.store.rescue(hasty(node))).expect("a rescue").expired, [living]);
    assert_eq!(locks(&it), files, "those that somebody else made are left alone");
    it.assert_sound();
}

#[cfg(unix)]
#[test]
fn handle_whose_nodes_have_retired_leaves_no_lock_file() {
    let it = Fixture::new();
    let other = it.other();
    let node = block_on(other.register(registration(&it.seams))).expect("a node").no;
    block_on(other.retire(node)).expect("retired");
    assert_eq!(locks(&it).len(), 1);
    block_on(other.close());
    assert_eq!(locks(&it).len(), 0);
}
