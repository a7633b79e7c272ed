//! Password and service files.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::*;
use crate::address::{File, passfile};

fn write(dir: &Path, name: &str, mode: u32, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// The password that a file has for a host, a database and a user.
fn find(text: &str, host: &Host, database: &str, user: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "pass", 0o600, text);
    passfile::find(&path, host, Some(database), Some(user)).map(|secret| secret.0)
}

#[test]
fn first_line_that_matches_has_the_password() {
    let text = "# db:1:d:u:comment\n\nbroken\ndb:2:d:u:port\ndb:1:e:u:database\ndb:1:d:v:user\ndb:1:d:u:right\n*:*:*:*:rest\n";
    let host = machine("db", 1);
    assert_eq!(find(text, &host, "d", "u").as_deref(), Some("right"));
    assert_eq!(find(text, &machine("other", 1), "d", "u").as_deref(), Some("rest"));
    assert_eq!(find("db:1:d:u:right", &machine("other", 1), "d", "u"), None);
    assert_eq!(find("db:1:d:u:", &host, "d", "u"), None);
}

#[test]
fn escapes_and_line_ends_are_those_of_libpq() {
    let host = machine("::1", 1);
    assert_eq!(find("\\:\\:1:1:a\\\\b:u:p\\:w\\\\:rest\r\n", &host, "a\\b", "u").as_deref(), Some("p:w\\"));
    // An escaped star is a star.
    assert_eq!(find("\\*:1:d:u:p", &machine("db", 1), "d", "u"), None);
}

#[test]
fn socket_in_a_usual_place_is_called_localhost() {
    let text = "localhost:1:d:u:usual\n/run/mine:1:d:u:mine\n";
    assert_eq!(find(text, &socket("/tmp", 1), "d", "u").as_deref(), Some("usual"));
    assert_eq!(find(text, &socket("/run/mine", 1), "d", "u").as_deref(), Some("mine"));
}

#[test]
fn password_file_that_others_can_read_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("host=db user=u dbname=d passfile={}", dir.path().join("pass").display());
    for (mode, used) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o666, false)] {
        write(dir.path(), "pass", mode, "*:*:*:*:secret");
        assert_eq!(password(&parse(&address)).is_some(), used, "{mode:o}");
        std::fs::remove_file(dir.path().join("pass")).unwrap();
    }
    assert_eq!(password(&parse(&address)), None, "a missing file is no error");
    std::fs::create_dir(dir.path().join("pass")).unwrap();
    assert_eq!(password(&parse(&address)), None, "a directory is not a file");
}

#[test]
fn password_file_is_found_at_home_or_where_the_environment_says() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), ".pgpass", 0o600, "*:*:*:*:home");
    let other = write(dir.path(), "other", 0o600, "*:*:*:*:other");
    let (home, other) = (dir.path().to_str().unwrap(), other.to_str().unwrap());
    let of =
        |text: &str, variables: &[(&str, &str)]| password(&Address::parse(text, &env(variables)).unwrap());
    assert_eq!(of("host=h", &[("HOME", home)]).as_deref(), Some("home"));
    assert_eq!(of("host=h", &[("HOME", home), ("PGPASSFILE", other)]).as_deref(), Some("other"));
    assert_eq!(of("host=h password=given", &[("HOME", home)]).as_deref(), Some("given"));
    assert_eq!(of("host=h", &[("HOME", home), ("PGPASSWORD", "env")]).as_deref(), Some("env"));
}

#[test]
fn each_host_has_the_password_of_its_line_and_a_changed_file_counts() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "pass", 0o600, "a:*:*:*:of a\nb:*:*:*:of b\n");
    let address = parse(&format!("host=a,b user=u passfile={}", path.display()));
    let of = |index: usize| {
        let config = address.config(&address.hosts()[index], None);
        String::from_utf8(config.get_password().unwrap().to_vec()).unwrap()
    };
    assert_eq!((of(0), of(1)), ("of a".to_owned(), "of b".to_owned()));
    write(dir.path(), "pass", 0o600, "*:*:*:*:new");
    assert_eq!(of(0), "new");
}

#[test]
fn service_stands_between_the_address_and_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let text =
        "# services\n[other]\nhost=wrong\n\n[shop]\nhost=shopdb\nport=7\ndbname=shop\n[third]\nport=8\n";
    let path = write(dir.path(), "services", 0o644, text);
    let variables =
        [("PGSERVICEFILE", path.to_str().unwrap()), ("PGPORT", "9"), ("PGDATABASE", "env"), ("PGUSER", "u")];
    let env = env(&variables);
    let location = |text: &str| Address::parse(text, &env).unwrap().location();
    assert_eq!(location("service=shop"), "postgres://u@shopdb:7/shop");
    assert_eq!(location("postgres://mine/?service=shop"), "postgres://u@mine:7/shop");
    let told = told(&Address::parse("service=none", &env).unwrap_err());
    assert!(told.ends_with("`service` is in no service file"), "{told}");
}

#[test]
fn service_with_an_unknown_parameter_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "services", 0o644, "[a]\nhots=hunter2\n[b]\nhunter2\n");
    let variables = [("PGSERVICEFILE", path.to_str().unwrap())];
    let env = env(&variables);
    assert!(told(&Address::parse("service=a", &env).unwrap_err()).ends_with("unknown parameter `hots`"));
    assert!(!told(&Address::parse("service=b", &env).unwrap_err()).contains("hunter2"));
}

#[test]
fn certificates_are_looked_for_at_home_unless_named() {
    let variables = [("HOME", "/home/me")];
    let tls = Address::parse("host=h", &env(&variables)).unwrap().tls;
    let default = |name: &str| File { path: Path::new("/home/me/.postgresql").join(name), named: false };
    assert_eq!(tls.roots, Roots::File(default("root.crt")));
    assert_eq!(tls.certificate, Some(default("postgresql.crt")));
    assert_eq!(tls.key, Some(default("postgresql.key")));

    let variables = [("PGSSLROOTCERT", "/r"), ("PGSSLCERT", "/c"), ("PGSSLKEY", "/k")];
    let tls = Address::parse("host=h sslcert=/mine", &env(&variables)).unwrap().tls;
    let named = |path: &str| File { path: path.into(), named: true };
    assert_eq!(tls.roots, Roots::File(named("/r")));
    assert_eq!((tls.certificate, tls.key), (Some(named("/mine")), Some(named("/k"))));
    assert_eq!(parse("host=h").tls.roots, Roots::Unknown);
}
