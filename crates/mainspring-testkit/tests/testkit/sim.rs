//! The simulator in the normal run: many seeds on memory, some on SQLite, and those that ever failed.

use std::ops::Range;

use mainspring_testkit::sim::{self, Kind};

/// Runs seeds and tells the stories of those that fail.
fn clean(kind: Kind, seeds: impl IntoIterator<Item = u64>) {
    let mut failed = Vec::new();
    for seed in seeds {
        let run = sim::run(kind, seed);
        failed.extend(run.violations.iter().map(|violation| format!("seed {seed}: {violation}")));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

macro_rules! seeds {
    ($($name:ident: $kind:ident $range:expr),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                let range: Range<u64> = $range;
                clean(Kind::$kind, range);
            }
        )+
    };
}

// In parts, so that they run beside each other.
seeds! {
    memory_0: Memory 0..50,
    memory_1: Memory 50..100,
    memory_2: Memory 100..150,
    memory_3: Memory 150..200,
    sqlite_0: Sqlite 0..10,
    sqlite_1: Sqlite 10..20,
}

#[test]
fn seeds_that_ever_failed() {
    for kind in [Kind::Memory, Kind::Sqlite] {
        clean(kind, sim::regressions(kind));
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for (kind, seeds) in [(Kind::Memory, 0..5), (Kind::Sqlite, 0..2)] {
        for seed in seeds {
            let (first, again) = (sim::run(kind, seed), sim::run(kind, seed));
            assert_eq!(first.hash(), again.hash(), "{kind:?} {seed}");
            assert_eq!(first.history.len(), again.history.len(), "{kind:?} {seed}");
        }
    }
}

/// A node that is stopped past its lease, wakes and writes is refused, every time.
#[test]
fn late_writes_are_refused() {
    for (kind, count) in [(Kind::Memory, 1_000), (Kind::Sqlite, 50)] {
        let races = sim::races(kind, count, 1);
        assert_eq!((races.forced, races.refused, races.once), (count, count, count), "{kind:?}");
    }
}
