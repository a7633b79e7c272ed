//! Opening a store on a Postgres of the test's own: TLS as libpq's `sslmode` means it, certificates, passwords.

mod certs;
mod reach;

use std::io::{Read, Write};
use std::net::TcpListener;

use certs::Authority;
use mainspring_testkit::postgres::{Options, Server};
use reach::Reached::{self, Insecure, Missing, Plain, Refused, Tls, Unreachable};
use reach::reach;
use tempfile::TempDir;

/// The modes, from the weakest to the strongest.
const MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// Who may come in how, before the lines that trust everybody.
const ACCESS: [&str; 7] = [
    "hostssl all only_tls 127.0.0.1/32 trust",
    "hostnossl all only_tls 127.0.0.1/32 reject",
    "hostnossl all only_plain 127.0.0.1/32 trust",
    "hostssl all only_plain 127.0.0.1/32 reject",
    "hostssl all by_certificate 127.0.0.1/32 cert",
    "hostnossl all by_certificate 127.0.0.1/32 reject",
    "host all by_password 127.0.0.1/32 scram-sha-256",
];

const USERS: &str = "
    CREATE ROLE only_tls LOGIN SUPERUSER;
    CREATE ROLE only_plain LOGIN SUPERUSER;
    CREATE ROLE by_certificate LOGIN SUPERUSER;
    CREATE ROLE by_password LOGIN SUPERUSER PASSWORD 'it''s right';";

/// A server, and files for its clients.
struct Site {
    server: Server,
    dir: TempDir,
}

impl Site {
    /// A server with a certificate for `localhost`; `good.crt` signed it, `bad.crt` did not.
    fn with_tls() -> Site {
        let good = Authority::new("good");
        let site = Site::new(Some((good.server("localhost"), &good.certificate)));
        site.write("good.crt", &good.certificate);
        site.write("bad.crt", &Authority::new("bad").certificate);
        for (name, pair) in [
            ("client", good.client("by_certificate")),
            ("somebody", good.client("somebody")),
            ("stranger", Authority::new("bad").client("by_certificate")),
        ] {
            site.write(&format!("{name}.crt"), &pair.certificate);
            site.write(&format!("{name}.key"), &pair.key);
        }
        site
    }

    fn new(tls: Option<(certs::Pair, &str)>) -> Site {
        let mut options = Options::new().tcp().setting("log_connections", "on");
        if let Some((pair, clients)) = tls {
            options = options
                .setting("ssl", "on")
                .setting("ssl_ca_file", "clients.crt")
                .file("server.crt", pair.certificate)
                .file("server.key", pair.key)
                .file("clients.crt", clients);
            options = ACCESS.iter().fold(options, |options, line| options.access(line));
        }
        let server = Server::start(&options).expect("a server");
        server.sql("postgres", USERS).expect("users");
        Site { server, dir: tempfile::tempdir().expect("a directory") }
    }

    fn write(&self, name: &str, text: &str) {
        certs::write(self.dir.path(), name, text);
    }

    /// Tries an address; `{}` in it is the directory of the files.
    async fn tries(&self, user: &str, host: &str, rest: &str) -> (Reached, String) {
        let dir = self.dir.path().display().to_string();
        let port = self.server.port();
        let rest = rest.replace("{}", &dir);
        let text = format!("host={host} hostaddr=127.0.0.1 port={port} user={user} dbname=postgres {rest}");
        reach(&self.server, &text).await
    }

    async fn expect(&self, user: &str, host: &str, rest: &str, expected: Reached) -> String {
        let (reached, told) = self.tries(user, host, rest).await;
        assert_eq!(reached, expected, "{user}@{host} {rest}: {told}");
        told
    }
}

#[tokio::test]
async fn each_mode_gets_what_it_asks_for() {
    let site = Site::with_tls();
    for (mode, expected) in MODES.into_iter().zip([Plain, Plain, Tls, Tls, Tls, Tls]) {
        site.expect("postgres", "localhost", &format!("sslmode={mode} sslrootcert={{}}/good.crt"), expected)
            .await;
    }
}

#[tokio::test]
async fn certificate_must_be_signed_by_a_root_and_bear_the_name() {
    let site = Site::with_tls();
    for (mode, wrong_root, wrong_name) in [
        ("allow", Plain, Plain),
        ("prefer", Tls, Tls),
        ("require", Insecure, Tls),
        ("verify-ca", Insecure, Tls),
        ("verify-full", Insecure, Insecure),
    ] {
        let good = format!("sslmode={mode} sslrootcert={{}}/good.crt");
        let bad = format!("sslmode={mode} sslrootcert={{}}/bad.crt");
        site.expect("postgres", "localhost", &bad, wrong_root).await;
        site.expect("postgres", "127.0.0.1", &good, wrong_name).await;
        site.expect("postgres", "other.example", &good, wrong_name).await;
    }
}

#[tokio::test]
async fn proof_needs_a_file_of_roots() {
    let site = Site::with_tls();
    site.expect("postgres", "localhost", "sslmode=require", Tls).await;
    for mode in ["verify-ca", "verify-full"] {
        let told = site.expect("postgres", "localhost", &format!("sslmode={mode}"), Insecure).await;
        assert!(told.contains("set `sslrootcert`"), "{told}");
    }
    site.write("empty.crt", "nothing");
    for file in ["missing.crt", "empty.crt"] {
        for mode in ["require", "verify-ca", "verify-full"] {
            let told = site
                .expect("postgres", "localhost", &format!("sslmode={mode} sslrootcert={{}}/{file}"), Insecure)
                .await;
            assert!(told.contains(file), "{told}");
        }
    }
    // Roots of the system did not sign it.
    site.expect("postgres", "localhost", "sslrootcert=system", Insecure).await;
}

#[tokio::test]
async fn server_without_tls_is_not_enough_from_require_on() {
    let site = Site::new(None);
    site.write("good.crt", &Authority::new("good").certificate);
    for (mode, expected) in MODES.into_iter().zip([Plain, Plain, Plain, Insecure, Insecure, Insecure]) {
        let told = site
            .expect("postgres", "localhost", &format!("sslmode={mode} sslrootcert={{}}/good.crt"), expected)
            .await;
        assert!(expected == Plain || told.contains("does not support TLS"), "{told}");
    }
    // A Unix socket needs none.
    let dir = site.server.socket_dir().expect("a socket").display();
    let text = format!("host={dir} port={} user=postgres sslmode=verify-full", site.server.port());
    assert_eq!(reach(&site.server, &text).await.0, Plain);
}

#[tokio::test]
async fn allow_and_prefer_try_the_other_way_if_they_are_turned_away() {
    let site = Site::with_tls();
    for (mode, only_tls, only_plain) in [
        ("disable", Refused, Plain),
        ("allow", Tls, Plain),
        ("prefer", Tls, Plain),
        ("require", Tls, Refused),
    ] {
        site.expect("only_tls", "localhost", &format!("sslmode={mode}"), only_tls).await;
        site.expect("only_plain", "localhost", &format!("sslmode={mode}"), only_plain).await;
    }
}

#[tokio::test]
async fn client_certificate_opens_the_door_to_its_bearer() {
    let site = Site::with_tls();
    let with = |name: &str| format!("sslmode=require sslcert={{}}/{name}.crt sslkey={{}}/{name}.key");
    site.expect("by_certificate", "localhost", &with("client"), Tls).await;
    site.expect("by_certificate", "localhost", "sslmode=require", Refused).await;
    site.expect("by_certificate", "localhost", &with("somebody"), Refused).await;
    site.expect("by_certificate", "localhost", &with("stranger"), Insecure).await;
    let told =
        site.expect("by_certificate", "localhost", "sslmode=require sslcert={}/client.crt", Insecure).await;
    assert!(told.contains("set `sslkey`"), "{told}");
    let told = site
        .expect(
            "by_certificate",
            "localhost",
            "sslmode=require sslcert={}/client.crt sslkey={}/somebody.key",
            Insecure,
        )
        .await;
    assert!(told.contains("not usable"), "{told}");
}

#[tokio::test]
async fn key_that_others_can_read_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::with_tls();
    let key = site.dir.path().join("client.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("the key is ours");
    let rest = "sslmode=require sslcert={}/client.crt sslkey={}/client.key";
    let told = site.expect("by_certificate", "localhost", rest, Insecure).await;
    assert!(told.contains("client.key` can be read by others"), "{told}");
}

#[tokio::test]
async fn password_is_proved_and_bound_to_the_channel() {
    let site = Site::with_tls();
    site.write("pass", r"localhost:*:*:by_password:it's right");
    for mode in ["disable", "prefer", "require"] {
        let with = |rest: &str| format!("sslmode={mode} {rest}");
        let reached = if mode == "disable" { Plain } else { Tls };
        site.expect("by_password", "localhost", &with(r"password='it\'s right'"), reached).await;
        site.expect("by_password", "localhost", &with("passfile={}/pass"), reached).await;
        for wrong in ["password=wrong", ""] {
            let told = site.expect("by_password", "localhost", &with(wrong), Refused).await;
            assert!(!told.contains("wrong"), "{told}");
        }
    }
    let bound = |mode: &str| format!(r"password='it\'s right' channel_binding=require sslmode={mode}");
    site.expect("by_password", "localhost", &bound("require"), Tls).await;
    site.expect("by_password", "localhost", &bound("disable"), Refused).await;
}

#[tokio::test]
async fn certificate_that_signs_itself_is_its_own_root() {
    let pair = certs::lonely("localhost", false);
    let own = pair.certificate.clone();
    let site = Site::new(Some((pair, &own)));
    site.write("own.crt", &own);
    site.write("bad.crt", &certs::lonely("localhost", false).certificate);
    for mode in ["require", "verify-ca", "verify-full"] {
        let with = |root: &str| format!("sslmode={mode} sslrootcert={{}}/{root}.crt");
        let wrong_name = if mode == "verify-full" { Insecure } else { Tls };
        site.expect("postgres", "localhost", &with("own"), Tls).await;
        site.expect("postgres", "other.example", &with("own"), wrong_name).await;
        site.expect("postgres", "localhost", &with("bad"), Insecure).await;
    }
}

#[tokio::test]
async fn expired_certificate_proves_nothing() {
    let pair = certs::lonely("localhost", true);
    let own = pair.certificate.clone();
    let site = Site::new(Some((pair, &own)));
    site.write("own.crt", &own);
    for (mode, expected) in
        [("prefer", Tls), ("require", Insecure), ("verify-ca", Insecure), ("verify-full", Insecure)]
    {
        site.expect("postgres", "localhost", &format!("sslmode={mode} sslrootcert={{}}/own.crt"), expected)
            .await;
    }
}

#[tokio::test]
async fn certificate_of_version_1_encrypts_but_proves_nothing() {
    let pair = certs::ancient("localhost");
    let own = pair.certificate.clone();
    let site = Site::new(Some((pair, &own)));
    site.write("own.crt", &own);
    site.expect("postgres", "localhost", "sslmode=prefer", Tls).await;
    site.expect("postgres", "localhost", "sslmode=require", Tls).await;
    for mode in ["require", "verify-ca", "verify-full"] {
        let rest = format!("sslmode={mode} sslrootcert={{}}/own.crt");
        site.expect("postgres", "localhost", &rest, Insecure).await;
    }
}

#[tokio::test]
async fn what_is_wrong_is_told_by_its_kind() {
    let site = Site::new(None);
    let port = site.server.port();
    let told = site.expect("postgres", "localhost", "dbname=nowhere", Missing).await;
    assert!(told.contains("\"nowhere\" does not exist"), "{told}");
    site.expect("nobody", "localhost", "", Refused).await;
    let (reached, _) = reach(&site.server, "host=127.0.0.1 port=1").await;
    assert_eq!(reached, Unreachable);
    let (reached, _) = reach(&site.server, "host=nowhere.invalid").await;
    assert_eq!(reached, Unreachable);
    let (reached, _) = reach(&site.server, "host=/nowhere").await;
    assert_eq!(reached, Unreachable);

    // Of several hosts the first that works is taken, and the most telling problem is told.
    let good = format!("host=/nowhere,127.0.0.1,127.0.0.1 port=1,1,{port} user=postgres");
    assert_eq!(reach(&site.server, &good).await.0, Plain);
    let bad = format!("host=/nowhere,127.0.0.1,127.0.0.1 port=1,{port},1 user=postgres dbname=nowhere");
    assert_eq!(reach(&site.server, &bad).await.0, Missing);
}

#[tokio::test]
async fn host_that_says_nothing_is_given_up() {
    let site = Site::new(None);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    for mode in ["disable", "prefer", "require"] {
        let text = format!("host=127.0.0.1 port={port} connect_timeout=1 sslmode={mode}");
        let (reached, told) = reach(&site.server, &text).await;
        assert_eq!(reached, Unreachable, "{told}");
        assert!(told.contains("no answer within 1s"), "{told}");
    }
    let next = format!(
        "host=127.0.0.1,127.0.0.1 port={port},{} connect_timeout=1 user=postgres",
        site.server.port()
    );
    assert_eq!(reach(&site.server, &next).await.0, Plain);
}

/// Answers one request for TLS with a yes, and then with something else than a handshake.
fn impostor(then: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    #[expect(clippy::disallowed_methods, reason = "it stands in for another process")]
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut request = [0; 8];
        client.read_exact(&mut request).expect("a request for TLS");
        client.write_all(b"S").expect("the client listens");
        // The first bytes of its handshake, so that closing is not taken for a reset.
        let _read = client.read(&mut [0; 4096]);
        let _sent = client.write_all(then);
    });
    port
}

#[tokio::test]
async fn server_that_goes_away_in_the_handshake_is_unreachable_and_nonsense_is_insecure() {
    let site = Site::new(None);
    for (then, expected) in [(&b""[..], Unreachable), (b"HTTP/1.1 400 Bad Request\r\n\r\n", Insecure)] {
        let text = format!("host=127.0.0.1 port={} sslmode=require", impostor(then));
        let (reached, told) = reach(&site.server, &text).await;
        assert_eq!(reached, expected, "{told}");
    }
}

#[tokio::test]
async fn session_that_takes_writes_can_be_asked_for() {
    let site = Site::new(None);
    let with = |attrs: &str, options: &str| format!("target_session_attrs={attrs} options='{options}'");
    let read_only = "-c default_transaction_read_only=on";
    site.expect("postgres", "localhost", &with("read-write", ""), Plain).await;
    site.expect("postgres", "localhost", &with("read-write", read_only), Unreachable).await;
}
