//! Steps by group: signs, and for each group which steps are larger than one and by how much.

use deltawire_kernels::Word;

use super::geometric::{parameter, Decoder, Encoder, Table};
use super::positions::gaps;
use crate::bits::{put_varint, take_varint, zero_from};
use crate::error::{Error, Result};

/// Largest excess over two that this codec carries [F26].
const MOST: u64 = (1 << 22) - 1;

/// Appends steps, given in the order of the groups; false (and nothing) where one is too large.
pub fn encode(steps: &[i64], counts: &[u32], out: &mut Vec<u8>) -> bool {
    if steps.iter().any(|d| d.unsigned_abs() > MOST + 2) {
        return false;
    }
    let begun = out.len();
    out.resize(begun + steps.len().div_ceil(8), 0);
    for (i, _) in steps.iter().enumerate().filter(|(_, d)| **d > 0) {
        out[begun + i / 8] |= 1 << (i % 8);
    }
    let mut encoder = Encoder::default();
    let mut rest = steps;
    let (mut at, mut excess) = (Vec::new(), Vec::new());
    for &count in counts.iter().filter(|&&n| n > 0) {
        let (group, others) = rest.split_at(count as usize);
        rest = others;
        at.clear();
        excess.clear();
        for (i, d) in group
            .iter()
            .enumerate()
            .filter(|(_, d)| d.unsigned_abs() > 1)
        {
            at.push(i as u32);
            excess.push(d.unsigned_abs() - 2);
        }
        put_varint(at.len() as u64, out);
        let Some(&last) = at.last() else { continue };
        let n = at.len() as u64;
        let where_q = parameter(n, u64::from(last) + 1 - n);
        let how_q = parameter(n, excess.iter().sum());
        out.extend_from_slice(&[where_q, how_q]);
        if let (Some(places), Some(sizes)) = (Table::of(where_q), Table::of(how_q)) {
            gaps(&at).for_each(|gap| encoder.put(places, gap));
            excess.iter().for_each(|&x| encoder.put(sizes, x));
        }
    }
    encoder.finish(out);
    true
}

/// Exceptions of one group: how many, and the tables of their places and sizes.
type Exceptions = Option<(u32, &'static Table, &'static Table)>;

/// Appends the steps of groups with these counts to `out`.
pub fn decode<W: Word>(stream: &[u8], counts: &[u32], out: &mut Vec<W>) -> Result<()> {
    let wrong = |what: &str| Error::corrupt(format!("grouped steps {what} [F26]"));
    let total: usize = counts.iter().map(|&n| n as usize).sum();
    let signs_len = total.div_ceil(8);
    if stream.len() < signs_len {
        return Err(wrong("are cut short"));
    }
    let (signs, mut rest) = stream.split_at(signs_len);
    if !zero_from(signs, total) {
        return Err(wrong("have padding that is not zero"));
    }
    let positive = |i: usize| signs[i / 8] >> (i % 8) & 1 == 1;
    let (one, zero) = (W::from_u64(1), W::default());
    let begun = out.len();
    out.extend((0..total).map(|i| {
        if positive(i) {
            one
        } else {
            zero.wrapping_sub(one)
        }
    }));
    let mut groups: Vec<Exceptions> = Vec::with_capacity(counts.len());
    let mut low_bits = 0usize;
    for &count in counts {
        let exceptions = if count == 0 {
            0
        } else {
            take_varint(&mut rest)?
        };
        if exceptions > u64::from(count) {
            return Err(wrong("have more exceptions than changes"));
        }
        if exceptions == 0 {
            groups.push(None);
            continue;
        }
        let (&[places, sizes], others) = rest
            .split_first_chunk::<2>()
            .ok_or_else(|| wrong("are cut short"))?;
        rest = others;
        let (Some(places), Some(sizes)) = (Table::of(places), Table::of(sizes)) else {
            return Err(wrong("have a parameter that is too large"));
        };
        low_bits += exceptions as usize * (places.low_bits + sizes.low_bits) as usize;
        groups.push(Some((exceptions as u32, places, sizes)));
    }
    let mut decoder = Decoder::new(rest, low_bits)?;
    let mut first = 0usize;
    let mut at = Vec::new();
    for (&count, group) in counts.iter().zip(groups) {
        if let Some((exceptions, places, sizes)) = group {
            at.clear();
            let mut next = 0u64;
            for _ in 0..exceptions {
                let most = u64::from(count)
                    .checked_sub(next + 1)
                    .ok_or_else(|| wrong("have exceptions outside their group"))?;
                let place = next + decoder.get(places, most)?;
                at.push(first + place as usize);
                next = place + 1;
            }
            for &i in &at {
                let magnitude = decoder.get(sizes, MOST)? + 2;
                // The lowest step, which is negative, has the one magnitude 2^(w-1).
                if magnitude > W::SIGN.to_u64() - u64::from(positive(i)) {
                    return Err(wrong("leave the element's range"));
                }
                let magnitude = W::from_u64(magnitude);
                out[begun + i] = if positive(i) {
                    magnitude
                } else {
                    zero.wrapping_sub(magnitude)
                };
            }
        }
        first += count as usize;
    }
    decoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<W: Word>(steps: &[i64], counts: &[u32]) {
        let words: Vec<W> = steps.iter().map(|&d| W::from_u64(d as u64)).collect();
        let steps: Vec<i64> = words.iter().map(|w| w.to_i64()).collect();
        if steps.contains(&0) {
            return;
        }
        let mut stream = vec![];
        if !encode(&steps, counts, &mut stream) {
            assert!(stream.is_empty());
            return;
        }
        let mut got: Vec<W> = vec![];
        decode(&stream, counts, &mut got).unwrap();
        assert_eq!(got, words);
        for end in 0..stream.len() {
            assert!(decode::<W>(&stream[..end], counts, &mut vec![]).is_err());
        }
        stream.push(0);
        assert!(decode::<W>(&stream, counts, &mut vec![]).is_err());
    }

    proptest! {
        #[test]
        fn round_trip(
            groups in prop::collection::vec(
                prop::collection::vec(prop_oneof![8 => -1i64..2, 2 => -9i64..10, 1 => any::<i64>()], 0..30),
                1..17,
            ),
            shift in 0u32..60,
        ) {
            let groups: Vec<Vec<i64>> = groups.into_iter()
                .map(|g| g.into_iter().map(|d| if d.abs() > 9 { d >> shift } else { d }).filter(|d| *d != 0).collect())
                .collect();
            let counts: Vec<u32> = groups.iter().map(|g| g.len() as u32).collect();
            let steps: Vec<i64> = groups.into_iter().flatten().collect();
            check::<u8>(&steps, &counts);
            check::<u16>(&steps, &counts);
            check::<u64>(&steps, &counts);
        }

        #[test]
        fn any_bytes_are_an_error_or_steps(
            stream in prop::collection::vec(any::<u8>(), 0..60), counts in prop::collection::vec(0u32..20, 1..5),
        ) {
            let mut got: Vec<u8> = vec![];
            if decode(&stream, &counts, &mut got).is_ok() {
                prop_assert_eq!(got.len() as u32, counts.iter().sum::<u32>());
            }
        }
    }
}
