//! Comparing two matrices and digesting one of them in a single pass.
//!
//! Comparing waits for memory and summing for the multipliers, so together they take hardly longer than
//! the slower of the two.

use crate::block::{prefetch, Block};
use crate::digest::{self, Digest, Lanes, MixKey, WordSum};
#[cfg(target_arch = "x86_64")]
use crate::features;
use crate::matrix::Matrix;
use crate::scan::{self, Positions, GROUP};
use crate::Word;

/// Bytes that memory is asked for before it is used.
const AHEAD: usize = 4096;
/// Masks that are made before their bits are read.
const MASKS: usize = 32;

/// Digest of `a`; appends `first + i` for every element `i` at which the two slices differ. Both hold whole
/// words, the first with index `j0`.
#[inline(always)]
fn run<W: Word, S: WordSum>(
    key: MixKey,
    j0: u64,
    (a, b): (&[u8], &[u8]),
    first: u32,
    out: &mut Vec<u32>,
    mask_group: impl Fn(&[u8], &[u8]) -> u64,
    push: impl Fn(&mut Positions<'_>, u64, u32),
) -> Digest {
    let size = GROUP * W::WIDTH;
    let mut sum = S::new(key, j0);
    let mut masks = [0u64; MASKS];
    let mut positions = Positions::new(out);
    let mut at = first;
    for (a, b) in a.chunks(MASKS * size).zip(b.chunks(MASKS * size)) {
        let (left, right) = (a.chunks_exact(size), b.chunks_exact(size));
        let rest = (left.remainder(), right.remainder());
        let whole = left.len();
        for ((x, y), mask) in left.zip(right).zip(&mut masks) {
            for line in 0..W::WIDTH {
                prefetch(x.as_ptr().wrapping_add(AHEAD + 64 * line));
                prefetch(y.as_ptr().wrapping_add(AHEAD + 64 * line));
            }
            *mask = mask_group(x, y);
            for words in x.chunks_exact(64) {
                sum.add(words);
            }
        }
        for &mask in &masks[..whole] {
            push(&mut positions, mask, at);
            at += GROUP as u32;
        }
        positions.push(scan::mask_scalar::<W>(rest.0, rest.1), at);
        at += (rest.0.len() / W::WIDTH) as u32;
        for words in rest.0.chunks(64) {
            sum.add_some(words);
        }
    }
    positions.finish();
    sum.sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{run, Digest, MixKey, Positions, Word};
    use crate::digest::x86::{Avx2, Ifma};
    use crate::scan::x86::{mask_avx2, mask_avx512};

    macro_rules! compiled_for {
        ($name:ident, $features:literal, $sum:ty, $mask:ident, $push:ident) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name<W: Word>(
                key: MixKey,
                j0: u64,
                pair: (&[u8], &[u8]),
                first: u32,
                out: &mut Vec<u32>,
            ) -> Digest {
                // SAFETY: the features are enabled here, and `run` passes groups of 64 elements.
                let mask = |x: &[u8], y: &[u8]| unsafe { $mask::<W>(x, y) };
                let push = |positions: &mut Positions<'_>, mask, at| positions.$push(mask, at);
                run::<W, $sum>(key, j0, pair, first, out, mask, push)
            }
        };
    }
    compiled_for!(
        run_ifma,
        "avx512f,avx512dq,avx512vl,avx512bw,avx512ifma,avx512vbmi2,bmi1,bmi2,popcnt",
        Ifma,
        mask_avx512,
        push_vbmi2
    );
    compiled_for!(
        run_avx512,
        "avx512f,avx512dq,avx512vl,avx512bw,bmi1,bmi2,popcnt",
        Avx2,
        mask_avx512,
        push
    );
    compiled_for!(run_avx2, "avx2,bmi1,bmi2,popcnt", Avx2, mask_avx2, push);
}

fn dispatch<W: Word>(
    key: MixKey,
    j0: u64,
    pair: (&[u8], &[u8]),
    first: u32,
    out: &mut Vec<u32>,
) -> Digest {
    #[cfg(target_arch = "x86_64")]
    {
        if features::ifma() {
            // SAFETY: the features were just detected.
            return unsafe { x86::run_ifma::<W>(key, j0, pair, first, out) };
        }
        if features::avx512() {
            // SAFETY: the features were just detected.
            return unsafe { x86::run_avx512::<W>(key, j0, pair, first, out) };
        }
        if features::avx2() {
            // SAFETY: the feature was just detected.
            return unsafe { x86::run_avx2::<W>(key, j0, pair, first, out) };
        }
    }
    let push = |positions: &mut Positions<'_>, mask, at| positions.push(mask, at);
    run::<W, Lanes>(key, j0, pair, first, out, scan::mask_best::<W>, push)
}

/// The digest of a block of `base`, as [`digest::block`]; appends the element numbers at which `new` differs
/// from it, as [`scan::differing`].
///
/// # Panics
/// As these do.
pub fn differing<W: Word>(
    key: MixKey,
    base: &Matrix<'_>,
    new: &Matrix<'_>,
    block: &Block,
    out: &mut Vec<u32>,
) -> Digest {
    assert!(u32::try_from(block.len() / W::WIDTH).is_ok());
    let per_row = digest::words_per_row(base.row_bytes());
    let first = block.row as u64 * per_row + (block.byte / 8) as u64;
    if !(block.bytes.is_multiple_of(8) && block.byte.is_multiple_of(8)) {
        scan::differing::<W>(base, new, block, out);
        return digest::block(key, base, block);
    }
    if let (Some(a), Some(b)) = (base.contiguous(block), new.contiguous(block)) {
        return dispatch::<W>(key, first, (a, b), 0, out);
    }
    let cols = (block.bytes / W::WIDTH) as u32;
    let mut sum = Digest::default();
    for row in 0..block.rows {
        let pair = (base.row(block, row), new.row(block, row));
        let j0 = first + row as u64 * per_row;
        sum = sum.plus(dispatch::<W>(key, j0, pair, row as u32 * cols, out));
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

    fn check<W: Word>(old: &[u8], new: &[u8], rows: usize, block: &Block) {
        let width = old.len() / rows;
        let a = Matrix::new(old, rows, width).unwrap();
        let b = Matrix::new(new, rows, width).unwrap();
        let mut expected = vec![];
        scan::differing::<W>(&a, &b, block, &mut expected);
        let sum = digest::block(KEY, &a, block);
        let mut got = vec![];
        assert_eq!(differing::<W>(KEY, &a, &b, block, &mut got), sum);
        assert_eq!(got, expected);
        if let (Some(x), Some(y)) = (a.contiguous(block), b.contiguous(block)) {
            if block.bytes.is_multiple_of(8) {
                let j0 = (block.row * width.div_ceil(8) + block.byte / 8) as u64;
                let twin = |run: &dyn Fn(&mut Vec<u32>) -> Digest| {
                    let mut got = vec![];
                    assert_eq!(run(&mut got), sum);
                    assert_eq!(got, expected);
                };
                twin(&|out| {
                    run::<W, Lanes>(
                        KEY,
                        j0,
                        (x, y),
                        0,
                        out,
                        scan::mask_scalar::<W>,
                        |positions, mask, at| positions.push(mask, at),
                    )
                });
                #[cfg(target_arch = "x86_64")]
                if features::avx2() {
                    // SAFETY: the feature was just detected.
                    twin(&|out| unsafe { x86::run_avx2::<W>(KEY, j0, (x, y), 0, out) });
                }
                #[cfg(target_arch = "x86_64")]
                if features::avx512() {
                    // SAFETY: the features were just detected.
                    twin(&|out| unsafe { x86::run_avx512::<W>(KEY, j0, (x, y), 0, out) });
                }
            }
        }
    }

    proptest! {
        #[test]
        fn equals_comparing_and_digesting(
            rows in 1usize..20, words in 1usize..60, col in 0usize..60, row in 0usize..20,
            flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..80),
        ) {
            let width = 8 * words;
            let old: Vec<u8> = (0..rows * width).map(|i| (i * 37) as u8).collect();
            let mut new = old.clone();
            for (at, x) in flips {
                let i = at.index(new.len());
                new[i] ^= x;
            }
            let (row, col) = (row % rows, 8 * (col % words));
            for block in [
                Block { row: 0, rows, byte: 0, bytes: width },
                Block { row, rows: rows - row, byte: col, bytes: width - col },
            ] {
                check::<u8>(&old, &new, rows, &block);
                check::<u16>(&old, &new, rows, &block);
                check::<u32>(&old, &new, rows, &block);
                check::<u64>(&old, &new, rows, &block);
            }
        }

        #[test]
        fn many_differences(
            rows in 1usize..9, words in 1usize..60, every in 1usize..9,
            keep in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        ) {
            let width = 8 * words;
            let old: Vec<u8> = (0..rows * width).map(|i| (i * 37) as u8).collect();
            let mut new: Vec<u8> =
                old.iter().enumerate().map(|(i, x)| x ^ u8::from(i % every == 0)).collect();
            for at in keep {
                let i = at.index(new.len());
                new[i] = old[i];
            }
            let block = Block { row: 0, rows, byte: 0, bytes: width };
            check::<u8>(&old, &new, rows, &block);
            check::<u16>(&old, &new, rows, &block);
            check::<u32>(&old, &new, rows, &block);
        }

        #[test]
        fn odd_rows(
            rows in 1usize..9, width in 1usize..70,
            flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..20),
        ) {
            let old: Vec<u8> = (0..rows * width).map(|i| (i * 37) as u8).collect();
            let mut new = old.clone();
            for (at, x) in flips {
                let i = at.index(new.len());
                new[i] ^= x;
            }
            check::<u8>(&old, &new, rows, &Block { row: 0, rows, byte: 0, bytes: width });
        }
    }
}
