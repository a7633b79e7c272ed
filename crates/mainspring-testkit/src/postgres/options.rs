//! How a temporary server is set up.

/// Settings that suit tests: durable, as production is; small; and with a log that says who did what.
const DEFAULTS: &str = "\
fsync = on
synchronous_commit = on
autovacuum = on
shared_buffers = 128MB
# Each test has connections of its own, and all tests run at once.
max_connections = 300
# In the data directory, which is removed: other kinds outlive a server that was killed.
dynamic_shared_memory_type = mmap
logging_collector = off
log_destination = stderr
log_line_prefix = '%m [%p] %d %a '
timezone = UTC
log_timezone = UTC
";

/// Whoever can reach the server may be whoever they say: the socket is in a private directory, TCP is local.
const TRUST: &str = "\
local all all trust
local replication all trust
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
";

/// How a temporary server is set up. The default listens on a Unix socket alone.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub(super) tcp: bool,
    settings: Vec<(String, String)>,
    access: Vec<String>,
    pub(super) files: Vec<(String, Vec<u8>)>,
}

impl Options {
    /// The default.
    pub fn new() -> Self {
        Options::default()
    }

    /// Listens on 127.0.0.1 as well, on a port that the operating system chooses.
    #[must_use]
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// A line of `postgresql.conf`; it wins over the defaults of this module. Where the server listens is not up to it.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A line of `pg_hba.conf`, before those that trust everybody: `hostssl all all 127.0.0.1/32 scram-sha-256`.
    #[must_use]
    pub fn access(mut self, line: &str) -> Self {
        self.access.push(line.to_owned());
        self
    }

    /// A file in the data directory, readable by the server alone: a certificate and its key, for example.
    #[must_use]
    pub fn file(mut self, name: &str, contents: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.to_owned(), contents.into()));
        self
    }

    /// What is added to `postgresql.conf`: the last line about a setting counts.
    pub(super) fn conf(&self) -> String {
        let line = |(name, value): &(String, String)| format!("{name} = '{}'\n", value.replace('\'', "''"));
        DEFAULTS.to_owned() + &self.settings.iter().map(line).collect::<String>()
    }

    /// All of `pg_hba.conf`: the first line that matches a client counts.
    pub(super) fn hba(&self) -> String {
        self.access.iter().flat_map(|line| [line, "\n"]).chain([TRUST]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn own_settings_come_last_and_own_access_comes_first() {
        let options =
            Options::new().setting("fsync", "off").setting("a.b", "it's").access("local all x reject");
        assert!(options.conf().ends_with("fsync = 'off'\na.b = 'it''s'\n"));
        assert!(options.hba().starts_with("local all x reject\nlocal all all trust\n"));
    }
}
