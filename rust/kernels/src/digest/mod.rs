//! The additive state digest of `spec/digest-v1.md`.

mod change;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use crate::block::{prefetch, Block};
#[cfg(target_arch = "x86_64")]
use crate::features;
use crate::matrix::Matrix;
use crate::Word;

use change::Pairs;
pub use change::{change, change_between, Words};

/// Bytes that memory is asked for before it is used.
const AHEAD: usize = 16384;
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
fn lane0(key: MixKey, step0: u64, word: u64) -> u64 {
    finish(word ^ mask0(key, step0), MA, 18, 45)
}

/// What lane 0 mixes a word with; it depends on the place alone.
#[inline(always)]
fn mask0(key: MixKey, step0: u64) -> u64 {
    let t = key.k0.wrapping_add(step0);
    let a = (t ^ (t >> 32)).wrapping_mul(MB);
    a ^ (a >> 29)
}

#[inline(always)]
fn lane1(key: MixKey, step1: u64, word: u64) -> u64 {
    finish(word.wrapping_add(key.k1).wrapping_add(step1), MB, 27, 46)
}

#[inline(always)]
fn mix_steps(key: MixKey, step0: u64, step1: u64, word: u64) -> (u64, u64) {
    (lane0(key, step0, word), lane1(key, step1, word))
}

/// Both lanes for word `word` at index `j`.
#[inline(always)]
pub fn mix(key: MixKey, j: u64, word: u64) -> Digest {
    let (y0, y1) = mix_steps(key, j.wrapping_mul(G0), j.wrapping_mul(G1), word);
    Digest::new(y0, y1)
}

/// Sums over consecutive words.
pub(crate) trait WordSum {
    /// Begins at the word with index `j0`.
    fn new(key: MixKey, j0: u64) -> Self;
    /// Adds the next eight words, 64 bytes.
    fn add(&mut self, words: &[u8]);
    /// Adds up to eight.
    fn add_some(&mut self, words: &[u8]);
    /// The sums.
    fn sum(&self) -> Digest;
}

/// Sums over consecutive elements, eight at a time: loops for the compiler to vectorise. With `BOTH` false
/// lane 1 stays zero.
pub(crate) struct Lanes<const BOTH: bool> {
    key: MixKey,
    sum0: [u64; 8],
    sum1: [u64; 8],
    step0: [u64; 8],
    step1: [u64; 8],
    rest: Digest,
}

impl<const BOTH: bool> Lanes<BOTH> {
    #[inline(always)]
    fn begin(key: MixKey, j0: u64) -> Self {
        let steps = |g: u64| std::array::from_fn(|i| j0.wrapping_add(i as u64).wrapping_mul(g));
        Self {
            key,
            sum0: [0; 8],
            sum1: [0; 8],
            step0: steps(G0),
            step1: steps(G1),
            rest: Digest::default(),
        }
    }

    /// Adds the next eight elements, each zero-extended to a word.
    #[inline(always)]
    fn add_elements<W: Word>(&mut self, elements: &[u8]) {
        let key = self.key;
        for (lane, element) in elements.chunks_exact(W::WIDTH).enumerate().take(8) {
            let word = W::read(element).to_u64();
            self.sum0[lane] = self.sum0[lane].wrapping_add(lane0(key, self.step0[lane], word));
            if BOTH {
                self.sum1[lane] = self.sum1[lane].wrapping_add(lane1(key, self.step1[lane], word));
            }
        }
        self.skip(8);
    }

    /// Adds up to eight.
    #[inline(always)]
    fn add_few<W: Word>(&mut self, elements: &[u8]) {
        let key = self.key;
        for (lane, element) in elements.chunks_exact(W::WIDTH).enumerate().take(8) {
            let word = W::read(element).to_u64();
            let (y0, y1) = mix_steps(key, self.step0[lane], self.step1[lane], word);
            self.rest = self.rest.plus(Digest::new(y0, y1));
        }
        self.skip((elements.len() / W::WIDTH) as u64);
    }

    #[inline(always)]
    fn skip(&mut self, words: u64) {
        for lane in 0..8 {
            self.step0[lane] = self.step0[lane].wrapping_add(G0.wrapping_mul(words));
            self.step1[lane] = self.step1[lane].wrapping_add(G1.wrapping_mul(words));
        }
    }

    #[inline(always)]
    fn total(&self) -> Digest {
        let lanes = self.sum0.iter().zip(&self.sum1);
        let mut sum = lanes.fold(self.rest, |sum, (&y0, &y1)| sum.plus(Digest::new(y0, y1)));
        if !BOTH {
            sum.lanes[1] = 0;
        }
        sum
    }
}

impl<const BOTH: bool> WordSum for Lanes<BOTH> {
    #[inline(always)]
    fn new(key: MixKey, j0: u64) -> Self {
        Self::begin(key, j0)
    }

    #[inline(always)]
    fn add(&mut self, words: &[u8]) {
        self.add_elements::<u64>(words);
    }

    #[inline(always)]
    fn add_some(&mut self, words: &[u8]) {
        self.add_few::<u64>(words);
    }

    #[inline(always)]
    fn sum(&self) -> Digest {
        self.total()
    }
}

/// Sum over consecutive elements of `bytes`, zero-extended to words, from index `j0` on.
#[inline(always)]
fn sum_run<W: Word, const BOTH: bool>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    let mut lanes = Lanes::<BOTH>::begin(key, j0);
    let groups = bytes.chunks_exact(8 * W::WIDTH);
    let rest = groups.remainder();
    for group in groups {
        prefetch(group.as_ptr().wrapping_add(AHEAD));
        lanes.add_elements::<W>(group);
    }
    lanes.add_few::<W>(rest);
    lanes.total()
}

/// Sum over consecutive words.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sum_words<S: WordSum>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    let mut sum = S::new(key, j0);
    let groups = bytes.chunks_exact(64);
    let rest = groups.remainder();
    for group in groups {
        prefetch(group.as_ptr().wrapping_add(AHEAD));
        sum.add(group);
    }
    sum.add_some(rest);
    sum.sum()
}

/// Sums what each word changes by: word `i` has index `places[i]` and goes from `old[i]` to `new[i]`.
#[inline(always)]
fn pairs_run<const BOTH: bool>(key: MixKey, pairs: &Pairs) -> Digest {
    const LANES: usize = 8;
    let mut sum0 = [0u64; LANES];
    let mut sum1 = [0u64; LANES];
    let (places, old, new) = pairs.slices();
    let whole = places.len() / LANES * LANES;
    let places = places.chunks_exact(LANES);
    for ((places, old), new) in places
        .zip(old.chunks_exact(LANES))
        .zip(new.chunks_exact(LANES))
    {
        for lane in 0..LANES {
            let step0 = places[lane].wrapping_mul(G0);
            sum0[lane] = sum0[lane]
                .wrapping_add(lane0(key, step0, new[lane]))
                .wrapping_sub(lane0(key, step0, old[lane]));
            if BOTH {
                let step1 = places[lane].wrapping_mul(G1);
                sum1[lane] = sum1[lane]
                    .wrapping_add(lane1(key, step1, new[lane]))
                    .wrapping_sub(lane1(key, step1, old[lane]));
            }
        }
    }
    let mut sum = Digest::default();
    for lane in 0..LANES {
        sum = sum.plus(Digest::new(sum0[lane], sum1[lane]));
    }
    for i in whole..pairs.len {
        let place = pairs.places[i];
        sum = sum
            .plus(mix(key, place, pairs.new[i]))
            .minus(mix(key, place, pairs.old[i]));
    }
    if !BOTH {
        sum.lanes[1] = 0;
    }
    sum
}

/// A loop compiled for what the processor offers.
macro_rules! dispatch {
    ($run:ident $(<$($generic:tt),+>)?, $($name:ident: $type:ty),+) => {{
        #[cfg(target_arch = "x86_64")]
        {
            if features::avx512() {
                // SAFETY: the features were just detected.
                return unsafe { x86::avx512::$run$(::<$($generic),+>)?($($name),+) };
            }
            if features::avx2() {
                // SAFETY: the feature was just detected.
                return unsafe { x86::avx2::$run$(::<$($generic),+>)?($($name),+) };
            }
        }
        $run$(::<$($generic),+>)?($($name),+)
    }};
}

fn sum_dispatch<W: Word, const BOTH: bool>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    #[cfg(target_arch = "x86_64")]
    if W::WIDTH == 8 && features::avx512() {
        // SAFETY: the features were just detected.
        return unsafe { x86::sum_words_avx512::<BOTH>(key, j0, bytes) };
    }
    dispatch!(sum_run<W, BOTH>, key: MixKey, j0: u64, bytes: &[u8])
}

fn pairs_dispatch<const BOTH: bool>(key: MixKey, pairs: &Pairs) -> Digest {
    dispatch!(pairs_run<BOTH>, key: MixKey, pairs: &Pairs)
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
    block_lanes::<true>(key, matrix, block)
}

/// The same with lane 1 left zero, in half the time or little more.
pub fn block_lane0(key: MixKey, matrix: &Matrix<'_>, block: &Block) -> Digest {
    block_lanes::<false>(key, matrix, block)
}

fn block_lanes<const BOTH: bool>(key: MixKey, matrix: &Matrix<'_>, block: &Block) -> Digest {
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
            1 => return sum_dispatch::<u8, BOTH>(key, first, bytes),
            2 => return sum_dispatch::<u16, BOTH>(key, first, bytes),
            4 => return sum_dispatch::<u32, BOTH>(key, first, bytes),
            n if n % 8 == 0 || block.rows <= 1 && bytes.len() % 8 == 0 => {
                return sum_dispatch::<u64, BOTH>(key, first, bytes);
            }
            _ => {}
        }
    }
    let whole = block.bytes / 8 * 8;
    let mut sum = Digest::default();
    for row in 0..block.rows {
        let bytes = matrix.row(block, row);
        let at = first + row as u64 * per_row;
        sum = sum.plus(sum_dispatch::<u64, BOTH>(key, at, &bytes[..whole]));
        if whole < bytes.len() {
            let mut last = mix(key, at + (whole / 8) as u64, partial(&bytes[whole..]));
            if !BOTH {
                last.lanes[1] = 0;
            }
            sum = sum.plus(last);
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
            prop_assert_eq!(sum_dispatch::<u64, true>(KEY, j0, words), sum_run::<u64, true>(KEY, j0, words));
            let both = sum_run::<u64, true>(KEY, j0, words);
            prop_assert_eq!(sum_dispatch::<u64, false>(KEY, j0, words), Digest::new(both.lanes[0], 0));
            prop_assert_eq!(sum_dispatch::<u8, true>(KEY, j0, &bytes), sum_run::<u8, true>(KEY, j0, &bytes));
        }
    }
}
