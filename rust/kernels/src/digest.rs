//! The additive state digest of `spec/digest-v1.md`.

use crate::matrix::{prefetch, Block, Matrix};
use crate::Word;

const G0: u64 = 0x9e37_79b9_7f4a_7c15;
const G1: u64 = 0xd1b5_4a32_d192_ed03;
const MA: u64 = 0x9fb2_1c65_1e98_df25;
const MB: u64 = 0xd6e8_feb8_6659_fd93;

/// A sum of mixed words: two lanes modulo 2^64.
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

    /// Lane by lane, modulo 2^64.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::new(
            self.lanes[0].wrapping_add(other.lanes[0]),
            self.lanes[1].wrapping_add(other.lanes[1]),
        )
    }

    /// Lane by lane, modulo 2^64.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self::new(
            self.lanes[0].wrapping_sub(other.lanes[0]),
            self.lanes[1].wrapping_sub(other.lanes[1]),
        )
    }

    /// As stored: lane 0, then lane 1, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.lanes[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.lanes[1].to_le_bytes());
        bytes
    }

    /// From the stored form.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let lane = |at: usize| u64::read(&bytes[at..]);
        Self::new(lane(0), lane(8))
    }
}

/// The mixing keys of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixKey {
    /// Key of both lanes.
    pub k0: u64,
    /// Second key of lane 1.
    pub k1: u64,
}

#[inline(always)]
fn finish(x: u64, multiplier: u64, r: u32, s: u32) -> u64 {
    let x = (x ^ x.rotate_right(r) ^ x.rotate_right(s)).wrapping_mul(multiplier);
    let x = (x ^ x.rotate_right(24) ^ x.rotate_right(49)).wrapping_mul(multiplier);
    x ^ (x >> 28)
}

#[inline(always)]
fn mix_steps(key: MixKey, step0: u64, step1: u64, word: u64) -> (u64, u64) {
    let t = key.k0.wrapping_add(step0);
    let a = (t ^ (t >> 32)).wrapping_mul(MB);
    let a = a ^ (a >> 29);
    let y0 = finish(word ^ a, MA, 18, 45);
    let y1 = finish(word.wrapping_add(key.k1).wrapping_add(step1), MB, 27, 46);
    (y0, y1)
}

/// Both lanes for word `word` at index `j`.
#[inline(always)]
pub fn mix(key: MixKey, j: u64, word: u64) -> Digest {
    let (y0, y1) = mix_steps(key, j.wrapping_mul(G0), j.wrapping_mul(G1), word);
    Digest::new(y0, y1)
}

/// Sum over consecutive elements of `bytes`, zero-extended to words, from index `j0` on.
///
/// With `W = u64` these are plain words. The loop is written for the compiler to vectorise: the
/// lanes of `LANES` words are independent.
#[inline(always)]
fn sum_run<W: Word>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    const LANES: usize = 8;
    let mut sum0 = [0u64; LANES];
    let mut sum1 = [0u64; LANES];
    let mut step0 = [0u64; LANES];
    let mut step1 = [0u64; LANES];
    for lane in 0..LANES {
        step0[lane] = j0.wrapping_add(lane as u64).wrapping_mul(G0);
        step1[lane] = j0.wrapping_add(lane as u64).wrapping_mul(G1);
    }
    let groups = bytes.chunks_exact(LANES * W::WIDTH);
    let rest = groups.remainder();
    let rest_at = j0.wrapping_add((bytes.len() / (LANES * W::WIDTH) * LANES) as u64);
    for group in groups {
        // About 2 KiB ahead.
        prefetch(group.as_ptr().wrapping_add(2048));
        for lane in 0..LANES {
            let word = W::read(&group[lane * W::WIDTH..]).to_u64();
            let (y0, y1) = mix_steps(key, step0[lane], step1[lane], word);
            sum0[lane] = sum0[lane].wrapping_add(y0);
            sum1[lane] = sum1[lane].wrapping_add(y1);
            step0[lane] = step0[lane].wrapping_add(G0.wrapping_mul(LANES as u64));
            step1[lane] = step1[lane].wrapping_add(G1.wrapping_mul(LANES as u64));
        }
    }
    let mut sum = Digest::default();
    for lane in 0..LANES {
        sum = sum.plus(Digest::new(sum0[lane], sum1[lane]));
    }
    for (i, element) in rest.chunks_exact(W::WIDTH).enumerate() {
        sum = sum.plus(mix(
            key,
            rest_at.wrapping_add(i as u64),
            W::read(element).to_u64(),
        ));
    }
    sum
}

/// The same loop, compiled for what the processor offers.
fn sum_dispatch<W: Word>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
        fn avx512<W: Word>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
            sum_run::<W>(key, j0, bytes)
        }
        #[target_feature(enable = "avx2")]
        fn avx2<W: Word>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
            sum_run::<W>(key, j0, bytes)
        }
        if is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
        {
            // SAFETY: the features were just detected (avx512dq implies avx512f).
            return unsafe { avx512::<W>(key, j0, bytes) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was just detected.
            return unsafe { avx2::<W>(key, j0, bytes) };
        }
    }
    sum_run::<W>(key, j0, bytes)
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

/// What a block's digest changes by, when element `positions[i]` of it becomes `new[i]`.
///
/// The matrix holds the old elements. Costs two mixes a changed word.
///
/// # Panics
/// Where the positions do not ascend, lie outside, or are not as many as the elements.
pub fn change<W: Word>(
    key: MixKey,
    matrix: &Matrix<'_>,
    block: &Block,
    positions: &[u32],
    new: &[W],
) -> Digest {
    assert_eq!(positions.len(), new.len());
    let per_row = words_per_row(matrix.row_bytes());
    let cols = (block.bytes / W::WIDTH).max(1);
    let mut sum = Digest::default();
    let mut i = 0;
    while i < positions.len() {
        let row = positions[i] as usize / cols;
        let byte = (positions[i] as usize % cols) * W::WIDTH;
        // Words are counted from the row's start, and the block begins at a word.
        let word_byte = byte / 8 * 8;
        let bytes = matrix.row(block, row);
        let old = partial(&bytes[word_byte..bytes.len().min(word_byte + 8)]);
        let mut word = old;
        let end = row * cols + (bytes.len().min(word_byte + 8)) / W::WIDTH;
        let mut last = None;
        while i < positions.len() && (positions[i] as usize) < end {
            assert!(last < Some(positions[i]), "positions must ascend");
            last = Some(positions[i]);
            let shift = 8 * ((positions[i] as usize - row * cols) * W::WIDTH - word_byte);
            let mask = (u64::MAX >> (64 - 8 * W::WIDTH)) << shift;
            word = (word & !mask) | (new[i].to_u64() << shift);
            i += 1;
        }
        let j = (block.row + row) as u64 * per_row + ((block.byte + word_byte) / 8) as u64;
        sum = sum.plus(mix(key, j, word)).minus(mix(key, j, old));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: MixKey = MixKey {
        k0: 0x0123_4567_89ab_cdef,
        k1: 0xfedc_ba98_7654_3210,
    };

    #[test]
    fn vectors_of_the_spec() {
        for (j, w, y0, y1) in [
            (0, 0, 0x3a46_b4d3_ebb9_4fde, 0x4253_3c2f_ba45_cc9f),
            (1, 0, 0xe5a7_bc56_0829_1371, 0x8b7b_de3d_9a2d_0510),
            (0, 1, 0xccaf_a344_a603_4a14, 0x9a47_82a4_fcc5_0b10),
            (
                1 << 40,
                u64::MAX,
                0x940c_2442_c1e2_19b3,
                0x6bc9_0923_cfd4_9a48,
            ),
            (
                12345,
                0x3f80_3f80_3f80_3f80,
                0xbd95_354b_9cf3_7d4a,
                0x15ab_c8e0_3ce5_ad73,
            ),
        ] {
            assert_eq!(mix(KEY, j, w), Digest::new(y0, y1), "j = {j}");
        }
    }

    /// Word by word, straight from the spec.
    fn naive(key: MixKey, matrix: &Matrix<'_>, block: &Block) -> Digest {
        let mut sum = Digest::default();
        for row in 0..block.rows {
            for (c, word) in matrix.row(block, row).chunks(8).enumerate() {
                let j = (block.row + row) as u64 * words_per_row(matrix.row_bytes())
                    + (block.byte / 8 + c) as u64;
                sum = sum.plus(mix(key, j, partial(word)));
            }
        }
        sum
    }

    proptest! {
        #[test]
        fn blocks_equal_the_naive_sum(
            rows in 0usize..40, row_bytes in 0usize..80, seed in any::<u64>(),
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
        fn dispatch_equals_scalar(j0 in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let words = &bytes[..bytes.len() / 8 * 8];
            prop_assert_eq!(sum_dispatch::<u64>(KEY, j0, words), sum_run::<u64>(KEY, j0, words));
            prop_assert_eq!(sum_dispatch::<u8>(KEY, j0, &bytes), sum_run::<u8>(KEY, j0, &bytes));
        }

        #[test]
        fn change_equals_the_difference(
            rows in 1usize..20, cols in 1usize..24, changed in prop::collection::btree_map(0usize..480, any::<u16>(), 0..60),
        ) {
            let old: Vec<u8> = (0..rows * cols * 2).map(|i| (i * 37) as u8).collect();
            let mut new = old.clone();
            let mut positions = vec![];
            let mut values = vec![];
            for (p, v) in changed.into_iter().filter(|(p, _)| *p < rows * cols) {
                new[2 * p..2 * p + 2].copy_from_slice(&v.to_le_bytes());
                positions.push(p as u32);
                values.push(v);
            }
            let a = Matrix::new(&old, rows, cols * 2).unwrap();
            let b = Matrix::new(&new, rows, cols * 2).unwrap();
            let whole = a.whole();
            prop_assert_eq!(
                change(KEY, &a, &whole, &positions, &values),
                block(KEY, &b, &whole).minus(block(KEY, &a, &whole))
            );
        }
    }
}
