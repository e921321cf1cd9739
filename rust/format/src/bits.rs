//! Varints and bit streams.

use crate::error::{Error, Result};

/// Appends a LEB128 varint.
pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes of a varint.
pub const fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// A signed number as an unsigned one: 0, -1, 1, -2, ... become 0, 1, 2, 3, ...
pub const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

/// Undoes `zigzag`.
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Takes a varint from the front of `input`.
pub fn take_varint(input: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for (i, &byte) in input.iter().enumerate() {
        if i == 9 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            if byte == 0 && i > 0 {
                return Err(Error::corrupt("a varint is not the shortest one [F1]"));
            }
            *input = &input[i + 1..];
            return Ok(value);
        }
    }
    Err(Error::corrupt(
        "a varint is cut short or exceeds 64 bits [F1]",
    ))
}

/// Fills bytes from bit 0 up; `V` is a `Vec<u8>` or a mutable reference to one.
#[derive(Debug, Default)]
pub struct BitWriter<V> {
    out: V,
    buffer: u64,
    used: u32,
}

impl<V: AsMut<Vec<u8>>> BitWriter<V> {
    /// Appends to `out`, from a fresh byte.
    pub fn new(out: V) -> Self {
        Self {
            out,
            buffer: 0,
            used: 0,
        }
    }

    /// Appends the low `bits` bits of `value`, which has no others set; at most 64.
    #[inline]
    pub fn put(&mut self, value: u64, bits: u32) {
        debug_assert!(bits == 64 || value >> bits == 0);
        self.buffer |= value << self.used;
        let used = self.used + bits;
        if used < 64 {
            self.used = used;
            return;
        }
        self.out
            .as_mut()
            .extend_from_slice(&self.buffer.to_le_bytes());
        let taken = 64 - self.used;
        // The shift by 64 that an unused buffer would need is a plain zero.
        self.buffer = value.checked_shr(taken).unwrap_or(0);
        self.used = used - 64;
    }

    /// Appends `zeros` zero bits and a one.
    #[inline]
    pub fn put_unary(&mut self, mut zeros: u64) {
        while zeros >= 63 {
            self.put(0, 63);
            zeros -= 63;
        }
        self.put(1 << zeros, zeros as u32 + 1);
    }

    /// Forgets all bits and keeps the memory.
    pub fn clear(&mut self) {
        self.out.as_mut().clear();
        (self.buffer, self.used) = (0, 0);
    }

    /// Pads to a byte; all bytes so far.
    pub fn pad(&mut self) -> &[u8] {
        let bytes = self.used.div_ceil(8) as usize;
        let out = self.out.as_mut();
        out.extend_from_slice(&self.buffer.to_le_bytes()[..bytes]);
        (self.buffer, self.used) = (0, 0);
        out
    }

    /// Pads to a byte and hands the bytes back.
    pub fn finish(mut self) -> V {
        let bytes = self.used.div_ceil(8) as usize;
        self.out
            .as_mut()
            .extend_from_slice(&self.buffer.to_le_bytes()[..bytes]);
        self.out
    }
}

/// Up to eight bytes from `at` on, little-endian; zeros behind the end.
#[inline]
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    if let Some(eight) = bytes.get(at..at + 8) {
        let mut raw = [0; 8];
        raw.copy_from_slice(eight);
        return u64::from_le_bytes(raw);
    }
    let mut raw = [0; 8];
    if let Some(rest) = bytes.get(at..) {
        raw[..rest.len()].copy_from_slice(rest);
    }
    u64::from_le_bytes(raw)
}

/// `bits` bits from bit `at` on, at most 63; zeros behind the end.
#[inline]
pub fn bits_at(bytes: &[u8], at: usize, bits: u32) -> u64 {
    let shift = (at & 7) as u32;
    let mut value = word_at(bytes, at >> 3) >> shift;
    if shift + bits > 64 {
        let next = bytes.get((at >> 3) + 8).copied().unwrap_or(0);
        value |= u64::from(next) << (64 - shift);
    }
    value & ((1u64 << bits) - 1)
}

/// Whether all bits from bit `from` of the stream on are zero.
pub fn zero_from(bytes: &[u8], from: usize) -> bool {
    let Some(rest) = bytes.get(from / 8..) else {
        return true;
    };
    match rest.split_first() {
        None => true,
        Some((first, others)) => first >> (from % 8) == 0 && others.iter().all(|&b| b == 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints(value in any::<u64>(), shift in 0u32..64) {
            let value = value >> shift;
            let mut out = vec![];
            put_varint(value, &mut out);
            prop_assert_eq!(out.len(), varint_len(value));
            for end in 0..out.len() {
                prop_assert!(take_varint(&mut &out[..end]).is_err());
            }
            out.push(7);
            let mut rest = &out[..];
            prop_assert_eq!(take_varint(&mut rest).unwrap(), value);
            prop_assert_eq!(rest, &[7]);
        }

        #[test]
        fn bit_streams(items in prop::collection::vec((any::<u64>(), 0u32..64), 0..50)) {
            let mut out = vec![];
            let mut w = BitWriter::new(&mut out);
            for &(v, n) in &items {
                w.put(v & ((1 << n) - 1), n);
            }
            w.finish();
            let mut at = 0;
            for (v, n) in items {
                prop_assert_eq!(bits_at(&out, at, n), v & ((1 << n) - 1));
                at += n as usize;
            }
            prop_assert_eq!(out.len(), at.div_ceil(8));
            prop_assert!(zero_from(&out, at));
        }
    }

    #[test]
    fn overlong_and_overflowing_varints_are_refused() {
        assert!(take_varint(&mut &[0x80, 0x00][..]).is_err());
        assert!(take_varint(&mut &[0xff; 11][..]).is_err());
        let mut most = vec![0xff; 9];
        most.push(1);
        assert_eq!(take_varint(&mut &most[..]).unwrap(), u64::MAX);
        most[9] = 2;
        assert!(take_varint(&mut &most[..]).is_err());
    }
}
