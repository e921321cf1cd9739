//! What the processor offers, asked when the program runs.

/// AVX-512 with bytes, words, 64-bit products, and shorter vectors; and bit deposits and counts.
#[cfg(target_arch = "x86_64")]
pub(crate) fn avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && bits()
}

/// [`avx512`] with products of 52 bits, and compressed bytes.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ifma() -> bool {
    avx512() && is_x86_feature_detected!("avx512ifma") && is_x86_feature_detected!("avx512vbmi2")
}

/// AVX2; and bit deposits and counts.
#[cfg(target_arch = "x86_64")]
pub(crate) fn avx2() -> bool {
    is_x86_feature_detected!("avx2") && bits()
}

/// Bit deposits and counts.
#[cfg(target_arch = "x86_64")]
fn bits() -> bool {
    is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
}

/// Fused multiplications.
#[cfg(target_arch = "x86_64")]
pub(crate) fn fma() -> bool {
    is_x86_feature_detected!("fma")
}
