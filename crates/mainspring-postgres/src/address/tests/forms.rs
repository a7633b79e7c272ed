//! The two forms: URLs and words.

use super::*;

#[test]
fn url_with_everything() {
    let address =
        parse("postgresql://al%40ice:p%3A%2Fw%25@db1:5433,db2:5434/my%20db?sslmode=disable&schema=s");
    assert_eq!(address.hosts, [machine("db1", 5433), machine("db2", 5434)]);
    assert_eq!(address.user.as_deref(), Some("al@ice"));
    assert_eq!(password(&address).as_deref(), Some("p:/w%"));
    assert_eq!(address.database.as_deref(), Some("my db"));
    assert_eq!(address.location(), "postgres://al%40ice@db1:5433,db2:5434/my%20db?schema=s");
}

#[test]
fn url_with_little() {
    assert_eq!(parse("postgres://h").hosts, [machine("h", 5432)]);
    assert_eq!(parse("postgres://h/").database, None);
    assert_eq!(parse("postgres://h?dbname=d").database.as_deref(), Some("d"));
    assert_eq!(parse("postgres://:7@h").user, None);
    assert_eq!(parse("postgres://u@h").location(), "postgres://u@h:5432/u");
    assert_eq!(parse("postgres://h:5433,h2/d").hosts, [machine("h", 5433), machine("h2", 5432)]);
    assert_eq!(parse("postgres://h,h2/d?port=7").hosts, [machine("h", 7), machine("h2", 7)]);
    assert_eq!(parse("postgres://:64999,/d").hosts.len(), 2);
    assert_eq!(parse("postgres://h/d?").database.as_deref(), Some("d"));
}

#[test]
fn url_with_ipv6() {
    let address = parse("postgres://u@[2001:db8::1]:5433,[::1]/d");
    assert_eq!(address.hosts, [machine("2001:db8::1", 5433), machine("::1", 5432)]);
    assert_eq!(address.location(), "postgres://u@[2001:db8::1]:5433,[::1]:5432/d");
    assert!(refused("postgres://[::1/d").contains("IPv6"));
    assert!(refused("postgres://[::1]x/d").contains("a port after"));
    assert!(refused("postgres://::1/d").contains("`port` must have"));
}

#[test]
fn url_with_socket() {
    let hosts = [socket("/var/run/my pg", 5433)];
    assert_eq!(parse("postgres://u@%2Fvar%2Frun%2Fmy%20pg:5433/d").hosts, hosts);
    assert_eq!(parse("postgres:///d?host=/var/run/my%20pg&port=5433").hosts, hosts);
    assert_eq!(
        parse("postgres://u@%2Fvar%2Frun%2Fmy%20pg:5433/d").location(),
        "postgres://u@/d?host=/var/run/my%20pg&port=5433"
    );
    assert_eq!(
        parse("postgres://%2Ftmp%2Fa:7,h:8,[::1]/d?schema=s").location(),
        "postgres:///d?host=/tmp/a,h,::1&port=7,8,5432&schema=s"
    );
}

#[test]
fn location_can_be_read_again() {
    for text in [
        "postgres://u@h:5432/d",
        "postgres://u@[::1]:5433,h2:1/d?schema=s",
        "postgres://a%40b@%2Ftmp%2Fx:7/d%2Fe%3Ff%26g",
        "postgres://u@%2Ftmp%2Fx%25%20y%26z:7,[::1]/d",
        "postgres://%2Ftmp%2Fx,h/?schema=s",
        "host=h user='it''s' dbname='a b:c@d'",
    ] {
        let address = parse(text);
        let again = parse(&address.location());
        assert_eq!((&address.hosts, &address.user), (&again.hosts, &again.user), "{text}");
        assert_eq!(address.location(), again.location(), "{text}");
    }
}

#[test]
fn plus_is_a_plus_and_percent_is_decoded_once() {
    assert_eq!(password(&parse("postgres://u:a+b%2525@h")).as_deref(), Some("a+b%25"));
}

#[test]
fn words_with_quotes_and_escapes() {
    let address =
        parse(r"host = db  port=5433 user=it\'s\ me dbname='it''s' password='a\'b\\c d' application_name=x\");
    assert_eq!(address.hosts, [machine("db", 5433)]);
    assert_eq!(address.user.as_deref(), Some("it's me"));
    assert_eq!(address.database.as_deref(), Some("it's"));
    assert_eq!(password(&address).as_deref(), Some(r"a'b\c d"));
    assert_eq!(address.application_name, "x");
}

#[test]
fn words_with_lists_and_sockets() {
    assert_eq!(parse("host=a,b port=1,2").hosts, [machine("a", 1), machine("b", 2)]);
    assert_eq!(parse("host=a,/run/pg port=1").hosts, [machine("a", 1), socket("/run/pg", 1)]);
    assert!(refused("host=a,b,c port=1,2").contains("one for each"));
    let many = |count: usize| format!("host={}", vec!["h"; count].join(","));
    assert_eq!(parse(&many(16)).hosts.len(), 16);
    assert!(refused(&many(17)).contains("more than 16 hosts"));
}

#[test]
fn no_text_at_all_is_all_defaults() {
    let address = Address::parse("", &env(&[("PGHOST", "h"), ("PGUSER", "u")])).unwrap();
    assert_eq!(address.location(), "postgres://u@h:5432/u");
}

#[test]
fn later_word_wins() {
    assert_eq!(parse("host=a host=b").hosts, [machine("b", 5432)]);
    assert_eq!(parse("postgres://a/x?dbname=y").database.as_deref(), Some("y"));
}

#[test]
fn words_that_describe_what_happens_anyway_are_accepted() {
    parse("host=h client_encoding=UTF8 gssencmode=disable sslsni=1 sslnegotiation=postgres");
    assert!(refused("host=h gssencmode=require").contains("`gssencmode`"));
    assert!(refused("host=h client_encoding=LATIN1").contains("`client_encoding`"));
    assert_eq!(parse("host=h fallback_application_name=f").application_name, "f");
    assert_eq!(parse("host=h fallback_application_name=f application_name=a").application_name, "a");
}
