//! The self-check: looks for what must not be there.
//!
//! Every question is a statement that gives one line of text per violation, at most a few of each.

use mainspring_core::store::Finding;

use super::Reader;
use crate::error::Result;

/// What to ask, and what a person can do if there is an answer. All of these walk whole tables.
const QUESTIONS: [(&str, &str); 11] = [
    // Each job is in exactly one place.
    (
        "SELECT 'job number ' || j.no || ' is in ' || count(p.place) || ' places: ' ||
                coalesce(group_concat(p.place, ', '), 'none')
         FROM mainspring_jobs j LEFT JOIN (
            SELECT no, 'ready' AS place FROM mainspring_ready
            UNION ALL SELECT no, 'timers' FROM mainspring_timers
            UNION ALL SELECT no, 'suspended' FROM mainspring_suspended
            UNION ALL SELECT no, 'lease' FROM mainspring_lease
            UNION ALL SELECT no, 'done' FROM mainspring_done WHERE superseded = 0) p ON p.no = j.no
         GROUP BY j.no HAVING count(p.place) <> 1 LIMIT 10",
        "keep a copy of the file and report it: moves are made in one transaction",
    ),
    // Nothing is in a place without being a job.
    (
        "SELECT place || ' holds number ' || no || ', which is no job' FROM (
            SELECT no, 'ready' AS place FROM mainspring_ready
            UNION ALL SELECT no, 'timers' FROM mainspring_timers
            UNION ALL SELECT no, 'suspended' FROM mainspring_suspended
            UNION ALL SELECT no, 'lease' FROM mainspring_lease
            UNION ALL SELECT no, 'done' FROM mainspring_done
            UNION ALL SELECT no, 'errors' FROM mainspring_errors
            UNION ALL SELECT no, 'progress' FROM mainspring_progress
            UNION ALL SELECT no, 'tags' FROM mainspring_tags
            UNION ALL SELECT no, 'deadlines' FROM mainspring_deadlines
            UNION ALL SELECT no, 'steps' FROM mainspring_steps
            UNION ALL SELECT no, 'inbox' FROM mainspring_inbox
            UNION ALL SELECT no, 'output' FROM mainspring_output
            UNION ALL SELECT no, 'children' FROM mainspring_children
            UNION ALL SELECT parent, 'children' FROM mainspring_children) p
         WHERE NOT EXISTS (SELECT 1 FROM mainspring_jobs j WHERE j.no = p.no) LIMIT 10",
        "keep a copy of the file and report it: a job is removed with all its rows",
    ),
    // Counts equal what is in the places.
    (
        "SELECT 'queue ' || q.name || ' is said to have ' || sum(c.said) || ' jobs in state ' || c.state ||
                ' and has ' || sum(c.is_so)
         FROM (
            SELECT queue, state, n AS said, 0 AS is_so FROM mainspring_counts
            UNION ALL SELECT queue, state, n, 0 FROM mainspring_count_deltas
            UNION ALL SELECT l.queue, p.state, 0, count(*) FROM (
                SELECT line, 2 AS state FROM mainspring_ready
                UNION ALL SELECT line, 1 FROM mainspring_timers
                UNION ALL SELECT line, 4 FROM mainspring_suspended
                UNION ALL SELECT line, 3 FROM mainspring_lease
                UNION ALL SELECT j.line, d.state FROM mainspring_done d JOIN mainspring_jobs j ON j.no = d.no
                    WHERE d.superseded = 0) p
                JOIN mainspring_lines l ON l.no = p.line GROUP BY l.queue, p.state) c
         JOIN mainspring_queues q ON q.no = c.queue
         GROUP BY c.queue, c.state HAVING sum(c.said) <> sum(c.is_so) LIMIT 10",
        "the figures of this queue are wrong, its jobs are not; report it",
    ),
    // A key without an expiry belongs to a job that has not ended.
    (
        "SELECT 'unique key `' || k.key || '` is held by job number ' || k.no || ', which has ended or is gone'
         FROM mainspring_keys k WHERE k.expires_at IS NULL AND (
            NOT EXISTS (SELECT 1 FROM mainspring_jobs j WHERE j.no = k.no)
            OR EXISTS (SELECT 1 FROM mainspring_done d WHERE d.no = k.no AND d.superseded = 0)) LIMIT 10",
        "delete the row from mainspring_keys to free the key, and report it",
    ),
    // A deadline belongs to a job that has not ended.
    (
        "SELECT 'job number ' || x.no || ' has ended and still has a deadline' FROM mainspring_deadlines x
         WHERE EXISTS (SELECT 1 FROM mainspring_done d WHERE d.no = x.no AND d.superseded = 0) LIMIT 10",
        "delete the row from mainspring_deadlines, and report it",
    ),
    // A claim belongs to a node that lives, or is still to be drained.
    (
        "SELECT 'job number ' || l.no || ' is claimed by node ' || l.node || ', which is gone'
         FROM mainspring_lease l LEFT JOIN mainspring_nodes n ON n.no = l.node
         WHERE n.no IS NULL OR (n.state <> 0 AND n.drained = 1) LIMIT 10",
        "report it; a node that is gone holds nothing",
    ),
    // Every line is one of a known queue and kind.
    (
        "SELECT 'line ' || l.no || ' has no queue or no kind' FROM mainspring_lines l
         WHERE NOT EXISTS (SELECT 1 FROM mainspring_queues q WHERE q.no = l.queue)
            OR NOT EXISTS (SELECT 1 FROM mainspring_kinds k WHERE k.no = l.kind) LIMIT 10",
        "report it; names are never removed",
    ),
    // What wakes a job has not happened while it sleeps (reasons up to 5 are those of jobs that wait for themselves).
    (
        "SELECT 'job number ' || s.no || ' waits for what it has been sent' FROM mainspring_suspended s
         WHERE s.reason <= 5 AND EXISTS (
            SELECT 1 FROM json_each(CASE WHEN json_valid(s.waits) THEN s.waits END) w
            WHERE (SELECT count(*) FROM mainspring_inbox i WHERE i.no = s.no AND i.read = 0
                    AND i.topic = json_extract(w.value, '$[0]')) >= json_extract(w.value, '$[1]')) LIMIT 10",
        "resume the job, and report it",
    ),
    // A job that has recorded something, or was sent something, is claimed with it: flag 8.
    (
        "SELECT 'job number ' || p.no || ' has a journal that its place does not know of' FROM (
            SELECT no, flags FROM mainspring_ready
            UNION ALL SELECT no, flags FROM mainspring_timers
            UNION ALL SELECT no, flags FROM mainspring_suspended
            UNION ALL SELECT no, flags FROM mainspring_lease
            UNION ALL SELECT no, flags FROM mainspring_done WHERE superseded = 0) p
         WHERE p.flags & 8 = 0 AND (EXISTS (SELECT 1 FROM mainspring_steps s WHERE s.no = p.no)
            OR EXISTS (SELECT 1 FROM mainspring_inbox i WHERE i.no = p.no)
            OR EXISTS (SELECT 1 FROM mainspring_output o WHERE o.no = p.no)) LIMIT 10",
        "keep a copy of the file and report it: what the job has recorded would be done again",
    ),
    // A job that has a parent or children tells them of its end: flags 32 and 16.
    (
        "SELECT 'job number ' || p.no || ' has a family that its place does not know of' FROM (
            SELECT no, flags FROM mainspring_ready
            UNION ALL SELECT no, flags FROM mainspring_timers
            UNION ALL SELECT no, flags FROM mainspring_suspended
            UNION ALL SELECT no, flags FROM mainspring_lease
            UNION ALL SELECT no, flags FROM mainspring_done WHERE superseded = 0) p
         WHERE p.flags & 32 = 0 AND EXISTS (SELECT 1 FROM mainspring_children c WHERE c.no = p.no)
            OR p.flags & 16 = 0 AND EXISTS (SELECT 1 FROM mainspring_children c WHERE c.parent = p.no) LIMIT 10",
        "keep a copy of the file and report it: its family would not be told of its end",
    ),
    // Errors per job are bounded (32 is the bound of the core).
    (
        "SELECT 'job number ' || no || ' keeps ' || count(*) || ' errors' FROM mainspring_errors
         GROUP BY no HAVING count(*) > 32 LIMIT 10",
        "report it; the oldest errors are removed as new ones come",
    ),
];

const _: () = assert!(mainspring_core::bounds::ERRORS_KEPT == 32, "the last question names the bound");

/// Looks for what must not be there.
pub(crate) fn check(reader: &mut Reader) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut ask = |sql: &str, hint: &str| -> Result<()> {
        let mut statement = reader.conn.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let what: String = row.get(0)?;
            if what != "ok" {
                findings.push(Finding { what, hint: hint.to_owned() });
            }
        }
        Ok(())
    };
    ask(
        "PRAGMA quick_check(10)",
        "the file is damaged: restore a backup, or copy what can be read with `.recover`",
    )?;
    for (sql, hint) in QUESTIONS {
        ask(sql, hint)?;
    }
    Ok(findings)
}
