//! Rice streams: low bits packed, quotients in unary, and rare large numbers apart.

use crate::bits::{bits_at, word_at, zero_from, BitWriter};
use crate::error::{Error, Result};

/// Largest quotient in a stream with escapes; it announces an escape.
const ESCAPE: u64 = 24;

/// What numbers a stream may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escapes {
    /// Any quotient is written out; `k` is at most 24 [F16].
    Never,
    /// Numbers with a quotient of 24 or more stand apart, in so many bytes.
    Width(usize),
}

/// Parameters whose costs are found in one pass.
const TRIED: usize = 3;

/// Bytes that `encode` takes for these numbers with each of the parameters from `from` on.
fn costs(numbers: impl Iterator<Item = u64>, from: u32, escapes: Escapes) -> [u64; TRIED] {
    let mut n = 0u64;
    let (mut unary, mut apart) = ([0u64; TRIED], [0u64; TRIED]);
    for number in numbers {
        n += 1;
        for (i, (unary, apart)) in unary.iter_mut().zip(&mut apart).enumerate() {
            let q = number >> (from + i as u32).min(63);
            match escapes {
                Escapes::Width(width) if q >= ESCAPE => {
                    *unary += ESCAPE + 1;
                    *apart += width as u64;
                }
                _ => *unary += q + 1,
            }
        }
    }
    std::array::from_fn(|i| {
        let low = n * (u64::from(from) + i as u64);
        1 + low.div_ceil(8) + unary[i].div_ceil(8) + apart[i]
    })
}

/// The parameter that suits `n` numbers with this sum, if they are geometric.
fn guess(n: u64, sum: u128) -> u32 {
    // ln 2 times the mean: the golden-ratio refinement is within the three tried around it.
    let mean = sum as f64 / n.max(1) as f64;
    (mean * std::f64::consts::LN_2).max(1.0).log2().round() as u32
}

/// The best `k` near the one that suits a geometric distribution, and its cost in bytes, for ascending
/// positions below 2^22 by their gaps; as [`choose`] without escapes.
pub fn choose_for_positions(positions: &[u32]) -> (u32, u64) {
    let (Some(&first), Some(&last)) = (positions.first(), positions.last()) else {
        return (0, 1);
    };
    let n = positions.len() as u64;
    let from = guess(n, u128::from(last) + 1 - u128::from(n))
        .min(24)
        .saturating_sub(1);
    // Gaps add up to less than 2^32.
    let mut unary: [u32; TRIED] = std::array::from_fn(|i| first >> (from + i as u32));
    for (a, b) in positions.iter().zip(&positions[1..]) {
        let gap = b - a - 1;
        for (i, unary) in unary.iter_mut().enumerate() {
            *unary += gap >> (from + i as u32);
        }
    }
    let bytes = unary.into_iter().zip(from..=24).map(|(unary, k)| {
        let low = (n * u64::from(k)).div_ceil(8);
        (k, 1 + low + (n + u64::from(unary)).div_ceil(8))
    });
    bytes
        .min_by_key(|&(_, bytes)| bytes)
        .unwrap_or((0, u64::MAX))
}

/// The best `k` near the one that suits a geometric distribution, and its cost in bytes.
pub fn choose(numbers: impl Iterator<Item = u64> + Clone, escapes: Escapes) -> (u32, u64) {
    let most = match escapes {
        Escapes::Never => 24,
        Escapes::Width(_) => 63,
    };
    let (mut n, mut sum) = (0u64, 0u128);
    for number in numbers.clone() {
        n += 1;
        sum += u128::from(number);
    }
    let guess = guess(n, sum);
    let mut best = (0, u64::MAX);
    let mut attempt = |from: u32| {
        let costs = costs(numbers.clone(), from, escapes);
        for (k, bytes) in (from..=most).zip(costs) {
            if bytes < best.1 {
                best = (k, bytes);
            }
        }
    };
    attempt(guess.min(most).saturating_sub(1));
    if guess > 8 && matches!(escapes, Escapes::Width(_)) {
        // A few huge numbers drag the mean far from the rest; escapes make small k good there.
        attempt(0);
        attempt(1);
    }
    best
}

/// Appends a stream of `numbers` with parameter `k`.
pub fn encode(
    numbers: impl Iterator<Item = u64> + Clone,
    k: u32,
    escapes: Escapes,
    out: &mut Vec<u8>,
) {
    let escaped = |number: u64| matches!(escapes, Escapes::Width(_)) && number >> k >= ESCAPE;
    out.push(k as u8);
    let mut bits = BitWriter::new(&mut *out);
    for number in numbers.clone() {
        let low = if escaped(number) {
            0
        } else {
            number & ((1u64 << k) - 1)
        };
        bits.put(low, k);
    }
    bits.finish();
    let mut bits = BitWriter::new(&mut *out);
    for number in numbers.clone() {
        bits.put_unary(if escaped(number) { ESCAPE } else { number >> k });
    }
    bits.finish();
    if let Escapes::Width(width) = escapes {
        for number in numbers.filter(|&n| escaped(n)) {
            out.extend_from_slice(&number.to_le_bytes()[..width]);
        }
    }
}

fn short() -> Error {
    Error::corrupt("a Rice stream is cut short")
}

/// The parameter, the low bits and all that follows them, of a stream of `n` numbers.
fn parts(input: &[u8], n: usize, most: u8) -> Result<(u32, &[u8], &[u8])> {
    let (&k, rest) = input.split_first().ok_or_else(short)?;
    if k > most {
        let message = format!("Rice parameter {k} is above {most} [F16]");
        return Err(Error::corrupt(message));
    }
    let low_bits = n.checked_mul(k.into()).ok_or_else(short)?;
    let low_bytes = low_bits.div_ceil(8);
    if low_bytes > rest.len() {
        return Err(short());
    }
    let (low, unary) = rest.split_at(low_bytes);
    if !zero_from(low, low_bits) {
        let message = "padding behind the low bits is not zero [F2]";
        return Err(Error::corrupt(message));
    }
    Ok((u32::from(k), low, unary))
}

/// Bytes of a unary part of so many bits.
fn unary_len(unary: &[u8], bits: usize) -> Result<usize> {
    let bytes = bits.div_ceil(8);
    if zero_from(&unary[..bytes], bits) {
        return Ok(bytes);
    }
    let message = "padding behind the unary part is not zero [F2]";
    Err(Error::corrupt(message))
}

/// Appends ascending numbers below `end` from the stream of their `n` gaps at the front of `input`, without
/// escapes, and returns how many bytes it took. After an error, what was appended is worth nothing.
pub fn decode_positions(input: &[u8], n: usize, end: u32, out: &mut Vec<u32>) -> Result<usize> {
    let (k, low, unary) = parts(input, n, 24)?;
    // Every number takes at least one bit.
    if n > unary.len().saturating_mul(8) {
        return Err(short());
    }
    let begun = out.len();
    out.resize(begun + n, 0);
    let mut left = &mut out[begun..];
    let (mut seen, mut bits, mut lows, mut last) = (0usize, 0usize, 0u64, None);
    for byte in (0..unary.len()).step_by(8) {
        let mut word = word_at(unary, byte);
        let count = left.len().min(word.count_ones() as usize);
        let (here, later) = left.split_at_mut(count);
        for place in here {
            let bit = 8 * byte + word.trailing_zeros() as usize;
            word &= word - 1;
            let at = seen * k as usize;
            let number = (word_at(low, at / 8) >> (at % 8)) & ((1 << k) - 1);
            // The quotients so far add up to the zeros so far; `lows` has a one for each position before.
            let position = ((bit - seen) as u64) << k;
            let position = position + lows + number;
            *place = position as u32;
            (seen, bits, last) = (seen + 1, bit + 1, Some(position));
            lows += number + 1;
        }
        left = later;
        if left.is_empty() {
            break;
        }
    }
    if !left.is_empty() {
        return Err(short());
    }
    // They ascend, so the last one speaks for all.
    if last.is_some_and(|last| last >= u64::from(end)) {
        return Err(Error::corrupt("rice positions leave the tile [F14]"));
    }
    Ok(1 + low.len() + unary_len(unary, bits)?)
}

/// Reads a stream of `n` numbers with escapes of `width` bytes from the front of `input` and returns how many
/// bytes it took.
///
/// `emit` gets the numbers in order, except that an escaped one comes as `(index, None)` first and again
/// with its value when the stream's end is read.
pub fn decode(
    input: &[u8],
    n: usize,
    width: usize,
    mut emit: impl FnMut(usize, Option<u64>) -> Result<()>,
) -> Result<usize> {
    let (k, low, unary) = parts(input, n, 63)?;
    let mut apart = 0usize;
    let mut seen = 0usize;
    let mut next = 0usize; // first bit that belongs to the next number
    let mut byte = 0usize;
    while seen < n {
        if byte >= unary.len() {
            return Err(short());
        }
        let mut word = word_at(unary, byte);
        while word != 0 && seen < n {
            let bit = byte * 8 + word.trailing_zeros() as usize;
            word &= word - 1;
            let q = (bit - next) as u64;
            next = bit + 1;
            let low = bits_at(low, seen * k as usize, k);
            if q >= ESCAPE {
                if q > ESCAPE || low != 0 {
                    let message = "an escape is not in its one form [F2] [F17]";
                    return Err(Error::corrupt(message));
                }
                apart += 1;
                emit(seen, None)?;
            } else if q.leading_zeros() < k {
                return Err(Error::corrupt("a number exceeds 64 bits"));
            } else {
                emit(seen, Some(q << k | low))?;
            }
            seen += 1;
        }
        byte += 8;
    }
    let used = 1 + low.len() + unary_len(unary, next)?;
    if apart == 0 {
        return Ok(used);
    }
    let end = apart
        .checked_mul(width)
        .and_then(|b| b.checked_add(used))
        .ok_or_else(short)?;
    let values = input.get(used..end).ok_or_else(short)?;
    let mut at = 0;
    // The escaped numbers are found again by a second walk over the quotients.
    second_walk(unary, n, |index| {
        let mut raw = [0; 8];
        raw[..width].copy_from_slice(&values[at..at + width]);
        at += width;
        let number = u64::from_le_bytes(raw);
        if number >> k < ESCAPE {
            return Err(Error::corrupt("an escape holds a small number [F17]"));
        }
        emit(index, Some(number))
    })?;
    Ok(end)
}

/// Calls `escaped` with the index of every number whose quotient announces an escape.
fn second_walk(unary: &[u8], n: usize, mut escaped: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let (mut seen, mut next, mut byte) = (0usize, 0usize, 0usize);
    while seen < n && byte < unary.len() {
        let mut word = word_at(unary, byte);
        while word != 0 && seen < n {
            let bit = byte * 8 + word.trailing_zeros() as usize;
            word &= word - 1;
            if (bit - next) as u64 == ESCAPE {
                escaped(seen)?;
            }
            next = bit + 1;
            seen += 1;
        }
        byte += 8;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(numbers: &[u64], escapes: Escapes) {
        let (k, bytes) = choose(numbers.iter().copied(), escapes);
        let mut out = vec![];
        encode(numbers.iter().copied(), k, escapes, &mut out);
        assert_eq!(out.len() as u64, bytes, "the cost is exact");
        let Escapes::Width(width) = escapes else {
            for end in 0..out.len() {
                assert_eq!(
                    naive(&out[..end], numbers.len()),
                    None,
                    "a cut at {end} is seen"
                );
            }
            out.extend_from_slice(&[0xff; 3]);
            assert_eq!(
                naive(&out, numbers.len()),
                Some((numbers.to_vec(), bytes as usize))
            );
            return;
        };
        let mut got = vec![None; numbers.len()];
        out.extend_from_slice(&[0xff; 3]);
        let used = decode(&out, numbers.len(), width, |i, v| {
            got[i] = v;
            Ok(())
        })
        .unwrap();
        assert_eq!(used as u64, bytes);
        assert!(got.iter().zip(numbers).all(|(g, n)| *g == Some(*n)));
        for end in 0..used {
            let r = decode(&out[..end], numbers.len(), width, |_, _| Ok(()));
            assert!(r.is_err(), "a cut at {end} of {used} is seen");
        }
    }

    /// Numbers of a stream without escapes, bit by bit, and its length.
    fn naive(stream: &[u8], n: usize) -> Option<(Vec<u64>, usize)> {
        let (&k, rest) = stream.split_first()?;
        let mut bits = rest
            .iter()
            .flat_map(|byte| (0..8).map(move |i| u64::from(byte >> i & 1)));
        let mut taken = 0;
        let mut bit = || {
            taken += 1;
            bits.next()
        };
        let mut numbers = vec![0; n];
        for number in &mut numbers {
            for i in 0..k {
                *number |= bit()? << i.min(63);
            }
        }
        for _ in n * usize::from(k)..(n * usize::from(k)).next_multiple_of(8) {
            (bit()? == 0).then_some(())?;
        }
        for number in &mut numbers {
            while bit()? == 0 {
                *number += 1 << k.min(63);
            }
        }
        while taken % 8 != 0 {
            taken += 1;
            (bits.next()? == 0).then_some(())?;
        }
        (k <= 24).then_some((numbers, 1 + taken / 8))
    }

    /// `decode_positions` does what reading bit by bit and adding up the gaps would.
    fn twin_of_positions(stream: &[u8], n: usize, end: u32) {
        let expected = naive(stream, n).and_then(|(gaps, used)| {
            let mut next = 0;
            let mut positions = vec![7];
            for gap in gaps {
                let position = next + gap;
                (position < u64::from(end)).then_some(())?;
                positions.push(position as u32);
                next = position + 1;
            }
            Some((positions, used))
        });
        let mut got = vec![7];
        let used = decode_positions(stream, n, end, &mut got);
        assert_eq!(used.ok().map(|used| (got, used)), expected);
    }

    proptest! {
        #[test]
        fn positions_by_their_gaps(
            positions in prop::collection::btree_set(0u32..1 << 22, 0..200), dense in 0u32..300,
        ) {
            let positions: Vec<u32> =
                positions.into_iter().filter(|p| *p >= dense).chain(0..dense).collect();
            let mut positions = positions;
            positions.sort_unstable();
            let gaps = super::super::positions::gaps(&positions);
            prop_assert_eq!(choose_for_positions(&positions), choose(gaps, Escapes::Never));
        }

        #[test]
        fn positions_by_the_stream_of_their_gaps(
            gaps in prop::collection::vec((0u64..1 << 22, 0u32..22), 0..200), k in 0u32..25,
            behind in prop::collection::vec(any::<u8>(), 0..20), end in 0u32..1 << 26,
        ) {
            let gaps: Vec<u64> = gaps.into_iter().map(|(gap, shift)| gap >> shift >> (24 - k)).collect();
            let mut stream = vec![];
            encode(gaps.iter().copied(), k, Escapes::Never, &mut stream);
            let used = stream.len();
            stream.extend(behind);
            twin_of_positions(&stream, gaps.len(), 1 << 30);
            twin_of_positions(&stream, gaps.len(), end);
            for cut in 0..used.min(40) {
                twin_of_positions(&stream[..cut], gaps.len(), 1 << 30);
            }
        }

        #[test]
        fn any_bytes_are_an_error_or_positions(
            k in 0u8..27, bytes in prop::collection::vec(any::<u8>(), 0..100), n in 0usize..200,
            end in 0u32..1 << 26,
        ) {
            let stream: Vec<u8> = std::iter::once(k).chain(bytes).collect();
            twin_of_positions(&stream, n, end);
        }

        #[test]
        fn small_numbers(numbers in prop::collection::vec(0u64..5000, 0..200)) {
            round_trip(&numbers, Escapes::Never);
            round_trip(&numbers, Escapes::Width(2));
        }

        #[test]
        fn any_numbers(numbers in prop::collection::vec((any::<u64>(), 0u32..64), 0..60)) {
            let numbers: Vec<u64> = numbers.into_iter().map(|(v, s)| v >> s).collect();
            round_trip(&numbers, Escapes::Width(8));
        }

        #[test]
        fn any_bytes_are_an_error_or_numbers(
            bytes in prop::collection::vec(any::<u8>(), 0..100), n in 0usize..200, width in 1usize..=8,
        ) {
            let mut count = 0;
            if decode(&bytes, n, width, |i, v| { assert!(i < n); count += usize::from(v.is_some()); Ok(()) }).is_ok() {
                prop_assert_eq!(count, n);
            }
        }
    }
}
