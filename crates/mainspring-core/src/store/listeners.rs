//! Who wants to hear a store's hints.

use std::sync::{Arc, Weak};

use super::{Hint, Listener};

/// The listeners of a store, which keeps this behind a lock.
#[derive(Default)]
pub struct Listeners(Vec<Weak<dyn Listener>>);

impl Listeners {
    /// Adds a listener.
    pub fn add(&mut self, listener: Weak<dyn Listener>) {
        self.0.push(listener);
    }

    /// Returns the listeners that still exist, and forgets the others. Tell them outside of the lock: a listener may
    /// call the store, and may be dropped there.
    pub fn live(&mut self) -> LiveListeners {
        self.0.retain(|listener| listener.strong_count() > 0);
        LiveListeners(self.0.iter().filter_map(Weak::upgrade).collect())
    }
}

/// The listeners to tell now.
pub struct LiveListeners(Vec<Arc<dyn Listener>>);

impl LiveListeners {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells each of them.
    pub fn tell(&self, hint: &Hint) {
        for listener in &self.0 {
            listener.hint(hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Deaf;

    impl Listener for Deaf {
        fn hint(&self, _: &Hint) {}
    }

    #[test]
    fn a_listener_that_is_gone_is_forgotten() {
        let mut listeners = Listeners::default();
        let [first, second]: [Arc<dyn Listener>; 2] = [Arc::new(Deaf), Arc::new(Deaf)];
        listeners.add(Arc::downgrade(&first));
        listeners.add(Arc::downgrade(&second));
        let mut told = || {
            listeners.live().tell(&Hint::Foreign);
            (listeners.0.len(), listeners.live().is_empty())
        };
        assert_eq!(told(), (2, false));
        drop(second);
        assert_eq!(told(), (1, false));
        drop(first);
        assert_eq!(told(), (0, true));
    }
}
