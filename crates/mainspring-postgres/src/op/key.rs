//! Unique keys: taken at the enqueue, released once.
//!
//! Whoever is about to take a key holds an advisory lock on it until the end of his transaction. A caller's own
//! transaction may stay open for long; who only tries the lock finds that out without waiting.

use mainspring_core::job::Unique;
use mainspring_core::time::micros;

/// Until when a key is held, as the table has it, and the period after the end.
pub(crate) fn until(unique: &Unique) -> (i16, i64) {
    let (code, period) = unique.until.code();
    (code.into(), micros(period))
}

/// The number of a key's advisory lock. Two keys may share one: then one is asked for again for no reason.
pub(crate) fn lock_number(store: &[u8; 16], kind: i32, key: &str) -> i64 {
    // FNV-1a; nothing but spreading is asked of it, and every version must agree on it.
    let bytes = store.iter().chain(&kind.to_be_bytes()).copied().chain(key.bytes()).collect::<Vec<u8>>();
    let hash = bytes.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    i64::from_be_bytes(hash.to_be_bytes())
}
