//! Sums of words with AVX2, and with AVX-512 IFMA.

use std::arch::x86_64::*;

use super::constants::{HALVES, PARTS};
use super::{joined, sum_run, Blocks, Digest, MixKey, WordSum};
use crate::Word;

/// [`sum_run`].
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx512ifma")]
pub(super) fn sum_run_ifma<W: Word>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    sum_run::<W, Ifma>(key, j0, bytes)
}

/// [`sum_run`].
#[target_feature(enable = "avx2")]
pub(super) fn sum_run_avx2<W: Word>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    sum_run::<W, Avx2>(key, j0, bytes)
}

/// Named only by functions compiled for AVX-512 F, DQ and IFMA.
pub(crate) struct Ifma {
    blocks: Blocks,
    /// The low 52 bits of products and what is above them, for the low and the high halves of the words. A
    /// block adds 32 numbers below 2^52 to each.
    sums: [[__m512i; 2]; 2],
}

impl WordSum for Ifma {
    #[inline(always)]
    fn new(key: MixKey, j0: u64) -> Self {
        Self {
            blocks: Blocks::new(key, j0),
            // SAFETY: only functions compiled for AVX-512 F name this type.
            sums: [[unsafe { _mm512_setzero_si512() }; 2]; 2],
        }
    }

    #[inline(always)]
    fn blocks(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    #[inline(always)]
    fn keep(&mut self, words: &[u8]) {
        let (at, words) = (self.blocks.at, &words[..64]);
        // SAFETY: only functions compiled for AVX-512 F and IFMA name this type; there are 64 bytes, and
        // slices of eight constants.
        unsafe {
            let words = _mm512_loadu_si512(words.as_ptr().cast());
            let halves = [
                _mm512_and_si512(words, _mm512_set1_epi64(0xffff_ffff)),
                _mm512_srli_epi64::<32>(words),
            ];
            for ((sums, half), constants) in self.sums.iter_mut().zip(halves).zip(&HALVES) {
                let constants = &constants[at..at + 8];
                let constants = _mm512_loadu_si512(constants.as_ptr().cast());
                sums[0] = _mm512_madd52lo_epu64(sums[0], half, constants);
                sums[1] = _mm512_madd52hi_epu64(sums[1], half, constants);
            }
        }
    }

    #[inline(always)]
    fn kept(&mut self) -> u128 {
        // SAFETY: only functions compiled for AVX-512 F and IFMA name this type.
        let (low, high) = unsafe {
            let [a, b] = self.sums;
            self.sums = [[_mm512_setzero_si512(); 2]; 2];
            (
                _mm512_reduce_add_epi64(_mm512_add_epi64(a[0], b[0])) as u64,
                _mm512_reduce_add_epi64(_mm512_add_epi64(a[1], b[1])) as u64,
            )
        };
        u128::from(low) + (u128::from(high) << 52)
    }
}

/// Named only by functions compiled for AVX2.
pub(crate) struct Avx2 {
    blocks: Blocks,
    /// Products as [`super::Parts`], the first four lanes and the others.
    sums: [[__m256i; 2]; 2],
}

impl WordSum for Avx2 {
    #[inline(always)]
    fn new(key: MixKey, j0: u64) -> Self {
        Self {
            blocks: Blocks::new(key, j0),
            // SAFETY: only functions compiled for AVX2 name this type.
            sums: [[unsafe { _mm256_setzero_si256() }; 2]; 2],
        }
    }

    #[inline(always)]
    fn blocks(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    #[inline(always)]
    fn keep(&mut self, words: &[u8]) {
        for four in 0..2 {
            let (at, words) = (self.blocks.at + 4 * four, &words[32 * four..][..32]);
            // SAFETY: only functions compiled for AVX2 name this type; there are 32 bytes, and slices of
            // four constants.
            unsafe {
                // A product takes the low halves of both sides.
                let words = _mm256_loadu_si256(words.as_ptr().cast());
                let halves = [words, _mm256_srli_epi64::<32>(words)];
                for (part, sums) in self.sums.iter_mut().enumerate() {
                    for (half, constants) in halves.iter().zip(&PARTS) {
                        let constants = &constants[part][at..at + 4];
                        let constants = _mm_loadu_si128(constants.as_ptr().cast());
                        let product = _mm256_mul_epu32(*half, _mm256_cvtepu32_epi64(constants));
                        sums[four] = _mm256_add_epi64(sums[four], product);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn kept(&mut self) -> u128 {
        let mut lanes = [[0u64; 8]; 2];
        for (lanes, sums) in lanes.iter_mut().zip(&mut self.sums) {
            for (four, sum) in lanes.chunks_exact_mut(4).zip(sums) {
                // SAFETY: only functions compiled for AVX2 name this type; four lanes are 32 bytes.
                unsafe {
                    _mm256_storeu_si256(four.as_mut_ptr().cast(), *sum);
                    *sum = _mm256_setzero_si256();
                }
            }
        }
        joined(lanes)
    }
}
