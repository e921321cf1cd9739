//! Tables of geometric distributions, and what numbers cost with them.

use std::sync::OnceLock;

/// Escapes of one number; what is left after them is written by its length.
pub(super) const MAX_ESCAPES: usize = 3;
/// Bits of a length.
pub(super) const LENGTH_BITS: u32 = 7;
/// Parameters there are: `p = 2^(-q/8)`, down to 2^-23.9.
pub const PARAMETERS: usize = 192;
/// `2^32 * 2^(-f/8)`, rounded.
const FRACTIONS: [u64; 8] = [
    4_294_967_296,
    3_938_502_376,
    3_611_622_603,
    3_311_872_529,
    3_037_000_500,
    2_784_941_738,
    2_553_802_834,
    2_341_847_524,
];
/// Slots of a table, as a power of two.
pub const SLOT_BITS: u32 = 12;
/// Slots of a table.
pub(super) const SLOTS: u32 = 1 << SLOT_BITS;

/// 2^64 by each number of slots, rounded up. Those of 0 and 1 do not fit.
static INVERSES: [u64; SLOTS as usize + 1] = {
    let mut inverses = [0; SLOTS as usize + 1];
    let mut slots = 2;
    while slots <= SLOTS as usize {
        inverses[slots] = u64::MAX / slots as u64 + 1;
        slots += 1;
    }
    inverses
};

/// `state / slots` for 1 to 4096 slots.
///
/// The rounding of the inverse adds less than `slots * state / 2^64` to the quotient, too little to
/// reach the next integer.
#[inline(always)]
pub(super) fn divide(state: u32, slots: u32) -> u32 {
    let inverse = INVERSES[slots as usize % INVERSES.len()];
    let quotient = (u128::from(inverse) * u128::from(state)) >> 64;
    if slots == 1 {
        return state;
    }
    quotient as u32
}

/// How numbers with one parameter are coded.
#[derive(Debug)]
pub struct Table {
    /// Low bits that are stored as they are.
    pub low_bits: u32,
    /// Symbols before the escape; the escape stands for at least as many.
    pub(super) escape: u32,
    /// First slot of each symbol and the escape, and the number of slots.
    pub(super) starts: Vec<u16>,
    /// For each slot: its symbol (8 bits), the symbol's slots (12), the slot's place among them (12).
    pub(super) slots: Box<[u32; SLOTS as usize]>,
}

impl Table {
    fn build(q: usize) -> Self {
        let low_bits = (q / 8).saturating_sub(3) as u32;
        let mut theta = (1u64 << 32) - (FRACTIONS[q % 8] >> (q / 8));
        for _ in 0..low_bits {
            theta = (theta * theta) >> 32;
        }
        let mut starts = vec![0u16];
        let mut tail = 1u64 << 32;
        for symbol in 0..255 {
            tail = (tail * theta) >> 32;
            let next = (SLOTS - (tail >> (32 - SLOT_BITS)) as u32).min(SLOTS - 1) as u16;
            if next == starts[symbol] {
                break;
            }
            starts.push(next);
        }
        let escape = starts.len() as u32 - 1;
        starts.push(SLOTS as u16);
        let mut slots = Box::new([0; SLOTS as usize]);
        for (symbol, pair) in starts.windows(2).enumerate() {
            let (first, end) = (u32::from(pair[0]), u32::from(pair[1]));
            for slot in first..end {
                slots[slot as usize] = (symbol as u32) << 24 | (end - first) << 12 | (slot - first);
            }
        }
        Self {
            low_bits,
            escape,
            starts,
            slots,
        }
    }

    /// The table of a parameter, made when first used; `None` where there is no such parameter.
    pub fn of(q: u8) -> Option<&'static Self> {
        static TABLES: [OnceLock<Table>; PARAMETERS] = [const { OnceLock::new() }; PARAMETERS];
        TABLES
            .get(usize::from(q))
            .map(|slot| slot.get_or_init(|| Self::build(q.into())))
    }
}

/// Cost of numbers with parameter `q`, in 2^-16 bits: that of each number, and that of each unit of their
/// sum.
fn unit_costs() -> &'static [(u64, u64); PARAMETERS] {
    static COSTS: OnceLock<[(u64, u64); PARAMETERS]> = OnceLock::new();
    COSTS.get_or_init(|| {
        let mut costs = [(0, 0); PARAMETERS];
        for (q, cost) in costs.iter_mut().enumerate() {
            let p = (FRACTIONS[q % 8] >> (q / 8)).min((1 << 32) - (1 << 20));
            *cost = (minus_log2(p), minus_log2((1 << 32) - p));
        }
        costs
    })
}

/// `-log2(x / 2^32)` in 2^-16, by squaring, for `x` of 1 to 2^32.
pub fn minus_log2(x: u64) -> u64 {
    // `y` is in (2^31, 2^32], as a fraction of 2^32 in (1/2, 1].
    let shift = (x - 1).leading_zeros() - 32;
    let mut y = x << shift;
    let mut log = u64::from(shift) << 16;
    for bit in (0..16).rev() {
        y = ((u128::from(y) * u128::from(y)) >> 32) as u64;
        if y <= 1 << 31 {
            y <<= 1;
            log += 1 << bit;
        }
    }
    log
}

/// About what `n` numbers with this sum take with parameter `q`, in 2^-16 bits.
pub fn cost(q: u8, n: u64, sum: u64) -> u64 {
    let (each, unit) = unit_costs()[usize::from(q).min(PARAMETERS - 1)];
    each.saturating_mul(n)
        .saturating_add(unit.saturating_mul(sum))
}

/// About what a number of so many bits takes that exceeds all escapes, in 2^-16 bits.
pub fn cost_of_escaped(bits: u32) -> u64 {
    u64::from(MAX_ESCAPES as u32 * SLOT_BITS + LENGTH_BITS + bits) << 16
}

/// The parameter that suits `n` numbers with this sum.
pub fn parameter(n: u64, sum: u64) -> u8 {
    // The cost has one minimum in q.
    let (mut low, mut high) = (0u8, PARAMETERS as u8 - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if cost(middle, n, sum) <= cost(middle + 1, n, sum) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_sound() {
        for q in 0..PARAMETERS {
            let table = Table::build(q);
            assert!(table.starts.windows(2).all(|w| w[0] < w[1]), "q = {q}");
            // An escape is rare, so that a stream cannot stand for much more than its bytes.
            let slots = SLOTS as u16 - table.starts[table.escape as usize];
            assert!(slots < SLOTS as u16 / 8, "q = {q}: {slots}");
        }
        assert!(Table::of(PARAMETERS as u8).is_none());
    }

    #[test]
    fn divisions_are_exact() {
        for slots in 1..=SLOTS {
            let edges = [
                0,
                1,
                slots - 1,
                slots,
                slots + 1,
                1 << 16,
                u32::MAX - 1,
                u32::MAX,
            ];
            let multiples = (1..40).map(|i| (u32::MAX / slots - i * 97) * slots);
            for state in edges
                .into_iter()
                .chain(multiples.flat_map(|m| [m - 1, m, m + 1]))
            {
                assert_eq!(divide(state, slots), state / slots, "{state} / {slots}");
            }
        }
    }

    #[test]
    fn logarithms() {
        assert_eq!(minus_log2(1 << 32), 0);
        assert_eq!(minus_log2(1 << 31), 1 << 16);
        assert_eq!(minus_log2(1), 32 << 16);
        for x in [3u64, 1000, 4_000_000_000, 3_037_000_500] {
            let exact = -(x as f64 / (1u64 << 32) as f64).log2() * 65536.0;
            assert!((minus_log2(x) as f64 - exact).abs() < 1.5, "{x}");
        }
    }
}
