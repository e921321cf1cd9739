//! Constants and arithmetic of `spec/digest-v1.md`.

/// Sums are modulo this prime, 2^61 - 1.
pub(crate) const P: u64 = (1 << 61) - 1;
/// Words that share a factor.
pub(crate) const BLOCK: usize = 256;
/// Low bits of the constants that the portable loops multiply by themselves.
pub(crate) const LOW: u32 = 26;

const G: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of splitmix64 (Steele, Lea and Flood 2014).
const fn scrambled(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What the low and the high halves of a block's words are multiplied by: 52 bits, odd.
pub(crate) static HALVES: [[u64; BLOCK]; 2] = {
    let mut halves = [[0; BLOCK]; 2];
    let mut s = 0;
    while s < BLOCK {
        let number = 2 * s as u64 + 1;
        halves[0][s] = scrambled(G.wrapping_mul(number)) >> 12 | 1;
        halves[1][s] = scrambled(G.wrapping_mul(number + 1)) >> 12 | 1;
        s += 1;
    }
    halves
};

/// The same in two parts each, low bits first: products with 32 bits leave room to be added up.
pub(super) static PARTS: [[[u32; BLOCK]; 2]; 2] = {
    let mut parts = [[[0; BLOCK]; 2]; 2];
    let mut half = 0;
    while half < 2 {
        let mut s = 0;
        while s < BLOCK {
            parts[half][0][s] = HALVES[half][s] as u32 & ((1 << LOW) - 1);
            parts[half][1][s] = (HALVES[half][s] >> LOW) as u32;
            s += 1;
        }
        half += 1;
    }
    parts
};

/// The factor of a block in the lane with key `k`; never a multiple of the prime.
#[inline(always)]
pub(super) fn factor(k: u64, block: u64) -> u64 {
    (scrambled(k.wrapping_add(block.wrapping_mul(G))) >> 4) + 1
}

/// `x` modulo the prime, of which 2^61 leaves 1.
#[inline(always)]
pub(super) fn reduced(x: u128) -> u64 {
    let x = u128::from(x as u64 & P) + (x >> 61);
    let x = (x as u64 & P) + (x >> 61) as u64;
    if x >= P {
        x - P
    } else {
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduction_is_a_remainder() {
        let p = u128::from(P);
        for x in [
            0,
            1,
            p - 1,
            p,
            p + 1,
            8 * p,
            1 << 64,
            1 << 122,
            p << 66,
            u128::MAX,
            u128::MAX - 7,
        ] {
            assert_eq!(u128::from(reduced(x)), x % p, "{x}");
        }
    }

    /// No two changes of a word's halves, below 2^32 each, cancel as integers.
    #[test]
    fn halves_do_not_cancel() {
        let gcd = |mut a: u64, mut b: u64| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        for (&t, &u) in HALVES[0].iter().zip(&HALVES[1]) {
            let lowest = [t / gcd(t, u), u / gcd(t, u)];
            assert!(lowest.iter().all(|x| x >> 32 > 0));
            assert!(t < 1 << 52 && u < 1 << 52);
        }
    }
}
