//! Input that is wrong, by accident or by intent; above all: no secret gets out.

use super::*;

/// Stands for a password; it is in no other text of the tests.
const SECRET: &str = "hunter2";

#[test]
fn unknown_parameter_is_named_without_its_value() {
    for text in ["postgres://h/d?sslmod=hunter2", "host=h sslmod=hunter2", "host=h sslmod = 'hunter2'"] {
        let told = refused(text);
        assert!(told.ends_with("unknown parameter `sslmod`"), "{told}");
    }
    assert!(refused("Host=h").ends_with("unknown parameter `Host`"));
    assert!(refused("host=h sslpassword=x").ends_with("unknown parameter `sslpassword`"));
}

#[test]
fn no_error_shows_a_password_even_if_it_is_not_quoted() {
    for text in [
        // Not encoded: `/`, `?`, `@`, `%`, `#`, `[`.
        "postgres://u:x/hunter2@h/d",
        "postgres://u:5/hunter2@h/d",
        "postgres://u:x?hunter2@h/d",
        "postgres://u:5?hunter2@h/d",
        "postgres://u:5?hunter2=1@h/d",
        "postgres://u:5/x?hunter2=1@h/d",
        "postgres://u:hunter2%zz@h/d",
        "postgres://u:hunter2%@h/d",
        "postgres://u:hunter2%ff@h/d",
        "postgres://u:hunter2",
        "postgres://u:hunter2@h:port/d",
        "postgres://u:hunter2@h/d?nonsense=hunter2",
        "postgres://u:hunter2@[h/d",
        "postgres://u:hunter2@h/d?port=hunter2",
        // Not quoted, not closed, in the wrong place.
        "password=a hunter2",
        "password=a hunter2=b",
        "password=a hunter2 = b",
        "password='a hunter2",
        "hunter2",
        "host=h 'hunter2'=x",
        "host=h port=hunter2",
        "host=h hostaddr=hunter2",
        "host=h sslmode=hunter2",
        "host=h schema=hunter2; ",
        "host=h connect_timeout=hunter2",
        "host=h keepalives_count=hunter2",
        "host=h channel_binding=hunter2",
        "host=h pooler=hunter2",
        "host=h listen=h:hunter2",
        "host=h target_session_attrs=hunter2",
        "host=h password=hunter2\0",
    ] {
        let result = Address::parse(text, &env(&[]));
        match result {
            Err(error) => {
                let all = format!("{} {error:?}", told(&error));
                assert!(!all.contains(SECRET), "{text}: {all}");
            }
            Ok(address) => panic!("{text} is accepted as {address}"),
        }
    }
}

#[test]
fn password_that_is_not_encoded_is_pointed_out() {
    for text in ["postgres://u:x?y@h/d", "postgres://u:x?y=z@h/d", "postgres://u:x/y@h/d"] {
        let told = refused(text);
        assert!(told.contains("password"), "{told}");
    }
}

#[test]
fn nothing_that_is_shown_has_the_password() {
    let addresses = [
        parse("postgres://u:hunter2@h/d"),
        parse("postgres://u@h/d?password=hunter2"),
        parse("postgres://u:a@hunter2@h/d"),
        parse("host=h password=hunter2"),
        Address::parse("host=h", &env(&[("PGPASSWORD", SECRET)])).unwrap(),
    ];
    for address in addresses {
        assert!(password(&address).unwrap().contains(SECRET));
        let config = address.config(&address.hosts()[0], None);
        let shown = format!("{address} {address:?} {} {config:?} {:?}", address.location(), address.password);
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

#[test]
fn environment_is_as_little_trusted_as_the_address() {
    for (name, value) in
        [("PGPORT", SECRET), ("PGSSLMODE", SECRET), ("PGHOSTADDR", SECRET), ("PGSERVICE", SECRET)]
    {
        let error = Address::parse("host=h", &env(&[(name, value)])).unwrap_err();
        let all = format!("{} {error:?}", told(&error));
        assert!(!all.contains(SECRET), "{name}: {all}");
    }
}

#[test]
fn numbers_have_bounds() {
    for text in
        ["port=0", "port=65536", "port=-1", "port=1e3", "connect_timeout=-1", "connect_timeout=4294967296"]
    {
        refused(&format!("host=h {text}"));
    }
    parse("host=h port=65535 connect_timeout=4294967295 tcp_user_timeout=4294967295");
}

#[test]
fn length_has_a_bound() {
    let text = |bytes: usize| format!("host={}", "h".repeat(bytes - "host=".len()));
    parse(&text(8192));
    assert!(refused(&text(8193)).contains("longer than 8192 bytes"));
}

#[test]
fn name_of_a_parameter_cannot_write_to_a_terminal() {
    for text in
        ["postgres://h?%1b%5b31m=x", "\u{1b}[31m=x", "postgres://h?=x", &format!("{}=x", "a".repeat(41))]
    {
        assert!(refused(text).ends_with("unknown parameter with an impossible name"), "{text}");
    }
}

#[test]
fn control_characters_are_shown_encoded() {
    let address = parse("postgres://u%1b@h%0a/d%07");
    assert_eq!(address.location(), "postgres://u%1B@h%0A:5432/d%07");
}

#[test]
fn nul_is_refused_everywhere() {
    for text in ["postgres://u%00@h", "postgres://u:a%00b@h", "postgres://h/d%00", "host=h dbname=a\0b"] {
        assert!(refused(text).contains("NUL"), "{text}");
    }
}

#[test]
fn no_text_makes_it_panic() {
    let pieces = [
        "postgres://",
        "u",
        ":",
        "@",
        "[",
        "]",
        "/",
        "?",
        "%",
        "%2",
        "=",
        "&",
        ",",
        "'",
        "\\",
        " ",
        "host",
        "ä",
    ];
    // A small walk through all sequences of four pieces.
    for a in pieces {
        for b in pieces {
            for c in pieces {
                for d in pieces {
                    for scheme in ["", "postgres://"] {
                        let text = format!("{scheme}{a}{b}{c}{d}");
                        if let Ok(address) = Address::parse(&text, &env(&[])) {
                            let _shown = address.location();
                        }
                    }
                }
            }
        }
    }
}
