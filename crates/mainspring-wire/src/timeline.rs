//! A job's timeline: what its handler recorded, was sent and started, in words.
//! Applications and senders of signals choose all these texts, so each is cut to one line and escaped.

use std::collections::BTreeSet;

use mainspring_core::id::JobId;
use mainspring_core::journal::{EntryKind, Message, MessageBody, Timeline, Value, Written};
use mainspring_core::name::Key;
use mainspring_core::time::{Span, Timestamp};

use crate::{json, text};

/// Characters of a value that are shown in a timeline; `--json` has more.
const SHOWN: usize = 100;
/// The sender that the engine makes up begins with this.
const NOBODY: char = '~';

/// Returns the events of a job's past, each with its time. `ended`: whether the job has ended, so nobody will read its
/// messages.
pub fn events(timeline: &Timeline, ended: bool) -> Vec<(Timestamp, String)> {
    let waits = timeline.entries.iter().filter(|entry| entry.kind == EntryKind::Until);
    let waits: BTreeSet<&str> = waits.map(|entry| operation(&entry.key).0).collect();
    let entries = timeline.entries.iter().map(|entry| (entry.at, entry_line(entry, &waits, timeline)));
    let unread = timeline.inbox.messages.iter().map(|message| (message.at, sent(message, ended)));
    let mut events: Vec<_> = entries.chain(unread).collect();
    // Stable, so that what was recorded in one commit stays in order.
    events.sort_by_key(|(at, _)| *at);
    events
}

/// The operation that a record belongs to, and what it is beside that operation's result.
fn operation(key: &Key) -> (&str, Option<&str>) {
    let key = key.as_str();
    match key.rsplit_once('#') {
        Some((operation, mark)) if is_mark(mark) => (operation, Some(mark)),
        _ => (key, None),
    }
}

/// Whether this belongs to an operation beside its result, and is no number and no key.
fn is_mark(mark: &str) -> bool {
    !mark.starts_with('=') && !mark.bytes().all(|byte| byte.is_ascii_digit())
}

/// Puts a key into words: `goods/pack#2` is `goods › pack (2)`, `mail#=ada` is `mail [ada]`.
pub fn words(key: &str) -> String {
    let parts = key.split('/').map(|part| {
        let mut marks = part.split('#');
        let name = marks.next().unwrap_or_default().to_owned();
        marks.fold(name, |name, mark| match mark.strip_prefix('=') {
            Some(given) => format!("{name} [{given}]"),
            None => format!("{name} ({mark})"),
        })
    });
    text::line(&parts.collect::<Vec<_>>().join(" › "), 200)
}

fn entry_line(entry: &Written, waits: &BTreeSet<&str>, timeline: &Timeline) -> String {
    let (key, beside) = operation(&entry.key);
    let name = words(key);
    let what = match entry.kind {
        EntryKind::Until => match moment(entry) {
            Some(until) => format!("{name}: waits until {until}"),
            None => format!("{name}: waits"),
        },
        EntryKind::Begun => format!("{name}: began; runs at most once"),
        EntryKind::Error => format!("{name}: failed, and the handler continued: {}", error_message(entry)),
        EntryKind::Child => child(entry, &name, timeline),
        EntryKind::Received => format!("{name}: {}", received(entry)),
        EntryKind::Value if beside == Some("result") => format!("{name}: child {}", ended(entry)),
        EntryKind::Value if beside.is_some() => marked(entry, &name, beside.unwrap_or_default()),
        EntryKind::Value if waits.contains(key) => format!("{name}: the time has come"),
        EntryKind::Value => match value(entry).as_str() {
            "null" => format!("{name}: done"),
            value => format!("{name} = {value}"),
        },
    };
    // What took no time worth a word is not told.
    let took = entry.took.filter(|took| !took.is_zero());
    let took = took.map(|took| format!(" (took {})", Span(took))).unwrap_or_default();
    format!("claim {}: {what}{took}", entry.claim)
}

/// What is noted of an operation beside its result.
fn marked(entry: &Written, name: &str, mark: &str) -> String {
    match mark.split_once('=') {
        Some(("output", frames)) => {
            let frames = text::count(frames.parse().unwrap_or(0), "frame");
            format!("{}{frames} pushed", if name.is_empty() { String::new() } else { format!("{name}: ") })
        }
        Some(("turn", turns)) => format!("{name}: {turns} turns done, with {}", value(entry)),
        Some(("token", _)) => {
            let token = parsed(entry);
            let until = token["expires"].as_i64().map(Timestamp::from_micros);
            let signal = token["signal"].as_str().map(|signal| text::line(signal, 200)).unwrap_or_default();
            format!(
                "a token for `{signal}`, valid until {}",
                until.map(|at| at.to_string()).unwrap_or_default()
            )
        }
        _ => match mark {
            "output" => format!("{name}: has output, but no result yet"),
            "kept" => "its pushed items are kept".to_owned(),
            "left" => format!("{name}: dropped, because something else came first"),
            "abandoned" => format!("{name}: continues when this job ends"),
            "accepted" => format!("{name}: accepted as new"),
            "renamed" => format!("{name}: was called {}", value(entry)),
            "unfit" => unfit(entry, name),
            "again" => format!("{name}: its error was removed; it runs again"),
            _ => format!("{name} ({mark}) = {}", value(entry)),
        },
    }
}

/// Signals that a wait has set aside.
fn unfit(entry: &Written, name: &str) -> String {
    let parsed = parsed(entry);
    let Some(signals) = parsed.as_array() else { return format!("{name}: signals were set aside") };
    let message = signals.iter().map(|signal| {
        let word = |field: &str| signal[field].as_str().unwrap_or_default();
        format!("{} does not fit: {}", signal_text(word("sender"), word("body")), word("why"))
    });
    let message = text::line(&message.collect::<Vec<_>>().join("; "), 4 * SHOWN);
    format!("{name}: set aside, and not read again: {message}")
}

/// A value in one line.
fn value(entry: &Written) -> String {
    match &entry.value {
        Value::Here(bytes) => text::line(&json::payload(bytes).to_string(), SHOWN),
        Value::There(bytes) => format!("({bytes} bytes)"),
    }
}

fn parsed(entry: &Written) -> serde_json::Value {
    match &entry.value {
        Value::Here(bytes) => json::payload(bytes),
        Value::There(_) => serde_json::Value::Null,
    }
}

fn moment(entry: &Written) -> Option<Timestamp> {
    parsed(entry).as_i64().map(Timestamp::from_micros)
}

/// The message of a recorded error.
fn error_message(entry: &Written) -> String {
    match parsed(entry)["message"].as_str() {
        Some(message) => text::line(message, 600),
        None => value(entry),
    }
}

fn child(entry: &Written, name: &str, timeline: &Timeline) -> String {
    let id = parsed(entry).as_str().and_then(|id| id.parse::<JobId>().ok());
    let kin = timeline.children.iter().find(|kin| Some(kin.id) == id);
    match (id, kin) {
        (Some(id), Some(kin)) => format!("{name}: child {id} started; it is {} now", kin.status),
        (Some(id), None) => format!("{name}: child {id} started; the store no longer has it"),
        (None, _) => format!("{name}: a child started"),
    }
}

/// Signals that were waited for: who sent what.
fn received(entry: &Written) -> String {
    let parsed = parsed(entry);
    let Some(signals) = parsed.as_array() else { return format!("signals {}", value(entry)) };
    if signals.is_empty() {
        return "timed out, no signal came".to_owned();
    }
    let message =
        signals.iter().map(|signal| signal_text(signal[0].as_str().unwrap_or(""), &signal[1].to_string()));
    text::line(&message.collect::<Vec<_>>().join(", "), 2 * SHOWN)
}

fn signal_text(sender: &str, body: &str) -> String {
    let body = text::line(body, SHOWN);
    if sender.starts_with(NOBODY) {
        format!("signal {body}")
    } else {
        format!("signal {body} from {}", text::line(sender, SHOWN))
    }
}

/// The end of a child, as its parent recorded it.
fn ended(entry: &Written) -> String {
    let end = parsed(entry);
    let Some(state) = end["status"]["state"].as_str() else { return format!("ended: {}", value(entry)) };
    let said = match (end["message"].as_str(), &end["result"]) {
        (Some(message), _) => format!(": {}", text::line(message, 600)),
        (None, serde_json::Value::Null) => String::new(),
        (None, result) => format!(": {}", text::line(&result.to_string(), SHOWN)),
    };
    format!("{}{said}", text::line(state, SHOWN))
}

/// A message that is not recorded as read. What a handler read last before it ended never is.
fn sent(message: &Message, ended: bool) -> String {
    let unread = if ended { "" } else { ", unread" };
    match &message.body {
        MessageBody::Signal { name, sender, body } => {
            let body = json::payload(body).to_string();
            format!("{}: {}{unread}", words(name.as_str()), signal_text(sender, &body))
        }
        MessageBody::Ended { child, status, .. } => format!("child {child} ended: {status}{unread}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_in_words() {
        let shown = |key: &str| words(key);
        assert_eq!(shown("charge"), "charge");
        assert_eq!(shown("charge#2"), "charge (2)");
        assert_eq!(shown("goods/mail#=ada#2"), "goods › mail [ada] (2)");
        assert_eq!(shown("a\u{202e}b"), "a\\u{202e}b");
    }

    #[test]
    fn what_is_beside_a_result_is_told_apart() {
        let of = |key: &str| {
            let key = Key::new(key).expect("a key");
            let (operation, beside) = operation(&key);
            (operation.to_owned(), beside.map(ToOwned::to_owned))
        };
        assert_eq!(of("nap#until"), ("nap".into(), Some("until".into())));
        assert_eq!(of("nap#2#until"), ("nap#2".into(), Some("until".into())));
        assert_eq!(of("nap#=until"), ("nap#=until".into(), None));
        assert_eq!(of("nap#2"), ("nap#2".into(), None));
    }
}
