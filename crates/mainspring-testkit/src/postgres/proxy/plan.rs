//! Which of the next messages a proxy cuts, and where.

use super::wire::MessageInfo;
use super::{Counts, Cut};

/// Cuts that are planned. Each is used up by the message that it hits.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// How many of the next commits are cut, and where.
    pub(super) commits: Option<(Cut, u32)>,
    /// Which of the next batches is cut, and where; 1 is the next.
    pub(super) batch: Option<(Cut, u32)>,
    /// The next message that carries this many bytes of rows is cut in its middle.
    pub(super) rows: Option<usize>,
}

impl Plan {
    /// Counts a client's message, and tells where it is to be cut, if at all.
    pub(super) fn judge(&mut self, counts: &mut Counts, seen: MessageInfo) -> Option<Cut> {
        let mut cut = None;
        if seen.commit {
            counts.commits += 1;
            if let Some((planned, count)) = self.commits {
                cut = Some(planned);
                self.commits = (count > 1).then_some((planned, count - 1));
            }
        }
        if seen.ends_batch {
            counts.batches += 1;
            if let Some((planned, nth)) = self.batch {
                cut = cut.or((nth == 1).then_some(planned));
                self.batch = (nth > 1).then_some((planned, nth - 1));
            }
        }
        if self.rows.is_some_and(|least| seen.bulk >= least) {
            self.rows = None;
            cut = Some(Cut::Inside);
        }
        counts.hits += u64::from(cut.is_some());
        cut
    }
}
