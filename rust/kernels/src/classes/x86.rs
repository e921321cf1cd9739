//! The same with AVX2 and AVX-512.

use std::arch::x86_64::*;

use super::{
    class_numbers, walk, ClassMap, Lanes, Masks, Part, Progress, Simd, Visitor, GROUP, MAX_CLASSES,
};
use crate::features;
use crate::Word;

/// Whether the processor has what [`walk_avx512`] needs.
pub(super) fn has_avx512() -> bool {
    features::avx512() && is_x86_feature_detected!("avx512vpopcntdq") && has_avx2()
}

/// Whether the processor has what [`walk_avx2`] needs.
pub(super) fn has_avx2() -> bool {
    features::avx2() && features::bits()
}

#[inline(always)]
fn select(mask: u64, n: u32) -> u32 {
    // SAFETY: only the walks below name the types that call this, with bmi1 and bmi2 enabled.
    unsafe { _tzcnt_u64(_pdep_u64(1 << (n % 64), mask)) as u32 }
}

/// A class number in every byte.
#[repr(align(64))]
struct Number([u8; GROUP]);

static CLASSES: [Number; MAX_CLASSES] = {
    let mut classes = [const { Number([0; GROUP]) }; MAX_CLASSES];
    let mut class = 0;
    while class < MAX_CLASSES {
        classes[class] = Number([class as u8; GROUP]);
        class += 1;
    }
    classes
};

/// Named only by [`walk_avx512`].
struct Avx512;

impl Simd for Avx512 {
    #[inline(always)]
    fn numbers<W: Word>(bytes: &[u8], map: &ClassMap) -> [u8; GROUP] {
        assert!(bytes.len() >= GROUP * W::WIDTH);
        let mut numbers = [0u8; GROUP];
        // SAFETY: the features are enabled in `walk_avx512`; the loads cover the 64 elements, which
        // are there, and the stores the 64 numbers.
        unsafe {
            let shift = _mm_cvtsi32_si128(map.shift as i32);
            let start = bytes.as_ptr();
            match W::WIDTH {
                1 => {
                    // Bytes shift as words; the mask removes what comes from the neighbour.
                    let field = _mm512_and_si512(
                        _mm512_srl_epi16(_mm512_loadu_si512(start.cast()), shift),
                        _mm512_set1_epi8(map.mask as i8),
                    );
                    let top = _mm512_set1_epi8(map.top.min(255) as u8 as i8);
                    let last = _mm512_set1_epi8(map.count as i8 - 1);
                    let classes = _mm512_min_epu8(_mm512_subs_epu8(top, field), last);
                    _mm512_storeu_si512(numbers.as_mut_ptr().cast(), classes);
                }
                2 => {
                    let mask = _mm512_set1_epi16(map.mask as i16);
                    let top = _mm512_set1_epi16(map.top as i16);
                    let last = _mm512_set1_epi16(map.count as i16 - 1);
                    for at in 0..2 {
                        let field = _mm512_and_si512(
                            _mm512_srl_epi16(_mm512_loadu_si512(start.add(64 * at).cast()), shift),
                            mask,
                        );
                        let classes = _mm512_min_epu16(_mm512_subs_epu16(top, field), last);
                        let bytes = _mm512_cvtepi16_epi8(classes);
                        _mm256_storeu_si256(numbers.as_mut_ptr().add(32 * at).cast(), bytes);
                    }
                }
                4 => {
                    let mask = _mm512_set1_epi32(map.mask as i32);
                    let top = _mm512_set1_epi32(map.top as i32);
                    let last = _mm512_set1_epi32(map.count as i32 - 1);
                    for at in 0..4 {
                        let field = _mm512_and_si512(
                            _mm512_srl_epi32(_mm512_loadu_si512(start.add(64 * at).cast()), shift),
                            mask,
                        );
                        let below =
                            _mm512_max_epi32(_mm512_sub_epi32(top, field), _mm512_setzero_si512());
                        let bytes = _mm512_cvtepi32_epi8(_mm512_min_epi32(below, last));
                        _mm_storeu_si128(numbers.as_mut_ptr().add(16 * at).cast(), bytes);
                    }
                }
                _ => return class_numbers::<W>(bytes, map),
            }
        }
        numbers
    }

    #[inline(always)]
    fn masks(classes: &[u8; GROUP], count: u32, out: &mut Masks) {
        // SAFETY: the features are enabled in `walk_avx512`; the load covers the 64 bytes.
        unsafe {
            let numbers = _mm512_loadu_si512(classes.as_ptr().cast());
            // Masks of classes that there are not are empty; whole rounds of four need no count.
            for (round, masks) in out.0.chunks_exact_mut(4).enumerate() {
                if 4 * round as u32 >= count {
                    break;
                }
                for (mask, class) in masks.iter_mut().zip(&CLASSES[4 * round..4 * round + 4]) {
                    let class = _mm512_load_si512(class.0.as_ptr().cast());
                    *mask = _mm512_cmpeq_epi8_mask(numbers, class);
                }
            }
        }
    }

    #[inline(always)]
    fn advance(before: &Lanes, masks: &Masks) -> Lanes {
        let mut after = Lanes([0; MAX_CLASSES]);
        // SAFETY: the features are enabled in `walk_avx512`; loads and store cover the 64 and 128
        // aligned bytes of the arrays.
        unsafe {
            let low = _mm512_load_si512(masks.0.as_ptr().cast());
            let high = _mm512_load_si512(masks.0.as_ptr().add(8).cast());
            let low = _mm512_cvtepi64_epi32(_mm512_popcnt_epi64(low));
            let high = _mm512_cvtepi64_epi32(_mm512_popcnt_epi64(high));
            let counts = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            let sum = _mm512_add_epi32(_mm512_load_si512(before.0.as_ptr().cast()), counts);
            _mm512_store_si512(after.0.as_mut_ptr().cast(), sum);
        }
        after
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
    fn numbers<W: Word>(bytes: &[u8], map: &ClassMap) -> [u8; GROUP] {
        assert!(bytes.len() >= GROUP * W::WIDTH);
        let mut numbers = [0u8; GROUP];
        // SAFETY: avx2 is enabled in `walk_avx2`; the loads cover the 64 elements, which are there,
        // and the stores the 64 numbers.
        unsafe {
            let shift = _mm_cvtsi32_si128(map.shift as i32);
            let start = bytes.as_ptr();
            match W::WIDTH {
                1 => {
                    let mask = _mm256_set1_epi8(map.mask as i8);
                    let top = _mm256_set1_epi8(map.top.min(255) as u8 as i8);
                    let last = _mm256_set1_epi8(map.count as i8 - 1);
                    for at in 0..2 {
                        // As with AVX-512.
                        let field = _mm256_and_si256(
                            _mm256_srl_epi16(_mm256_loadu_si256(start.add(32 * at).cast()), shift),
                            mask,
                        );
                        let classes = _mm256_min_epu8(_mm256_subs_epu8(top, field), last);
                        _mm256_storeu_si256(numbers.as_mut_ptr().add(32 * at).cast(), classes);
                    }
                }
                2 => {
                    let mask = _mm256_set1_epi16(map.mask as i16);
                    let top = _mm256_set1_epi16(map.top as i16);
                    let last = _mm256_set1_epi16(map.count as i16 - 1);
                    for at in 0..2 {
                        let low = _mm256_loadu_si256(start.add(64 * at).cast());
                        let high = _mm256_loadu_si256(start.add(64 * at + 32).cast());
                        let low = _mm256_and_si256(_mm256_srl_epi16(low, shift), mask);
                        let high = _mm256_and_si256(_mm256_srl_epi16(high, shift), mask);
                        let low = _mm256_min_epu16(_mm256_subs_epu16(top, low), last);
                        let high = _mm256_min_epu16(_mm256_subs_epu16(top, high), last);
                        // The pack works within 128-bit halves; the permutation undoes that.
                        let packed = _mm256_packus_epi16(low, high);
                        let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
                        _mm256_storeu_si256(numbers.as_mut_ptr().add(32 * at).cast(), bytes);
                    }
                }
                _ => return class_numbers::<W>(bytes, map),
            }
        }
        numbers
    }

    #[inline(always)]
    fn masks(classes: &[u8; GROUP], count: u32, out: &mut Masks) {
        // SAFETY: avx2 is enabled in `walk_avx2`; the loads cover the 64 bytes.
        unsafe {
            let low = _mm256_loadu_si256(classes.as_ptr().cast());
            let high = _mm256_loadu_si256(classes.as_ptr().add(32).cast());
            for class in 0..count.min(MAX_CLASSES as u32) {
                let wanted = _mm256_set1_epi8(class as i8);
                let low = _mm256_movemask_epi8(_mm256_cmpeq_epi8(low, wanted)) as u32;
                let high = _mm256_movemask_epi8(_mm256_cmpeq_epi8(high, wanted)) as u32;
                out.0[class as usize] = u64::from(low) | u64::from(high) << 32;
            }
        }
    }

    #[inline(always)]
    fn advance(before: &Lanes, masks: &Masks) -> Lanes {
        super::Scalar::advance(before, masks)
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
