//! The additive state digest of `spec/digest-v1.md`.

mod change;
mod constants;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use crate::block::{prefetch, Block};
#[cfg(target_arch = "x86_64")]
use crate::features;
use crate::matrix::Matrix;
use crate::Word;

pub use change::{change, Changes};
use constants::{factor, reduced, BLOCK, HALVES, LOW, P, PARTS};

/// Bytes that memory is asked for before it is used.
const AHEAD: usize = 16384;

/// A sum of weighted words: two lanes modulo 2^61 - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest {
    /// Lanes 0 and 1.
    pub lanes: [u64; 2],
}

impl Digest {
    /// The digest with these lanes.
    pub const fn new(lane0: u64, lane1: u64) -> Self {
        Self {
            lanes: [lane0, lane1],
        }
    }

    /// From any numbers, lane by lane, modulo 2^61 - 1.
    pub fn of(lane0: u64, lane1: u64) -> Self {
        Self::new(reduced(lane0.into()), reduced(lane1.into()))
    }

    fn lane_by_lane(self, other: Self, run: impl Fn(u128, u128) -> u128) -> Self {
        let [a, b] = [0, 1].map(|i| reduced(run(self.lanes[i].into(), other.lanes[i].into())));
        Self::new(a, b)
    }

    /// Lane by lane, modulo 2^61 - 1.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.lane_by_lane(other, |a, b| a + b)
    }

    /// Lane by lane, modulo 2^61 - 1.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.lane_by_lane(other, |a, b| a + (u128::from(P) << 3) - b)
    }

    /// As stored: lane 0, then lane 1, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.lanes[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.lanes[1].to_le_bytes());
        bytes
    }

    /// From the stored form. Lanes that were not reduced are kept so: they equal none that was computed.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let lane = |at: usize| u64::read(&bytes[at..]);
        Self::new(lane(0), lane(8))
    }
}

/// The keys of one tensor, one a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixKey {
    /// Key of lane 0.
    pub k0: u64,
    /// Key of lane 1.
    pub k1: u64,
}

impl MixKey {
    /// What a block's weighted sum adds to both lanes.
    #[inline(always)]
    fn digest(self, block: u64, sum: u128) -> Digest {
        let sum = u128::from(reduced(sum));
        let [a, b] = [self.k0, self.k1].map(|k| reduced(sum * u128::from(factor(k, block))));
        Digest::new(a, b)
    }
}

/// A word of a block, weighted.
#[inline(always)]
fn weighted(at: usize, word: u64) -> u128 {
    let [low, high] = [word & 0xffff_ffff, word >> 32].map(u128::from);
    low * u128::from(HALVES[0][at]) + high * u128::from(HALVES[1][at])
}

/// Both lanes for word `word` at index `j`.
pub fn mix(key: MixKey, j: u64, word: u64) -> Digest {
    let at = (j % BLOCK as u64) as usize;
    key.digest(j / BLOCK as u64, weighted(at, word))
}

/// Sums over consecutive words.
pub(crate) trait WordSum: Sized {
    /// Begins at the word with index `j0`.
    fn new(key: MixKey, j0: u64) -> Self;
    /// How far it has come.
    fn blocks(&mut self) -> &mut Blocks;
    /// Adds the next eight words, 64 bytes, which lie in one block; what they sum to is kept back.
    fn keep(&mut self, words: &[u8]);
    /// What was kept back since.
    fn kept(&mut self) -> u128;

    /// Adds the next eight words, 64 bytes.
    #[inline(always)]
    fn add(&mut self, words: &[u8]) {
        if self.blocks().at > BLOCK - 8 {
            return self.add_some(words);
        }
        self.keep(words);
        self.blocks().at += 8;
        if self.blocks().at == BLOCK {
            self.close();
        }
    }

    /// Adds up to eight.
    #[inline(always)]
    fn add_some(&mut self, words: &[u8]) {
        for word in words.chunks_exact(8) {
            if self.blocks().add_one(u64::read(word)) {
                self.close();
            }
        }
    }

    /// Ends a block.
    #[inline(always)]
    fn close(&mut self) {
        let sum = self.kept();
        self.blocks().close(sum);
    }

    /// The sums.
    #[inline(always)]
    fn sum(mut self) -> Digest {
        self.close();
        self.blocks().total
    }
}

/// How far a sum has come in its blocks, and those that are done.
pub(crate) struct Blocks {
    key: MixKey,
    block: u64,
    /// Words of the block that came before the next one.
    at: usize,
    /// Words of the block that were added one by one.
    rest: u128,
    total: Digest,
}

impl Blocks {
    #[inline(always)]
    fn new(key: MixKey, j0: u64) -> Self {
        Self {
            key,
            block: j0 / BLOCK as u64,
            at: (j0 % BLOCK as u64) as usize,
            rest: 0,
            total: Digest::default(),
        }
    }

    /// Adds the next word by itself; true where the block is done, and to be closed.
    #[inline(always)]
    fn add_one(&mut self, word: u64) -> bool {
        self.rest += weighted(self.at % BLOCK, word);
        self.at += 1;
        self.at == BLOCK
    }

    /// Begins the next block; the weighted words of the last one that are not in `rest` sum to `sum`.
    #[inline(always)]
    fn close(&mut self, sum: u128) {
        let done = self.key.digest(self.block, sum + self.rest);
        self.total = self.total.plus(done);
        self.block += 1;
        self.at = 0;
        self.rest = 0;
    }
}

/// Sums without any feature that has to be asked for.
pub(crate) struct Lanes {
    blocks: Blocks,
    sums: Parts,
}

/// Products with the low and the high parts of the constants. Of a block of 256 words, eight in a lane each,
/// no more than 32 are added up: 2^5 * 2 * (2^32 - 1) * (2^26 - 1) fit.
type Parts = [[u64; 8]; 2];

/// What products with the parts of the constants sum to.
#[inline(always)]
fn joined(sums: Parts) -> u128 {
    let [low, high] = sums.map(|sums| sums.iter().map(|&x| u128::from(x)).sum::<u128>());
    low + (high << LOW)
}

impl WordSum for Lanes {
    #[inline(always)]
    fn new(key: MixKey, j0: u64) -> Self {
        Self {
            blocks: Blocks::new(key, j0),
            sums: [[0; 8]; 2],
        }
    }

    #[inline(always)]
    fn blocks(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    #[inline(always)]
    fn keep(&mut self, words: &[u8]) {
        let at = self.blocks.at;
        for (part, sums) in self.sums.iter_mut().enumerate() {
            let (low, high) = (&PARTS[0][part][at..at + 8], &PARTS[1][part][at..at + 8]);
            for (lane, word) in words.chunks_exact(8).enumerate() {
                let word = u64::read(word);
                sums[lane] += (word & 0xffff_ffff) * u64::from(low[lane]);
                sums[lane] += (word >> 32) * u64::from(high[lane]);
            }
        }
    }

    #[inline(always)]
    fn kept(&mut self) -> u128 {
        joined(std::mem::take(&mut self.sums))
    }
}

/// Sum over consecutive elements of `bytes`, zero-extended to words, from index `j0` on.
#[inline(always)]
fn sum_run<W: Word, S: WordSum>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    let mut sum = S::new(key, j0);
    let groups = bytes.chunks_exact(8 * W::WIDTH);
    let rest = groups.remainder();
    for group in groups {
        prefetch(group.as_ptr().wrapping_add(AHEAD));
        if W::WIDTH == 8 {
            sum.add(group);
        } else {
            sum.add(&widened::<W>(group));
        }
    }
    let count = rest.len() / W::WIDTH;
    sum.add_some(&widened::<W>(rest)[..8 * count]);
    sum.sum()
}

/// Up to eight elements, zero-extended to words.
#[inline(always)]
fn widened<W: Word>(elements: &[u8]) -> [u8; 64] {
    let mut words = [0; 64];
    for (word, element) in words
        .chunks_exact_mut(8)
        .zip(elements.chunks_exact(W::WIDTH))
    {
        word.copy_from_slice(&W::read(element).to_u64().to_le_bytes());
    }
    words
}

fn sum_dispatch<W: Word>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    #[cfg(target_arch = "x86_64")]
    {
        if features::ifma() {
            // SAFETY: the features were just detected.
            return unsafe { x86::sum_run_ifma::<W>(key, j0, bytes) };
        }
        if features::avx2() {
            // SAFETY: the feature was just detected.
            return unsafe { x86::sum_run_avx2::<W>(key, j0, bytes) };
        }
    }
    sum_run::<W, Lanes>(key, j0, bytes)
}

/// Words of a row of `row_bytes` bytes.
pub fn words_per_row(row_bytes: usize) -> u64 {
    row_bytes.div_ceil(8) as u64
}

/// Sum over the words of a block.
///
/// The block must begin at a multiple of eight bytes within its rows, and end at one or at the end
/// of the row, so that it holds whole words.
///
/// # Panics
/// Where it does not, or lies outside.
pub fn block(key: MixKey, matrix: &Matrix<'_>, block: &Block) -> Digest {
    let row_end = matrix.row_bytes();
    assert!(
        block.byte.is_multiple_of(8)
            && (block.bytes.is_multiple_of(8) || block.byte + block.bytes == row_end),
        "{block:?} cuts a word of the digest",
    );
    let per_row = words_per_row(row_end);
    let first = block.row as u64 * per_row + (block.byte / 8) as u64;
    if let Some(bytes) = matrix.contiguous(block) {
        match row_end {
            0 => return Digest::default(),
            1 => return sum_dispatch::<u8>(key, first, bytes),
            2 => return sum_dispatch::<u16>(key, first, bytes),
            4 => return sum_dispatch::<u32>(key, first, bytes),
            n if n % 8 == 0 || block.rows <= 1 && bytes.len() % 8 == 0 => {
                return sum_dispatch::<u64>(key, first, bytes);
            }
            _ => {}
        }
    }
    let whole = block.bytes / 8 * 8;
    let mut sum = Digest::default();
    for row in 0..block.rows {
        let bytes = matrix.row(block, row);
        let at = first + row as u64 * per_row;
        sum = sum.plus(sum_dispatch::<u64>(key, at, &bytes[..whole]));
        if whole < bytes.len() {
            sum = sum.plus(mix(key, at + (whole / 8) as u64, partial(&bytes[whole..])));
        }
    }
    sum
}

/// Up to eight bytes, padded with zeros to a word.
#[inline(always)]
fn partial(bytes: &[u8]) -> u64 {
    let mut raw = [0; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: MixKey = MixKey {
        k0: 0x0123_4567_89ab_cdef,
        k1: 0xfedc_ba98_7654_3210,
    };

    /// Word by word, with plain remainders.
    fn naive(key: MixKey, matrix: &Matrix<'_>, block: &Block) -> Digest {
        let mut sums = [0u128; 2];
        for row in 0..block.rows {
            for (c, word) in matrix.row(block, row).chunks(8).enumerate() {
                let j = (block.row + row) as u64 * words_per_row(matrix.row_bytes())
                    + (block.byte / 8 + c) as u64;
                let v = weighted((j % 256) as usize, partial(word)) % u128::from(P);
                for (sum, k) in sums.iter_mut().zip([key.k0, key.k1]) {
                    *sum = (*sum + v * u128::from(factor(k, j / 256))) % u128::from(P);
                }
            }
        }
        Digest::new(sums[0] as u64, sums[1] as u64)
    }

    #[test]
    fn sums_stay_in_range() {
        let most = Digest::new(P - 1, P - 1);
        assert_eq!(most.plus(Digest::new(1, 2)), Digest::new(0, 1));
        assert_eq!(
            Digest::default().minus(Digest::new(1, P - 1)),
            Digest::new(P - 1, 1)
        );
        // What was never reduced, as only damage leaves it, does not overflow either.
        let odd = Digest::new(u64::MAX, P);
        assert_eq!(odd.plus(odd), Digest::new(14, 0));
        assert_eq!(odd.minus(odd), Digest::default());
        assert_eq!(Digest::of(u64::MAX, P), Digest::new(7, 0));
    }

    /// The largest sums that a block can have.
    #[test]
    fn nothing_overflows() {
        for j0 in [0u64, 1, 7, 250, 255, 256, (1 << 40) + 3] {
            let bytes = vec![0xff; 8 * 1100];
            let words: Vec<Digest> = (0..1100).map(|i| mix(KEY, j0 + i, u64::MAX)).collect();
            let expected = words.into_iter().fold(Digest::default(), Digest::plus);
            assert_eq!(sum_run::<u64, Lanes>(KEY, j0, &bytes), expected);
            assert_eq!(sum_dispatch::<u64>(KEY, j0, &bytes), expected);
        }
    }

    proptest! {
        #[test]
        fn blocks_equal_the_naive_sum(
            rows in 0usize..40, row_bytes in 0usize..160, seed in any::<u64>(),
        ) {
            let bytes: Vec<u8> = (0..rows * row_bytes)
                .map(|i| (seed.wrapping_mul(i as u64 * 2 + 1) >> 32) as u8).collect();
            let matrix = Matrix::new(&bytes, rows, row_bytes).unwrap();
            prop_assert_eq!(block(KEY, &matrix, &matrix.whole()), naive(KEY, &matrix, &matrix.whole()));
            // Splits along rows and along columns add up.
            let cut_row = rows / 2;
            let cut_byte = row_bytes / 2 / 8 * 8;
            let mut sum = Digest::default();
            for (row, n) in [(0, cut_row), (cut_row, rows - cut_row)] {
                for (byte, m) in [(0, cut_byte), (cut_byte, row_bytes - cut_byte)] {
                    let part = Block { row, rows: n, byte, bytes: m };
                    prop_assert_eq!(block(KEY, &matrix, &part), naive(KEY, &matrix, &part));
                    sum = sum.plus(block(KEY, &matrix, &part));
                }
            }
            prop_assert_eq!(sum, block(KEY, &matrix, &matrix.whole()));
        }

        #[test]
        fn dispatch_equals_scalar(
            j0 in 0u64..1 << 50, bytes in prop::collection::vec(any::<u8>(), 0..5000),
        ) {
            let words = &bytes[..bytes.len() / 8 * 8];
            let one_by_one = (words.chunks_exact(8).enumerate())
                .map(|(i, w)| mix(KEY, j0 + i as u64, partial(w)))
                .fold(Digest::default(), Digest::plus);
            prop_assert_eq!(sum_run::<u64, Lanes>(KEY, j0, words), one_by_one);
            prop_assert_eq!(sum_dispatch::<u64>(KEY, j0, words), one_by_one);
            prop_assert_eq!(sum_dispatch::<u8>(KEY, j0, &bytes), sum_run::<u8, Lanes>(KEY, j0, &bytes));
            let bytes_one_by_one = (bytes.iter().enumerate())
                .map(|(i, &byte)| mix(KEY, j0 + i as u64, byte.into()))
                .fold(Digest::default(), Digest::plus);
            prop_assert_eq!(sum_run::<u8, Lanes>(KEY, j0, &bytes), bytes_one_by_one);
            #[cfg(target_arch = "x86_64")]
            if features::avx2() {
                // SAFETY: the feature was just detected.
                prop_assert_eq!(unsafe { x86::sum_run_avx2::<u64>(KEY, j0, words) }, one_by_one);
                // SAFETY: as before.
                prop_assert_eq!(unsafe { x86::sum_run_avx2::<u8>(KEY, j0, &bytes) }, bytes_one_by_one);
            }
        }
    }
}
