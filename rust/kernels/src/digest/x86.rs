//! Loops compiled for AVX2 and AVX-512, and sums of words with AVX-512 IFMA.

use std::arch::x86_64::*;

use super::constants::{BLOCK, HALVES};
use super::{Blocks, Digest, MixKey, WordSum};

macro_rules! compiled_for {
    ($name:ident, $features:literal) => {
        pub(super) mod $name {
            use crate::digest::{Digest, MixKey};
            use crate::Word;

            #[target_feature(enable = $features)]
            pub(in crate::digest) fn sum_run<W: Word>(
                key: MixKey,
                j0: u64,
                bytes: &[u8],
            ) -> Digest {
                crate::digest::sum_run::<W>(key, j0, bytes)
            }
        }
    };
}
compiled_for!(avx512, "avx512f,avx512dq,avx512vl,avx512bw");
compiled_for!(avx2, "avx2");

/// [`super::sum_words`].
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx512ifma")]
pub(super) fn sum_words_ifma(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    super::sum_words::<Ifma>(key, j0, bytes)
}

/// Sums eight words at a time; named only by functions compiled for AVX-512 F, DQ and IFMA.
pub(crate) struct Ifma {
    blocks: Blocks,
    /// The low 52 bits of products and what is above them, for the low and the high halves of the words. A
    /// block adds 32 numbers below 2^52 to each.
    sums: [[__m512i; 2]; 2],
}

impl Ifma {
    #[inline(always)]
    fn close(&mut self) {
        // SAFETY: only functions compiled for AVX-512 F and IFMA name this type.
        let (low, high) = unsafe {
            let [a, b] = self.sums;
            self.sums = [[_mm512_setzero_si512(); 2]; 2];
            (
                _mm512_reduce_add_epi64(_mm512_add_epi64(a[0], b[0])) as u64,
                _mm512_reduce_add_epi64(_mm512_add_epi64(a[1], b[1])) as u64,
            )
        };
        self.blocks
            .close(u128::from(low) + (u128::from(high) << 52));
    }
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
    fn add(&mut self, words: &[u8]) {
        assert!(words.len() >= 64);
        let at = self.blocks.at;
        if at > BLOCK - 8 {
            return self.add_some(&words[..64]);
        }
        // SAFETY: only functions compiled for AVX-512 F and IFMA name this type; there are 64 bytes, and
        // eight constants from `at` on.
        unsafe {
            let words = _mm512_loadu_si512(words.as_ptr().cast());
            let halves = [
                _mm512_and_si512(words, _mm512_set1_epi64(0xffff_ffff)),
                _mm512_srli_epi64::<32>(words),
            ];
            for ((sums, half), constants) in self.sums.iter_mut().zip(halves).zip(&HALVES) {
                let constants = _mm512_loadu_si512(constants.as_ptr().add(at).cast());
                sums[0] = _mm512_madd52lo_epu64(sums[0], half, constants);
                sums[1] = _mm512_madd52hi_epu64(sums[1], half, constants);
            }
        }
        self.blocks.at += 8;
        if self.blocks.at == BLOCK {
            self.close();
        }
    }

    #[inline(always)]
    fn add_some(&mut self, words: &[u8]) {
        for word in words.chunks_exact(8) {
            if self.blocks.add_one(<u64 as crate::Word>::read(word)) {
                self.close();
            }
        }
    }

    #[inline(always)]
    fn sum(mut self) -> Digest {
        self.close();
        self.blocks.total
    }
}
