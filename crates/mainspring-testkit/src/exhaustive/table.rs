//! A table from numbers to numbers, for millions of states in an unoptimised build.
//!
//! Open addressing with linear probing, and a hash that is one multiplication: what is looked up here are packed states,
//! several million times a run, and an ordered map would take most of the run's time. Nobody walks over it, so its order
//! is nobody's behaviour.
//!
//! # Invariants
//! - At most half of the slots are taken, so that a search ends.

/// Marks a slot that is free. No packed state has all bits set.
const FREE: u64 = u64::MAX;
/// 2^64 divided by the golden ratio, made odd: spreads neighbours far apart.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Keys and their values.
pub(super) struct Table {
    slots: Vec<(u64, u32)>,
    taken: usize,
}

impl Table {
    /// A table without keys.
    pub(super) fn new() -> Self {
        // Small enough for a test that stops at its first finding.
        Table { slots: vec![(FREE, 0); 1 << 12], taken: 0 }
    }

    /// The value of a key.
    pub(super) fn get(&self, key: u64) -> Option<u32> {
        let (found, value) = self.slots[self.slot(key)];
        (found == key).then_some(value)
    }

    /// Adds a key that is not there.
    pub(super) fn insert(&mut self, key: u64, value: u32) {
        if self.taken * 2 >= self.slots.len() {
            let grown = vec![(FREE, 0); self.slots.len() * 2];
            let old = std::mem::replace(&mut self.slots, grown);
            for (key, value) in old.into_iter().filter(|(key, _)| *key != FREE) {
                let slot = self.slot(key);
                self.slots[slot] = (key, value);
            }
        }
        let slot = self.slot(key);
        self.slots[slot] = (key, value);
        self.taken += 1;
    }

    /// Where a key is, or the free slot in which it belongs.
    fn slot(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        // The high half of the product depends on all bits of the key.
        let mut slot = (key.wrapping_mul(SPREAD) >> 32) as usize & mask;
        while self.slots[slot].0 != key && self.slots[slot].0 != FREE {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_found_and_nothing_else() {
        let mut table = Table::new();
        for key in 0..20_000_u64 {
            assert_eq!(table.get(key * 3), None);
            table.insert(key * 3, u32::try_from(key).expect("a small number"));
        }
        for key in 0..60_000 {
            let there = (key % 3 == 0).then(|| u32::try_from(key / 3).expect("a small number"));
            assert_eq!(table.get(key), there);
        }
    }
}
