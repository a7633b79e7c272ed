//! `--pool`: handlers in another language, as `work` and `dev` take them.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use mainspring::name::Kind;
use mainspring::process::Pool;
use mainspring::time::Span;
use mainspring::{NodeBuilder, bounds};

/// Pools, and the bounds of all their children.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct PoolArgs {
    /// Run jobs of these kinds in child processes that speak lines of JSON, such as "resize:2=python3 resize.py" (4 children
    /// if not said). May be given several times.
    #[arg(long = "pool", value_name = "KIND,…:CHILDREN=COMMAND")]
    pools: Vec<PoolSpec>,
    /// How long a child may take for one job.
    #[arg(long, value_name = "SPAN")]
    child_timeout: Option<Span>,
    /// For how long a child may say nothing while it has a job.
    #[arg(long, value_name = "SPAN")]
    child_silence: Option<Span>,
    /// After how many jobs a child is replaced.
    #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u32).range(1..))]
    child_max_jobs: Option<u32>,
    /// After how long a child is replaced, once it has no job.
    #[arg(long, value_name = "SPAN")]
    child_max_age: Option<Span>,
    /// The memory at which a child is replaced after its job, such as 512M; at twice that it is killed.
    #[arg(long, value_name = "SIZE")]
    child_max_memory: Option<Size>,
}

impl PoolArgs {
    /// Adds the pools to a node.
    pub(crate) fn register(&self, mut node: NodeBuilder) -> NodeBuilder {
        for spec in &self.pools {
            let mut pool = Pool::new(&spec.argv).children(spec.children);
            for kind in &spec.kinds {
                pool = pool.kind(kind.as_str());
            }
            if let Some(timeout) = self.child_timeout {
                pool = pool.timeout(timeout.0);
            }
            if let Some(silence) = self.child_silence {
                pool = pool.silence(silence.0);
            }
            if let Some(jobs) = self.child_max_jobs {
                pool = pool.max_jobs(jobs);
            }
            if let Some(age) = self.child_max_age {
                pool = pool.max_age(age.0);
            }
            if let Some(size) = self.child_max_memory {
                pool = pool.max_memory(size.0);
            }
            node = node.pool(pool);
        }
        node
    }

    /// The kinds of all pools.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &str> {
        self.pools.iter().flat_map(|pool| pool.kinds.iter().map(Kind::as_str))
    }

    /// The same as words of a command line.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            words.extend(value.into_iter().flat_map(|value| [OsString::from(name), value.into()]));
        };
        for pool in &self.pools {
            add("--pool", Some(pool.text.clone()));
        }
        add("--child-timeout", self.child_timeout.map(|span| span.to_string()));
        add("--child-silence", self.child_silence.map(|span| span.to_string()));
        add("--child-max-jobs", self.child_max_jobs.map(|jobs| jobs.to_string()));
        add("--child-max-age", self.child_max_age.map(|span| span.to_string()));
        add("--child-max-memory", self.child_max_memory.map(|size| size.to_string()));
        words
    }
}

/// Children of a pool that does not say how many.
const CHILDREN: u32 = 4;

/// One pool: its kinds, how many children, and their command.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PoolSpec {
    text: String,
    kinds: Vec<Kind>,
    children: u32,
    argv: Vec<String>,
}

impl FromStr for PoolSpec {
    type Err = String;

    /// The number stands after the last colon, as with `--queue`, because kinds may have colons.
    fn from_str(text: &str) -> Result<Self, String> {
        let (front, command) = text
            .split_once('=')
            .ok_or("it has no `=`; a pool is KIND=COMMAND, such as \"resize=python3 resize.py\"")?;
        let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (kinds, children) = match front.rsplit_once(':').filter(|(_, children)| number(children)) {
            Some((kinds, said)) => {
                let children = said.parse().ok().filter(|children| (1..=bounds::CHILDREN).contains(children));
                let wrong = || format!("{said} children are not between 1 and {}", bounds::CHILDREN);
                (kinds, children.ok_or_else(wrong)?)
            }
            None => (front, CHILDREN),
        };
        let kinds = kinds.split(',').map(|kind| Kind::new(kind).map_err(|error| error.to_string()));
        let (kinds, argv) = (kinds.collect::<Result<Vec<_>, _>>()?, words(command)?);
        if argv.first().is_none_or(String::is_empty) {
            return Err("it names no program after `=`".into());
        }
        Ok(PoolSpec { text: text.to_owned(), kinds, children, argv })
    }
}

/// Splits a command into words, as a shell does: quotes hold a word together, a backslash takes the next character as it is.
/// Nothing else has a meaning.
fn words(command: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => {
                let next = chars.next().ok_or("a backslash ends its command")?;
                word.get_or_insert_default().push(next);
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if let Some(quote) = quote {
        return Err(format!("a quote {quote} in its command has no end"));
    }
    words.extend(word);
    Ok(words)
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size(u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let shift = match &text[digits.len()..] {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            other => return Err(format!("`{other}` is no unit; use K, M or G, such as 512M")),
        };
        let size = digits.parse::<u64>().ok().and_then(|size| size.checked_mul(1 << shift));
        match size {
            Some(size @ 1..) => Ok(Size(size)),
            _ => Err("a size is a number of bytes above 0, such as 512M".into()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Vec<String>, u32, Vec<String>), String> {
        let spec: PoolSpec = text.parse()?;
        Ok((spec.kinds.iter().map(ToString::to_string).collect(), spec.children, spec.argv))
    }

    #[test]
    fn a_pool_is_kinds_children_and_a_command() {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let is = |kinds: &[&str], children, argv: &[&str]| Ok((owned(kinds), children, owned(argv)));
        assert_eq!(read("resize=python3 resize.py"), is(&["resize"], 4, &["python3", "resize.py"]));
        assert_eq!(read("a,b:2=x"), is(&["a", "b"], 2, &["x"]));
        assert_eq!(read("img:big=x"), is(&["img:big"], 4, &["x"]));
        assert_eq!(
            read("a=sh -c 'read -r x; echo \"$x\"'"),
            is(&["a"], 4, &["sh", "-c", "read -r x; echo \"$x\""])
        );
        assert_eq!(
            read(r#"a=x "a \"b\" c" '' d\ e --k=v"#),
            is(&["a"], 4, &["x", "a \"b\" c", "", "d e", "--k=v"])
        );
    }

    #[test]
    fn what_is_wrong_with_a_pool_is_told() {
        for (text, said) in [
            ("resize", "it has no `=`"),
            ("resize=", "it names no program"),
            ("resize=''", "it names no program"),
            ("=x", "kind"),
            ("a,,b=x", "kind"),
            ("a b=x", "kind"),
            ("a:0=x", "0 children are not between 1 and 1024"),
            ("a:1025=x", "1025 children are not between 1 and 1024"),
            ("a:99999999999=x", "children are not between"),
            ("a=x 'y", "a quote ' in its command has no end"),
            ("a=x \\", "a backslash ends its command"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_have_units() {
        let size = |text: &str| text.parse::<Size>().map(|size| size.0);
        assert_eq!(size("1"), Ok(1));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("2G"), Ok(2 << 30));
        for text in ["", "M", "0", "0K", "1T", "-1", "1.5G", "99999999999G", "1KK"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
