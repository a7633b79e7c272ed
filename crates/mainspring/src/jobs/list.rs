//! Listings of jobs, page by page.

use std::future::IntoFuture;

use mainspring_core::seam::Pending;
use mainspring_core::store::{Filter, Listing, Page, PagePosition};
use mainspring_core::{Result, bounds};

use crate::engine::Engine;

/// Jobs of a page unless you say otherwise.
const LIMIT: usize = 100;

/// A listing of jobs. Await it for a page; see [`Jobs::list`](crate::admin::Jobs::list).
#[must_use = "nothing is listed until this is awaited"]
pub struct List<'a> {
    engine: &'a Engine,
    filter: Filter,
    after: Option<PagePosition>,
    limit: usize,
}

impl<'a> List<'a> {
    pub(super) fn new(engine: &'a Engine, filter: Filter) -> Self {
        List { engine, filter, after: None, limit: LIMIT }
    }

    /// Begins where the page before has ended, at its [`next`](Listing::next). Default: the newest job.
    pub fn after(mut self, position: impl Into<Option<PagePosition>>) -> Self {
        self.after = position.into();
        self
    }

    /// Lists at most this many jobs, and never more than [`bounds::PAGE`]. Default: 100.
    pub fn limit(mut self, jobs: usize) -> Self {
        self.limit = jobs.min(bounds::PAGE);
        self
    }

    async fn read(self) -> Result<Listing> {
        let mut listing = Listing { jobs: Vec::new(), next: self.after };
        if self.limit == 0 {
            return Ok(listing);
        }
        // One call of the store looks at a bounded number of rows; the page is filled over as many as it takes.
        loop {
            let page = Page { after: listing.next.take(), limit: self.limit - listing.jobs.len() };
            let part = self.engine.store().list(self.filter.clone(), page).await?;
            listing.jobs.extend(part.jobs);
            listing.next = part.next;
            if listing.next.is_none() || listing.jobs.len() >= self.limit {
                return Ok(listing);
            }
        }
    }
}

impl<'a> IntoFuture for List<'a> {
    type Output = Result<Listing>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.read())
    }
}
