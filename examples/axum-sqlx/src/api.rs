//! What can be asked over HTTP. What goes wrong is told as problem details (RFC 9457).

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use mainspring::JobId;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{App, Welcome};

pub(crate) fn routes(app: App) -> Router {
    Router::new().route("/users", post(create_user)).route("/jobs/{id}", get(job)).with_state(app)
}

/// Somebody who signs up.
#[derive(Deserialize)]
struct NewUser {
    name: String,
}

/// Stores a user and enqueues a mail, in one transaction.
async fn create_user(State(app): State<App>, Json(new): Json<NewUser>) -> Result<Response, Problem> {
    let mut tx = app.db.begin().await?;
    let insert = sqlx::query_scalar("INSERT INTO users (name) VALUES ($1) RETURNING id");
    let user: i64 = insert.bind(&new.name).fetch_one(&mut *tx).await?;
    let key = format!("user {user}"); // one mail at a time for a user, whoever else thinks of it
    let job = app.engine.enqueue(Welcome { user }).unique(key).within(&mut tx).await?;
    // If this fails, or is never reached, there is neither a user nor a job.
    tx.commit().await?;
    // Wakes a node now; without it the job would be noticed within a second.
    app.engine.nudge(&job);
    let location = format!("/jobs/{}", job.id);
    let body = Json(json!({ "user": user, "job": job.id.to_string() }));
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], body).into_response())
}

/// Tells how a job is.
async fn job(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let id: JobId = id.parse().map_err(|_| Problem(StatusCode::BAD_REQUEST, "that is no job id"))?;
    let job = app.engine.jobs().get(id).await?;
    let result: Value = match &job.result {
        Some(result) => serde_json::from_slice(result).unwrap_or_default(),
        None => Value::Null,
    };
    Ok(Json(json!({
        "id": id.to_string(),
        "state": job.summary.status.state.as_str(),
        "failures": job.summary.failures,
        "result": result,
    })))
}

/// What went wrong, for the caller. Causes go to the log and not to strangers.
struct Problem(StatusCode, &'static str);

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        let taken = error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation);
        if taken {
            return Problem(StatusCode::CONFLICT, "that name is taken");
        }
        tracing::warn!(%error, "the database refused a request");
        Problem(StatusCode::SERVICE_UNAVAILABLE, "try again later")
    }
}

impl From<mainspring::Error> for Problem {
    fn from(error: mainspring::Error) -> Self {
        match error {
            mainspring::Error::NotFound(_) => Problem(StatusCode::NOT_FOUND, "there is no such job"),
            error => {
                tracing::warn!(%error, "the engine refused a request");
                Problem(StatusCode::SERVICE_UNAVAILABLE, "try again later")
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Problem(status, title) = self;
        let body = Json(json!({ "status": status.as_u16(), "title": title }));
        (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
    }
}
