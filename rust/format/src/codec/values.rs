//! Value codecs: what the changed elements become.

use deltawire_kernels::ordered::{advance, advance_all, step, Order};
use deltawire_kernels::Word;

use super::positions::gaps;
use super::rice::{self, Escapes};
use super::stage::{compress, decompress};
use crate::bits::{put_varint, take_varint, zero_from};
use crate::error::{Error, Result};

/// How values are written. Ids are those of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ValueCodec {
    /// New elements one after the other.
    Raw = 0,
    /// New elements, each byte of them in a plane of its own.
    Planes = 1,
    /// Steps from the old elements in ordered-integer space.
    Step = 2,
    /// Steps within the stream of the positions, which are by class.
    Classes = 3,
}

impl ValueCodec {
    /// Every codec.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Planes, Self::Step, Self::Classes];

    /// By id.
    pub fn from_id(id: u8) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|c| *c as u8 == id)
            .ok_or_else(|| Error::corrupt(format!("value codec {id} is reserved [F2]")))
    }

    /// As `inspect` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Planes => "planes",
            Self::Step => "step",
            Self::Classes => "classes",
        }
    }

    /// Whether values are relative to the old elements.
    pub const fn is_step(self) -> bool {
        matches!(self, Self::Step | Self::Classes)
    }

    /// Most bytes a stream of `count` values of `width` bytes can have.
    pub fn max_len(self, count: u32, width: usize) -> u64 {
        let (count, width) = (u64::from(count), width as u64);
        match self {
            Self::Raw => count * width,
            Self::Planes => width * (4 + count),
            // Signs; exceptions as a Rice stream of gaps; k up to 63, 25 unary bits, escapes.
            Self::Step => 64 + count.div_ceil(8) + 4 * count + count * (8 + 4 + width),
            Self::Classes => 0,
        }
    }
}

/// Decoded values, in the order of the positions.
#[derive(Clone, Debug, Default)]
pub struct Values<W> {
    words: Vec<W>,
    steps: bool,
    /// Memory that decoding reuses.
    plane: Vec<u8>,
    exceptions: Vec<u32>,
}

impl<W: Word> Values<W> {
    /// Whether they are relative to the old elements.
    pub fn are_steps(&self) -> bool {
        self.steps
    }

    /// New value `i`, given the old one.
    #[inline(always)]
    pub fn resolve(&self, i: usize, old: W, order: Order) -> W {
        if self.steps {
            advance(old, self.words[i], order)
        } else {
            self.words[i]
        }
    }

    /// Appends the new values from number `from` on, given the old ones.
    pub(crate) fn resolve_all(&self, from: usize, old: &[W], order: Order, out: &mut Vec<W>) {
        let words = &self.words[from..from + old.len()];
        if self.steps {
            advance_all(old, words.iter().copied(), order, out);
        } else {
            out.extend_from_slice(words);
        }
    }

    /// Steps or new values, in the order of the positions.
    pub(crate) fn words(&self) -> &[W] {
        &self.words
    }

    /// Replaces them by steps, in this order.
    pub(crate) fn set_steps(&mut self, steps: &[W], order: &[u32]) {
        self.steps = true;
        self.words.clear();
        self.words
            .extend(order.iter().map(|&at| steps[at as usize]));
    }

    /// Replaces them by steps.
    pub(crate) fn copy_steps(&mut self, steps: &[W]) {
        self.steps = true;
        self.words.clear();
        self.words.extend_from_slice(steps);
    }

    /// Bytes of memory held.
    pub(crate) fn held(&self) -> usize {
        self.words.capacity() * W::WIDTH + self.plane.capacity() + 4 * self.exceptions.capacity()
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

/// Appends raw values.
pub fn encode_raw<W: Word>(new: &[W], out: &mut Vec<u8>) {
    out.reserve(new.len() * W::WIDTH);
    new.iter().for_each(|w| w.append(out));
}

/// Appends byte planes, most significant first, each compressed where that makes it smaller.
pub fn encode_planes<W: Word>(new: &[W], out: &mut Vec<u8>) {
    let mut plane = Vec::with_capacity(new.len());
    for byte in (0..W::WIDTH).rev() {
        plane.clear();
        plane.extend(new.iter().map(|w| (w.to_u64() >> (8 * byte)) as u8));
        let packed = compress(&plane);
        let (head, body) = if packed.len() < plane.len() {
            (packed.len() as u32 | 1 << 31, &packed)
        } else {
            (plane.len() as u32, &plane)
        };
        out.extend_from_slice(&head.to_le_bytes());
        out.extend_from_slice(body);
    }
}

/// Appends steps; no pair may be equal.
pub fn encode_steps<W: Word>(old: &[W], new: &[W], order: Order, out: &mut Vec<u8>) {
    debug_assert!(old.iter().zip(new).all(|(a, b)| a != b));
    let mut at = Vec::new();
    let mut excess = Vec::new();
    out.reserve(new.len() / 8 + 16);
    for (group, (old, new)) in old.chunks(64).zip(new.chunks(64)).enumerate() {
        let mut signs = 0u64;
        let mut large = 0u64;
        for (i, (&old, &new)) in old.iter().zip(new).enumerate() {
            let d = step(old, new, order).to_i64();
            signs |= u64::from(d > 0) << i;
            large |= u64::from(d.unsigned_abs() > 1) << i;
        }
        out.extend_from_slice(&signs.to_le_bytes()[..new.len().div_ceil(8)]);
        while large != 0 {
            let i = large.trailing_zeros() as usize;
            at.push((64 * group + i) as u32);
            excess.push(step(old[i], new[i], order).to_i64().unsigned_abs() - 2);
            large &= large - 1;
        }
    }
    put_varint(at.len() as u64, out);
    if at.is_empty() {
        return;
    }
    let (k, bytes) = rice::choose(gaps(&at), Escapes::Never);
    put_varint(bytes, out);
    rice::encode(gaps(&at), k, Escapes::Never, out);
    let escapes = Escapes::Width(W::WIDTH);
    let (k, _) = rice::choose(excess.iter().copied(), escapes);
    rice::encode(excess.iter().copied(), k, escapes, out);
}

/// Replaces `out` by the `count` values of `stream`.
pub fn decode<W: Word>(
    codec: ValueCodec,
    stream: &[u8],
    count: u32,
    out: &mut Values<W>,
) -> Result<()> {
    out.words.clear();
    out.steps = codec.is_step();
    let count = count as usize;
    match codec {
        ValueCodec::Raw => {
            if stream.len() != count * W::WIDTH {
                return Err(Error::corrupt(format!(
                    "{} bytes of raw values do not hold {count} elements of {} bytes [F15]",
                    stream.len(),
                    W::WIDTH
                )));
            }
            out.words.extend(stream.chunks_exact(W::WIDTH).map(W::read));
            Ok(())
        }
        ValueCodec::Planes => decode_planes(stream, count, &mut out.plane, &mut out.words),
        ValueCodec::Step => decode_steps(stream, count, &mut out.exceptions, &mut out.words),
        ValueCodec::Classes => Err(Error::corrupt(
            "steps by class behind positions that have none [F2]",
        )),
    }
}

fn decode_planes<W: Word>(
    stream: &[u8],
    count: usize,
    scratch: &mut Vec<u8>,
    out: &mut Vec<W>,
) -> Result<()> {
    let short = || Error::corrupt("byte planes are cut short [F15]");
    let mut rest = stream;
    for byte in (0..W::WIDTH).rev() {
        let (head, body) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let head = u32::from_le_bytes(*head);
        let stored = body.get(..(head & !(1 << 31)) as usize).ok_or_else(short)?;
        rest = &body[stored.len()..];
        let plane = if head >> 31 == 1 {
            decompress(stored, count as u64, scratch)?;
            &scratch[..]
        } else {
            stored
        };
        if plane.len() != count {
            return Err(Error::corrupt(format!(
                "a byte plane holds {} bytes for {count} elements [F15]",
                plane.len()
            )));
        }
        let part = |b: u8| W::from_u64(u64::from(b) << (8 * byte));
        if byte == W::WIDTH - 1 {
            out.extend(plane.iter().map(|&b| part(b)));
        } else {
            // Disjoint bits: adding is or-ing.
            out.iter_mut()
                .zip(plane)
                .for_each(|(w, &b)| *w = w.wrapping_add(part(b)));
        }
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(Error::corrupt(
            "byte planes do not end with the stream [F15]",
        ))
    }
}

fn decode_steps<W: Word>(
    stream: &[u8],
    count: usize,
    at: &mut Vec<u32>,
    out: &mut Vec<W>,
) -> Result<()> {
    let wrong = |what: &str| Error::corrupt(format!("steps {what} [F15]"));
    let signs_len = count.div_ceil(8);
    if stream.len() < signs_len {
        return Err(wrong("are cut short"));
    }
    let (signs, mut rest) = stream.split_at(signs_len);
    if !zero_from(signs, count) {
        return Err(Error::corrupt("padding behind signs is not zero [F2]"));
    }
    let positive = |i: usize| signs[i / 8] >> (i % 8) & 1 == 1;
    let minus_one = W::default().wrapping_sub(W::from_u64(1));
    let one = W::from_u64(1);
    let step = |byte: u8, bit: usize| if byte >> bit & 1 == 1 { one } else { minus_one };
    out.resize(count, one);
    let mut eights = out.chunks_exact_mut(8);
    for (eight, &byte) in eights.by_ref().zip(signs) {
        for (bit, out) in eight.iter_mut().enumerate() {
            *out = step(byte, bit);
        }
    }
    for (bit, out) in eights.into_remainder().iter_mut().enumerate() {
        *out = step(signs[count / 8], bit);
    }
    let exceptions = take_varint(&mut rest)?;
    if exceptions > count as u64 {
        return Err(wrong("have more exceptions than changes"));
    }
    if exceptions > 0 {
        let exceptions = exceptions as usize;
        let length = take_varint(&mut rest)?;
        if length > rest.len() as u64 {
            return Err(wrong("are cut short"));
        }
        let (ranks, magnitudes) = rest.split_at(length as usize);
        at.clear();
        if rice::decode_positions(ranks, exceptions, count as u32, at)? != ranks.len() {
            return Err(wrong("have exceptions of another length than stated"));
        }
        let most = W::SIGN.to_u64();
        let used = rice::decode(magnitudes, exceptions, W::WIDTH, |i, excess| {
            let Some(excess) = excess else { return Ok(()) };
            let index = at[i] as usize;
            // The one magnitude 2^(w-1) is that of the lowest step, which is negative.
            let limit = if positive(index) { most - 1 } else { most };
            if excess > limit.saturating_sub(2) || limit < 2 {
                return Err(wrong("leave the element's range"));
            }
            let magnitude = W::from_u64(excess + 2);
            out[index] = if positive(index) {
                magnitude
            } else {
                W::default().wrapping_sub(magnitude)
            };
            Ok(())
        })?;
        rest = &magnitudes[used..];
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(wrong("do not end with the stream"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<W: Word>(pairs: &[(u64, u64)]) {
        let pairs: Vec<(W, W)> = pairs
            .iter()
            .map(|&(a, b)| (W::from_u64(a), W::from_u64(b)))
            .filter(|(a, b)| a != b)
            .collect();
        let old: Vec<W> = pairs.iter().map(|p| p.0).collect();
        let new: Vec<W> = pairs.iter().map(|p| p.1).collect();
        let count = new.len() as u32;
        for order in [Order::Float, Order::Integer] {
            for codec in [ValueCodec::Raw, ValueCodec::Planes, ValueCodec::Step] {
                let mut stream = vec![];
                match codec {
                    ValueCodec::Raw => encode_raw(&new, &mut stream),
                    ValueCodec::Planes => encode_planes(&new, &mut stream),
                    ValueCodec::Step => encode_steps(&old, &new, order, &mut stream),
                    ValueCodec::Classes => {}
                }
                assert!(stream.len() as u64 <= codec.max_len(count, W::WIDTH));
                let mut values = Values::default();
                decode(codec, &stream, count, &mut values).unwrap();
                let got: Vec<W> = (0..new.len())
                    .map(|i| values.resolve(i, old[i], order))
                    .collect();
                assert_eq!(got, new, "{codec:?} {order:?}");
                for end in 0..stream.len() {
                    assert!(decode(codec, &stream[..end], count, &mut values).is_err());
                }
                stream.push(0);
                assert!(decode(codec, &stream, count, &mut values).is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn every_codec_round_trips(
            near in prop::collection::vec((any::<u64>(), -3i64..4), 0..40),
            far in prop::collection::vec((any::<u64>(), any::<u64>()), 0..40),
        ) {
            let mut pairs = far;
            pairs.extend(near.iter().map(|&(a, d)| (a, a.wrapping_add(d as u64))));
            pairs.push((0, 0x8080_8080_8080_8080));
            check::<u8>(&pairs);
            check::<u16>(&pairs);
            check::<u32>(&pairs);
            check::<u64>(&pairs);
        }

        #[test]
        fn any_bytes_are_an_error_or_values(
            stream in prop::collection::vec(any::<u8>(), 0..80), count in 1u32..60,
        ) {
            for codec in ValueCodec::ALL {
                let mut a = Values::<u8>::default();
                if decode(codec, &stream, count, &mut a).is_ok() {
                    prop_assert_eq!(a.len(), count as usize);
                }
                let mut a = Values::<u64>::default();
                if decode(codec, &stream, count, &mut a).is_ok() {
                    prop_assert_eq!(a.len(), count as usize);
                }
            }
        }
    }
}
