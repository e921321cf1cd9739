//! What changes do to a digest, in O(changes).

use super::{pairs_dispatch, partial, words_per_row, Digest, MixKey};
use crate::block::{Block, Divider};
use crate::matrix::Matrix;
use crate::Word;

/// Words that are mixed together.
const PAIRS: usize = 256;

/// Words with their indices, before and after.
pub(super) struct Pairs {
    pub(super) places: [u64; PAIRS],
    pub(super) old: [u64; PAIRS],
    pub(super) new: [u64; PAIRS],
    pub(super) len: usize,
}

impl Pairs {
    #[inline(always)]
    pub(super) fn slices(&self) -> (&[u64], &[u64], &[u64]) {
        let n = self.len.min(PAIRS);
        (&self.places[..n], &self.old[..n], &self.new[..n])
    }
}

/// Collects pairs and sums them as they become many.
struct Summer<const BOTH: bool> {
    key: MixKey,
    pairs: Pairs,
    sum: Digest,
}

impl<const BOTH: bool> Summer<BOTH> {
    fn new(key: MixKey) -> Self {
        let pairs = Pairs {
            places: [0; PAIRS],
            old: [0; PAIRS],
            new: [0; PAIRS],
            len: 0,
        };
        let sum = Digest::default();
        Self { key, pairs, sum }
    }

    #[inline(always)]
    fn push(&mut self, place: u64, old: u64, new: u64) {
        let at = self.pairs.len % PAIRS;
        self.pairs.places[at] = place;
        self.pairs.old[at] = old;
        self.pairs.new[at] = new;
        self.pairs.len = at + 1;
        if self.pairs.len == PAIRS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.sum = self.sum.plus(pairs_dispatch::<BOTH>(self.key, &self.pairs));
        self.pairs.len = 0;
    }

    fn finish(mut self) -> Digest {
        self.flush();
        self.sum
    }
}

/// Where the elements of a block lie among its words.
#[derive(Clone, Copy)]
struct Layout {
    divider: Divider,
    cols: usize,
    words: u64,
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
            words: words_per_row(block.bytes),
            per_row,
            first: block.row as u64 * per_row + (block.byte / 8) as u64,
            // Words are numbered as they lie: whole rows of whole words.
            dense: block.bytes == matrix.row_bytes() && block.bytes.is_multiple_of(8),
        }
    }

    /// Row of an element, and its first byte within the row's part of the block.
    #[inline(always)]
    fn split<W: Word>(&self, position: u32) -> (usize, usize) {
        let row = self.divider.divide(position) as usize;
        (row, (position as usize - row * self.cols) * W::WIDTH)
    }

    /// Number of an element's word within the block, counted without gaps.
    #[inline(always)]
    fn word<W: Word>(&self, position: u32) -> u64 {
        if self.dense {
            return u64::from(position) * W::WIDTH as u64 / 8;
        }
        let (row, byte) = self.split::<W>(position);
        row as u64 * self.words + (byte / 8) as u64
    }

    /// Index of an element's word in the tensor.
    #[inline(always)]
    fn place<W: Word>(&self, position: u32) -> u64 {
        if self.dense {
            return self.first + u64::from(position) * W::WIDTH as u64 / 8;
        }
        let (row, byte) = self.split::<W>(position);
        self.first + row as u64 * self.per_row + (byte / 8) as u64
    }
}

/// The word that holds an element, and the bits that the element is shifted by in it.
#[inline(always)]
fn word_of<W: Word>(
    matrix: &Matrix<'_>,
    block: &Block,
    dense: Option<&[u8]>,
    layout: &Layout,
    position: u32,
) -> (u64, u32) {
    let (bytes, byte) = match dense {
        Some(bytes) => (bytes, position as usize * W::WIDTH),
        None => {
            let (row, byte) = layout.split::<W>(position);
            (matrix.row(block, row), byte)
        }
    };
    let first = byte / 8 * 8;
    let word = match bytes.get(first..first + 8) {
        Some(eight) => u64::read(eight),
        None => partial(&bytes[first..]),
    };
    (word, 8 * (byte - first) as u32)
}

/// What a block's digest changes by between two matrices that differ at `positions` only.
///
/// Costs two mixes a changed word.
///
/// # Panics
/// Where the positions lie outside, or the block outside either matrix.
pub fn change_between<W: Word>(
    key: MixKey,
    old: &Matrix<'_>,
    new: &Matrix<'_>,
    block: &Block,
    positions: &[u32],
) -> Digest {
    let layout = Layout::new::<W>(old, block);
    let a = old.contiguous(block).filter(|_| layout.dense);
    let b = new.contiguous(block).filter(|_| layout.dense);
    let mut summer = Summer::<true>::new(key);
    let mut last = u64::MAX;
    for &position in positions {
        let place = layout.place::<W>(position);
        // Positions ascend, so those of one word follow one another.
        if place == last {
            continue;
        }
        last = place;
        let (before, _) = word_of::<W>(old, block, a, &layout, position);
        let (after, _) = word_of::<W>(new, block, b, &layout, position);
        summer.push(place, before, after);
    }
    summer.finish()
}

/// Memory of [`change`]: which words of a block have changes, and which have several.
#[derive(Debug, Default)]
pub struct Words {
    seen: Vec<u64>,
    several: Vec<u64>,
    /// Word, bits that the element is shifted by, index of the change.
    shared: Vec<(u64, u32, u32)>,
}

/// What a block's digest changes by, when element `positions[i]` of it becomes `new[i]`.
///
/// The matrix holds the old elements. Positions may come in any order, but only once each. With
/// `BOTH` false lane 1 is left zero. Costs two mixes a changed word.
///
/// # Panics
/// Where the positions lie outside or are not as many as the elements.
pub fn change<W: Word, const BOTH: bool>(
    key: MixKey,
    matrix: &Matrix<'_>,
    block: &Block,
    positions: &[u32],
    new: &[W],
    words: &mut Words,
) -> Digest {
    assert_eq!(positions.len(), new.len());
    let layout = Layout::new::<W>(matrix, block);
    let dense = matrix.contiguous(block).filter(|_| layout.dense);
    let Words {
        seen,
        several,
        shared,
    } = words;
    let bits = (block.rows as u64 * layout.words).div_ceil(64) as usize;
    for map in [&mut *seen, &mut *several] {
        map.clear();
        map.resize(bits, 0);
    }
    shared.clear();
    for &position in positions {
        let word = layout.word::<W>(position);
        let (at, bit) = ((word / 64) as usize, 1 << (word % 64));
        several[at] |= seen[at] & bit;
        seen[at] |= bit;
    }
    let low = u64::MAX >> (64 - 8 * W::WIDTH);
    let mut summer = Summer::<BOTH>::new(key);
    for (i, (&position, &value)) in positions.iter().zip(new).enumerate() {
        let (old, shift) = word_of::<W>(matrix, block, dense, &layout, position);
        let word = layout.word::<W>(position);
        if several[(word / 64) as usize] & 1 << (word % 64) != 0 {
            shared.push((word, shift, i as u32));
            continue;
        }
        let word = (old & !(low << shift)) | (value.to_u64() << shift);
        summer.push(layout.place::<W>(position), old, word);
    }
    shared.sort_unstable();
    for changes in shared.chunk_by(|a, b| a.0 == b.0) {
        let position = positions[changes[0].2 as usize];
        let (old, _) = word_of::<W>(matrix, block, dense, &layout, position);
        let mut word = old;
        for &(_, shift, i) in changes {
            word = (word & !(low << shift)) | (new[i as usize].to_u64() << shift);
        }
        summer.push(layout.place::<W>(position), old, word);
    }
    summer.finish()
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

    fn check<W: Word>(rows: usize, cols: usize, changed: &BTreeMap<usize, u64>, shuffle: usize) {
        let old: Vec<u8> = (0..rows * cols * W::WIDTH)
            .map(|i| (i * 37) as u8)
            .collect();
        let mut new = old.clone();
        let mut pairs = vec![];
        for (&p, &v) in changed.iter().filter(|(p, _)| **p < rows * cols) {
            let value = W::from_u64(v);
            let mut bytes = vec![];
            value.append(&mut bytes);
            new[W::WIDTH * p..W::WIDTH * (p + 1)].copy_from_slice(&bytes);
            pairs.push((p as u32, value));
        }
        let a = Matrix::new(&old, rows, cols * W::WIDTH).unwrap();
        let b = Matrix::new(&new, rows, cols * W::WIDTH).unwrap();
        let whole = a.whole();
        let expected = block(KEY, &b, &whole).minus(block(KEY, &a, &whole));
        let positions: Vec<u32> = pairs.iter().map(|p| p.0).collect();
        assert_eq!(
            change_between::<W>(KEY, &a, &b, &whole, &positions),
            expected
        );
        if !pairs.is_empty() {
            let n = pairs.len();
            pairs.rotate_left(shuffle % n);
            pairs.swap(0, n / 2);
        }
        let positions: Vec<u32> = pairs.iter().map(|p| p.0).collect();
        let values: Vec<W> = pairs.iter().map(|p| p.1).collect();
        let mut words = Words::default();
        for _ in 0..2 {
            let got = change::<W, true>(KEY, &a, &whole, &positions, &values, &mut words);
            assert_eq!(got, expected);
            let lane0 = change::<W, false>(KEY, &a, &whole, &positions, &values, &mut words);
            assert_eq!(lane0, Digest::new(expected.lanes[0], 0));
        }
    }

    proptest! {
        #[test]
        fn changes_equal_the_difference(
            rows in 1usize..20, cols in 1usize..40,
            changed in prop::collection::btree_map(0usize..780, any::<u64>(), 0..300), shuffle in 0usize..500,
        ) {
            check::<u8>(rows, cols, &changed, shuffle);
            check::<u16>(rows, cols, &changed, shuffle);
            check::<u32>(rows, cols, &changed, shuffle);
            check::<u64>(rows, cols, &changed, shuffle);
        }

        #[test]
        fn boxes(
            rows in 1usize..12, cols in 1usize..9, row in 0usize..12, col in 0usize..9,
            changed in prop::collection::btree_map(0usize..200, any::<u16>(), 0..60),
        ) {
            let (row, col) = (row % rows, col % cols);
            // Columns in units of eight bytes.
            let width = 8 * cols;
            let part = Block { row, rows: rows - row, byte: 8 * col, bytes: 8 * (cols - col) };
            let old: Vec<u8> = (0..rows * width).map(|i| (i * 37) as u8).collect();
            let mut new = old.clone();
            let inner = part.bytes / 2;
            let changed: Vec<(u32, u16)> = changed.into_iter()
                .filter(|(p, _)| *p < inner * part.rows).map(|(p, v)| (p as u32, v)).collect();
            for &(p, v) in &changed {
                let (r, c) = (p as usize / inner, p as usize % inner);
                let at = (row + r) * width + part.byte + 2 * c;
                new[at..at + 2].copy_from_slice(&v.to_le_bytes());
            }
            let a = Matrix::new(&old, rows, width).unwrap();
            let b = Matrix::new(&new, rows, width).unwrap();
            let expected = block(KEY, &b, &part).minus(block(KEY, &a, &part));
            let (positions, values): (Vec<u32>, Vec<u16>) = changed.into_iter().unzip();
            prop_assert_eq!(change_between::<u16>(KEY, &a, &b, &part, &positions), expected);
            let got = change::<u16, true>(KEY, &a, &part, &positions, &values, &mut Words::default());
            prop_assert_eq!(got, expected);
        }
    }
}
