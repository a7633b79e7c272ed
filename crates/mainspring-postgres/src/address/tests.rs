//! Reading addresses: every form, who wins, and that no secret gets out.

mod files;
mod forms;
mod hostile;

use std::error::Error as _;
use std::net::IpAddr;
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::error::OpenProblem;
use tokio_postgres::config::{ChannelBinding, TargetSessionAttrs};

use super::{Address, Host, Place, Roots, TlsMode};

/// An environment of a few variables.
fn env(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    move |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
}

/// Reads an address in an empty environment.
fn parse(text: &str) -> Address {
    Address::parse(text, &env(&[])).unwrap_or_else(|error| panic!("{text}: {}", told(&error)))
}

/// What is wrong with an address: its error with all causes.
fn refused(text: &str) -> String {
    match Address::parse(text, &env(&[])) {
        Ok(address) => panic!("{text} is accepted as {address}"),
        Err(error) => {
            assert!(matches!(error, Error::Open { problem: OpenProblem::Address, .. }), "{error:?}");
            told(&error)
        }
    }
}

fn told(error: &Error) -> String {
    let cause = error.source().expect("a fault is told by its cause");
    format!("{error}: {cause}")
}

fn machine(name: &str, port: u16) -> Host {
    Host { place: Place::Machine { name: name.to_owned(), addr: None }, port }
}

fn socket(dir: &str, port: u16) -> Host {
    Host { place: Place::Socket(dir.to_owned()), port }
}

/// The password that would be sent to the first host.
fn password(address: &Address) -> Option<String> {
    let config = address.config(&address.hosts()[0], None);
    config.get_password().map(|password| String::from_utf8(password.to_vec()).unwrap())
}

#[test]
fn explicit_wins_over_environment_and_environment_over_default() {
    let env = env(&[
        ("PGHOST", "envhost"),
        ("PGPORT", "6000"),
        ("PGDATABASE", "envdb"),
        ("PGUSER", "envuser"),
        ("PGPASSWORD", "envsecret"),
        ("PGSSLMODE", "require"),
        ("PGCONNECT_TIMEOUT", "7"),
        ("PGTARGETSESSIONATTRS", "read-write"),
        ("PGAPPNAME", "envapp"),
        ("PGOPTIONS", "-c a=b"),
        ("USER", "me"),
    ]);
    let from_env = Address::parse("postgres://", &env).unwrap();
    assert_eq!(from_env.to_string(), "postgres://envuser@envhost:6000/envdb");
    assert_eq!(password(&from_env).as_deref(), Some("envsecret"));
    assert_eq!(from_env.tls.mode, TlsMode::Require);
    assert_eq!(from_env.connect_timeout, Some(Duration::from_secs(7)));
    assert_eq!(from_env.session, TargetSessionAttrs::ReadWrite);
    assert_eq!(from_env.application_name, "envapp");
    assert_eq!(from_env.options.as_deref(), Some("-c a=b"));

    let given = Address::parse(
        "postgres://u:p@h:1/d?sslmode=disable&connect_timeout=1&target_session_attrs=any&application_name=a&options=x",
        &env,
    )
    .unwrap();
    assert_eq!(given.to_string(), "postgres://u@h:1/d");
    assert_eq!(password(&given).as_deref(), Some("p"));
    assert_eq!(given.tls.mode, TlsMode::Disable);
    assert_eq!(given.connect_timeout, Some(Duration::from_secs(1)));
    assert_eq!(given.session, TargetSessionAttrs::Any);
    assert_eq!(given.application_name, "a");
    assert_eq!(given.options.as_deref(), Some("x"));
}

#[test]
fn what_is_left_open_has_a_default() {
    let address = Address::parse("postgres://db", &env(&[("USER", "me")])).unwrap();
    assert_eq!(address.location(), "postgres://me@db:5432/me");
    assert_eq!(address.schema(), "mainspring");
    assert!(!address.is_pooled());
    assert_eq!(address.tls.mode, TlsMode::Prefer);
    assert_eq!(address.session, TargetSessionAttrs::Any);
    assert_eq!(address.channel_binding, ChannelBinding::Prefer);
    let config = address.config(&address.hosts()[0], None);
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(5)));
    assert_eq!(config.get_application_name(), Some("mainspring"));
    assert_eq!(config.get_keepalives_idle(), Duration::from_secs(30));
    assert_eq!(config.get_keepalives_interval(), Some(Duration::from_secs(10)));
    assert_eq!(config.get_keepalives_retries(), Some(3));
    assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(30)));
    assert_eq!(config.get_password(), None);
}

#[test]
fn empty_value_means_the_default_and_not_the_environment() {
    let env = env(&[("PGAPPNAME", "envapp"), ("PGPORT", "6000")]);
    let address = Address::parse("host=h application_name='' port=", &env).unwrap();
    assert_eq!(address.application_name, "mainspring");
    assert_eq!(address.hosts, [machine("h", 5432)]);
}

#[test]
fn without_host_and_socket_it_is_localhost() {
    // Nobody has a socket with this port in a public directory.
    assert_eq!(parse("port=64999").hosts, [machine("localhost", 64999)]);
}

#[test]
fn zero_means_no_limit() {
    let address = parse("host=h connect_timeout=0 tcp_user_timeout=0 keepalives=0");
    assert_eq!(address.connect_timeout, None);
    let config = address.config(&address.hosts()[0], None);
    assert_eq!((config.get_tcp_user_timeout(), config.get_keepalives()), (None, false));
}

#[test]
fn several_hosts_ask_for_one_that_takes_writes() {
    assert_eq!(parse("postgres://a,b/d").session, TargetSessionAttrs::ReadWrite);
    assert_eq!(parse("postgres://a,b/d?target_session_attrs=any").session, TargetSessionAttrs::Any);
    assert_eq!(parse("postgres://a/d?target_session_attrs=primary").session, TargetSessionAttrs::ReadWrite);
    assert_eq!(parse("postgres://a/d?target_session_attrs=read-only").session, TargetSessionAttrs::ReadOnly);
    assert!(
        refused("postgres://a/d?target_session_attrs=standby").contains("`target_session_attrs` must be")
    );
}

#[test]
fn schema_is_a_plain_name() {
    for good in ["a", "_x", "jobs_2", "mainspring", &"a".repeat(63)] {
        let address = parse(&format!("postgres://h/d?schema={good}"));
        assert_eq!(address.schema(), good);
        assert_eq!(parse("host=h").with_schema(good).unwrap().schema(), good);
    }
    assert_eq!(parse("postgres://u@h/d?schema=jobs").location(), "postgres://u@h:5432/d?schema=jobs");
    for bad in ["1a", "A", "a-b", "a.b", "a b", "ä", "a;drop", "a\"", "pg_x", &"a".repeat(64)] {
        let text = format!("host=h schema='{bad}'");
        assert!(refused(&text).contains("`schema` m"), "{bad}");
        assert!(parse("host=h").with_schema(bad).is_err(), "{bad}");
    }
    assert!(parse("host=h").with_schema("").is_err());
}

#[test]
fn listening_goes_past_the_pooler() {
    let direct = parse("postgres://u:p@h/d");
    assert_eq!(direct.for_listening(), Some(direct.clone()));

    let pooled = parse("postgres://u:p@bouncer:6432/d?pooler=transaction");
    assert!(pooled.is_pooled());
    assert_eq!(pooled.for_listening(), None);

    let both = parse("postgres://u:p@bouncer:6432/d?pooler=transaction&listen=db1:5433,[::1],db3&schema=s");
    let listening = both.for_listening().unwrap();
    assert_eq!(listening.hosts, [machine("db1", 5433), machine("::1", 5432), machine("db3", 5432)]);
    assert!(!listening.is_pooled());
    assert_eq!(password(&listening).as_deref(), Some("p"));
    assert_eq!(listening.schema(), "s");
    assert_eq!(listening.for_listening(), Some(listening.clone()));

    let by_socket = parse("host=bouncer listen=/run/pg:5433").for_listening().unwrap();
    assert_eq!(by_socket.hosts, [socket("/run/pg", 5433)]);
    assert!(refused("host=h listen=:5433").contains("`listen` must name a host"));
    assert!(refused("host=h listen=a:b").contains("`listen` must have a port"));
    assert!(refused("host=h pooler=statement").contains("`pooler` must be"));
}

#[test]
fn modes_of_tls_are_those_of_libpq() {
    let modes = [
        ("disable", TlsMode::Disable),
        ("allow", TlsMode::Allow),
        ("prefer", TlsMode::Prefer),
        ("require", TlsMode::Require),
        ("verify-ca", TlsMode::VerifyCa),
        ("verify-full", TlsMode::VerifyFull),
    ];
    for (name, mode) in modes {
        assert_eq!(parse(&format!("host=h sslmode={name}")).tls.mode, mode);
    }
    assert_eq!(parse("postgres://h?ssl=true").tls.mode, TlsMode::Require);
    assert!(refused("host=h sslmode=verify").contains("`sslmode` must be"));
}

#[test]
fn roots_of_the_system_always_come_with_the_host_name() {
    let system = parse("host=h sslrootcert=system");
    assert_eq!((system.tls.mode, &system.tls.roots), (TlsMode::VerifyFull, &Roots::System));
    parse("host=h sslrootcert=system sslmode=verify-full");
    for weak in ["disable", "prefer", "require", "verify-ca"] {
        let told = refused(&format!("host=h sslrootcert=system sslmode={weak}"));
        assert!(told.contains("must be `verify-full`"), "{told}");
    }
}

#[test]
fn host_can_be_told_apart_from_its_address() {
    let address = parse("host=db.example hostaddr=192.0.2.7 port=1");
    let addr: IpAddr = "192.0.2.7".parse().unwrap();
    let place = Place::Machine { name: "db.example".to_owned(), addr: Some(addr) };
    assert_eq!(address.hosts, [Host { place, port: 1 }]);
    // Without a name the certificate must bear the address.
    let place = Place::Machine { name: "192.0.2.7".to_owned(), addr: Some(addr) };
    assert_eq!(parse("hostaddr=192.0.2.7").hosts, [Host { place, port: 5432 }]);
    assert!(refused("hostaddr=db.example").contains("`hostaddr` must be"));
    assert!(refused("host=a,b hostaddr=192.0.2.7").contains("same number"));
    assert!(refused("host=a hostaddr=192.0.2.7,192.0.2.8").contains("same number"));
}
