//! Getting a connection and keeping it driven.

use std::time::Duration;

use mainspring_core::error::{BoxError, OpenProblem};
use mainspring_core::{Error, Result};
use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client};

use crate::address::Address;
use crate::error::words;
use crate::shared::Shared;
use crate::tls::{self, ConnectError, ConnectProblem};

/// A connection whose socket is looked after by a task of its own. The texts of notifications go to `notifications`, if anywhere.
/// `limit`: how long the caller waits at most.
pub(crate) async fn client(
    shared: &Shared,
    address: &Address,
    limit: Option<Duration>,
    notifications: Option<UnboundedSender<String>>,
) -> Result<Client> {
    let (client, mut connection) =
        tls::connect(address, limit).await.map_err(|error| refused(shared, error))?;
    shared.runtime.spawn(async move {
        while let Some(message) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notification(notification)) => {
                    let sent = notifications
                        .as_ref()
                        .map(|notifications| notifications.send(notification.payload().to_owned()));
                    if sent.is_some_and(|sent| sent.is_err()) {
                        return;
                    }
                }
                Ok(AsyncMessage::Notice(notice)) => tracing::debug!(%notice, "notice from Postgres"),
                Ok(_) => {}
                // Whoever waits for an answer is told as well.
                Err(error) => return tracing::debug!(%error, "connection lost"),
            }
        }
    });
    Ok(client)
}

/// What an attempt to connect came to.
fn refused(shared: &Shared, error: ConnectError) -> Error {
    let is = match error.problem {
        ConnectProblem::Refused if error.code() == Some(&SqlState::INVALID_CATALOG_NAME) => {
            OpenProblem::Missing
        }
        ConnectProblem::Unreachable => OpenProblem::Unreachable,
        ConnectProblem::Refused => OpenProblem::Refused,
        ConnectProblem::Tls => OpenProblem::Insecure,
        ConnectProblem::Other => OpenProblem::Other,
    };
    problem(shared, is, error.source)
}

/// What the network may add to the time that the database gives a statement.
const GRACE: Duration = Duration::from_millis(500);

/// Waits for what is asked while a connection or a store is opened, as long as for a call: a database that falls silent in
/// the middle of it is as good as none.
pub(crate) async fn answered<T>(shared: &Shared, asked: impl Future<Output = Result<T>>) -> Result<T> {
    let silent =
        || problem(shared, OpenProblem::Unreachable, Some("the database did not answer in time".into()));
    tokio::time::timeout(shared.timeout() + GRACE, asked).await.unwrap_or_else(|_| Err(silent()))
}

/// What a statement that failed means for whoever opens a store: a connection that was lost may be had again, and what the
/// database itself said is a problem of this kind.
pub(crate) fn failed(shared: &Shared, is: OpenProblem, error: &tokio_postgres::Error) -> Error {
    let is = if tls::is_passing(error) { OpenProblem::Unreachable } else { is };
    problem(shared, is, Some(words(error).into()))
}

/// An [`Error::Open`].
pub(crate) fn problem(shared: &Shared, problem: OpenProblem, source: Option<BoxError>) -> Error {
    Error::Open { location: shared.options.address.location(), problem, source }
}
