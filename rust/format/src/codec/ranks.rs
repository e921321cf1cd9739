//! Positions as ranks within exponent classes of the base.
//!
//! This is the boundary between who scans the dense buffers and who packs bytes: packing and
//! unpacking cost O(changes) and see no dense data.

use super::geometric::{parameter, Decoder, Encoder, Table};
use crate::bits::{put_varint, take_varint};
use crate::error::{Error, Result};
use deltawire_kernels::classes::MAX_CLASSES;

/// A tile's changed elements by class: how many each class has, and their ranks in it.
///
/// With one class the ranks are the positions themselves, and no base is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Exponents from here on up are class 0, the next lower one class 1, and so on; the last class
    /// has all below.
    pub top: u16,
    /// Changes of each class; one to sixteen classes.
    pub counts: Vec<u32>,
    /// Ascending ranks, class after class.
    pub ranks: Vec<u32>,
}

impl Partition {
    /// One class with everything.
    pub fn flat(positions: &[u32]) -> Self {
        Self {
            top: 0,
            counts: vec![positions.len() as u32],
            ranks: positions.to_vec(),
        }
    }

    /// Whether the ranks mean nothing without the base.
    pub fn needs_base(&self) -> bool {
        self.counts.len() > 1
    }

    /// Ranks of class after class.
    fn classes(&self) -> impl Iterator<Item = &[u32]> {
        let mut rest = &self.ranks[..];
        self.counts.iter().map(move |&count| {
            let (class, others) = rest.split_at(count as usize);
            rest = others;
            class
        })
    }
}

/// Appends the stream of a partition.
pub fn encode(partition: &Partition, out: &mut Vec<u8>) {
    out.push(partition.counts.len() as u8);
    if partition.needs_base() {
        out.extend_from_slice(&partition.top.to_le_bytes());
    }
    let mut encoder = Encoder::default();
    for class in partition.classes() {
        put_varint(class.len() as u64, out);
        let Some(&last) = class.last() else { continue };
        let n = class.len() as u64;
        let q = parameter(n, u64::from(last) + 1 - n);
        out.push(q);
        if let Some(table) = Table::of(q) {
            super::positions::gaps(class).for_each(|gap| encoder.put(table, gap));
        }
    }
    encoder.finish(out);
}

/// Replaces `out` by the partition of `count` changes among `elements`.
///
/// That the classes have as many elements as the ranks say is only seen with the base.
pub fn decode(stream: &[u8], count: u32, elements: u32, out: &mut Partition) -> Result<()> {
    let wrong = |what: &str| Error::corrupt(format!("ranks {what} [F25]"));
    let (&classes, mut rest) = stream.split_first().ok_or_else(|| wrong("are cut short"))?;
    if classes == 0 || usize::from(classes) > MAX_CLASSES {
        return Err(wrong("have no or too many classes"));
    }
    out.top = 0;
    if classes > 1 {
        let (top, others) = rest
            .split_first_chunk::<2>()
            .ok_or_else(|| wrong("are cut short"))?;
        out.top = u16::from_le_bytes(*top);
        rest = others;
    }
    out.counts.clear();
    out.ranks.clear();
    let mut tables = Vec::with_capacity(MAX_CLASSES);
    let (mut total, mut low_bits) = (0u64, 0usize);
    for _ in 0..classes {
        let n = take_varint(&mut rest)?;
        total = total.saturating_add(n);
        if total > u64::from(count) {
            return Err(wrong("are more than stated"));
        }
        out.counts.push(n as u32);
        if n == 0 {
            tables.push(None);
            continue;
        }
        let (&q, others) = rest.split_first().ok_or_else(|| wrong("are cut short"))?;
        rest = others;
        let table = Table::of(q).ok_or_else(|| wrong("have a parameter that is too large"))?;
        low_bits += n as usize * table.low_bits as usize;
        tables.push(Some(table));
    }
    if total != u64::from(count) {
        return Err(wrong("are fewer than stated"));
    }
    let mut decoder = Decoder::new(rest, low_bits)?;
    for (&n, table) in out.counts.iter().zip(tables) {
        let Some(table) = table else { continue };
        let mut next = 0u64;
        for _ in 0..n {
            let most = u64::from(elements)
                .checked_sub(next + 1)
                .ok_or_else(|| wrong("leave the tile"))?;
            let rank = next + decoder.get(table, most)?;
            out.ranks.push(rank as u32);
            next = rank + 1;
        }
    }
    decoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(
            classes in prop::collection::vec(prop::collection::btree_set(0u32..4000, 0..60), 1..17),
            top in any::<u16>(),
        ) {
            let counts: Vec<u32> = classes.iter().map(|c| c.len() as u32).collect();
            let total: u32 = counts.iter().sum();
            let partition = Partition {
                top: if counts.len() > 1 { top } else { 0 },
                counts,
                ranks: classes.into_iter().flatten().collect(),
            };
            let mut stream = vec![];
            encode(&partition, &mut stream);
            let mut got = Partition::default();
            decode(&stream, total, 4000, &mut got).unwrap();
            prop_assert_eq!(&got, &partition);
            for end in 0..stream.len() {
                prop_assert!(decode(&stream[..end], total, 4000, &mut got).is_err());
            }
            stream.push(0);
            prop_assert!(decode(&stream, total, 4000, &mut got).is_err());
        }

        #[test]
        fn any_bytes_give_ranks_in_the_tile_or_an_error(
            stream in prop::collection::vec(any::<u8>(), 0..60), count in 1u32..40,
        ) {
            let mut got = Partition::default();
            if decode(&stream, count, 50, &mut got).is_ok() {
                prop_assert!(got.ranks.iter().all(|&r| r < 50));
                prop_assert_eq!(got.ranks.len() as u32, count);
            }
        }
    }
}
