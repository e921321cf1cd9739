//! Vectors of 16 bytes on 64-bit ARM, whose every processor has them.

use std::arch::aarch64::*;

use crate::Word;

/// Elements that share a mask.
const GROUP: usize = 64;

/// Bit i is the lowest bit of byte i of four vectors whose bytes are all ones or all zeros.
#[inline(always)]
fn bits(bytes: [uint8x16_t; 4]) -> u64 {
    // SAFETY: NEON is part of the target.
    unsafe {
        let weights = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        let [a, b, c, d] = bytes.map(|vector| vandq_u8(vector, weights));
        // Three times neighbours are added, until eight bytes have become one.
        let pairs = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
        let all = vpaddq_u8(pairs, pairs);
        vgetq_lane_u64::<0>(vreinterpretq_u64_u8(all))
    }
}

/// 16 bytes of a slice.
#[inline(always)]
fn load(bytes: &[u8], at: usize) -> uint8x16_t {
    let bytes = &bytes[at..at + 16];
    // SAFETY: NEON is part of the target, and there are 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// The even bytes of two vectors: of words below 256, all of them.
#[inline(always)]
fn low_bytes(low: uint8x16_t, high: uint8x16_t) -> uint8x16_t {
    // SAFETY: NEON is part of the target.
    unsafe { vuzp1q_u8(low, high) }
}

/// Bit i is set where element i of the two slices differs; both have 64 elements.
#[inline(always)]
pub(crate) fn mask<W: Word>(a: &[u8], b: &[u8]) -> u64 {
    let size = GROUP * W::WIDTH;
    let (a, b) = (&a[..size], &b[..size]);
    // Vector i of those that compare.
    let equal = |i: usize| {
        let (x, y) = (load(a, 16 * i), load(b, 16 * i));
        // SAFETY: NEON is part of the target.
        unsafe {
            match W::WIDTH {
                1 => vceqq_u8(x, y),
                2 => vreinterpretq_u8_u16(vceqq_u16(
                    vreinterpretq_u16_u8(x),
                    vreinterpretq_u16_u8(y),
                )),
                4 => vreinterpretq_u8_u32(vceqq_u32(
                    vreinterpretq_u32_u8(x),
                    vreinterpretq_u32_u8(y),
                )),
                _ => vreinterpretq_u8_u64(vceqq_u64(
                    vreinterpretq_u64_u8(x),
                    vreinterpretq_u64_u8(y),
                )),
            }
        }
    };
    // Every byte of an element says the same, so that the even ones will do.
    let pair = |i: usize| low_bytes(equal(2 * i), equal(2 * i + 1));
    let four = |i: usize| low_bytes(pair(2 * i), pair(2 * i + 1));
    let eight = |i: usize| low_bytes(four(2 * i), four(2 * i + 1));
    let places = [0, 1, 2, 3];
    !bits(match W::WIDTH {
        1 => places.map(equal),
        2 => places.map(pair),
        4 => places.map(four),
        _ => places.map(eight),
    })
}

/// The lowest four bits of 64 bytes, one bit a byte in each result.
#[inline(always)]
pub(crate) fn planes(numbers: [uint8x16_t; 4]) -> [u64; 4] {
    [1, 2, 4, 8].map(|bit| {
        // SAFETY: NEON is part of the target.
        bits(numbers.map(|vector| unsafe { vtstq_u8(vector, vdupq_n_u8(bit)) }))
    })
}

/// For each of 64 elements `min(top - field, last)`, or 0 where the field is above `top`; the field is what
/// `mask` leaves of the element shifted right by `shift`. `last` is below 256; elements have 1, 2 or 4
/// bytes.
#[inline(always)]
pub(crate) fn below_top<W: Word>(
    bytes: &[u8],
    shift: u32,
    mask: u32,
    top: u32,
    last: u32,
) -> [uint8x16_t; 4] {
    let bytes = &bytes[..GROUP * W::WIDTH];
    // SAFETY: NEON is part of the target.
    unsafe {
        let one = |i: usize| {
            let field = vshlq_u8(load(bytes, 16 * i), vdupq_n_s8(-(shift as i8)));
            let field = vandq_u8(field, vdupq_n_u8(mask as u8));
            let below = vqsubq_u8(vdupq_n_u8(top.min(255) as u8), field);
            vminq_u8(below, vdupq_n_u8(last as u8))
        };
        let two = |i: usize| {
            let words = vreinterpretq_u16_u8(load(bytes, 16 * i));
            let field = vshlq_u16(words, vdupq_n_s16(-(shift as i16)));
            let field = vandq_u16(field, vdupq_n_u16(mask as u16));
            let below = vqsubq_u16(vdupq_n_u16(top.min(0xffff) as u16), field);
            vreinterpretq_u8_u16(vminq_u16(below, vdupq_n_u16(last as u16)))
        };
        let four = |i: usize| {
            let words = vreinterpretq_u32_u8(load(bytes, 16 * i));
            let field = vshlq_u32(words, vdupq_n_s32(-(shift as i32)));
            let field = vandq_u32(field, vdupq_n_u32(mask));
            let below = vqsubq_u32(vdupq_n_u32(top), field);
            vreinterpretq_u8_u32(vminq_u32(below, vdupq_n_u32(last)))
        };
        let pair = |i: usize| low_bytes(two(2 * i), two(2 * i + 1));
        let quarter = |i: usize| {
            let half = |i: usize| low_bytes(four(2 * i), four(2 * i + 1));
            low_bytes(half(2 * i), half(2 * i + 1))
        };
        let places = [0, 1, 2, 3];
        match W::WIDTH {
            1 => places.map(one),
            2 => places.map(pair),
            _ => places.map(quarter),
        }
    }
}

/// 64 bytes as vectors.
#[inline(always)]
pub(crate) fn vectors(bytes: &[u8; GROUP]) -> [uint8x16_t; 4] {
    [0, 1, 2, 3].map(|i| load(bytes, 16 * i))
}
