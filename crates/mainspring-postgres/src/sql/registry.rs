//! The registry: every statement of the store, by name.
//!
//! Plans are tested statement by statement, and people can have all of them printed. A statement that is missing here
//! fails a test.

use std::fmt;

use tokio_postgres::types::Type;

use super::in_schema;
use super::statement::{Plan, Query, Statement};
use crate::{enlist, hint, listen, migrate, names, op, read, store};

macro_rules! registry {
    ($($statement:ty,)+) => {
        /// All statements, file by file.
        pub(crate) const STATEMENTS: &[&Statement] = &[$(<$statement as Query>::STATEMENT),+];
    };
}

registry! {
    enlist::Identity<'static>,
    enlist::LockKeys<'static>,
    enlist::Known<'static>,
    enlist::Holders<'static>,
    enlist::Insert<'static>,
    enlist::InsertLimited<'static>,
    enlist::Take<'static>,
    enlist::Record<'static>,
    enlist::Insist,
    enlist::Where<'static>,
    hint::Notify<'static>,
    listen::WaitFor<'static>,
    listen::StopWaiting<'static>,
    migrate::FindMeta<'static>,
    migrate::AllMeta,
    names::Lock<'static>,
    names::SettingsCounter,
    names::NewQueues<'static>,
    names::NewKinds<'static>,
    names::NewLines<'static>,
    names::AllTotals,
    names::CountLines,
    names::AddQueues<'static>,
    names::AddKinds<'static>,
    names::AddLines<'static>,
    op::append::AppendMany<'static>,
    op::append::AppendOne<'static>,
    op::change::Locate<'static>,
    op::change::EndWaiting<'static>,
    op::change::WaitAgain<'static>,
    op::change::Revive<'static>,
    op::change::Flag<'static>,
    op::change::SetPriority<'static>,
    op::change::DeleteWaiting<'static>,
    op::change::DeleteDone<'static>,
    op::claim::LockAndTouch<'static>,
    op::claim::ClaimOneQueue<'static>,
    op::claim::ClaimMerged<'static>,
    op::claim::ClaimCapped<'static>,
    op::claim::Scan,
    op::claim::ScanTurns,
    op::claim::Adopt<'static>,
    op::claim::Aside<'static>,
    op::contended_ids::TryIds<'static>,
    op::counts::FoldDeltas<'static>,
    op::drop_signals::Find<'static>,
    op::drop_signals::LockClaim<'static>,
    op::drop_signals::DropUnread<'static>,
    op::enqueue::Insert<'static>,
    op::enqueue::InsertLimited<'static>,
    op::enqueue::InsertPlain<'static>,
    op::enqueue::TryKeys<'static>,
    op::enqueue::Known<'static>,
    op::enqueue::Holders<'static>,
    op::enqueue::Free<'static>,
    op::enqueue::Take<'static>,
    op::enqueue::Replace<'static>,
    op::enqueue::Held<'static>,
    op::enqueue::LockHolders<'static>,
    op::family::LockParents<'static>,
    op::family::Post<'static>,
    op::family::Wake<'static>,
    op::family::Open<'static>,
    op::family::Free<'static>,
    op::family::ForgetEnds<'static>,
    op::family::Rest<'static>,
    op::family::Overdue<'static>,
    op::family::Lost<'static>,
    op::family::LockRelatives<'static>,
    op::finish::Succeed<'static>,
    op::finish::End<'static>,
    op::finish::Suspend<'static>,
    op::finish::Lock<'static>,
    op::finish::Applied<'static>,
    op::finish::Note<'static>,
    op::limits::claim::ChooseTurns<'static>,
    op::limits::claim::TakeLimited<'static>,
    op::limits::define::LockSettings<'static>,
    op::limits::define::FindDefinitions<'static>,
    op::limits::define::AllDefinitions,
    op::limits::define::CountLimits,
    op::limits::define::PutLimits<'static>,
    op::limits::define::FindUnswept,
    op::limits::define::FindBlocked<'static>,
    op::limits::define::MarkSwept<'static>,
    op::limits::define::FindKey<'static>,
    op::limits::define::PutKey<'static>,
    op::limits::groups::FindLimits<'static>,
    op::limits::groups::AllNames,
    op::limits::groups::AddKeys<'static>,
    op::limits::groups::FindKeys<'static>,
    op::limits::groups::AddGroups<'static>,
    op::limits::groups::UseGroups<'static>,
    op::limits::groups::FindGroups<'static>,
    op::limits::groups::HoldKeys<'static>,
    op::limits::settle::LockReturned<'static>,
    op::limits::settle::CountReturned<'static>,
    op::limits::settle::LockDue<'static>,
    op::limits::settle::LockKeys<'static>,
    op::limits::settle::OpenKeys<'static>,
    op::limits::totals::FindTotal<'static>,
    op::limits::totals::PutTotal<'static>,
    op::limits::totals::DropTotal<'static>,
    op::limits::totals::KeepQueue<'static>,
    op::limits::totals::AddTotalKey<'static>,
    op::limits::totals::LockRunning,
    op::limits::totals::MarkRunning<'static>,
    op::limits::totals::CountRunning<'static>,
    op::limits::totals::ListTotals,
    op::mailbox::Lock<'static>,
    op::Confirm,
    op::node::RegisterNode<'static>,
    op::node::Know<'static>,
    op::node::Lock<'static>,
    op::node::AddSettlement<'static>,
    op::node::RenewLease<'static>,
    op::node::MarkClaims<'static>,
    op::node::RetireNode<'static>,
    op::node::GiveBackAll<'static>,
    op::node::DisownClaims<'static>,
    op::output::PushOutput<'static>,
    op::output::TrimOutput<'static>,
    op::prune::PruneJobs<'static>,
    op::prune::PruneKeys<'static>,
    op::prune::PruneNodes<'static>,
    op::prune::PruneGroups<'static>,
    op::prune::LockIdleKeys<'static>,
    op::prune::PruneLimitKeys,
    op::record::Record<'static>,
    op::record::RecordAgain<'static>,
    op::record::Fence<'static>,
    op::record::Forget<'static>,
    op::record::Read<'static>,
    op::record::Trim<'static>,
    op::record::Owns<'static>,
    op::record::Has<'static>,
    op::record::Family<'static>,
    op::rescue::Look<'static>,
    op::rescue::ExpireNodes<'static>,
    op::rescue::StillLive<'static>,
    op::rescue::Move<'static>,
    op::rescue::Drained,
    op::rescue::More,
    op::rewind::Lines<'static>,
    op::rewind::Forget<'static>,
    op::rewind::Unread<'static>,
    op::rewind::Children<'static>,
    op::same_id::SameId<'static>,
    op::schedules::ChangeSchedules<'static>,
    op::schedules::AddSchedules<'static>,
    op::schedules::RemoveSchedules<'static>,
    op::schedules::AddAudit<'static>,
    op::schedules::TrimAudit<'static>,
    op::settings::AddQueue<'static>,
    op::settings::FindQueue<'static>,
    op::settings::Set<'static>,
    op::settings::CountQueue<'static>,
    op::settings::AddChange,
    op::settings::LockWritten,
    op::settings::WaitShortly,
    op::settings::TryInsert,
    op::settings::TryDelete,
    op::share::Share<'static>,
    op::signal::Lock<'static>,
    op::signal::Look<'static>,
    op::signal::CountUnread<'static>,
    op::signal::Post<'static>,
    op::signal::MarkClaimed<'static>,
    op::signal::MarkWaiting<'static>,
    op::signal::Wake<'static>,
    op::sweep::PromoteDue<'static>,
    op::sweep::NextDue,
    op::sweep::ExpireLate<'static>,
    op::sweep::NextDeadline,
    op::unreadable::SetJobsAside<'static>,
    op::unreadable::CancelFlagged<'static>,
    read::admin::CountAll,
    read::admin::AllQueues,
    read::admin::ReadyLines,
    read::admin::AllNodes,
    read::check::BePatient,
    read::check::OnePlace,
    read::check::Strays,
    read::check::Counts,
    read::check::Keys,
    read::check::Deadlines,
    read::check::Claims,
    read::check::Waits,
    read::check::Marks,
    read::check::Families,
    read::check::Lines,
    read::check::InUse,
    read::check::Turns,
    read::check::Blocked,
    read::check::Groups,
    read::check::Errors,
    read::check::Changes,
    read::check::Range<'static>,
    read::check::Columns<'static>,
    read::check::JobOptions<'static>,
    read::check::JobWaits<'static>,
    read::check::JobSteps<'static>,
    read::check::JobMessages<'static>,
    read::diagnose::OldServer<'static>,
    read::diagnose::Fsync<'static>,
    read::diagnose::FullPageWrites<'static>,
    read::diagnose::VacuumOff<'static>,
    read::diagnose::TableVacuumOff<'static>,
    read::diagnose::Connections<'static>,
    read::diagnose::SchemaRight<'static>,
    read::diagnose::TableRights<'static>,
    read::diagnose::SequenceRight<'static>,
    read::diagnose::Superuser<'static>,
    read::diagnose::OldTransactions<'static>,
    read::diagnose::PreparedTransactions<'static>,
    read::diagnose::Slots<'static>,
    read::diagnose::Standbys<'static>,
    read::diagnose::DeadRows<'static>,
    read::diagnose::Sequences<'static>,
    read::diagnose::CommitSettings,
    read::diagnose::Clock,
    read::diagnose::Version,
    read::diagnose::MarkSession<'static>,
    read::diagnose::FindMark<'static>,
    read::get::GetJob<'static>,
    read::get::Summaries<'static>,
    read::journal::Entries<'static>,
    read::journal::EntriesCut<'static>,
    read::journal::Messages<'static>,
    read::journal::FindValues<'static>,
    read::journal::FindInputs<'static>,
    read::journal::Same<'static>,
    read::journal::FindJobEnds<'static>,
    read::journal::Number<'static>,
    read::journal::FirstEntries<'static>,
    read::journal::ListChildren<'static>,
    read::limits::Now<'static>,
    read::limits::ListKeys<'static>,
    read::limits::FindNo<'static>,
    read::limits::Holders<'static>,
    read::limits::Waiters<'static>,
    read::limits::FindReady<'static>,
    read::limits::FindTotals<'static>,
    read::list::ListReady<'static>,
    read::list::ListLimited<'static>,
    read::list::ListTimers<'static>,
    read::list::ListLease<'static>,
    read::list::ListSuspended<'static>,
    read::list::ListJobs<'static>,
    read::list::ListRare<'static>,
    read::list::ListTagged<'static>,
    read::list::ListFaulty<'static>,
    read::list::ListSaying<'static>,
    read::output::PageOutputs<'static>,
    read::schedules::FindDue<'static>,
    read::schedules::FindNamed<'static>,
    read::schedules::ListNamed<'static>,
    read::schedules::AuditAll<'static>,
    read::schedules::AuditOf<'static>,
    store::ServerSettings,
}

/// A statement, for people. You can paste its display into `psql`.
#[derive(Debug, Clone)]
pub struct StatementText {
    /// Its name, which is also the comment in front of it.
    pub name: &'static str,
    /// The text, for the schema of a store.
    pub sql: String,
    /// The types of its arguments.
    pub arguments: Vec<String>,
    /// The indexes that serve it.
    pub indexes: &'static [&'static str],
    /// Why no index serves it, if none does.
    pub without_index: Option<&'static str>,
    statement: &'static Statement,
}

/// Returns all statements that the store sends, for a schema.
pub fn statements(schema: &str) -> Vec<StatementText> {
    let text = |statement: &&'static Statement| {
        let (indexes, without_index) = match statement.plan {
            Plan::Indexes(indexes) => (indexes, None),
            Plan::None(why) => (&[][..], Some(why)),
        };
        StatementText {
            name: statement.name,
            sql: in_schema(statement.sql, schema),
            arguments: statement.types.iter().map(type_name).collect(),
            indexes,
            without_index,
            statement,
        }
    };
    STATEMENTS.iter().map(text).collect()
}

fn type_name(kind: &Type) -> String {
    match kind.name().strip_prefix('_') {
        Some(element) => format!("{element}[]"),
        None => kind.name().to_owned(),
    }
}

impl StatementText {
    #[doc(hidden)]
    pub fn types(&self) -> &'static [Type] {
        self.statement.types
    }

    /// Returns whether SQL's `PREPARE` accepts the statement. The others have no arguments.
    pub fn is_preparable(&self) -> bool {
        !self.sql.contains("LOCK TABLE")
    }

    /// Compares the columns that the database describes with those that the store reads. Returns the difference, or
    /// `None`. Ignores columns that the store does not read.
    #[doc(hidden)]
    pub fn mismatch(&self, columns: &[Type]) -> Option<String> {
        let read = self.statement.columns;
        if !read.is_empty() && read.len() != columns.len() {
            return Some(format!("{} columns are read of {}", read.len(), columns.len()));
        }
        let mut both = read.iter().zip(columns);
        let wrong = both.find(|(column, kind)| !(column.accepts)(kind));
        wrong.map(|(column, kind)| format!("column {} is {kind}", column.name))
    }
}

impl fmt::Display for StatementText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.without_index {
            None => writeln!(f, "-- by {}", self.indexes.join(", "))?,
            Some(why) => writeln!(f, "-- by no index: {why}")?,
        }
        if self.is_preparable() {
            write!(f, "PREPARE \"{}\"", self.name)?;
            if !self.arguments.is_empty() {
                write!(f, " ({})", self.arguments.join(", "))?;
            }
            writeln!(f, " AS")?;
        }
        write!(f, "{};", self.sql)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, found);
            } else {
                found.push(path);
            }
        }
    }

    #[test]
    fn registry_has_every_statement() {
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        let texts = files.iter().map(|path| std::fs::read_to_string(path).expect("a source"));
        // At the beginning of a line, so that neither documentation nor this is one.
        let declared: usize = texts.map(|text| text.matches("\nstatement! {").count()).sum();
        assert_eq!(STATEMENTS.len(), declared);
    }

    #[test]
    fn each_name_is_one_statements_and_stands_in_front_of_it() {
        let mut names: Vec<&str> = STATEMENTS.iter().map(|statement| statement.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STATEMENTS.len());
        for text in statements("other") {
            assert!(text.sql.starts_with(&format!("/* {} */ ", text.name)), "{}", text.sql);
            assert!(!text.sql.contains("mainspring."), "{}", text.sql);
            // A setting whose prefix is the schema's name would be taken for a table.
            assert!(!text.sql.contains("set_config('\""), "{}", text.sql);
        }
    }
}
