//! Rows of schedules that nobody can read: they hold up no other, and the self-check tells of them.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::Uuid;
use mainspring_core::job::{Options, Priority};
use mainspring_core::name::{Kind, QueueName, ScheduleName};
use mainspring_core::schedule::{Definition, Rule, Schedule, Template, Times};
use mainspring_core::seam::Clock;
use mainspring_core::store::{ScheduleWrite, Store};
use mainspring_sqlite::rusqlite;
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::executor::block_on;
use mainspring_testkit::synchronous_store::{StoreLocation, postgres, sqlite};

fn row(name: &str, now: &ManualClock) -> ScheduleWrite {
    let name = ScheduleName::new(name).expect("a name");
    let rule = Rule::new("every 10s".parse::<Times>().expect("times"));
    let job = Template {
        kind: Kind::new("k").expect("a name"),
        queue: QueueName::new("q").expect("a name"),
        priority: Priority::default(),
        input: serde_json::Value::Null,
        deadline: None,
        options: Options::default(),
    };
    let row =
        Schedule::create(name.clone(), Definition::new(rule, job), Uuid::from_bytes([1; 16]), now.now());
    ScheduleWrite { name, expected: None, row: Some(row), jobs: Vec::new(), audit: None }
}

fn damage(location: &StoreLocation, sql: &str) {
    match location {
        StoreLocation::Directory(dir) => {
            let sql = sql.replace("mainspring.", "mainspring_");
            let file = rusqlite::Connection::open(dir.path().join("test.db")).expect("the file");
            file.execute_batch(&sql).expect("damage");
        }
        StoreLocation::Database(database) => drop(database.sql(sql).expect("damage")),
    }
}

/// Makes a store on a clock.
type Open = fn(&Arc<dyn Clock>) -> (Arc<dyn Store>, StoreLocation);

fn is_found_and_holds_up_no_other(open: Open) {
    let clock = ManualClock::new();
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let (store, location) = open(&shared);
    let written = block_on(store.write_schedules(vec![row("bad", &clock), row("good", &clock)]));
    written.expect("they are written");
    assert_eq!(block_on(store.check()).expect("a check"), []);
    damage(&location, "UPDATE mainspring.schedules SET definition = '{}' WHERE name = 'bad'");
    clock.advance(Duration::from_mins(1));
    let due = block_on(store.due_schedules(10)).expect("what is due");
    assert_eq!(due.schedules.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["good"]);
    let findings = block_on(store.check()).expect("a check");
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert!(finding.what.starts_with("schedule `bad` cannot be read: "), "{}", finding.what);
    block_on(store.close());
}

#[test]
fn a_damaged_schedule_is_found_on_sqlite_and_holds_up_no_other() {
    is_found_and_holds_up_no_other(sqlite);
}

#[test]
fn a_damaged_schedule_is_found_on_postgres_and_holds_up_no_other() {
    is_found_and_holds_up_no_other(postgres);
}
