//! Ordered-integer space: float bit patterns mapped to integers so that neighbouring values
//! (one unit in the last place apart) differ by one, across zero and for NaN payloads too.

use crate::Word;

/// How the patterns of a dtype are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Sign and magnitude, as in IEEE 754 floats.
    Float,
    /// The pattern itself, modulo 2^bits.
    Integer,
}

/// The ordered integer of a pattern. An involution on the patterns of a width.
#[inline(always)]
pub fn ordered<W: Word>(bits: W, order: Order) -> W {
    match order {
        Order::Float => bits.ordered(),
        Order::Integer => bits,
    }
}

/// The step from `old` to `new`, modulo 2^bits.
#[inline(always)]
pub fn step<W: Word>(old: W, new: W, order: Order) -> W {
    ordered(new, order).wrapping_sub(ordered(old, order))
}

/// The pattern that lies `step` after `old`.
#[inline(always)]
pub fn advance<W: Word>(old: W, step: W, order: Order) -> W {
    ordered(ordered(old, order).wrapping_add(step), order)
}

/// Appends the patterns that lie `steps` after `old`, pair by pair.
pub fn advance_all<W: Word>(
    old: &[W],
    steps: impl Iterator<Item = W>,
    order: Order,
    out: &mut Vec<W>,
) {
    let pairs = old.iter().zip(steps);
    // One loop for each order, for vectors.
    match order {
        Order::Float => out.extend(pairs.map(|(&old, step)| advance(old, step, Order::Float))),
        Order::Integer => out.extend(pairs.map(|(&old, step)| advance(old, step, Order::Integer))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_the_value_order_of_bf16() {
        // -1.0, the smallest negative subnormal, -0, +0, the smallest subnormal, 1.0.
        let patterns: [u16; 6] = [0xbf80, 0x8001, 0x8000, 0x0000, 0x0001, 0x3f80];
        let keys: Vec<i64> = patterns
            .iter()
            .map(|&p| ordered(p, Order::Float).to_i64())
            .collect();
        assert!(keys.windows(2).all(|w| w[0] < w[1]), "{keys:?}");
        assert_eq!(&keys[1..5], &[-2, -1, 0, 1]);
    }

    #[test]
    fn advance_undoes_step_for_all_pairs_of_bytes() {
        for order in [Order::Float, Order::Integer] {
            for old in 0..=255u8 {
                assert_eq!(ordered(ordered(old, order), order), old);
                for new in 0..=255u8 {
                    assert_eq!(advance(old, step(old, new, order), order), new);
                }
            }
        }
    }

    #[test]
    fn wide_extremes_wrap() {
        for (old, new) in [(u64::MAX, 0), (0, u64::MAX), (1 << 63, (1 << 63) - 1)] {
            for order in [Order::Float, Order::Integer] {
                assert_eq!(advance(old, step(old, new, order), order), new);
            }
        }
    }
}
