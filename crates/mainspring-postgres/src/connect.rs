//! Getting a connection and keeping it driven.

use mainspring_core::error::OpenProblem;
use mainspring_core::{Error, Result};
use tokio_postgres::{AsyncMessage, Client};

use crate::shared::Shared;
use crate::tls::{self, ConnectError, ConnectProblem};

/// A connection whose socket is looked after by a task of its own.
pub(crate) async fn client(shared: &Shared) -> Result<Client> {
    let connected = tokio::time::timeout(shared.options.timeout, tls::connect(&shared.options.address)).await;
    let (client, mut connection) = match connected {
        Ok(connected) => connected.map_err(|error| told(shared, error))?,
        Err(_) => return Err(problem(shared, OpenProblem::Unreachable, Some("it did not answer in time".into()))),
    };
    shared.runtime.spawn(async move {
        while let Some(message) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notice(notice)) => tracing::debug!(%notice, "the database remarks"),
                Ok(_) => {}
                // Whoever waits for an answer is told as well.
                Err(error) => return tracing::debug!(%error, "a connection was lost"),
            }
        }
    });
    Ok(client)
}

/// What an attempt to connect came to.
pub(crate) fn told(shared: &Shared, error: ConnectError) -> Error {
    let is = match error.problem {
        ConnectProblem::Unreachable => OpenProblem::Unreachable,
        ConnectProblem::Refused => OpenProblem::Refused,
        ConnectProblem::Tls => OpenProblem::Insecure,
        ConnectProblem::Other => OpenProblem::Other,
    };
    problem(shared, is, error.source)
}

/// An [`Error::Open`].
pub(crate) fn problem(
    shared: &Shared,
    problem: OpenProblem,
    source: Option<mainspring_core::error::BoxError>,
) -> Error {
    Error::Open { location: shared.options.address.location(), problem, source }
}
