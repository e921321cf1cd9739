//! Streams of geometrically distributed numbers near their entropy.
//!
//! A number's low bits, which are as good as uniform, are stored as they are; what is above goes
//! through static range coders (rANS) whose table follows from one byte, the parameter. As a geometric
//! distribution has no memory, a number that exceeds the table is coded as "the table's length, and
//! then" a number of the same distribution. All arithmetic is on integers, so every platform has the
//! same tables.

use std::hint::select_unpredictable;

use super::tables::{divide, Table, LENGTH_BITS, MAX_ESCAPES, SLOTS, SLOT_BITS};
use crate::bits::{word_at, zero_from, BitWriter};
use crate::error::{Error, Result};

/// Least state of a coder; a state takes in 16 bits when it is below.
const LOW: u32 = 1 << 16;
/// Most coders that take turns.
const MAX_LANES: usize = 4;

/// Coders that take turns in a stream of so many changes [F24]: more are faster, but each has a state
/// to store.
pub const fn lanes(changes: usize) -> usize {
    match changes {
        0..4096 => 1,
        _ => 4,
    }
}

/// Collects numbers; the coders themselves run backwards, at the end. Keeps its memory.
#[derive(Debug, Default)]
pub struct Encoder {
    /// First slot (12 bits), number of slots (13) and lane (2) of each symbol.
    symbols: Vec<u32>,
    raw: BitWriter<Vec<u8>>,
    words: Vec<u16>,
}

impl Encoder {
    /// Forgets what was put.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.raw.clear();
    }

    /// Appends a symbol with these slots.
    #[inline(always)]
    pub fn symbol(&mut self, start: u32, slots: u32, lane: usize) {
        self.symbols.push(start | slots << 12 | (lane as u32) << 28);
    }

    /// Appends bits that are stored as they are.
    #[inline(always)]
    pub fn raw(&mut self, value: u64, bits: u32) {
        self.raw.put(value, bits);
    }

    /// Appends bits through a coder, low bits first.
    fn uniform(&mut self, mut value: u64, mut bits: u32, lane: usize) {
        while bits > 0 {
            let part = bits.min(8);
            let low = (value & ((1 << part) - 1)) as u32;
            self.symbol(low << (SLOT_BITS - part), 1 << (SLOT_BITS - part), lane);
            value >>= part;
            bits -= part;
        }
    }

    /// Appends a number.
    #[inline(always)]
    pub fn number(&mut self, table: &Table, number: u64, lane: usize) {
        self.raw
            .put(number & ((1 << table.low_bits) - 1), table.low_bits);
        let high = number >> table.low_bits;
        if high < u64::from(table.escape) {
            let start = u32::from(table.starts[high as usize]);
            let end = u32::from(table.starts[high as usize + 1]);
            self.symbol(start, end - start, lane);
        } else {
            self.escaped(table, high, lane);
        }
    }

    #[cold]
    fn escaped(&mut self, table: &Table, mut high: u64, lane: usize) {
        let escape = u64::from(table.escape);
        for _ in 0..MAX_ESCAPES {
            let symbol = high.min(escape) as usize;
            let (start, end) = (table.starts[symbol], table.starts[symbol + 1]);
            self.symbol(start.into(), (end - start).into(), lane);
            if high < escape {
                return;
            }
            high -= escape;
        }
        let bits = 64 - high.leading_zeros();
        self.uniform(bits.into(), LENGTH_BITS, lane);
        self.uniform(high, bits, lane);
    }

    /// Appends the stream: raw bits, states, words.
    pub fn finish(&mut self, lanes: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(self.raw.pad());
        let mut states = [LOW; MAX_LANES];
        self.words.clear();
        self.words.resize(self.symbols.len() + 1, 0);
        let mut count = 0;
        for &symbol in self.symbols.iter().rev() {
            let state = &mut states[(symbol >> 28) as usize % MAX_LANES];
            let (start, slots) = (symbol & 0xfff, (symbol >> 12) & 0x1fff);
            // A symbol takes one word at most. It is written in any case: whether it counts cannot be
            // predicted.
            self.words[count] = *state as u16;
            let full = *state >> 20 >= slots;
            count += usize::from(full);
            let x = if full { *state >> 16 } else { *state };
            let quotient = divide(x, slots);
            *state = (quotient << SLOT_BITS) + (x - quotient * slots) + start;
        }
        self.words.truncate(count);
        for state in &states[..lanes] {
            out.extend_from_slice(&state.to_le_bytes());
        }
        let begun = out.len();
        out.resize(begun + 2 * self.words.len(), 0);
        for (bytes, word) in out[begun..]
            .chunks_exact_mut(2)
            .zip(self.words.iter().rev())
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Reads numbers in the order in which they were put.
#[derive(Debug)]
pub struct Decoder<'a> {
    raw: &'a [u8],
    raw_at: usize,
    words: &'a [u8],
    at: usize,
    states: [u32; MAX_LANES],
    lanes: usize,
    bad: bool,
}

fn short() -> Error {
    Error::corrupt("a geometric stream is cut short, or has a number out of range [F24]")
}

impl<'a> Decoder<'a> {
    /// Begins a stream with so many raw bits and lanes.
    pub fn new(stream: &'a [u8], raw_bits: usize, lanes: usize) -> Result<Self> {
        let raw_bytes = raw_bits.div_ceil(8);
        if stream.len() < raw_bytes + 4 * lanes {
            return Err(short());
        }
        let (raw, rest) = stream.split_at(raw_bytes);
        if !zero_from(raw, raw_bits) {
            return Err(Error::corrupt(
                "padding behind the raw bits is not zero [F2]",
            ));
        }
        let (head, words) = rest.split_at(4 * lanes);
        let mut states = [LOW; MAX_LANES];
        for (state, bytes) in states.iter_mut().zip(head.chunks_exact(4)) {
            *state = word_at(bytes, 0) as u32;
            if *state < LOW {
                return Err(Error::corrupt(
                    "a geometric stream begins with no valid state [F24]",
                ));
            }
        }
        Ok(Self {
            raw,
            raw_at: 0,
            words,
            at: 0,
            states,
            lanes,
            bad: false,
        })
    }

    /// The next raw bits, at most 57.
    #[inline(always)]
    pub fn raw(&mut self, bits: u32) -> u64 {
        let value = (word_at(self.raw, self.raw_at >> 3) >> (self.raw_at & 7)) & ((1 << bits) - 1);
        self.raw_at += bits as usize;
        value
    }

    /// Takes in a word where the state is low. Whether it is cannot be predicted, so the word is read in any
    /// case.
    #[inline(always)]
    fn refill(&mut self, state: u32) -> u32 {
        let low = state < LOW;
        let word = match self.words.get(self.at..self.at + 2) {
            Some(&[low, high]) => u16::from_le_bytes([low, high]),
            _ => {
                self.bad |= low;
                0
            }
        };
        self.at += 2 * usize::from(low);
        select_unpredictable(low, state << 16 | u32::from(word), state)
    }

    #[inline(always)]
    fn number(&mut self, state: &mut u32, table: &Table) -> u64 {
        let slot = table.slots[(*state & (SLOTS - 1)) as usize];
        *state = self.refill(((slot >> 12) & 0xfff) * (*state >> SLOT_BITS) + (slot & 0xfff));
        let mut high = u64::from(slot >> 24);
        if slot >> 24 == table.escape {
            high = self.escaped(state, table);
        }
        high << table.low_bits | self.raw(table.low_bits)
    }

    /// A number above its low bits, after its first escape.
    #[cold]
    fn escaped(&mut self, state: &mut u32, table: &Table) -> u64 {
        let mut high = u64::from(table.escape);
        for _ in 1..MAX_ESCAPES {
            let slot = table.slots[(*state & (SLOTS - 1)) as usize];
            *state = self.refill(((slot >> 12) & 0xfff) * (*state >> SLOT_BITS) + (slot & 0xfff));
            high += u64::from(slot >> 24);
            if slot >> 24 < table.escape {
                return high;
            }
        }
        let bits = self.uniform(state, LENGTH_BITS) as u32;
        if bits + table.low_bits > 64 {
            self.bad = true;
            return 0;
        }
        let rest = self.uniform(state, bits);
        // The length is that of the number, so its highest bit is set.
        self.bad |= bits > 0 && rest >> (bits - 1) == 0;
        match high.checked_add(rest) {
            Some(high) if high <= u64::MAX >> table.low_bits => high,
            _ => {
                self.bad = true;
                0
            }
        }
    }

    fn uniform(&mut self, state: &mut u32, bits: u32) -> u64 {
        let mut value = 0;
        for at in (0..bits).step_by(8) {
            let part = (bits - at).min(8);
            let (slot, slots) = (*state & (SLOTS - 1), 1 << (SLOT_BITS - part));
            value |= u64::from(slot / slots) << at;
            *state = self.refill(slots * (*state >> SLOT_BITS) + slot % slots);
        }
        value
    }

    /// Reads `n` numbers; lanes take turns, beginning with the first.
    #[inline(always)]
    pub fn run(&mut self, table: &Table, n: usize, mut each: impl FnMut(u64)) {
        let mut states = self.states;
        match self.lanes {
            1 => {
                let [state, ..] = &mut states;
                (0..n).for_each(|_| each(self.number(state, table)));
            }
            _ => {
                let [a, b, c, d] = &mut states;
                let mut left = n;
                while left >= 4 {
                    let numbers = [
                        self.number(a, table),
                        self.number(b, table),
                        self.number(c, table),
                        self.number(d, table),
                    ];
                    numbers.into_iter().for_each(&mut each);
                    left -= 4;
                }
                for state in [a, b, c].into_iter().take(left) {
                    each(self.number(state, table));
                }
            }
        }
        self.states = states;
    }

    /// Reads `n` choices among symbols that begin at these slots, the first at 0; lanes take turns.
    pub fn choices(&mut self, starts: &[u16], n: usize, mut each: impl FnMut(u8)) {
        for i in 0..n {
            let mut state = self.states[i % self.lanes];
            let slot = state & (SLOTS - 1);
            let symbol = starts.iter().filter(|&&s| u32::from(s) <= slot).count() - 1;
            let start = u32::from(starts[symbol]);
            let end = starts.get(symbol + 1).map_or(SLOTS, |&s| s.into());
            state = self.refill((end - start) * (state >> SLOT_BITS) + slot - start);
            self.states[i % self.lanes] = state;
            each(symbol as u8);
        }
    }

    /// Checks that the stream ends here, and that all numbers were whole.
    pub fn finish(self) -> Result<()> {
        if self.bad || self.at > self.words.len() {
            return Err(short());
        }
        if self.states.iter().any(|&s| s != LOW) || self.at != self.words.len() {
            return Err(Error::corrupt(
                "a geometric stream does not end with its numbers [F24]",
            ));
        }
        Ok(())
    }

    /// Checks that all numbers were whole; those read since one was not mean nothing.
    pub fn check(&self) -> Result<()> {
        if self.bad {
            return Err(short());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tables::{cost, parameter};
    use super::*;
    use proptest::prelude::*;

    fn encode(q: u8, numbers: &[u64], lanes: usize) -> Vec<u8> {
        let mut encoder = Encoder::default();
        let table = Table::of(q).unwrap();
        for (i, &x) in numbers.iter().enumerate() {
            encoder.number(table, x, i % lanes);
        }
        let mut out = vec![];
        encoder.finish(lanes, &mut out);
        out
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
            let sum = numbers.iter().sum();
            let q = parameter(n, sum);
            assert!(
                (f64::from(q) + 8.0 * p.log2()).abs() < 1.0,
                "p = {p}: q = {q}"
            );
            let entropy = -(p * p.log2() + (1.0 - p) * (1.0 - p).log2()) / p;
            for lanes in [1, 4] {
                let bits = 8.0 * encode(q, &numbers, lanes).len() as f64 / n as f64;
                assert!(
                    bits < entropy * 1.006 + 0.01,
                    "p = {p}: {bits} bits, entropy {entropy}"
                );
                let predicted = cost(q, n, sum) as f64 / 65536.0 / n as f64;
                assert!((bits - predicted).abs() < 0.03, "{bits} {predicted}");
            }
        }
    }

    proptest! {
        #[test]
        fn round_trip(
            runs in prop::collection::vec((0u8..192, prop::collection::vec((any::<u64>(), 0u32..64), 0..9)), 0..9),
            lanes in prop::sample::select(vec![1usize, 4]),
        ) {
            let mut encoder = Encoder::default();
            let mut raw_bits = 0;
            let number = |q: u8, (x, shift): (u64, u32)| {
                // The highest that a table's low bits leave room for.
                (x >> shift) & (u64::MAX >> Table::of(q).unwrap().low_bits)
            };
            for (q, numbers) in &runs {
                let table = Table::of(*q).unwrap();
                for (i, &x) in numbers.iter().enumerate() {
                    encoder.number(table, number(*q, x), i % lanes);
                    raw_bits += table.low_bits as usize;
                }
                encoder.raw(5, 3);
                raw_bits += 3;
            }
            let mut out = vec![];
            encoder.finish(lanes, &mut out);
            let mut decoder = Decoder::new(&out, raw_bits, lanes).unwrap();
            for (q, numbers) in &runs {
                let mut got = vec![];
                decoder.run(Table::of(*q).unwrap(), numbers.len(), |x| got.push(x));
                let expected: Vec<u64> = numbers.iter().map(|&x| number(*q, x)).collect();
                prop_assert_eq!(got, expected);
                prop_assert_eq!(decoder.raw(3), 5);
            }
            decoder.finish().unwrap();
        }

        #[test]
        fn any_bytes_are_an_error_or_numbers(
            bytes in prop::collection::vec(any::<u8>(), 0..80), qs in prop::collection::vec(0u8..192, 0..60),
            lanes in prop::sample::select(vec![1usize, 4]),
        ) {
            let raw_bits = qs.iter().map(|&q| Table::of(q).unwrap().low_bits as usize).sum();
            if let Ok(mut decoder) = Decoder::new(&bytes, raw_bits, lanes) {
                let mut n = 0;
                for q in &qs {
                    decoder.run(Table::of(*q).unwrap(), 1, |_| n += 1);
                }
                prop_assert_eq!(n, qs.len());
                let _ = decoder.finish();
            }
        }
    }
}
