//! Loops compiled for AVX2 and AVX-512, and sums of words with AVX-512.

use std::arch::x86_64::*;

use super::{mix, Digest, MixKey, WordSum, G0, G1, MA, MB};

macro_rules! compiled_for {
    ($name:ident, $features:literal) => {
        pub(super) mod $name {
            use crate::digest::{Digest, MixKey, Pairs};
            use crate::Word;

            #[target_feature(enable = $features)]
            pub(in crate::digest) fn sum_run<W: Word, const BOTH: bool>(
                key: MixKey,
                j0: u64,
                bytes: &[u8],
            ) -> Digest {
                crate::digest::sum_run::<W, BOTH>(key, j0, bytes)
            }

            #[target_feature(enable = $features)]
            pub(in crate::digest) fn pairs_run<const BOTH: bool>(
                key: MixKey,
                pairs: &Pairs,
            ) -> Digest {
                crate::digest::pairs_run::<BOTH>(key, pairs)
            }
        }
    };
}
compiled_for!(avx512, "avx512f,avx512dq,avx512vl,avx512bw");
compiled_for!(avx2, "avx2");

/// [`super::sum_words`].
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
pub(super) fn sum_words_avx512<const BOTH: bool>(key: MixKey, j0: u64, bytes: &[u8]) -> Digest {
    super::sum_words::<Avx512<BOTH>>(key, j0, bytes)
}

/// Sums eight words at a time; named only by functions compiled for AVX-512 F and DQ.
pub(crate) struct Avx512<const BOTH: bool> {
    key: MixKey,
    /// Index of the next word.
    next: u64,
    sums: [__m512i; 2],
    /// `key + j * G` of the next eight words, in each lane.
    steps: [__m512i; 2],
    rest: Digest,
}

/// `finish` of the reference: two rounds of rotations and a product.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn finish<const R: i32, const S: i32>(x: __m512i, multiplier: u64) -> __m512i {
    let multiplier = _mm512_set1_epi64(multiplier as i64);
    let xor3 = |a, b, c| _mm512_ternarylogic_epi64::<0x96>(a, b, c);
    let x = xor3(x, _mm512_ror_epi64::<R>(x), _mm512_ror_epi64::<S>(x));
    let x = _mm512_mullo_epi64(x, multiplier);
    let x = xor3(x, _mm512_ror_epi64::<24>(x), _mm512_ror_epi64::<49>(x));
    let x = _mm512_mullo_epi64(x, multiplier);
    _mm512_xor_si512(x, _mm512_srli_epi64::<28>(x))
}

/// What lane 0 of eight words sums, `t` being key and place.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn lane0(t: __m512i, words: __m512i) -> __m512i {
    let a = _mm512_xor_si512(t, _mm512_srli_epi64::<32>(t));
    let a = _mm512_mullo_epi64(a, _mm512_set1_epi64(MB as i64));
    let mask = _mm512_xor_si512(a, _mm512_srli_epi64::<29>(a));
    finish::<18, 45>(_mm512_xor_si512(words, mask), MA)
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn first_steps(key: u64, j0: u64, g: u64) -> __m512i {
    let step = |i: u64| key.wrapping_add(j0.wrapping_add(i).wrapping_mul(g)) as i64;
    _mm512_setr_epi64(
        step(0),
        step(1),
        step(2),
        step(3),
        step(4),
        step(5),
        step(6),
        step(7),
    )
}

impl<const BOTH: bool> Avx512<BOTH> {
    #[inline(always)]
    fn skip(&mut self, words: u64) {
        self.next = self.next.wrapping_add(words);
        for (steps, g) in self.steps.iter_mut().zip([G0, G1]) {
            // SAFETY: only functions compiled for AVX-512 F and DQ name this type.
            *steps = unsafe {
                _mm512_add_epi64(*steps, _mm512_set1_epi64(g.wrapping_mul(words) as i64))
            };
        }
    }
}

impl<const BOTH: bool> WordSum for Avx512<BOTH> {
    #[inline(always)]
    fn new(key: MixKey, j0: u64) -> Self {
        // SAFETY: only functions compiled for AVX-512 F and DQ name this type.
        unsafe {
            Self {
                key,
                next: j0,
                sums: [_mm512_setzero_si512(); 2],
                steps: [first_steps(key.k0, j0, G0), first_steps(key.k1, j0, G1)],
                rest: Digest::default(),
            }
        }
    }

    #[inline(always)]
    fn add(&mut self, words: &[u8]) {
        assert!(words.len() >= 64);
        // SAFETY: only functions compiled for AVX-512 F and DQ name this type; there are 64 bytes.
        unsafe {
            let words = _mm512_loadu_si512(words.as_ptr().cast());
            self.sums[0] = _mm512_add_epi64(self.sums[0], lane0(self.steps[0], words));
            if BOTH {
                let mixed = finish::<27, 46>(_mm512_add_epi64(words, self.steps[1]), MB);
                self.sums[1] = _mm512_add_epi64(self.sums[1], mixed);
            }
        }
        self.skip(8);
    }

    #[inline(always)]
    fn add_some(&mut self, words: &[u8]) {
        for (i, word) in words.chunks_exact(8).enumerate() {
            let word = <u64 as crate::Word>::read(word);
            let mixed = mix(self.key, self.next.wrapping_add(i as u64), word);
            self.rest = self.rest.plus(mixed);
        }
        self.skip((words.len() / 8) as u64);
    }

    #[inline(always)]
    fn sum(&self) -> Digest {
        // SAFETY: only functions compiled for AVX-512 F and DQ name this type.
        let [sum0, sum1] = self
            .sums
            .map(|sums| unsafe { _mm512_reduce_add_epi64(sums) as u64 });
        let mut sum = self.rest.plus(Digest::new(sum0, sum1));
        if !BOTH {
            sum.lanes[1] = 0;
        }
        sum
    }
}
