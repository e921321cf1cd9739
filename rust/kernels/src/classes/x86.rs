//! The same with AVX2 and AVX-512.

use std::arch::x86_64::*;

use super::batch::{class_numbers, Batch, Bits, Simd, GROUP, GROUPS, HALF, PLANES};
use super::{walk, ClassMap, Part, Progress, Visitor, MAX_CLASSES};
use crate::features;
use crate::Word;

/// Whether the processor has what [`walk_avx512`] needs.
pub(super) fn has_avx512() -> bool {
    features::avx512() && is_x86_feature_detected!("avx512vpopcntdq") && has_avx2()
}

/// Whether the processor has what [`walk_avx2`] needs.
pub(super) fn has_avx2() -> bool {
    features::avx2()
}

#[inline(always)]
fn select(mask: u64, n: u32) -> u32 {
    // SAFETY: only the walks below name the types that call this, with bmi1 and bmi2 enabled.
    unsafe { _tzcnt_u64(_pdep_u64(1 << (n % 64), mask)) as u32 }
}

/// Halves of a batch as vectors of eight groups.
const VECTORS: usize = HALF / 8;

/// Named only by [`walk_avx512`].
struct Avx512;

/// Class numbers of 64 elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn numbers<W: Word>(bytes: &[u8], map: &ClassMap) -> __m512i {
    assert!(bytes.len() >= GROUP * W::WIDTH);
    let start = bytes.as_ptr();
    // SAFETY: at most `W::WIDTH` vectors are loaded, which the 64 elements fill.
    let load = |vector: usize| unsafe { _mm512_loadu_si512(start.add(64 * vector).cast()) };
    let shift = _mm_cvtsi32_si128(map.shift as i32);
    match W::WIDTH {
        1 => {
            // Bytes shift as words; the mask removes what comes from the neighbour.
            let mask = _mm512_set1_epi8(map.mask as i8);
            let field = _mm512_and_si512(_mm512_srl_epi16(load(0), shift), mask);
            let top = _mm512_set1_epi8(map.top.min(255) as u8 as i8);
            let last = _mm512_set1_epi8(map.count as i8 - 1);
            _mm512_min_epu8(_mm512_subs_epu8(top, field), last)
        }
        2 => {
            let mask = _mm512_set1_epi16(map.mask as i16);
            let top = _mm512_set1_epi16(map.top as i16);
            let last = _mm512_set1_epi16(map.count as i16 - 1);
            let mut parts = [_mm512_setzero_si512(); 2];
            for (at, part) in parts.iter_mut().enumerate() {
                let field = _mm512_and_si512(_mm512_srl_epi16(load(at), shift), mask);
                *part = _mm512_min_epu16(_mm512_subs_epu16(top, field), last);
            }
            // The pack works within 128-bit lanes; the permutation undoes that.
            let packed = _mm512_packus_epi16(parts[0], parts[1]);
            _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed)
        }
        4 => {
            let mask = _mm512_set1_epi32(map.mask as i32);
            let top = _mm512_set1_epi32(map.top as i32);
            let last = _mm512_set1_epi32(map.count as i32 - 1);
            let mut parts = [_mm512_setzero_si512(); 4];
            for (at, part) in parts.iter_mut().enumerate() {
                let field = _mm512_and_si512(_mm512_srl_epi32(load(at), shift), mask);
                let below = _mm512_max_epi32(_mm512_sub_epi32(top, field), _mm512_setzero_si512());
                *part = _mm512_min_epi32(below, last);
            }
            let low = _mm512_packus_epi32(parts[0], parts[1]);
            let high = _mm512_packus_epi32(parts[2], parts[3]);
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high))
        }
        _ => {
            let classes = class_numbers::<W>(bytes, map);
            // SAFETY: the array has 64 bytes.
            unsafe { _mm512_loadu_si512(classes.as_ptr().cast()) }
        }
    }
}

/// For each of 32 groups, the elements in the groups before it, from the counts of each: groups 4 i to
/// 4 i + 3 in word i, 16 bits each. Also the sum of all, in every lane. All sums are below 2^16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn prefix(counts: __m512i) -> (__m512i, __m512i) {
    // Within each word.
    let mut sums = _mm512_add_epi16(counts, _mm512_slli_epi64::<16>(counts));
    sums = _mm512_add_epi16(sums, _mm512_slli_epi64::<32>(sums));
    // Over the words.
    let zero = _mm512_setzero_si512();
    let words = _mm512_srli_epi64::<48>(sums);
    let mut all = _mm512_add_epi64(words, _mm512_alignr_epi64::<7>(words, zero));
    all = _mm512_add_epi64(all, _mm512_alignr_epi64::<6>(all, zero));
    all = _mm512_add_epi64(all, _mm512_alignr_epi64::<4>(all, zero));
    let sum = _mm512_permutexvar_epi64(_mm512_set1_epi64(7), all);
    let earlier = _mm512_sub_epi64(all, words);
    // The low 16 bits of each word in all four places.
    let spread = _mm512_set_epi64(
        0x0908_0908_0908_0908,
        0x0100_0100_0100_0100,
        0x0908_0908_0908_0908,
        0x0100_0100_0100_0100,
        0x0908_0908_0908_0908,
        0x0100_0100_0100_0100,
        0x0908_0908_0908_0908,
        0x0100_0100_0100_0100,
    );
    let before = _mm512_add_epi16(
        _mm512_slli_epi64::<16>(sums),
        _mm512_shuffle_epi8(earlier, spread),
    );
    (before, _mm512_shuffle_epi8(sum, spread))
}

/// [`Simd::count`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")]
fn count(batch: &mut Batch, count: usize, halves: usize) {
    // The four combinations of planes 0 and 1, and those of 2 and 3 with the elements that there are.
    let zero = _mm512_setzero_si512();
    let mut low = [[zero; 4]; 2 * VECTORS];
    let mut high = [[zero; 4]; 2 * VECTORS];
    for (at, (low, high)) in low
        .iter_mut()
        .zip(&mut high)
        .enumerate()
        .take(halves * VECTORS)
    {
        // SAFETY: `at` is below 8, and rows have eight vectors of 64 aligned bytes.
        let load = |row: &Bits| unsafe { _mm512_load_si512(row.as_ptr().add(8 * at).cast()) };
        let [a, b, c, d] = [0, 1, 2, 3].map(|k| load(&batch.planes[k]));
        let real = load(&batch.real);
        let neither = |x, y| _mm512_ternarylogic_epi64::<0x03>(x, y, y);
        *low = [
            neither(a, b),
            _mm512_andnot_si512(b, a),
            _mm512_andnot_si512(a, b),
            _mm512_and_si512(a, b),
        ];
        *high = [
            neither(c, d),
            _mm512_andnot_si512(d, c),
            _mm512_andnot_si512(c, d),
            _mm512_and_si512(c, d),
        ]
        .map(|x| _mm512_and_si512(x, real));
    }
    for class in 0..count.min(MAX_CLASSES) {
        let (masks, before) = (&mut batch.masks[class], &mut batch.before[class]);
        let mut earlier = zero;
        for half in 0..halves.min(2) {
            let mut counts = zero;
            for k in 0..VECTORS {
                let at = half * VECTORS + k;
                let mask = _mm512_and_si512(low[at][class % 4], high[at][class / 4]);
                // SAFETY: as above.
                unsafe { _mm512_store_si512(masks.as_mut_ptr().add(8 * at).cast(), mask) };
                let shift = _mm_cvtsi32_si128(16 * k as i32);
                let ones = _mm512_sll_epi64(_mm512_popcnt_epi64(mask), shift);
                counts = _mm512_or_si512(counts, ones);
            }
            let (sums, sum) = prefix(counts);
            let sums = _mm512_add_epi16(sums, earlier);
            earlier = _mm512_add_epi16(earlier, sum);
            // SAFETY: a row has two vectors of 64 aligned bytes.
            unsafe { _mm512_store_si512(before.as_mut_ptr().add(HALF * half).cast(), sums) };
        }
        batch.totals[class] = _mm_cvtsi128_si32(_mm512_castsi512_si128(earlier)) as u16;
    }
}

impl Simd for Avx512 {
    #[inline(always)]
    fn planes<W: Word>(bytes: &[u8], map: &ClassMap) -> [u64; PLANES] {
        // SAFETY: the features are enabled in `walk_avx512`.
        unsafe {
            let numbers = numbers::<W>(bytes, map);
            [1, 2, 4, 8].map(|bit| _mm512_test_epi8_mask(numbers, _mm512_set1_epi8(bit)))
        }
    }

    #[inline(always)]
    fn count(batch: &mut Batch, classes: usize, halves: usize) {
        // SAFETY: the features are enabled in `walk_avx512`.
        unsafe { count(batch, classes, halves) }
    }

    #[inline(always)]
    fn find(before: &[u16; GROUPS], wanted: u16, halves: usize) -> usize {
        // SAFETY: the features are enabled in `walk_avx512`; a row has two vectors.
        unsafe {
            let wanted = _mm512_set1_epi16(wanted as i16);
            let start = before.as_ptr();
            let mut fitting = 0;
            for half in 0..halves.min(2) {
                let counts = _mm512_loadu_si512(start.add(HALF * half).cast());
                fitting += _mm512_cmple_epu16_mask(counts, wanted).count_ones();
            }
            (fitting as usize).saturating_sub(1)
        }
    }

    #[inline(always)]
    fn select(mask: u64, n: u32) -> u32 {
        select(mask, n)
    }
}

/// Named only by [`walk_avx2`].
struct Avx2;

impl Simd for Avx2 {
    #[inline(always)]
    fn planes<W: Word>(bytes: &[u8], map: &ClassMap) -> [u64; PLANES] {
        assert!(bytes.len() >= GROUP * W::WIDTH);
        // SAFETY: avx2 is enabled in `walk_avx2`; the loads cover the 64 elements, which are there,
        // or the 64 numbers.
        unsafe {
            let shift = _mm_cvtsi32_si128(map.shift as i32);
            let start = bytes.as_ptr();
            let mut halves = [_mm256_setzero_si256(); 2];
            for (at, half) in halves.iter_mut().enumerate() {
                *half = match W::WIDTH {
                    1 => {
                        let mask = _mm256_set1_epi8(map.mask as i8);
                        let top = _mm256_set1_epi8(map.top.min(255) as u8 as i8);
                        let last = _mm256_set1_epi8(map.count as i8 - 1);
                        // As with AVX-512.
                        let bytes = _mm256_loadu_si256(start.add(32 * at).cast());
                        let field = _mm256_and_si256(_mm256_srl_epi16(bytes, shift), mask);
                        _mm256_min_epu8(_mm256_subs_epu8(top, field), last)
                    }
                    2 => {
                        let mask = _mm256_set1_epi16(map.mask as i16);
                        let top = _mm256_set1_epi16(map.top as i16);
                        let last = _mm256_set1_epi16(map.count as i16 - 1);
                        let low = _mm256_loadu_si256(start.add(64 * at).cast());
                        let high = _mm256_loadu_si256(start.add(64 * at + 32).cast());
                        let low = _mm256_and_si256(_mm256_srl_epi16(low, shift), mask);
                        let high = _mm256_and_si256(_mm256_srl_epi16(high, shift), mask);
                        let low = _mm256_min_epu16(_mm256_subs_epu16(top, low), last);
                        let high = _mm256_min_epu16(_mm256_subs_epu16(top, high), last);
                        // The pack works within 128-bit halves; the permutation undoes that.
                        let packed = _mm256_packus_epi16(low, high);
                        _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
                    }
                    _ => {
                        let classes = class_numbers::<W>(bytes, map);
                        _mm256_loadu_si256(classes.as_ptr().add(32 * at).cast())
                    }
                };
            }
            let bit = |shift: __m128i| {
                let [low, high] =
                    halves.map(|half| _mm256_movemask_epi8(_mm256_sll_epi16(half, shift)) as u32);
                u64::from(low) | u64::from(high) << 32
            };
            [7, 6, 5, 4].map(|shift| bit(_mm_cvtsi32_si128(shift)))
        }
    }

    #[inline(always)]
    fn select(mask: u64, n: u32) -> u32 {
        select(mask, n)
    }
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx2,bmi1,bmi2,popcnt"
)]
pub(super) fn walk_avx512<W: Word, V: Visitor>(
    part: &Part<'_>,
    progress: &mut Progress,
    visitor: &mut V,
) {
    walk::<W, Avx512, V>(part, progress, visitor);
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) fn walk_avx2<W: Word, V: Visitor>(
    part: &Part<'_>,
    progress: &mut Progress,
    visitor: &mut V,
) {
    walk::<W, Avx2, V>(part, progress, visitor);
}
