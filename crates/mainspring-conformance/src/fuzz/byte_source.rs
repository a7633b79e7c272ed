//! Structured inputs from bytes. Where the bytes end, everything is zero, so every input is a whole one.

use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use mainspring_core::seam::Rng;

/// Bytes that are read from the front.
pub(super) struct ByteSource<'a>(Unstructured<'a>);

impl<'a> ByteSource<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        ByteSource(Unstructured::new(bytes))
    }

    /// Any value of a type.
    pub(super) fn any<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }

    /// One of some values, of which there is at least one.
    pub(super) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.any::<u8>()) % of.len()]
    }

    /// Up to `most` values.
    pub(super) fn many<T>(&mut self, most: u8, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.any::<u8>() % (most + 1);
        (0..count).map(|_| make(self)).collect()
    }

    /// Perhaps a value.
    pub(super) fn perhaps<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.any::<bool>().then(|| make(self))
    }

    /// Any duration there is; often a short one, and often one at an edge.
    pub(super) fn duration(&mut self) -> Duration {
        match self.any::<u8>() % 4 {
            0 => Duration::from_nanos(self.any()),
            1 => Duration::from_millis(self.any::<u16>().into()),
            2 => Duration::from_secs(self.any::<u32>().into()),
            _ => Duration::new(self.any(), self.any::<u32>() % 1_000_000_000),
        }
    }

    /// A text, or several times the same piece of text: bounds are far away.
    pub(super) fn text(&mut self) -> String {
        let piece: &str = self.any();
        if self.any::<bool>() { piece.repeat(usize::from(self.any::<u16>() % 512)) } else { piece.to_owned() }
    }
}

/// Randomness that is always the same number.
pub(super) struct ConstantRng(pub(super) u64);

impl Rng for ConstantRng {
    fn next_u64(&self) -> u64 {
        self.0
    }
}
