//! What a person can do about a job that does not run.

use mainspring_core::id::JobId;
use mainspring_core::job::{State, Why};

/// Returns a hint what to do, with the command that does it.
pub fn hint(why: &Why, id: JobId) -> Option<String> {
    let command = match why {
        // Such a worker runs built-in kinds only: for most jobs it is not the answer.
        Why::NoNode { queue } => {
            let work =
                format!("your application, or for built-in kinds `mainspring work --queue {queue}:10`");
            return why.hint().map(|hint| format!("{hint}: {work}"));
        }
        Why::Paused { queue } => format!("mainspring queue resume {queue}"),
        Why::NoHandler { kind } if kind.as_str() == "exec" => "mainspring work --allow-exec …".into(),
        Why::Waiting { signals, .. } => match signals.first() {
            Some((name, _)) => format!("mainspring signal {id} {} JSON", quoted(name.as_str())),
            None => return why.hint(),
        },
        Why::Held { .. } | Why::Quarantined { .. } => format!("mainspring job {id} resume"),
        Why::Drifted { .. } => format!(
            "mainspring job {id} resume, accept, rename OLD NEW, fork --from STEP, retry --from STEP, or fail"
        ),
        Why::Ended { status } if status.state != State::Succeeded => {
            format!("mainspring job {id} retry")
        }
        _ => return why.hint(),
    };
    Some(match why.hint() {
        Some(hint) => format!("{hint}: `{command}`"),
        None => format!("to run it again: `{command}`"),
    })
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    if word.chars().all(|c| c.is_ascii_alphanumeric() || "._:-".contains(c)) && !word.starts_with('-') {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_shell_takes_a_word_as_it_is_or_quoted() {
        assert_eq!(quoted("approved"), "approved");
        for (word, expected) in
            [("it's", r"'it'\''s'"), ("a b; rm *", "'a b; rm *'"), ("$(x)", "'$(x)'"), ("-f", "'-f'")]
        {
            assert_eq!(quoted(word), expected);
        }
    }
}
