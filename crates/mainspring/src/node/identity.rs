//! Who a node is: its name, queues and labels, from options or from the environment; and when it is asked to go.

use std::time::Duration;

use mainspring_core::id::NodeId;
use mainspring_core::name::{Label, QueueName};
use mainspring_core::time::Span;
use mainspring_core::{Error, Result};

/// Queues and slots: `default:10,mail:5`. Slots default to 10.
pub(super) const QUEUES: &str = "MAINSPRING_QUEUES";
/// Labels: `gpu,region=eu`.
pub(super) const LABELS: &str = "MAINSPRING_LABELS";
/// The first part of the node's name.
pub(super) const PREFIX: &str = "MAINSPRING_NODE_PREFIX";
/// The version of the application, in the node's name.
pub(super) const VERSION: &str = "MAINSPRING_VERSION";
/// How long the lease lasts: `15s`.
pub(super) const LEASE: &str = "MAINSPRING_LEASE";

/// Slots of a queue that does not say how many.
const DEFAULT_SLOTS: u32 = 10;

/// Reads queues from text: `default:10,mail:5`. The number stands after the last colon, because names may have colons.
pub(crate) fn queues(text: &str) -> Result<Vec<(QueueName, u32)>> {
    items(text)
        .map(|item| {
            let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let (name, slots) = match item.rsplit_once(':') {
                Some((name, slots)) if number(slots) => {
                    let slots = slots.parse().map_err(|_| Error::Invalid {
                        what: QUEUES,
                        why: format!("`{slots}` are more slots than there can be"),
                    })?;
                    (name, slots)
                }
                _ => (item, DEFAULT_SLOTS),
            };
            Ok((QueueName::new(name)?, slots))
        })
        .collect()
}

/// Reads labels from text: `gpu,region=eu`.
pub(crate) fn labels(text: &str) -> Result<Vec<Label>> {
    items(text).map(Label::new).collect()
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Reads a lease from text.
pub(crate) fn lease(text: &str) -> Result<Duration> {
    text.parse::<Span>().map(|span| span.0)
}

/// A variable of the environment, if it is set and not empty.
pub(super) fn variable(name: &'static str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.trim().is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Error::Invalid { what: name, why: "not valid UTF-8".into() })
        }
    }
}

/// `{prefix}-worker-{version}-{id}`, with the random end of the id.
pub(super) fn name(prefix: &str, version: &str, id: NodeId) -> String {
    let id = id.to_string();
    let short = &id[id.len().saturating_sub(8)..];
    format!("{prefix}-worker-{version}-{short}")
}

/// Waits for SIGTERM or SIGINT (Ctrl-C): pass it to [`Node::run_until`](crate::Node::run_until).
///
/// It listens from the call on, not from the first poll, so it does not lose a signal in between. Call it within a
/// Tokio runtime.
pub fn shutdown_signal() -> impl Future<Output = ()> + Send + use<> {
    #[cfg(unix)]
    let signals = {
        use tokio::signal::unix::{SignalKind, signal};
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    };
    async move {
        #[cfg(unix)]
        {
            let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
                // Without signals there is nothing to wait for.
                return std::future::pending().await;
            };
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_read_with_and_without_slots() {
        let read = queues("default:10, mail ,eu:images:3").expect("queues");
        let names: Vec<_> = read.iter().map(|(name, slots)| (name.as_str(), *slots)).collect();
        assert_eq!(names, [("default", 10), ("mail", DEFAULT_SLOTS), ("eu:images", 3)]);
        assert!(queues("a b:1").is_err());
        assert!(queues(" , ").expect("none").is_empty());
        // Taken for a part of the name, this would serve a queue that nobody has.
        let error = queues("default:99999999999").expect_err("too many").to_string();
        assert_eq!(error, "invalid MAINSPRING_QUEUES: `99999999999` are more slots than there can be");
    }

    #[test]
    fn labels_and_leases_are_read() {
        let read = labels(" gpu, region=eu,,").expect("labels");
        assert_eq!(read.iter().map(Label::as_str).collect::<Vec<_>>(), ["gpu", "region=eu"]);
        assert!(labels("a\0b").is_err());
        assert_eq!(lease("1m30s").expect("a lease"), Duration::from_secs(90));
        assert!(lease("soon").is_err());
    }

    #[test]
    fn names_tell_prefix_version_and_id() {
        let name = name("billing", "1.2.3", NodeId::from_bytes([0xAB; 16]));
        assert_eq!(name, "billing-worker-1.2.3-abababab");
    }
}
