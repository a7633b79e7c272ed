//! Failure points: named places at which a test may end the process, or a simulated node.
//!
//! A point stands where a crash would be worst: right before a commit, right after it, before the answer goes out. In a
//! release build a point is nothing at all. In a build with debug assertions it asks the hook of the process, if one was
//! installed; the hook decides what happens there.
//!
//! The list of all points is made from the sources when the testkit is built, and its rigs visit every one of them.
//!
//! ```
//! # fn commit() {}
//! use mainspring_core::fault;
//!
//! fault::point!("example.before_commit");
//! commit();
//! fault::point!("example.after_commit");
//! ```

use std::sync::OnceLock;

/// What a process does at its failure points.
type Hook = Box<dyn Fn(&'static str) + Send + Sync>;

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Installs the hook of this process. The first one stays; whether this was it.
pub fn install(hook: impl Fn(&'static str) + Send + Sync + 'static) -> bool {
    HOOK.set(Box::new(hook)).is_ok()
}

/// Marks that the program reached a point. Only [`point!`](crate::fault::point) calls it.
#[doc(hidden)]
pub fn hit(name: &'static str) {
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}

/// A place at which a test may end the process; see [`fault`](crate::fault).
#[doc(hidden)]
#[macro_export]
macro_rules! failure_point {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        $crate::fault::hit($name);
    };
}

pub use failure_point as point;
