//! Located changes kept in memory between checking and writing.
//!
//! Ranks are located in the base, which takes a pass over the tile. That happens while a delta is
//! checked; what is kept for the commit are places and new elements, so that the commit does nothing
//! but store, whatever the codec.

use deltawire_kernels::{TileMut, Word};

/// Elements whose places share their high bits.
const WINDOW: u32 = 1 << 16;

/// New elements of one tile and their places, in two bytes each beside the element's own.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    /// First element of a window, and how many of the places that follow are in it.
    runs: Vec<(u32, u32)>,
    offsets: Vec<u16>,
    /// New elements, little-endian.
    values: Vec<u8>,
}

impl Prepared {
    /// Bytes that so many changes take, about.
    pub(crate) fn estimate<W: Word>(changes: usize) -> usize {
        changes * (2 + W::WIDTH)
    }

    /// Keeps new elements and their positions.
    pub(crate) fn new<W: Word>(positions: &[u32], new: &[W]) -> Self {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let mut offsets = Vec::with_capacity(positions.len());
        let mut values = vec![0; new.len() * W::WIDTH];
        for run in positions.chunk_by(|a, b| a / WINDOW == b / WINDOW) {
            runs.push((run[0] / WINDOW * WINDOW, run.len() as u32));
            offsets.extend(run.iter().map(|p| (p % WINDOW) as u16));
        }
        for (bytes, element) in values.chunks_exact_mut(W::WIDTH).zip(new) {
            element.write(bytes);
        }
        Self {
            runs,
            offsets,
            values,
        }
    }

    /// Bytes held.
    pub(crate) fn len(&self) -> usize {
        8 * self.runs.len() + 2 * self.offsets.len() + self.values.len()
    }

    /// Writes the changes into their tile.
    pub(crate) fn write<W: Word>(&self, tile: &mut TileMut<'_>) {
        let (mut offsets, mut values) = (&self.offsets[..], &self.values[..]);
        for &(first, count) in &self.runs {
            let (here, later) = offsets.split_at(count as usize);
            let (new, others) = values.split_at(count as usize * W::WIDTH);
            tile.store::<W>(first, here, new);
            (offsets, values) = (later, others);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltawire_kernels::Target;
    use proptest::prelude::*;

    fn check<W: Word>(changes: &[(u32, u64)]) {
        const ELEMENTS: usize = 200_000;
        let mut memory = vec![7u8; ELEMENTS * W::WIDTH];
        let mut expected = memory.clone();
        let positions: Vec<u32> = changes.iter().map(|c| c.0).collect();
        let new: Vec<W> = changes.iter().map(|c| W::from_u64(c.1)).collect();
        for (&p, &value) in positions.iter().zip(&new) {
            let mut bytes = vec![];
            value.append(&mut bytes);
            let at = p as usize * W::WIDTH;
            expected[at..at + W::WIDTH].copy_from_slice(&bytes);
        }
        let row = 1000 * W::WIDTH;
        let tiles = Target::new(&mut memory, ELEMENTS / 1000, row)
            .unwrap()
            .divide(ELEMENTS, row);
        Prepared::new(&positions, &new).write::<W>(&mut tiles.take(0).unwrap());
        drop(tiles);
        assert_eq!(memory, expected);
    }

    proptest! {
        #[test]
        fn writes_what_it_was_given(
            changes in prop::collection::hash_map(0u32..200_000, any::<u64>(), 0..60),
        ) {
            // In any order.
            let changes: Vec<(u32, u64)> = changes.into_iter().collect();
            check::<u8>(&changes);
            check::<u16>(&changes);
            check::<u32>(&changes);
            check::<u64>(&changes);
        }
    }
}
