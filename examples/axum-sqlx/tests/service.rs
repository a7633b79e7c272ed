//! The service is run against a Postgres of its own, asked over HTTP, and told to end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use mainspring_testkit::postgres::{Database, Server};
use serde_json::{Value, json};

/// More than any answer takes, so that a busy machine fails no test.
const PATIENCE: Duration = Duration::from_mins(3);
/// Between two looks at a job.
const LOOK: Duration = Duration::from_millis(20);
/// Looks before a test gives up: half a minute and more.
const LOOKS: usize = 1_500;

/// A service that runs. Killed at the end of the test.
struct Service {
    child: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Service {
    fn start(database: &Database) -> Service {
        let mut child = Command::new(env!("CARGO_BIN_EXE_example-axum-sqlx"))
            .env("DATABASE_URL", database.url())
            .env("LISTEN", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on http://").expect("its address").to_owned();
        Service { child, output, address }
    }

    /// Sends a request; the status and the body of the answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Waits until a job has succeeded, and returns what is told of it.
    fn succeeded(&self, job: &str) -> Value {
        for _ in 0..LOOKS {
            let (status, told) = self.ask("GET", &format!("/jobs/{job}"), "");
            assert_eq!(status, 200, "{told}");
            if told["state"] == "succeeded" {
                return told;
            }
            std::thread::park_timeout(LOOK);
        }
        panic!("job {job} never succeeded");
    }

    fn signal(&self, name: &str) {
        let told = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill");
        assert!(told.success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn database() -> Database {
    Server::shared().and_then(|server| server.database()).expect("a database")
}

/// How many rows a query counts.
fn count(database: &Database, query: &str) -> String {
    let rows = database.sql(query).expect("an answer");
    rows[0][0].clone().expect("a number")
}

#[test]
fn a_user_and_his_mail_exist_together_or_not_at_all() {
    let database = database();
    let service = Service::start(&database);
    let ada = json!({ "name": "Ada" }).to_string();

    let (status, created) = service.ask("POST", "/users", &ada);
    assert_eq!(status, 201, "{created}");
    let job = created["job"].as_str().expect("a job");
    assert_eq!(service.succeeded(job)["result"], "welcome, Ada");

    // The name is checked when the transaction commits: after the job was enqueued in it.
    let (status, problem) = service.ask("POST", "/users", &ada);
    assert_eq!((status, &problem["title"]), (409, &json!("that name is taken")));
    assert_eq!(count(&database, "SELECT count(*) FROM users"), "1");
    assert_eq!(count(&database, "SELECT count(*) FROM mainspring.jobs"), "1");

    assert_eq!(service.ask("GET", "/jobs/nonsense", "").0, 400);
    assert_eq!(service.ask("GET", "/jobs/01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c", "").0, 404);
    assert_eq!(service.ask("POST", "/users", "{").0, 400);
}

#[test]
fn server_and_node_end_together_when_they_are_told_to() {
    let database = database();
    for signal in ["-TERM", "-INT"] {
        let mut service = Service::start(&database);
        let name = json!({ "name": format!("somebody{signal}") }).to_string();
        assert_eq!(service.ask("POST", "/users", &name).0, 201);
        service.signal(signal);
        let mut rest = String::new();
        service.output.read_to_string(&mut rest).expect("the rest");
        assert_eq!(rest, "stopped\n");
        assert!(service.child.wait().expect("its end").success());
        assert_eq!(count(&database, "SELECT count(*) FROM mainspring.nodes WHERE state = 0"), "0");
        assert_eq!(count(&database, "SELECT count(*) FROM mainspring.lease"), "0");
    }
}
