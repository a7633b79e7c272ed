//! What jobs say: frames, appended in the order of their numbers.
//!
//! The last row of a job tells its next position, and what was said before under the same claim; it is never removed while
//! the job is there. Rows older than are kept are removed from time to time, some hundred at once. No reader sees them
//! meanwhile.
//!
//! # Invariants
//! - The claims are locked by an earlier statement of the same transaction: so what an earlier attempt to store the same has
//!   left is seen, and nobody else gives out positions.

use std::collections::BTreeMap;

use mainspring_core::bounds;
use mainspring_core::name::Key;
use mainspring_core::output::Push;

use crate::sql::{Call, Present, bound, statement};

statement! {
    /// Primary keys of `lease` and `output`: the last row of each job, once for each frame, then appends. For a reset all that is
    /// kept of its job. `$7` and `$8` are what is kept: items, and bytes.
    pub(crate) PushOutput<'a> = "record.push_output", by ["lease_pkey", "output_pkey"],
    (
        node: i32, nos: Vec<i64>, claims: Vec<i32>, numbers: Vec<i64>, steps: Vec<Option<&'a str>>,
        bodies: Vec<Option<&'a [u8]>>, kept: i64, kept_bytes: i64, at: Present,
    );
    "INSERT INTO mainspring.output
        (no, position, at, before, void_from, claim, number, step, body)
    SELECT p.no, p.position, coalesce($9::timestamptz, clock_timestamp()), p.before,
        CASE WHEN p.body IS NULL THEN coalesce((SELECT min(o.position) FROM mainspring.output o
            WHERE o.no = p.no AND o.position >= p.position - $7 AND o.before >= p.before - $8
                AND o.step IS NOT DISTINCT FROM p.step AND o.body IS NOT NULL), p.said, p.position) END,
        p.claim, p.number, p.step, p.body
    FROM (SELECT n.*, min(CASE WHEN n.body IS NOT NULL THEN n.position END) OVER
            (PARTITION BY n.no, n.step ORDER BY n.o ROWS UNBOUNDED PRECEDING) AS said
        FROM (SELECT f.*, coalesce(l.position, 0) + row_number() OVER w AS position,
                coalesce(l.total, 0) + coalesce(sum(octet_length(f.body)) OVER
                    (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
            FROM unnest($2::bigint[], $3::int[], $4::bigint[], $5::text[], $6::bytea[])
                WITH ORDINALITY AS f(no, claim, number, step, body, o)
            CROSS JOIN LATERAL (SELECT 1 FROM mainspring.lease l
                WHERE l.no = f.no AND l.claim = f.claim AND l.node = $1 OFFSET 0) h
            LEFT JOIN LATERAL (SELECT o.position, o.claim, o.number,
                    o.before + coalesce(octet_length(o.body), 0) AS total
                FROM mainspring.output o WHERE o.no = f.no ORDER BY o.position DESC LIMIT 1) l ON true
            WHERE l.claim IS DISTINCT FROM f.claim OR f.number > l.number
            WINDOW w AS (PARTITION BY f.no ORDER BY f.o)) n) p"
}
statement! {
    /// Primary key of `output`: the last and the first row of each job. If what is gone is enough to be worth it, all of its
    /// rows, and those that are gone are removed. The claims are locked.
    pub(crate) TrimOutput<'a> = "record.trim_output", by ["output_pkey"],
    (jobs: Vec<i64>, kept: i64, kept_bytes: i64);
    "DELETE FROM mainspring.output WHERE ctid = ANY(ARRAY(
    SELECT x.tid FROM unnest($1::bigint[]) AS u(no)
    CROSS JOIN LATERAL (SELECT o.position, o.before + coalesce(octet_length(o.body), 0) AS total
        FROM mainspring.output o WHERE o.no = u.no ORDER BY o.position DESC LIMIT 1) l
    CROSS JOIN LATERAL (SELECT o.position, o.before
        FROM mainspring.output o WHERE o.no = u.no ORDER BY o.position LIMIT 1) f
    CROSS JOIN LATERAL (SELECT o.ctid AS tid FROM mainspring.output o WHERE o.no = u.no
        AND (f.position <= l.position - $2 - 256 OR f.before < l.total - $3 - 1048576)
        AND (o.position <= l.position - $2 OR o.before < l.total - $3) OFFSET 0) x))"
}

/// Items and bytes that are kept.
pub(crate) const KEPT: i64 = bound(bounds::FRAMES);
pub(crate) const KEPT_BYTES: i64 = bound(bounds::FRAMES_BYTES);

/// What is said, as arguments.
#[derive(Default)]
pub(crate) struct Pushes<'a> {
    nos: Vec<i64>,
    claims: Vec<i32>,
    numbers: Vec<i64>,
    steps: Vec<Option<&'a str>>,
    bodies: Vec<Option<&'a [u8]>>,
    /// The last number of each job.
    lasts: BTreeMap<i64, u32>,
    /// The jobs, each once.
    jobs: Vec<i64>,
}

impl<'a> Pushes<'a> {
    /// Adds what a job says under its claim.
    pub(crate) fn add(&mut self, no: i64, claim: i32, pushes: &'a [Push]) {
        for push in pushes {
            // Of several claims of one job only the newest is here.
            let last = self.lasts.entry(no).or_insert_with(|| {
                self.jobs.push(no);
                0
            });
            if push.number <= *last {
                continue;
            }
            *last = push.number;
            self.nos.push(no);
            self.claims.push(claim);
            self.numbers.push(push.number.into());
            self.steps.push(push.step.as_ref().map(Key::as_str));
            self.bodies.push(push.body.as_deref());
        }
    }

    /// The statements.
    pub(crate) fn calls<'c>(&'c self, at: &'c Present, node: &'c i32) -> Vec<Call<'c>> {
        if self.nos.is_empty() {
            return Vec::new();
        }
        let push = PushOutput {
            node,
            nos: &self.nos,
            claims: &self.claims,
            numbers: &self.numbers,
            steps: &self.steps,
            bodies: &self.bodies,
            kept: &KEPT,
            kept_bytes: &KEPT_BYTES,
            at,
        };
        let trim = TrimOutput { jobs: &self.jobs, kept: &KEPT, kept_bytes: &KEPT_BYTES };
        vec![push.call(), trim.call()]
    }
}
