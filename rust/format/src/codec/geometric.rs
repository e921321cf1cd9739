//! Streams of geometrically distributed numbers near their entropy.
//!
//! A number's low bits, which are as good as uniform, are stored as they are; what is above goes
//! through a static range coder (rANS) whose table follows from one byte, the parameter. As a geometric
//! distribution has no memory, a number that exceeds the table is coded as "the table's length, and
//! then" a number of the same distribution. All arithmetic is on integers, so every platform has the
//! same tables.

use std::sync::OnceLock;

use crate::bits::{bits_at, zero_from, BitWriter};
use crate::error::{Error, Result};

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
const SLOT_BITS: u32 = 12;
const SLOTS: u32 = 1 << SLOT_BITS;
/// Least state of the coder.
const LOW: u32 = 1 << 23;

/// How numbers with one parameter are coded.
#[derive(Debug)]
pub struct Table {
    /// Low bits that are stored as they are.
    pub low_bits: u32,
    /// Symbols before the escape; the escape stands for at least as many.
    escape: usize,
    /// First slot of each symbol, the escape's, and the number of slots.
    starts: Vec<u16>,
    /// Symbol of each slot.
    symbols: Vec<u8>,
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
        let escape = starts.len() - 1;
        starts.push(SLOTS as u16);
        let mut symbols = Vec::with_capacity(SLOTS as usize);
        for (symbol, pair) in starts.windows(2).enumerate() {
            symbols.resize(usize::from(pair[1]), symbol as u8);
        }
        Self {
            low_bits,
            escape,
            starts,
            symbols,
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

/// The parameter that suits `n` numbers with this sum.
pub fn parameter(n: u64, sum: u64) -> u8 {
    let p = n as f64 / (n as f64 + sum as f64);
    (-8.0 * p.log2())
        .round()
        .clamp(0.0, (PARAMETERS - 1) as f64) as u8
}

/// Collects numbers; the coder itself runs backwards, at the end.
#[derive(Debug, Default)]
pub struct Encoder {
    /// First slot and number of slots of each symbol.
    symbols: Vec<(u16, u16)>,
    lows: BitWriter<Vec<u8>>,
}

impl Encoder {
    /// Appends a number.
    pub fn put(&mut self, table: &Table, number: u64) {
        let low = number & ((1 << table.low_bits) - 1);
        self.lows.put(low, table.low_bits);
        let mut high = number >> table.low_bits;
        loop {
            let symbol = (high as usize).min(table.escape);
            let start = table.starts[symbol];
            self.symbols.push((start, table.starts[symbol + 1] - start));
            if symbol < table.escape {
                return;
            }
            high -= table.escape as u64;
        }
    }

    /// Appends the stream: low bits, then the coder's state and bytes.
    pub fn finish(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lows.finish());
        let mut state = LOW;
        let mut bytes = Vec::with_capacity(self.symbols.len());
        for &(start, slots) in self.symbols.iter().rev() {
            let (start, slots) = (u32::from(start), u32::from(slots));
            while state >= ((LOW >> SLOT_BITS) << 8) * slots {
                bytes.push(state as u8);
                state >>= 8;
            }
            state = ((state / slots) << SLOT_BITS) + state % slots + start;
        }
        out.extend_from_slice(&state.to_le_bytes());
        out.extend(bytes.iter().rev());
    }
}

/// Reads numbers in the order in which they were put.
#[derive(Debug)]
pub struct Decoder<'a> {
    lows: &'a [u8],
    low_at: usize,
    bytes: &'a [u8],
    state: u32,
}

fn short() -> Error {
    Error::corrupt("a geometric stream is cut short [F24]")
}

impl<'a> Decoder<'a> {
    /// Begins a stream with so many low bits in all.
    pub fn new(stream: &'a [u8], low_bits: usize) -> Result<Self> {
        let low_bytes = low_bits.div_ceil(8);
        if low_bytes > stream.len() {
            return Err(short());
        }
        let (lows, rest) = stream.split_at(low_bytes);
        if !zero_from(lows, low_bits) {
            return Err(Error::corrupt(
                "padding behind the low bits is not zero [F2]",
            ));
        }
        let (state, bytes) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let state = u32::from_le_bytes(*state);
        if !(LOW..LOW << 8).contains(&state) {
            return Err(Error::corrupt(
                "a geometric stream begins with no valid state [F24]",
            ));
        }
        Ok(Self {
            lows,
            low_at: 0,
            bytes,
            state,
        })
    }

    /// The next number, at most `most`.
    #[inline]
    pub fn get(&mut self, table: &Table, most: u64) -> Result<u64> {
        let mut high = 0u64;
        loop {
            let slot = self.state & (SLOTS - 1);
            let symbol = usize::from(table.symbols[slot as usize]);
            let start = u32::from(table.starts[symbol]);
            let slots = u32::from(table.starts[symbol + 1]) - start;
            self.state = slots * (self.state >> SLOT_BITS) + slot - start;
            while self.state < LOW {
                let (&byte, rest) = self.bytes.split_first().ok_or_else(short)?;
                self.state = self.state << 8 | u32::from(byte);
                self.bytes = rest;
            }
            high += symbol as u64;
            if symbol < table.escape {
                break;
            }
            if high > most {
                return Err(Error::corrupt("a number is too large [F24]"));
            }
        }
        let low = bits_at(self.lows, self.low_at, table.low_bits);
        self.low_at += table.low_bits as usize;
        let number = high << table.low_bits | low;
        if number > most {
            return Err(Error::corrupt("a number is too large [F24]"));
        }
        Ok(number)
    }

    /// Checks that the stream ends here.
    pub fn finish(self) -> Result<()> {
        if self.state != LOW || !self.bytes.is_empty() {
            return Err(Error::corrupt(
                "a geometric stream does not end with its numbers [F24]",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_table_is_sound() {
        for q in 0..PARAMETERS {
            let table = Table::build(q);
            assert_eq!(table.symbols.len(), SLOTS as usize);
            assert!(table.starts.windows(2).all(|w| w[0] < w[1]), "q = {q}");
            // An escape is rare, so that a stream cannot stand for much more than its bytes.
            let slots = SLOTS as u16 - table.starts[table.escape];
            assert!(slots < SLOTS as u16 / 8, "q = {q}: {slots}");
        }
        assert!(Table::of(PARAMETERS as u8).is_none());
    }

    #[test]
    fn sizes_are_near_the_entropy() {
        // A deterministic geometric sample by inversion.
        for p in [0.7f64, 0.3, 0.05, 0.01, 0.001] {
            let n = 40_000u64;
            let mut x = 88_172_645_463_325_252u64;
            let numbers: Vec<u64> = (0..n)
                .map(|_| {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    let u = (x >> 11) as f64 / (1u64 << 53) as f64;
                    ((1.0 - u).ln() / (1.0 - p).ln()) as u64
                })
                .collect();
            let q = parameter(n, numbers.iter().sum());
            let mut encoder = Encoder::default();
            let table = Table::of(q).unwrap();
            numbers.iter().for_each(|&x| encoder.put(table, x));
            let mut out = vec![];
            encoder.finish(&mut out);
            let entropy = -(p * p.log2() + (1.0 - p) * (1.0 - p).log2()) / p;
            let bits = 8.0 * out.len() as f64 / n as f64;
            assert!(
                bits < entropy * 1.006 + 0.01,
                "p = {p}: {bits} bits, entropy {entropy}"
            );
        }
    }

    proptest! {
        #[test]
        fn round_trip(
            numbers in prop::collection::vec((0u8..192, 0u64..1 << 22), 0..100), shift in 0u32..22,
        ) {
            let mut encoder = Encoder::default();
            let mut low_bits = 0;
            for (q, number) in &numbers {
                let table = Table::of(*q).unwrap();
                // Far beyond a table's reach the escapes are many; that is tested with few.
                let number = (number >> shift).min(4000 << table.low_bits);
                encoder.put(table, number);
                low_bits += table.low_bits as usize;
            }
            let mut out = vec![];
            encoder.finish(&mut out);
            let mut decoder = Decoder::new(&out, low_bits).unwrap();
            for (q, number) in &numbers {
                let table = Table::of(*q).unwrap();
                let number = (number >> shift).min(4000 << table.low_bits);
                prop_assert_eq!(decoder.get(table, 1 << 22).unwrap(), number);
            }
            decoder.finish().unwrap();
        }

        #[test]
        fn any_bytes_are_an_error_or_numbers(
            bytes in prop::collection::vec(any::<u8>(), 0..80), qs in prop::collection::vec(0u8..192, 0..60),
        ) {
            let low_bits = qs.iter().map(|&q| Table::of(q).unwrap().low_bits as usize).sum();
            if let Ok(mut decoder) = Decoder::new(&bytes, low_bits) {
                for q in qs {
                    match decoder.get(Table::of(q).unwrap(), 5000) {
                        Ok(number) => prop_assert!(number <= 5000),
                        Err(_) => return Ok(()),
                    }
                }
            }
        }
    }
}
