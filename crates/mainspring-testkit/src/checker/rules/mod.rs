//! The rules: what must hold of every history.

mod claims;
mod dispatch;
mod inbox;
mod jobs;
mod keys;
mod nodes;
mod outputs;
mod reports_vs_facts;
mod schedules;
mod scopes;
mod times;
mod unreadable;
mod workflows;

pub(super) use nodes::{deaths, in_peace, witnessed};

use mainspring_core::id::JobId;

use super::evidence::{EventIndex, Evidence};

/// A rule that does not hold.
pub(super) struct BrokenRule {
    pub(super) job: Option<JobId>,
    pub(super) what: String,
    /// The events that show it.
    pub(super) events: Vec<EventIndex>,
}

impl BrokenRule {
    fn job(id: JobId, what: impl Into<String>, events: Vec<EventIndex>) -> Self {
        BrokenRule { job: Some(id), what: what.into(), events }
    }

    fn other(what: impl Into<String>, events: Vec<EventIndex>) -> Self {
        BrokenRule { job: None, what: what.into(), events }
    }
}

type RuleCheck = fn(&Evidence<'_>, &mut Vec<BrokenRule>);

/// All rules, by name.
pub(super) const ALL: &[(&str, RuleCheck)] = &[
    ("nothing acknowledged is lost", jobs::lost),
    ("an id belongs to one job", jobs::taken),
    ("nothing comes from nowhere", jobs::phantom),
    ("a job is in one place", jobs::one_place),
    ("everything ends once faults are over", jobs::liveness),
    ("no job starts before its time", jobs::early),
    ("claim numbers grow", claims::grow),
    ("a claim is over before the next begins", claims::handed_over),
    ("only the owner can write", claims::owner),
    ("one outcome", claims::doubled),
    ("what has ended stays ended", claims::after_end),
    ("the store tells what was accepted", claims::agree),
    ("only failures count as failures", claims::failures),
    ("a claim runs once", claims::twice),
    ("cancellations are not lost", claims::cancel),
    ("unique keys hold", keys::unique),
    ("nobody living is expired", nodes::living),
    ("suspects run alone", nodes::suspects),
    ("only what crashes is quarantined", nodes::quarantine),
    ("what was lost is claimed for a free slot", nodes::free_slot),
    ("no body begins when its lease has lapsed", nodes::lapsed),
    ("only what is damaged is set aside for it", unreadable::aside),
    ("what is damaged does not run", unreadable::runs),
    ("what is damaged counts no crash", unreadable::counts),
    ("what is damaged holds up nobody", unreadable::holds_up),
    ("the dead are found in time", nodes::recovery),
    ("a node is given what it can do", dispatch::able),
    ("paused queues rest", dispatch::paused),
    ("no more run than there are slots", dispatch::slots),
    ("a node holds no more than it has room for", dispatch::room),
    ("the urgent come first", dispatch::urgent),
    ("deadlines hold", times::deadline),
    ("what is to wait waits", times::deferred),
    ("held jobs keep their time", times::held),
    ("who has his claim is not refused", reports_vs_facts::refused),
    ("what runs is not disowned", reports_vs_facts::disowned),
    ("what is reported has happened", reports_vs_facts::reported),
    ("as many attempts as were given", reports_vs_facts::attempts),
    ("a retry counts from nothing", reports_vs_facts::revived),
    ("crashes are counted", reports_vs_facts::crashes),
    ("who joins anew lets go", reports_vs_facts::abandoned),
    ("the cancelled are stopped", reports_vs_facts::stopped),
    ("who leaves leaves nothing unsaid", reports_vs_facts::leaving),
    ("who waits is told", reports_vs_facts::answered),
    ("what is recorded stays as it was", workflows::immutable),
    ("only the owner records", workflows::owner),
    ("what is recorded is not done again", workflows::again),
    ("a body runs once, and once more when it was lost", workflows::bodies),
    ("what a handler has seen is recorded", workflows::seen),
    ("who goes on was suspended", workflows::resumed),
    ("a workflow comes to what it comes to in peace", workflows::result),
    ("what a workflow says is told once, and in order", outputs::told),
    ("a race has one winner", scopes::winner),
    ("nothing is done in a scope that has ended", scopes::inside),
    ("a scope takes along what it recorded", scopes::left),
    ("turns go up by one", scopes::turns),
    ("nothing is done again under another name", scopes::renamed),
    ("what fits is not held", scopes::held),
    ("a token is good for one signal", scopes::tokens),
    ("messages are read once", inbox::read),
    ("messages are not lost", inbox::lost),
    ("what is dropped is gone, and no repeat of it comes", inbox::dropped),
    ("what does not fit is set aside", inbox::unfit),
    ("who sleeps is woken in time", inbox::woken),
    ("children end with their parents", inbox::families),
    ("a schedule is changed as it is", schedules::versions),
    ("every fire happens once", schedules::once),
    ("no fire is early", schedules::early),
    ("missed fires follow their policy", schedules::policy),
    ("jobs of a schedule overlap as it says", schedules::overlap),
    ("only people and code change what a schedule is", schedules::owners),
    ("a repeat of a request is no second one", schedules::requests),
    ("schedules fire in time once faults are over", schedules::liveness),
];
