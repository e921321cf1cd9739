//! Located changes kept in memory between checking and writing.
//!
//! Ranks are located in the base, which takes a pass over the tile. That happens while a delta is
//! checked; what is kept for the commit are positions and steps in about two bytes a change, so
//! that the commit costs O(changes) whatever the codec.

use deltawire_kernels::ordered::{step, Order};
use deltawire_kernels::{TileMut, Word};

use crate::bits::put_varint;

/// Changes of one tile as pairs of varints: gap, and zigzag step.
#[derive(Clone, Debug)]
pub(crate) struct Prepared(Vec<u8>);

impl Prepared {
    /// Keeps changes from `old` to `new` at ascending positions.
    pub(crate) fn new<W: Word>(positions: &[u32], old: &[W], new: &[W], order: Order) -> Self {
        let mut bytes = Vec::with_capacity(positions.len() * 5 / 2);
        let mut next = 0;
        for ((&position, &old), &new) in positions.iter().zip(old).zip(new) {
            put_varint(u64::from(position - next), &mut bytes);
            next = position + 1;
            let d = step(old, new, order).to_i64();
            put_varint((d << 1 ^ d >> 63) as u64, &mut bytes);
        }
        bytes.shrink_to_fit();
        Self(bytes)
    }

    /// Bytes held.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Writes the changes into their tile.
    pub(crate) fn write<W: Word>(&self, tile: &mut TileMut<'_>, order: Order) {
        let mut rest = &self.0[..];
        let mut positions = Vec::with_capacity(rest.len() / 2);
        let mut steps: Vec<W> = Vec::with_capacity(rest.len() / 2);
        let mut next = 0u32;
        while !rest.is_empty() {
            let position = next + take(&mut rest) as u32;
            next = position + 1;
            positions.push(position);
            let z = take(&mut rest);
            steps.push(W::from_u64(z >> 1 ^ (z & 1).wrapping_neg()));
        }
        tile.update::<W>(&positions, |i, old| {
            deltawire_kernels::ordered::advance(old, steps[i], order)
        });
    }
}

/// A varint that this file has written.
#[inline(always)]
fn take(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for (i, &byte) in rest.iter().enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *rest = &rest[i + 1..];
            return value;
        }
    }
    *rest = &[];
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltawire_kernels::Target;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn writes_what_it_was_given(
            changes in prop::collection::btree_map(0u32..500, any::<(u64, u64)>(), 0..60),
        ) {
            for order in [Order::Float, Order::Integer] {
                let positions: Vec<u32> = changes.keys().copied().collect();
                let old: Vec<u64> = changes.values().map(|v| v.0).collect();
                let new: Vec<u64> = changes.values().map(|v| v.1).collect();
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
