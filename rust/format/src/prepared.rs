//! Located changes kept in memory between checking and writing.
//!
//! Ranks are located in the base, which takes a pass over the tile. That happens while a delta is
//! checked; what is kept for the commit are positions and steps in about two bytes a change, so
//! that the commit costs O(changes) whatever the codec.

use deltawire_kernels::ordered::{advance, step, Order};
use deltawire_kernels::{TileMut, Word};

/// Changes of one tile: a byte for the gap and a byte for the step of each.
///
/// A gap of 255 and more is the byte 255 and four bytes, a step beyond 127 either way the byte 128 and
/// eight bytes.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    bytes: Vec<u8>,
    changes: usize,
}

const WIDE_GAP: u8 = u8::MAX;
const WIDE_STEP: i8 = i8::MIN;

impl Prepared {
    /// Keeps changes from `old` to `new` at ascending positions.
    pub(crate) fn new<W: Word>(positions: &[u32], old: &[W], new: &[W], order: Order) -> Self {
        let mut bytes = Vec::with_capacity(positions.len() * 5 / 2);
        let mut next = 0;
        for ((&position, &old), &new) in positions.iter().zip(old).zip(new) {
            let gap = position - next;
            next = position + 1;
            match u8::try_from(gap) {
                Ok(gap) if gap != WIDE_GAP => bytes.push(gap),
                _ => {
                    bytes.push(WIDE_GAP);
                    bytes.extend_from_slice(&gap.to_le_bytes());
                }
            }
            let step = step(old, new, order).to_i64();
            match i8::try_from(step) {
                Ok(step) if step != WIDE_STEP => bytes.push(step as u8),
                _ => {
                    bytes.push(WIDE_STEP as u8);
                    bytes.extend_from_slice(&step.to_le_bytes());
                }
            }
        }
        bytes.shrink_to_fit();
        Self {
            bytes,
            changes: positions.len(),
        }
    }

    /// Bytes held.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the changes into their tile.
    pub(crate) fn write<W: Word>(&self, tile: &mut TileMut<'_>, order: Order) {
        let mut positions = Vec::with_capacity(self.changes);
        let mut steps: Vec<W> = Vec::with_capacity(self.changes);
        let mut rest = &self.bytes[..];
        let mut next = 0u32;
        for _ in 0..self.changes {
            let gap = match take::<1>(&mut rest)[0] {
                WIDE_GAP => u32::from_le_bytes(take(&mut rest)),
                gap => u32::from(gap),
            };
            positions.push(next + gap);
            next += gap + 1;
            let step = match take::<1>(&mut rest)[0] as i8 {
                WIDE_STEP => i64::from_le_bytes(take(&mut rest)),
                step => i64::from(step),
            };
            steps.push(W::from_u64(step as u64));
        }
        tile.update::<W>(&positions, |i, old| advance(old, steps[i], order));
    }
}

/// The next bytes, which this file has written.
#[inline(always)]
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    match rest.split_first_chunk::<N>() {
        Some((bytes, others)) => {
            *rest = others;
            *bytes
        }
        None => [0; N],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltawire_kernels::Target;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn writes_what_it_was_given(
            changes in prop::collection::btree_map(
                0u32..500,
                (any::<u64>(), prop_oneof![-3i64..4, -130i64..131, any::<i64>()]),
                0..60,
            ),
        ) {
            for order in [Order::Float, Order::Integer] {
                let positions: Vec<u32> = changes.keys().copied().collect();
                let old: Vec<u64> = changes.values().map(|v| v.0).collect();
                let new: Vec<u64> = changes.values().map(|v| v.0.wrapping_add(v.1 as u64)).collect();
                let prepared = Prepared::new(&positions, &old, &new, order);
                let mut memory = vec![7u8; 500 * 8];
                let mut expected = memory.clone();
                for (i, &p) in positions.iter().enumerate() {
                    let at = p as usize * 8;
                    memory[at..at + 8].copy_from_slice(&old[i].to_le_bytes());
                    expected[at..at + 8].copy_from_slice(&new[i].to_le_bytes());
                }
                let tiles = Target::new(&mut memory, 50, 80).unwrap().divide(50, 80);
                prepared.write::<u64>(&mut tiles.take(0).unwrap(), order);
                drop(tiles);
                prop_assert_eq!(&memory, &expected);
            }
        }
    }
}
