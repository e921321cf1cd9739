//! What changes do to a digest, in O(changes).

use std::marker::PhantomData;

use super::constants::{reduced, BLOCK, HALVES, P};
use super::{words_per_row, Digest, MixKey};
use crate::block::{Block, Divider};
use crate::matrix::Matrix;
use crate::Word;

/// Most blocks of words that have a sum each from the beginning.
const NEAR: usize = 64;

/// Sums of weighted changes, block by block. A block has at most 2048 elements, each below 2^86, and a
/// position comes once, so sums do not overflow.
trait Sums {
    fn add(&mut self, block: u64, weighted: i128);
    fn finish(self) -> Digest;
}

/// Sums of blocks that lie together, for changes in any order.
struct Near {
    key: MixKey,
    first: u64,
    sums: [i128; NEAR],
}

impl Sums for Near {
    #[inline(always)]
    fn add(&mut self, block: u64, weighted: i128) {
        self.sums[(block - self.first) as usize % NEAR] += weighted;
    }

    fn finish(self) -> Digest {
        let sums = self.sums.into_iter().zip(self.first..);
        let filled = sums.filter(|(sum, _)| *sum != 0);
        filled.fold(Digest::default(), |total, (sum, block)| {
            total.plus(digest(self.key, block, sum))
        })
    }
}

/// The sum of one block after the other: the more changes of a block follow each other, the less its
/// factor is computed.
struct Running {
    key: MixKey,
    block: u64,
    sum: i128,
    /// Sums of the lanes of blocks before, which are below 2^61 each.
    total: [u128; 2],
}

impl Running {
    fn new(key: MixKey, block: u64) -> Self {
        Self {
            key,
            block,
            sum: 0,
            total: [0; 2],
        }
    }

    #[inline(always)]
    fn close(&mut self) {
        let done = closed(self.key, self.block, self.sum);
        for (total, lane) in self.total.iter_mut().zip(done.lanes) {
            *total += u128::from(lane);
        }
    }
}

/// [`digest`] apart, so that a loop over changes stays small.
#[inline(never)]
fn closed(key: MixKey, block: u64, sum: i128) -> Digest {
    digest(key, block, sum)
}

impl Sums for Running {
    #[inline(always)]
    fn add(&mut self, block: u64, weighted: i128) {
        if block != self.block {
            self.close();
            (self.block, self.sum) = (block, 0);
        }
        self.sum += weighted;
    }

    fn finish(mut self) -> Digest {
        self.close();
        let [a, b] = self.total.map(reduced);
        Digest::new(a, b)
    }
}

/// What a block's sum, which may be negative, adds to both lanes.
#[inline(always)]
fn digest(key: MixKey, block: u64, sum: i128) -> Digest {
    // A multiple of the prime above any sum.
    key.digest(block, (sum + (i128::from(P) << 64)) as u128)
}

/// Where the elements of a block lie among the tensor's words.
struct Layout {
    divider: Divider,
    cols: usize,
    per_row: u64,
    first: u64,
    dense: bool,
}

impl Layout {
    fn new<W: Word>(matrix: &Matrix<'_>, block: &Block) -> Self {
        let cols = (block.bytes / W::WIDTH).max(1);
        let per_row = words_per_row(matrix.row_bytes());
        Self {
            divider: Divider::new(cols),
            cols,
            per_row,
            first: block.row as u64 * per_row + (block.byte / 8) as u64,
            // Words are numbered as they lie: whole rows of whole words.
            dense: block.bytes == matrix.row_bytes() && block.bytes.is_multiple_of(8),
        }
    }

    /// Index of an element's word, and the byte within it, where words are numbered as they lie.
    #[inline(always)]
    fn dense_place<W: Word>(&self, position: u32) -> (u64, usize) {
        let byte = u64::from(position) * W::WIDTH as u64;
        (self.first + byte / 8, (byte % 8) as usize)
    }

    /// The same anywhere.
    #[inline(always)]
    fn place<W: Word>(&self, position: u32) -> (u64, usize) {
        let row = self.divider.divide(position) as usize;
        let byte = (position as usize - row * self.cols) * W::WIDTH;
        let word = self.first + row as u64 * self.per_row + (byte / 8) as u64;
        (word, byte % 8)
    }
}

/// What a block's digest changes by, when element `positions[i]` of it, now `old[i]`, becomes `new[i]`.
///
/// `matrix` tells the tensor's shape; its elements are not read. Positions may come in any order, but only
/// once each. Costs a product a change.
///
/// # Panics
/// Where positions and elements are not equally many.
pub fn change<W: Word>(
    key: MixKey,
    matrix: &Matrix<'_>,
    block: &Block,
    positions: &[u32],
    old: &[W],
    new: &[W],
) -> Digest {
    let layout = Layout::new::<W>(matrix, block);
    let first = layout.first / BLOCK as u64;
    let words = (block.rows as u64).saturating_sub(1) * layout.per_row + words_per_row(block.bytes);
    if (layout.first + words) / BLOCK as u64 - first < NEAR as u64 {
        let mut near = Near {
            key,
            first,
            sums: [0; NEAR],
        };
        add_all(&layout, positions, old, new, |_| (), &mut near);
        return near.finish();
    }
    let mut running = Running::new(key, first);
    add_all(&layout, positions, old, new, |_| (), &mut running);
    running.finish()
}

/// [`change`] of positions that come in batches.
pub struct Changes<W> {
    layout: Layout,
    sums: Running,
    word: PhantomData<W>,
}

impl<W: Word> Changes<W> {
    /// No change of `block`.
    pub fn of(key: MixKey, matrix: &Matrix<'_>, block: &Block) -> Self {
        let layout = Layout::new::<W>(matrix, block);
        let sums = Running::new(key, layout.first / BLOCK as u64);
        Self {
            layout,
            sums,
            word: PhantomData,
        }
    }

    /// Adds changes. `meanwhile(i)` is called for each, and may ask for memory that is needed later.
    ///
    /// # Panics
    /// Where positions and elements are not equally many.
    #[inline(always)]
    pub fn add(&mut self, positions: &[u32], old: &[W], new: &[W], meanwhile: impl FnMut(usize)) {
        add_all(&self.layout, positions, old, new, meanwhile, &mut self.sums);
    }

    /// What all of them change.
    pub fn digest(self) -> Digest {
        self.sums.finish()
    }
}

#[inline(always)]
fn add_all<W: Word, S: Sums>(
    layout: &Layout,
    positions: &[u32],
    old: &[W],
    new: &[W],
    mut meanwhile: impl FnMut(usize),
    sums: &mut S,
) {
    assert!(positions.len() == old.len() && old.len() == new.len());
    let half = |word: u64, half: usize| (word >> (32 * half) & 0xffff_ffff) as i64;
    let mut one = |i: usize, old: W, new: W, (word, byte): (u64, usize)| {
        meanwhile(i);
        let (old, new) = (old.to_u64(), new.to_u64());
        let at = word as usize % BLOCK;
        // Both fit in 64 bits with their sign.
        let weighted = |which: usize, difference: i64| {
            i128::from(difference) * i128::from(HALVES[which][at] as i64)
        };
        let weighted = if W::WIDTH == 8 {
            let difference = |which| half(new, which) - half(old, which);
            weighted(0, difference(0)) + weighted(1, difference(1))
        } else {
            let difference = (new as i64 - old as i64) << (8 * (byte % 4));
            weighted(byte / 4 % 2, difference)
        };
        sums.add(word / BLOCK as u64, weighted);
    };
    let elements = positions.iter().zip(old.iter().zip(new)).enumerate();
    // One loop for each, so that it holds nothing but what is needed.
    if layout.dense {
        for (i, (&position, (&old, &new))) in elements {
            one(i, old, new, layout.dense_place::<W>(position));
        }
    } else {
        for (i, (&position, (&old, &new))) in elements {
            one(i, old, new, layout.place::<W>(position));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::block;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const KEY: MixKey = MixKey {
        k0: 0x0123_4567_89ab_cdef,
        k1: 0xfedc_ba98_7654_3210,
    };

    /// Changes elements of a box of a matrix, and compares with digesting the box again.
    fn check<W: Word>(
        rows: usize,
        cols: usize,
        part: &Block,
        changed: &BTreeMap<usize, u64>,
        turn: usize,
    ) {
        let old: Vec<u8> = (0..rows * cols * W::WIDTH)
            .map(|i| (i * 37) as u8)
            .collect();
        let mut new = old.clone();
        let inner = part.bytes / W::WIDTH;
        let mut changes = vec![];
        for (&p, &v) in changed.iter().filter(|(p, _)| **p < part.rows * inner) {
            let at = (part.row + p / inner) * cols * W::WIDTH + part.byte + p % inner * W::WIDTH;
            let before = W::read(&old[at..]);
            let after = W::from_u64(v);
            let mut bytes = vec![];
            after.append(&mut bytes);
            new[at..at + W::WIDTH].copy_from_slice(&bytes);
            changes.push((p as u32, before, after));
        }
        let a = Matrix::new(&old, rows, cols * W::WIDTH).unwrap();
        let b = Matrix::new(&new, rows, cols * W::WIDTH).unwrap();
        let expected = block(KEY, &b, part).minus(block(KEY, &a, part));
        if !changes.is_empty() {
            let n = changes.len();
            changes.rotate_left(turn % n);
            changes.swap(0, n / 2);
        }
        let positions: Vec<u32> = changes.iter().map(|c| c.0).collect();
        let before: Vec<W> = changes.iter().map(|c| c.1).collect();
        let after: Vec<W> = changes.iter().map(|c| c.2).collect();
        assert_eq!(
            change::<W>(KEY, &a, part, &positions, &before, &after),
            expected
        );
        let mut batches = Changes::<W>::of(KEY, &a, part);
        let mut called = 0;
        for (i, here) in positions.chunks(7).enumerate() {
            let range = 7 * i..7 * i + here.len();
            batches.add(here, &before[range.clone()], &after[range], |_| called += 1);
        }
        assert_eq!((batches.digest(), called), (expected, positions.len()));
    }

    proptest! {
        #[test]
        fn changes_equal_the_difference(
            rows in 1usize..60, cols in 1usize..300,
            changed in prop::collection::btree_map(0usize..18_000, any::<u64>(), 0..300), turn in 0usize..500,
        ) {
            fn whole<W: Word>(rows: usize, cols: usize) -> Block {
                Block { row: 0, rows, byte: 0, bytes: cols * W::WIDTH }
            }
            check::<u8>(rows, cols, &whole::<u8>(rows, cols), &changed, turn);
            check::<u16>(rows, cols, &whole::<u16>(rows, cols), &changed, turn);
            check::<u32>(rows, cols, &whole::<u32>(rows, cols), &changed, turn);
            check::<u64>(rows, cols, &whole::<u64>(rows, cols), &changed, turn);
        }

        #[test]
        fn boxes(
            rows in 1usize..40, words in 1usize..90, row in 0usize..40, word in 0usize..90,
            changed in prop::collection::btree_map(0usize..3000, any::<u64>(), 0..60), turn in 0usize..60,
        ) {
            let (row, word) = (row % rows, word % words);
            let part = Block { row, rows: rows - row, byte: 8 * word, bytes: 8 * (words - word) };
            check::<u8>(rows, 8 * words, &part, &changed, turn);
            check::<u16>(rows, 4 * words, &part, &changed, turn);
            check::<u32>(rows, 2 * words, &part, &changed, turn);
            check::<u64>(rows, words, &part, &changed, turn);
        }
    }
}
