//! Totals: how many jobs of a queue or a kind run at once.
//!
//! A total is a limit of its own scope with one key. Claims from its lines take one unit each. When a total is introduced while
//! jobs run, the lock of settings keeps all claims away, the rows of running jobs get the unit, and their number is what is in use.

use mainspring_core::audit::check_who;
use mainspring_core::bounds;
use mainspring_core::limit::{Total, TotalUse};
use mainspring_core::name::{Kind, QueueName};
use serde_json::json;

use super::define::{Audit, LockSettings, learn, sweep_all};
use super::settle::Count;
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::names::{self, Lock};
use crate::op::Op;
use crate::op::settings::AddChange;
use crate::shared::Shared;
use crate::sql::{Query, bound, statement};

statement! {
    /// Unique index of names.
    pub(crate) FindTotal<'a> = "totals.find", by ["limits_scope_name_key"], (scope: i16, name: &'a str) -> FoundTotal { max: Option<i32> };
    "SELECT max FROM mainspring.limits WHERE scope = $1 AND name = $2 AND NOT deleted"
}
statement! {
    /// Unique index of names. The locks of names and settings are held.
    pub(crate) PutTotal<'a> = "totals.put", by ["limits_scope_name_key"], (scope: i16, name: &'a str, max: Option<i32>);
    "INSERT INTO mainspring.limits AS l (scope, name, max, deleted, swept) SELECT $1, $2, $3, $3 IS NULL, true
    ON CONFLICT (scope, name) DO UPDATE SET max = excluded.max, deleted = excluded.deleted, swept = false"
}
statement! {
    /// Unique index of names: a queue that was deleted is there again.
    pub(crate) KeepQueue<'a> = "totals.keep_queue", by ["queues_name_key"], (name: &'a str);
    "UPDATE mainspring.queues SET deleted = false WHERE name = $1 AND deleted"
}
statement! {
    /// Unique index of names. The queue has no jobs, so no claim counts.
    pub(crate) DropTotal<'a> = "totals.drop", by ["limits_scope_name_key"], (name: &'a str);
    "UPDATE mainspring.limits SET deleted = true, max = NULL WHERE scope = {limit_scope.queue} AND name = $1 AND NOT deleted"
}
statement! {
    /// Unique indexes.
    pub(crate) AddTotalKey<'a> = "totals.add_key", by ["limit_keys_limit_no_key_key"], (scope: i16, name: &'a str);
    "INSERT INTO mainspring.limit_keys (limit_no, key, used_at) SELECT l.no, '', clock_timestamp() FROM mainspring.limits l
    WHERE l.scope = $1 AND l.name = $2
        AND NOT EXISTS (SELECT 1 FROM mainspring.limit_keys k WHERE k.limit_no = l.no AND k.key = '')
    ON CONFLICT (limit_no, key) DO NOTHING"
}
statement! {
    /// `lease` as a whole, whose size is bounded by the slots of all nodes, rows in order: no claim ends from here on, nor begins.
    pub(crate) LockRunning = "totals.lock_running", whole ("`lease` has no more rows than all nodes have slots"), ();
    "SELECT count(*) FROM (SELECT no FROM mainspring.lease ORDER BY no FOR UPDATE) l"
}
statement! {
    /// The same rows, which are locked: claims of the lines of a queue or a kind hold a unit of its total.
    pub(crate) MarkRunning<'a> = "totals.mark_running", whole ("`lease` has no more rows than all nodes have slots"), (scope: i16, name: &'a str);
    "UPDATE mainspring.lease e SET units = coalesce(e.units, '{}') || k.no
    FROM mainspring.limits m JOIN mainspring.limit_keys k ON k.limit_no = m.no AND k.key = ''
    WHERE m.scope = $1 AND m.name = $2 AND NOT coalesce(e.units, '{}') @> ARRAY[k.no]
        AND EXISTS (SELECT 1 FROM mainspring.lines l WHERE l.no = e.line AND CASE WHEN $1 = {limit_scope.queue}
            THEN l.queue = (SELECT q.no FROM mainspring.queues q WHERE q.name = $2)
            ELSE l.kind = (SELECT q.no FROM mainspring.kinds q WHERE q.name = $2) END)"
}
statement! {
    /// Unique indexes; the same rows, which are locked. Only a claim that ends writes this key, and it waits for its row of `lease` first.
    pub(crate) CountRunning<'a> = "totals.count_running", whole ("`lease` has no more rows than all nodes have slots"), (scope: i16, name: &'a str);
    "UPDATE mainspring.limit_keys k SET in_use = (SELECT count(*) FROM mainspring.lease l WHERE l.units @> ARRAY[k.no])
    FROM mainspring.limits m WHERE m.scope = $1 AND m.name = $2 AND k.limit_no = m.no AND k.key = ''"
}
statement! {
    /// A small table, and the only key of each of its rows by the unique index of keys. The collation sorts bytes, as names are
    /// compared.
    pub(crate) ListTotals = "totals.list", by ["limit_keys_limit_no_key_key"], ()
    -> TotalUseRow { of_queue: bool, name: String, max: i32, in_use: i32 };
    "SELECT l.scope = {limit_scope.queue}, l.name, l.max, k.in_use FROM mainspring.limits l
    CROSS JOIN LATERAL (SELECT in_use FROM mainspring.limit_keys WHERE limit_no = l.no AND key = '' OFFSET 0) k
    WHERE l.scope <> {limit_scope.limit} AND NOT l.deleted AND l.max IS NOT NULL ORDER BY l.scope, l.name"
}

/// The scopes of totals, as statements name them.
const QUEUE: i16 = 1;
const KIND: i16 = 2;

/// Sets or removes a total.
pub(crate) struct SetTotal {
    pub(crate) total: Total,
    pub(crate) max: Option<u32>,
    pub(crate) who: String,
}

impl Op for SetTotal {
    type Answer = ();

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<()> {
        let SetTotal { total, max, who } = self;
        Total::check(*max)?;
        check_who(who)?;
        let (scope, name) = column(total);
        if let Total::Queue(queue) = total {
            names::add_queues(conn, shared, &[queue.as_str()]).await?;
        }
        let class = shared.class();
        let calls = [Lock { class: &class }.call(), FindTotal { scope: &scope, name: &name }.call()];
        let rows = conn.begin(shared, "", &calls).await?.pop().unwrap_or_default();
        let before = FindTotal::first(&rows)?.and_then(|row| row.max).and_then(|max| u32::try_from(max).ok());
        if before == *max {
            conn.end(&[]).await?;
            return Ok(());
        }
        let value = |max: Option<u32>| max.map(|max| json!({ "max_running": max }));
        let subject = total.subject();
        let mut audit = Audit::default();
        audit.add(&subject, "set", who, (value(before), value(*max)));
        let (at, kept) = (shared.at(), bound(bounds::AUDIT));
        let count = Count { at: &at, after: 0 };
        let put = max.map(|max| i32::try_from(max).unwrap_or(i32::MAX));
        let mut calls = vec![LockSettings { class: &class }.call()];
        calls.extend(audit.calls(&at, &kept));
        calls.push(AddChange.call());
        calls.push(PutTotal { scope: &scope, name: &name, max: &put }.call());
        if scope == QUEUE {
            calls.push(KeepQueue { name: &name }.call());
        }
        if before.is_none() {
            calls.push(AddTotalKey { scope: &scope, name: &name }.call());
            calls.push(LockRunning.call());
            calls.push(MarkRunning { scope: &scope, name: &name }.call());
            // What ended claims have returned is not counted twice.
            calls.extend(count.calls());
            calls.push(CountRunning { scope: &scope, name: &name }.call());
        }
        conn.end(&calls).await?;
        learn(conn, shared).await;
        sweep_all(conn, shared).await;
        let queues: Vec<i32> = {
            let names = shared.names();
            let of_total = names.lines().filter(|(_, line)| match total {
                Total::Queue(queue) => line.queue_name == *queue,
                Total::Kind(kind) => line.kind_name == *kind,
            });
            of_total.map(|(_, line)| line.queue).collect()
        };
        let mut hints = Hints::default();
        for queue in queues {
            hints.queue(queue);
        }
        hints.send(conn, shared).await;
        Ok(())
    }
}

fn column(total: &Total) -> (i16, &str) {
    match total {
        Total::Queue(queue) => (QUEUE, queue.as_str()),
        Total::Kind(kind) => (KIND, kind.as_str()),
    }
}

/// All totals.
pub(crate) struct Totals;

impl Op for Totals {
    type Answer = Vec<TotalUse>;
    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<TotalUse>> {
        let rows = conn.commit(shared, &[ListTotals.call()]).await?.pop().unwrap_or_default();
        let read = |row: TotalUseRow| {
            let bad = |error: mainspring_core::Error| corrupt(error.to_string());
            let total = if row.of_queue {
                Total::Queue(QueueName::new(row.name).map_err(bad)?)
            } else {
                Total::Kind(Kind::new(row.name).map_err(bad)?)
            };
            let number = |n: i32| u32::try_from(n).unwrap_or(0);
            Ok(TotalUse { total, max: number(row.max), in_use: number(row.in_use) })
        };
        ListTotals::rows(&rows)?.into_iter().map(read).collect()
    }
}
