//! Plans as the server logged them.

/// The tables that grow with the number of jobs. `lease` grows with the number of slots only, and has no index by node,
/// because every claim would pay for it: what is about all claims of a node goes through it.
const LARGE: [&str; 12] = [
    "jobs",
    "ready",
    "timers",
    "suspended",
    "done",
    "deadlines",
    "keys",
    "errors",
    "tags",
    "steps",
    "inbox",
    "children",
];

/// How one statement ran.
#[derive(Debug)]
pub(crate) struct Plan {
    text: String,
}

/// What a few statements cost at most.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Pages that one statement touched.
    pub(crate) pages: u64,
    /// Rows that one node of a plan gave or threw away.
    pub(crate) rows: u64,
    /// Rows that were sorted at a time.
    pub(crate) sorted: u64,
}

/// All plans of statements on the store's tables in a part of the log.
pub(crate) fn read(log: &str) -> Vec<Plan> {
    let mut plans = Vec::new();
    for entry in log.split("  plan:\n").skip(1) {
        // What belongs to an entry is indented.
        let lines: Vec<&str> = entry.lines().take_while(|line| line.starts_with('\t')).collect();
        let text = lines.join("\n");
        if text.contains("mainspring.") {
            plans.push(Plan { text });
        }
    }
    plans
}

impl Plan {
    pub(crate) fn new(text: String) -> Self {
        Plan { text }
    }

    /// Large tables that were read from one end to the other.
    pub(crate) fn walked(&self) -> Vec<String> {
        let by_node = self.text.contains("l.node = n.no") || self.text.contains("l.node = $2");
        let mut walked = self.walked_but_leases();
        walked.extend((!by_node).then(|| self.seq_scans(&["lease"])).into_iter().flatten());
        walked
    }

    /// The same without `lease`.
    pub(crate) fn walked_but_leases(&self) -> Vec<String> {
        self.seq_scans(&LARGE)
    }

    fn seq_scans(&self, tables: &[&str]) -> Vec<String> {
        let walked = |line: &&str| {
            let of = |table: &&str| line.contains(&format!("Seq Scan on {table} "));
            line.contains("cost=") && tables.iter().any(of)
        };
        self.text.lines().filter(walked).map(|line| line.trim().to_owned()).collect()
    }

    /// Whether an index was used, or told of a conflict.
    pub(crate) fn uses(&self, index: &str) -> bool {
        let arbiter = format!("Arbiter Indexes: {index}");
        self.text.contains(&format!("using {index} on ")) || self.text.contains(&arbiter)
    }

    pub(crate) fn cost(&self) -> Cost {
        let mut cost = Cost::default();
        for line in self.text.lines() {
            if line.contains("(actual rows=") {
                let sorting = line.contains("Sort  (");
                let rows = number(line, "(actual rows=") * number(line, " loops=").max(1);
                cost.rows = cost.rows.max(rows);
                cost.sorted = if sorting { cost.sorted.max(rows) } else { cost.sorted };
            } else if line.contains("Rows Removed by") {
                cost.rows = cost.rows.max(number(line, ": "));
            } else if line.contains("Buffers: ") {
                cost.pages = cost.pages.max(number(line, " hit=") + number(line, " read="));
            }
        }
        cost
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

impl Cost {
    /// The larger of each.
    pub(crate) fn max(self, other: Cost) -> Cost {
        Cost {
            pages: self.pages.max(other.pages),
            rows: self.rows.max(other.rows),
            sorted: self.sorted.max(other.sorted),
        }
    }
}

/// The whole number after a word; 0 if it is not there.
fn number(line: &str, word: &str) -> u64 {
    let rest = line.split_once(word).map_or("", |(_, rest)| rest);
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}
