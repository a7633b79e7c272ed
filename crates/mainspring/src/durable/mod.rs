//! Durable operations: what makes a job a workflow.
//!
//! A handler runs from its top each time. Each durable operation has a key; if something is recorded under it, that is its
//! result, and nothing is done. Otherwise it is done, and recorded before the handler sees it. A handler that waits for
//! nothing but durable operations is suspended: one commit records what it waits for and gives the claim back.
//!
//! - [`key`]: names, scopes, and what tells repeats apart.
//! - [`session`]: what one handler knows of its job's past, and what it has yet to record.
//! - [`polled_code`]: which code is being polled, so that operations in the wrong place are refused before any effect.
//! - [`activation`]: how a handler is polled, and when it is suspended.
//! - [`drift`]: whether what is recorded still fits the code.
//! - [`dropped`]: operations that are dropped before their end, such as the losers of a `select!`.
//! - [`step`], [`wait`], [`child`], [`recorded_value`]: the operations.
//! - [`output`]: what handlers and bodies push meanwhile.
//! - [`branch`], [`race`], [`map`], [`iterate`]: scopes of several operations; [`scope_end`]: how they end.
//!
//! # Invariants
//! - Nothing that a step's body may have seen is lost when the body's effect is not: what came from outside is recorded
//!   before the next body begins.
//! - A result is recorded before the handler sees it, or nothing depends on it.
//! - An operation that was dropped does not win when the handler runs again.
//! - A handler is suspended only if nothing but a durable operation can wake it.

pub(crate) mod activation;
pub(crate) mod branch;
pub(crate) mod child;
pub(crate) mod drift;
pub(crate) mod dropped;
pub(crate) mod error;
pub(crate) mod iterate;
pub(crate) mod join_all;
pub(crate) mod key;
pub(crate) mod map;
pub(crate) mod output;
pub(crate) mod polled_code;
pub(crate) mod pool_transaction;
mod probe_hooks;
pub(crate) mod race;
pub(crate) mod recorded_value;
pub(crate) mod recorder;
pub(crate) mod scope_end;
pub(crate) mod session;
pub(crate) mod signal;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite_transaction;
pub(crate) mod step;
pub(crate) mod token;
pub(crate) mod wait;

/// Makes a builder a future: lazy, and done by the `async fn` that it names. Nothing is pinned in the builder itself, so
/// that it may be moved until it is polled, and its parts may be anything.
macro_rules! lazy {
    ($name:ident < $($lifetime:lifetime),* ; $($param:ident),* > => $output:ty, where { $($bounds:tt)* }) => {
        impl<$($lifetime,)* $($param),*> Unpin for $name<$($lifetime,)* $($param),*> {}

        impl<$($lifetime,)* $($param),*> std::future::Future for $name<$($lifetime,)* $($param),*>
        where
            $($bounds)*
        {
            type Output = $output;

            fn poll(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Self::Output> {
                let this = self.get_mut();
                let mark = this.drop_mark();
                if let Some(parts) = this.parts.take() {
                    this.run = Some($crate::durable::dropped::OpFuture::new(mark, Box::pin(parts.run())));
                }
                match &mut this.run {
                    Some(run) => std::pin::Pin::new(run).poll(context),
                    // Polled again after its end, against the rules: there is nothing left to say.
                    None => std::task::Poll::Pending,
                }
            }
        }
    };
}
pub(crate) use lazy;

/// Gives a builder its `key`; `$op` is where its operation is among its parts.
macro_rules! keyed {
    ($name:ident < $($lifetime:lifetime),* ; $($param:ident),* >, $($op:ident).+) => {
        impl<$($lifetime,)* $($param),*> $name<$($lifetime,)* $($param),*> {
            /// A key that tells this operation from others of its name, such as the id of what it is about: for operations
            /// in a loop whose order may change, and for those that run beside each other.
            pub fn key(mut self, key: impl ToString) -> Self {
                if let Some(parts) = &mut self.parts {
                    parts.$($op).+.key(&key.to_string());
                }
                self
            }

            /// Says that this is new in the code of workflows that are under way: that it is not recorded, while what comes
            /// after it is, is no drift.
            pub fn added(mut self) -> Self {
                if let Some(parts) = &mut self.parts {
                    parts.$($op).+.added();
                }
                self
            }

            /// Says what this was called before: what is recorded under that name is its record. The old name must not be that of
            /// something else in this scope, as long as workflows run that have recorded it.
            pub fn renamed_from(mut self, name: &str) -> Self {
                if let Some(parts) = &mut self.parts {
                    parts.$($op).+.renamed(name.to_owned());
                }
                self
            }

            /// Records it if this is dropped before its end.
            fn drop_mark(&self) -> Option<$crate::durable::dropped::DropMark> {
                self.parts.as_ref().and_then(|parts| parts.$($op).+.drop_mark())
            }
        }
    };
}
pub(crate) use keyed;
