//! Plans: hot statements search by the index that their comments name.

use rusqlite::{Connection, StatementStatus, ToSql, params};

use crate::op::limits::{self, cache, counters};
use crate::op::{
    change, claim, due, enqueue, family, finish, inbox, journal, moves, node, output, prune, remove, rescue,
    schedules,
};
use crate::read::plans as read;

fn schema() -> Connection {
    let conn = Connection::open_in_memory().expect("a connection");
    conn.execute_batch(include_str!("../schema/0001.sql")).expect("the schema");
    conn
}

fn plan(conn: &Connection, sql: &str) -> String {
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("a statement");
    let nulls: Vec<&dyn ToSql> = vec![&rusqlite::types::Null; statement.parameter_count()];
    let rows = statement.query_map(nulls.as_slice(), |row| row.get(3)).expect("a plan");
    rows.collect::<rusqlite::Result<Vec<String>>>().expect("lines").join("\n")
}

#[test]
fn hot_statements_search_and_never_scan() {
    let conn = schema();
    let by_index: &[(&str, &str)] = &[
        (claim::NEXT_LINE, "COVERING INDEX mainspring_ready_claim (line>?)"),
        (claim::NEXT_LEVEL, "COVERING INDEX mainspring_ready_claim (line=? AND level>?)"),
        (claim::HEADS, "COVERING INDEX mainspring_ready_claim (line=? AND level=?)"),
        (claim::FIRST, "INDEX mainspring_ready_claim (line=? AND level=?)"),
        (moves::HOLD_FIRST, "INDEX mainspring_ready_claim (line=? AND level=?)"),
        (moves::TAKE_FIRST, "INDEX mainspring_ready_claim (line=? AND level=?)"),
        (claim::ONE, "INTEGER PRIMARY KEY (rowid=?)"),
        (moves::HOLD_ONE, "INTEGER PRIMARY KEY (rowid=?)"),
        (moves::FROM_READY, "INTEGER PRIMARY KEY (rowid=?)"),
        (finish::HELD_ONE, "INTEGER PRIMARY KEY (rowid=?)"),
        (moves::FROM_LEASE, "INTEGER PRIMARY KEY (rowid=?)"),
        (finish::HELD_ALL, "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (moves::PLAIN_INTO_DONE, "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (moves::PLAIN_FROM_LEASE, "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (finish::ENDED, "INDEX mainspring_done_no (no=?)"),
        (node::FLAGGED, "INDEX mainspring_lease_cancel (node=?)"),
        (change::FIND, "INDEX sqlite_autoindex_mainspring_jobs_1 (id=?)"),
        (due::DUE, "INDEX mainspring_timers_due (due<?)"),
        (due::PASSED, "INDEX mainspring_deadlines_at (at<?)"),
        (read::DUE, "INDEX mainspring_schedules_next (next_at>? AND next_at<?)"),
        (read::FIND, "PRIMARY KEY (name=?)"),
        (read::LIST, "PRIMARY KEY (name>?)"),
        (read::AUDIT_OF, "INDEX mainspring_audit_subject (subject=?)"),
        (schedules::FORGET, "COVERING INDEX mainspring_audit_subject (subject=? AND no<?)"),
        (due::WAKING, "INDEX mainspring_suspended_due (due>? AND due<?)"),
        (journal::FENCE, "INTEGER PRIMARY KEY (rowid=?)"),
        (journal::ENTRIES, "INDEX mainspring_steps_key (no=?)"),
        (journal::FORGET, "INDEX mainspring_steps_key (no=? AND key=?)"),
        (inbox::KNOWN, "COVERING INDEX mainspring_inbox_subject (no=? AND subject=? AND sender=?)"),
        (inbox::UNREAD, "COVERING INDEX mainspring_inbox_read (no=? AND read=?)"),
        (inbox::ANY, "COVERING INDEX mainspring_inbox_read (no=? AND read=?)"),
        (inbox::CAME, "INDEX mainspring_inbox_subject (no=? AND subject=?)"),
        (inbox::AFTER, "INDEX mainspring_inbox_read (no=? AND read=? AND rowid>?)"),
        (inbox::READ, "INTEGER PRIMARY KEY (rowid=?)"),
        (inbox::TRIM, "COVERING INDEX mainspring_inbox_read (no=? AND read=?)"),
        (output::LAST, "INDEX mainspring_output_position (no=?)"),
        (output::FIRST, "INDEX mainspring_output_position (no=? AND position>?)"),
        (output::FIRST_OF, "INDEX mainspring_output_position (no=? AND position>?)"),
        (output::SWEEP, "INDEX mainspring_output_position (no=? AND position<?)"),
        (family::PARENT, "INTEGER PRIMARY KEY (rowid=?)"),
        (family::TO_CANCEL, "INDEX mainspring_children_parent (parent=?)"),
        (family::LAST_ERROR, "PRIMARY KEY (no=?)"),
        (remove::STEPS, "INDEX mainspring_steps_key (no=?)"),
        (remove::INBOX, "(no=?)"),
        (remove::OUTPUT, "INDEX mainspring_output_position (no=?)"),
        (read::PAGE, "INDEX mainspring_output_position (no=? AND position>?)"),
        (remove::CHILDREN, "INDEX mainspring_children_parent (parent=?)"),
        (prune::AFTER, "INTEGER PRIMARY KEY (rowid>?)"),
        (read::VALUE, "INDEX mainspring_steps_key (no=? AND key=?)"),
        (read::CHILDREN, "INDEX mainspring_children_parent (parent=?)"),
        (read::ENDING, "INDEX mainspring_done_no (no=?)"),
        (read::READY, "INTEGER PRIMARY KEY (rowid<?)"),
        (read::JOBS, "INTEGER PRIMARY KEY (rowid<?)"),
        (read::RARE, "INDEX mainspring_done_rare (state=? AND no<?)"),
        (read::TAGGED, "PRIMARY KEY (tag=? AND no<?)"),
        (read::FAULTY, "PRIMARY KEY (no<?)"),
    ];
    searches(&conn, by_index);
}

#[test]
fn statements_of_limits_search_and_never_scan() {
    let conn = schema();
    let by_index: &[(&str, &str)] = &[
        (claim::NEXT_TURN_LINE, "PRIMARY KEY (line>?)"),
        (claim::NEXT_TURN_LEVEL, "PRIMARY KEY (line=? AND level>?)"),
        (limits::claim::TURNS, "PRIMARY KEY (line=? AND level=?)"),
        (claim::FIRST_LIMITED, "INDEX mainspring_limited_claim (line=? AND limit_group=? AND level=?)"),
        (moves::HOLD_LIMITED, "INDEX mainspring_limited_claim (line=? AND limit_group=? AND level=?)"),
        (moves::INTO_HOLDERS, "INDEX mainspring_limited_claim (line=? AND limit_group=? AND level=?)"),
        (moves::TAKE_LIMITED, "INDEX mainspring_limited_claim (line=? AND limit_group=? AND level=?)"),
        (counters::LOAD, "INTEGER PRIMARY KEY (rowid=?)"),
        (counters::SAVE, "INTEGER PRIMARY KEY (rowid=?)"),
        (counters::DUE, "INDEX mainspring_limit_keys_due (due>? AND due<?)"),
        (counters::TURN, "COVERING INDEX mainspring_blocked_groups_group (limit_group=? AND level=?)"),
        (counters::END_TURN, "INDEX mainspring_group_turns_group (limit_group=? AND level=?)"),
        (counters::UNBLOCK, "INDEX mainspring_blocked_groups_group (limit_group=? AND level=?)"),
        (counters::NEXT_BLOCKED, "PRIMARY KEY (limit_key=? AND line=? AND level=? AND units>?)"),
        (counters::NEXT_BLOCKED, "PRIMARY KEY (limit_key=? AND line=? AND level>?)"),
        (counters::NEXT_BLOCKED, "PRIMARY KEY (limit_key=? AND line>?)"),
        (counters::BLOCKED, "PRIMARY KEY (limit_key=? AND line=? AND level=? AND units=?)"),
        (limits::place::HELD, "INTEGER PRIMARY KEY (rowid=?)"),
        (limits::place::RELEASE, "INTEGER PRIMARY KEY (rowid=?)"),
        (cache::BY_NAME, "INDEX sqlite_autoindex_mainspring_limits_1 (scope=? AND name=?)"),
        (cache::FIND_KEY, "INDEX sqlite_autoindex_mainspring_limit_keys_1 (limit_no=? AND key=?)"),
        (cache::FIND_GROUP, "INDEX sqlite_autoindex_mainspring_limit_groups_1 (line=? AND uses=?)"),
        (limits::prune::KEYS, "INTEGER PRIMARY KEY (rowid>?)"),
        (
            limits::prune::NEXT_LEVEL,
            "COVERING INDEX mainspring_limited_claim (line=? AND limit_group=? AND level>?)",
        ),
        (
            limits::prune::NEXT_GROUP,
            "COVERING INDEX mainspring_limited_claim (line=? AND limit_group=? AND level>?)",
        ),
        (limits::prune::NEXT_GROUP, "COVERING INDEX mainspring_limited_claim (line=? AND limit_group>?)"),
        (limits::prune::NEXT_GROUP, "COVERING INDEX mainspring_limited_claim (line>?)"),
        (read::LIMIT_KEY, "INDEX sqlite_autoindex_mainspring_limit_keys_1 (limit_no=? AND key=?)"),
        (read::LIMIT_KEYS, "INDEX sqlite_autoindex_mainspring_limit_keys_1 (limit_no=? AND key>?)"),
        (read::FIRST_OF_GROUP, "COVERING INDEX mainspring_limited_claim (line=? AND limit_group=?)"),
        (read::WAITING, "COVERING INDEX mainspring_limited_claim (line=? AND limit_group=?)"),
        (read::WAITING, "PRIMARY KEY (limit_key=?)"),
    ];
    searches(&conn, by_index);
}

/// Each statement uses its index, and nothing is scanned or sorted.
fn searches(conn: &Connection, by_index: &[(&str, &str)]) {
    for (sql, index) in by_index {
        let plan = plan(conn, sql);
        assert!(plan.contains(index), "{sql}\n{plan}");
        // What a part of a union has found is read once.
        let scans = plan.replace("SCAN CONSTANT ROW", "").replace("SCAN (subquery", "");
        assert!(!scans.contains("SCAN"), "{sql}\n{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
    }
}

#[test]
fn sweeps_and_rescue_walk_no_more_than_their_index() {
    let conn = schema();
    for (sql, index) in [
        (due::NEXT_DUE, "COVERING INDEX mainspring_timers_due"),
        (due::NEXT_WAKING, "INDEX mainspring_suspended_due"),
        (counters::NEXT_DUE, "COVERING INDEX mainspring_limit_keys_due"),
        (limits::prune::GROUPS, "COVERING INDEX mainspring_limited_claim (line=? AND limit_group=?)"),
        (read::HOLDERS, "PRIMARY KEY (limit_key=? AND limit_group=?)"),
        (due::NEXT_DEADLINE, "COVERING INDEX mainspring_deadlines_at"),
        (rescue::LIVING, "INDEX mainspring_nodes_live"),
    ] {
        let plan = plan(&conn, sql);
        assert!(plan.contains(index), "{sql}\n{plan}");
    }
}

#[test]
fn inserts_of_hot_paths_read_nothing() {
    let conn = schema();
    for sql in [
        enqueue::INTO_JOBS,
        moves::INTO_READY,
        moves::INTO_LIMITED,
        counters::BLOCK,
        moves::INTO_DONE,
        journal::INTO_STEPS,
        inbox::POST,
        output::SAY,
    ] {
        assert_eq!(plan(&conn, sql), "", "{sql}");
    }
}

/// Generous for a seek and a row, far below a walk over ten thousand rows.
const STEPS: i32 = 60;

#[test]
fn finding_work_costs_the_same_however_much_waits() {
    let conn = schema();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
        INSERT INTO mainspring_ready SELECT i, 1 + i % 2, 37, 7, 0, 0, 0, 0, 0 FROM n";
    conn.execute_batch(fill).expect("jobs");
    let steps = |sql: &str, values: &[&dyn ToSql]| {
        let mut statement = conn.prepare(sql).expect("a statement");
        let rows = statement.query_map(values, |_| Ok(())).expect("rows").count();
        (rows, statement.get_status(StatementStatus::VmStep))
    };
    let (rows, count) = steps(claim::NEXT_LINE, params![1]);
    assert!(rows == 1 && count < STEPS, "{count}");
    let (rows, count) = steps(claim::NEXT_LINE, params![2]);
    assert!(rows == 0 && count < STEPS, "{count}");
    let (rows, count) = steps(claim::NEXT_LEVEL, params![1, 37]);
    assert!(rows == 0 && count < STEPS, "{count}");
    let (rows, count) = steps(claim::HEADS, params![1, 37, 3]);
    assert!(rows == 3 && count < STEPS, "{count}");
}

#[test]
fn finding_turns_costs_the_same_however_many_groups_are_blocked() {
    let conn = schema();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
        INSERT INTO mainspring_limited SELECT i, 1 + i % 5000, 1, 53, 7, 0, 0, 0, 0, 128 FROM n;
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
        INSERT INTO mainspring_blocked_groups SELECT 1 + i % 2, 1, 53, 1, i, i FROM n;
        INSERT INTO mainspring_group_turns VALUES (1, 53, 7, 5001);
        INSERT INTO mainspring_limit_keys (no, limit_no, key) VALUES (1, 1, 'a'), (2, 1, 'b');";
    conn.execute_batch(fill).expect("jobs");
    let steps = |sql: &str, values: &[&dyn ToSql]| {
        let mut statement = conn.prepare(sql).expect("a statement");
        let rows = statement.query_map(values, |_| Ok(())).expect("rows").count();
        (rows, statement.get_status(StatementStatus::VmStep))
    };
    let (rows, count) = steps(claim::NEXT_TURN_LINE, params![0]);
    assert!(rows == 1 && count < STEPS, "{count}");
    let (rows, count) = steps(claim::NEXT_TURN_LEVEL, params![1, 53]);
    assert!(rows == 0 && count < STEPS, "{count}");
    let (rows, count) = steps(limits::claim::TURNS, params![1, 53, 10]);
    assert!(rows == 1 && count < STEPS, "{count}");
    // Three seeks.
    let (rows, count) = steps(counters::NEXT_BLOCKED, params![1, i64::MIN, 0, 0]);
    assert!(rows == 1 && count < 3 * STEPS, "{count}");
    let (rows, count) = steps(counters::NEXT_BLOCKED, params![1, 1, 53, 1]);
    assert!(rows == 0 && count < 3 * STEPS, "{count}");
    let (rows, count) = steps(counters::BLOCKED, params![1, 1, 53, 1, 2]);
    assert!(rows == 2 && count < STEPS, "{count}");
    let (rows, count) = steps(counters::DUE, params![i64::MAX, 10]);
    assert!(rows == 0 && count < STEPS, "{count}");
}
