//! The filter with AVX2 and AVX-512, and what is left to be tested with the same features.

use std::arch::x86_64::*;

use super::filter::{Bounds, GROWTH, REACH};
use super::{run, Elements, Found, Step};
use crate::scan::GROUP;

const SIGN: i32 = i32::MIN;
const EXPONENT: i32 = 0x7f80_0000;

/// Bit i is set where element i of the slices may have changed.
///
/// # Safety
/// Needs 64 elements in all slices.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,fma")]
unsafe fn mask_avx512(bounds: &Bounds, w: &[f32], m: &[f32], v: &[f32]) -> u64 {
    debug_assert!(w.len() == GROUP && m.len() == GROUP && v.len() == GROUP);
    let absolute = |x| _mm512_andnot_ps(_mm512_castsi512_ps(_mm512_set1_epi32(SIGN)), x);
    let mut mask = 0;
    for i in 0..GROUP / 16 {
        // SAFETY: four vectors of 16 are the 64 elements of each slice.
        let (w, m, v) = unsafe {
            (
                _mm512_loadu_ps(w.as_ptr().add(16 * i)),
                _mm512_loadu_ps(m.as_ptr().add(16 * i)),
                _mm512_loadu_ps(v.as_ptr().add(16 * i)),
            )
        };
        // If one is NaN, the minimum is the second.
        let inverse = _mm512_min_ps(_mm512_set1_ps(bounds.limit), _mm512_rsqrt14_ps(v));
        let lift = _mm512_set1_ps(bounds.lift);
        let moment = _mm512_fmadd_ps(absolute(m), _mm512_set1_ps(GROWTH), lift);
        let least = _mm512_set1_ps(bounds.least);
        let other = _mm512_fmadd_ps(absolute(w), _mm512_set1_ps(bounds.weight), least);
        let ratio = _mm512_mul_ps(moment, inverse);
        let bound = _mm512_fmadd_ps(ratio, _mm512_set1_ps(bounds.update), other);

        let bits = _mm512_castps_si512(w);
        let offset = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(bits));
        let signs = _mm512_xor_si512(_mm512_castps_si512(m), _mm512_set1_epi32(bounds.sign));
        let outwards = _mm512_movepi32_mask(_mm512_xor_si512(signs, bits));
        let zero = _mm512_setzero_si512();
        let offset = _mm512_mask_sub_epi32(offset, outwards, zero, offset);
        let distance = _mm512_add_epi32(offset, _mm512_set1_epi32(2 * REACH));
        let distance = _mm512_min_epi32(distance, _mm512_set1_epi32(REACH));
        let power = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(EXPONENT)));
        let distance = _mm512_mul_ps(_mm512_cvtepi32_ps(distance), power);

        let near = _mm512_cmp_ps_mask::<_CMP_NGT_UQ>(distance, bound);
        let far = _mm512_cmpgt_epi32_mask(offset, _mm512_set1_epi32(bounds.behind));
        let kept = near | far | _mm512_movepi32_mask(_mm512_castps_si512(v));
        mask |= u64::from(kept) << (16 * i);
    }
    mask
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt,fma")]
pub(super) fn run_avx512(step: &Step, elements: Elements<'_>, out: &mut Found) {
    let bounds = Bounds::new(step);
    // SAFETY: the features are enabled here, and `run` passes groups of 64 elements.
    run(step, elements, out, |w, m, v| unsafe {
        mask_avx512(&bounds, w, m, v)
    });
}

/// Bit i is set where element i of the slices may have changed.
///
/// # Safety
/// Needs 64 elements in all slices.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn mask_avx2(bounds: &Bounds, w: &[f32], m: &[f32], v: &[f32]) -> u64 {
    debug_assert!(w.len() == GROUP && m.len() == GROUP && v.len() == GROUP);
    let absolute = |x| _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_set1_epi32(SIGN)), x);
    let mut mask = 0;
    for i in 0..GROUP / 8 {
        // SAFETY: eight vectors of 8 are the 64 elements of each slice.
        let (w, m, v) = unsafe {
            (
                _mm256_loadu_ps(w.as_ptr().add(8 * i)),
                _mm256_loadu_ps(m.as_ptr().add(8 * i)),
                _mm256_loadu_ps(v.as_ptr().add(8 * i)),
            )
        };
        // As with AVX-512.
        let inverse = _mm256_min_ps(_mm256_set1_ps(bounds.limit), _mm256_rsqrt_ps(v));
        let lift = _mm256_set1_ps(bounds.lift);
        let moment = _mm256_fmadd_ps(absolute(m), _mm256_set1_ps(GROWTH), lift);
        let least = _mm256_set1_ps(bounds.least);
        let other = _mm256_fmadd_ps(absolute(w), _mm256_set1_ps(bounds.weight), least);
        let ratio = _mm256_mul_ps(moment, inverse);
        let bound = _mm256_fmadd_ps(ratio, _mm256_set1_ps(bounds.update), other);

        let bits = _mm256_castps_si256(w);
        let offset = _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(bits));
        let signs = _mm256_xor_si256(_mm256_castps_si256(m), _mm256_set1_epi32(bounds.sign));
        // One with the sign of the update, seen from the weight's.
        let signs = _mm256_or_si256(_mm256_xor_si256(signs, bits), _mm256_set1_epi32(1));
        let offset = _mm256_sign_epi32(offset, signs);
        let distance = _mm256_add_epi32(offset, _mm256_set1_epi32(2 * REACH));
        let distance = _mm256_min_epi32(distance, _mm256_set1_epi32(REACH));
        let power = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(EXPONENT)));
        let distance = _mm256_mul_ps(_mm256_cvtepi32_ps(distance), power);

        let near = _mm256_cmp_ps::<_CMP_NGT_UQ>(distance, bound);
        let far = _mm256_cmpgt_epi32(offset, _mm256_set1_epi32(bounds.behind));
        let kept = _mm256_or_ps(_mm256_or_ps(near, v), _mm256_castsi256_ps(far));
        let kept = _mm256_movemask_ps(kept) as u32;
        mask |= u64::from(kept) << (8 * i);
    }
    mask
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,fma")]
pub(super) fn run_avx2(step: &Step, elements: Elements<'_>, out: &mut Found) {
    let bounds = Bounds::new(step);
    // SAFETY: the features are enabled here, and `run` passes groups of 64 elements.
    run(step, elements, out, |w, m, v| unsafe {
        mask_avx2(&bounds, w, m, v)
    });
}
