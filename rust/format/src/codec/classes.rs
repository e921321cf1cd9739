//! Changes by exponent class: positions as ranks within the classes, values as steps.
//!
//! This is the boundary between who scans the dense buffers and who packs bytes: packing and
//! unpacking cost O(changes) and see no dense data.

use deltawire_kernels::classes::{MAX_CLASSES, MAX_GROUPS};
use deltawire_kernels::ordered::{step, Order};
use deltawire_kernels::Word;

use super::geometric::{lanes, Decoder, Encoder};
use super::parameters::{put_group, put_number, sums, take_group, width, Bits, Class, Sums};
use super::tables::{Table, SLOT_BITS};
use crate::bits::{zero_from, BitWriter};
use crate::error::{Error, Result};

/// Bits of the highest exponent.
const TOP_BITS: u32 = 11;
/// Fewest columns of a tile whose rows may be in groups [F25].
pub const GROUPED_COLS: u64 = 64;

/// A tile's changed elements by class: how many each class has, their ranks in it, and their steps.
///
/// The elements of a tile are put into classes by the exponent that they have before the delta, and,
/// where the rows differ much in how often they change, also by the group of their row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition<W> {
    /// Exponents from here on up are class 0, the next lower one class 1, and so on; the last class
    /// has all below.
    pub top: u16,
    /// Classes of each group of rows, 1 to 16.
    pub classes: usize,
    /// Group of each row of the tile; empty where all are in one.
    pub rows: Vec<u8>,
    /// Changes of each class, group after group.
    pub counts: Vec<u32>,
    /// Ascending ranks, class after class: how many elements of its class precede an element.
    pub ranks: Vec<u32>,
    /// Step of each element in ordered-integer space modulo 2^bits, in the order of the ranks.
    pub steps: Vec<W>,
}

impl<W: Word> Partition<W> {
    /// Becomes one class with everything, so that ranks are positions.
    pub fn set_flat(&mut self, positions: &[u32], old: &[W], new: &[W], order: Order) {
        self.clear();
        self.counts.push(positions.len() as u32);
        self.ranks.extend_from_slice(positions);
        self.steps
            .extend(old.iter().zip(new).map(|(&a, &b)| step(a, b, order)));
    }

    /// Whether the parts fit together, in a tile of `elements` in `rows` rows: counts, rows in groups that
    /// all have some, ascending ranks below `elements`, and no step of zero.
    pub fn is_valid(&self, rows: usize, elements: u32) -> bool {
        let groups = self.counts.len() / self.classes.max(1);
        let sum: u64 = self.counts.iter().map(|&n| u64::from(n)).sum();
        let mut used = [false; MAX_GROUPS];
        for &group in &self.rows {
            match used.get_mut(usize::from(group)) {
                Some(used) => *used = true,
                None => return false,
            }
        }
        let grouped = match self.rows.is_empty() {
            true => groups == 1,
            false => {
                let all = used.iter().take(groups).all(|&u| u);
                let more = used.iter().skip(groups).any(|&u| u);
                groups > 1 && self.rows.len() == rows && all && !more
            }
        };
        let fits = (1..=MAX_CLASSES).contains(&self.classes)
            && (1..=MAX_GROUPS).contains(&groups)
            && self.counts.len() == groups * self.classes
            && grouped
            && self.top < 1 << TOP_BITS
            && (self.needs_base() || self.top == 0)
            && sum == self.ranks.len() as u64
            && self.steps.len() == self.ranks.len()
            && sum > 0;
        let mut rest = &self.ranks[..];
        fits && self.steps.iter().all(|&s| s != W::default())
            && self.counts.iter().all(|&count| {
                let (class, others) = rest.split_at(count as usize);
                rest = others;
                class.windows(2).all(|w| w[0] < w[1]) && class.last().is_none_or(|&r| r < elements)
            })
    }

    /// Whether the ranks mean nothing without the base.
    pub fn needs_base(&self) -> bool {
        self.counts.len() > 1
    }

    /// Bytes of memory held.
    pub(crate) fn held(&self) -> usize {
        self.rows.capacity()
            + 4 * (self.counts.capacity() + self.ranks.capacity())
            + W::WIDTH * self.steps.capacity()
    }

    /// Forgets all changes and keeps the memory.
    pub fn clear(&mut self) {
        (self.top, self.classes) = (0, 1);
        self.rows.clear();
        self.counts.clear();
        self.ranks.clear();
        self.steps.clear();
    }
}

/// Memory that encoding reuses.
#[derive(Debug, Default)]
pub struct Scratch {
    encoder: Encoder,
    classes: Vec<Class>,
    sums: Vec<Sums>,
}

pub(super) fn wrong(what: &str) -> Error {
    Error::corrupt(format!("classes {what} [F25]"))
}

/// Appends the stream of a partition.
///
/// # Panics
/// Where counts, ranks and steps do not fit together, or a step is zero.
pub fn encode<W: Word>(partition: &Partition<W>, scratch: &mut Scratch, out: &mut Vec<u8>) {
    let count = partition.classes;
    let groups = partition.counts.len() / count;
    assert!((1..=MAX_CLASSES).contains(&count) && (1..=MAX_GROUPS).contains(&groups));
    assert_eq!(partition.ranks.len(), partition.steps.len());
    let Scratch {
        encoder,
        classes,
        sums: sums_,
    } = scratch;
    sums(partition, sums_);
    classes.clear();
    classes.resize(partition.counts.len(), Class::default());
    encoder.clear();

    let mut bits = BitWriter::<Vec<u8>>::default();
    bits.put(count as u64 - 1, 4);
    bits.put(u64::from(groups > 1), 1);
    if groups > 1 {
        bits.put(groups as u64 - 1, 3);
    }
    if partition.needs_base() {
        bits.put(partition.top.into(), TOP_BITS);
    }
    let lanes = lanes(partition.ranks.len());
    if groups > 1 {
        put_rows(&partition.rows, groups, lanes, &mut bits, encoder);
    }
    let mut left = partition.ranks.len() as u64;
    for group in 0..groups {
        let range = group * count..(group + 1) * count;
        let sums = &sums_[range.clone()];
        let classes = &mut classes[range];
        let total: u64 = sums.iter().map(|s| s.count).sum();
        if group + 1 < groups {
            put_number(total, width(left / (groups - group) as u64), &mut bits);
        }
        left -= total;
        if total > 0 {
            put_group(sums, classes, total, &mut bits);
        }
    }
    out.extend_from_slice(&bits.finish());

    let mut at = 0;
    for class in classes.iter().filter(|c| c.count > 0) {
        let end = at + class.count as usize;
        put_class(
            class,
            &partition.ranks[at..end],
            &partition.steps[at..end],
            lanes,
            encoder,
        );
        at = end;
    }
    encoder.finish(lanes, out);
}

/// Slots of the groups, by how many rows each has.
fn row_slots(rows: &[u8], groups: usize) -> Vec<u16> {
    let mut counts = vec![0u64; groups];
    for &group in rows {
        counts[usize::from(group)] += 1;
    }
    let all = rows.len().max(1) as u64;
    let slots = 1u64 << SLOT_BITS;
    let mut shares: Vec<u16> = counts
        .iter()
        .map(|&n| (n * slots / all).clamp(1, slots - groups as u64) as u16)
        .collect();
    // The largest share takes what rounding leaves.
    let sum: i64 = shares.iter().map(|&s| i64::from(s)).sum();
    if let Some(largest) = shares.iter_mut().max() {
        *largest = (i64::from(*largest) + slots as i64 - sum) as u16;
    }
    shares
}

fn put_rows(
    rows: &[u8],
    groups: usize,
    lanes: usize,
    bits: &mut BitWriter<Vec<u8>>,
    encoder: &mut Encoder,
) {
    let shares = row_slots(rows, groups);
    for &share in &shares[..groups - 1] {
        bits.put(share.into(), SLOT_BITS);
    }
    let mut starts = vec![0u32; groups];
    for group in 1..groups {
        starts[group] = starts[group - 1] + u32::from(shares[group - 1]);
    }
    for (i, &group) in rows.iter().enumerate() {
        let group = usize::from(group);
        encoder.symbol(starts[group], shares[group].into(), i % lanes);
    }
}

fn put_class<W: Word>(
    class: &Class,
    ranks: &[u32],
    steps: &[W],
    lanes: usize,
    encoder: &mut Encoder,
) {
    let turn = lanes - 1;
    if let Some(table) = Table::of(class.ranks) {
        let mut next = 0;
        for (i, &rank) in ranks.iter().enumerate() {
            encoder.number(table, u64::from(rank - next), i & turn);
            next = rank + 1;
        }
    }
    for steps in steps.chunks(32) {
        let mut signs = 0;
        for (i, step) in steps.iter().enumerate() {
            signs |= u64::from(*step < W::SIGN) << i;
        }
        encoder.raw(signs, steps.len() as u32);
    }
    if let Some(table) = class.sizes.checked_sub(1).and_then(Table::of) {
        for (i, step) in steps.iter().enumerate() {
            encoder.number(table, step.to_i64().unsigned_abs() - 1, i & turn);
        }
    }
}

/// Replaces `out` by the partition of `count` changes in a tile of `elements` in `rows` rows.
///
/// That the classes have as many elements as the ranks say is only seen with the base.
pub fn decode<W: Word>(
    stream: &[u8],
    count: u32,
    elements: u32,
    rows: u32,
    out: &mut Partition<W>,
) -> Result<()> {
    out.clear();
    let mut bits = Bits {
        bytes: stream,
        at: 0,
    };
    out.classes = bits.take(4) as usize + 1;
    let groups = match bits.take(1) {
        0 => 1,
        _ => match bits.take(3) {
            0 => return Err(wrong("have one group of rows, said to be several")),
            more => more as usize + 1,
        },
    };
    if out.classes * groups > 1 {
        out.top = bits.take(TOP_BITS) as u16;
    }
    let mut starts = [0u16; MAX_GROUPS];
    if groups > 1 {
        if u64::from(elements) < GROUPED_COLS * u64::from(rows) {
            return Err(wrong("have groups of rows that are too short"));
        }
        for group in 1..groups {
            starts[group] = starts[group - 1] + bits.take(SLOT_BITS) as u16;
            if starts[group] <= starts[group - 1] || starts[group] >= 1 << SLOT_BITS {
                return Err(wrong("have shares of rows that do not fit"));
            }
        }
    }
    let mut parameters = [Class::default(); MAX_CLASSES * MAX_GROUPS];
    let parameters = &mut parameters[..groups * out.classes];
    let mut left = u64::from(count);
    for (group, classes) in parameters.chunks_exact_mut(out.classes).enumerate() {
        let total = if group + 1 < groups {
            bits.number(width(left / (groups - group) as u64))?
        } else {
            left
        };
        left = left
            .checked_sub(total)
            .ok_or_else(|| wrong("have more changes than stated"))?;
        if total > 0 {
            take_group(&mut bits, total, classes)?;
        }
    }
    let (head, rest) = stream
        .split_at_checked(bits.at.div_ceil(8))
        .ok_or_else(|| wrong("are cut short"))?;
    if !zero_from(head, bits.at) {
        return Err(Error::corrupt("padding behind parameters is not zero [F2]"));
    }
    let mut raw_bits = 0usize;
    for class in parameters.iter().filter(|c| c.count > 0) {
        let sizes = class.sizes.checked_sub(1).and_then(Table::of);
        let low = |table: Option<&Table>| table.map_or(0, |t| t.low_bits as usize);
        raw_bits += class.count as usize * (1 + low(Table::of(class.ranks)) + low(sizes));
    }
    // A sign each, so there are no more changes than bits received.
    let mut decoder = Decoder::new(rest, raw_bits, lanes(count as usize))?;
    if groups > 1 {
        decoder.choices(&starts[..groups], rows as usize, |group| {
            out.rows.push(group);
        });
    }
    out.ranks.reserve(count as usize);
    out.steps.reserve(count as usize);
    for class in parameters.iter() {
        out.counts.push(class.count);
        take_class(&mut decoder, class, elements, out)?;
    }
    decoder.finish()
}

fn take_class<W: Word>(
    decoder: &mut Decoder<'_>,
    class: &Class,
    elements: u32,
    out: &mut Partition<W>,
) -> Result<()> {
    let n = class.count as usize;
    let Some(table) = Table::of(class.ranks).filter(|_| n > 0) else {
        return Ok(());
    };
    let mut next = 0u64;
    let ranks = &mut out.ranks;
    decoder.run(table, n, |gap| {
        let rank = next.saturating_add(gap);
        ranks.push(rank as u32);
        next = rank.saturating_add(1);
    });
    // They ascend, so the last one is the largest.
    decoder.check()?;
    if next > u64::from(elements) {
        return Err(wrong("have ranks outside the tile"));
    }
    let first = out.steps.len();
    let (one, minus_one) = (W::from_u64(1), W::default().wrapping_sub(W::from_u64(1)));
    let mut left = n;
    while left > 0 {
        let part = left.min(32);
        let signs = decoder.raw(part as u32);
        let sign = |i| if signs >> i & 1 == 1 { one } else { minus_one };
        out.steps.extend((0..part).map(sign));
        left -= part;
    }
    let Some(table) = class.sizes.checked_sub(1).and_then(Table::of) else {
        return Ok(());
    };
    let mut too_large = false;
    let mut steps = out.steps[first..].iter_mut();
    decoder.run(table, n, |more| {
        if let Some(step) = steps.next() {
            let negative = *step >= W::SIGN;
            // The largest size is 2^(bits - 1), and only downwards.
            let most = W::SIGN.to_u64() - u64::from(!negative);
            too_large |= more >= most;
            let size = W::from_u64(more.wrapping_add(1));
            *step = if negative {
                W::default().wrapping_sub(size)
            } else {
                size
            };
        }
    });
    decoder.check()?;
    if too_large {
        return Err(Error::corrupt("a step is out of range [F26]"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flat<W: Word>(positions: &[u32], steps: Vec<W>) -> Partition<W> {
        let mut partition = Partition::default();
        let old = vec![W::default(); steps.len()];
        partition.set_flat(positions, &old, &steps, Order::Integer);
        partition
    }

    fn round_trip<W: Word>(partition: &Partition<W>, elements: u32, rows: u32) -> Vec<u8> {
        let mut stream = vec![];
        let mut scratch = Scratch::default();
        encode(partition, &mut scratch, &mut stream);
        let mut again = vec![];
        encode(partition, &mut scratch, &mut again);
        assert_eq!(stream, again, "memory that is reused changes nothing");
        let count = partition.ranks.len() as u32;
        let mut got = Partition::default();
        decode(&stream, count, elements, rows, &mut got).unwrap();
        assert_eq!(&got, partition);
        stream
    }

    proptest! {
        #[test]
        fn partitions(
            classes in 1usize..17, groups in 1usize..9,
            changes in prop::collection::vec(
                prop::collection::btree_map(0u32..4000, (any::<u64>(), 0u32..64), 0..40), 128),
            top in 0u16..2048, rows in prop::collection::vec(any::<u8>(), 62), pick in 0usize..4,
        ) {
            let lists = &changes[..classes * groups];
            let all: Vec<(u64, u32)> = lists.iter().flat_map(|c| c.values().copied()).collect();
            prop_assume!(!all.is_empty());
            fn part<W: Word>(
                lists: &[std::collections::BTreeMap<u32, (u64, u32)>],
                all: &[(u64, u32)], classes: usize, groups: usize, top: u16, rows: &[u8],
            ) {
                let partition = Partition::<W> {
                    top: if classes * groups > 1 { top } else { 0 },
                    classes,
                    rows: if groups > 1 {
                        rows.iter().map(|&r| r % groups as u8).collect()
                    } else {
                        vec![]
                    },
                    counts: lists.iter().map(|c| c.len() as u32).collect(),
                    ranks: lists.iter().flat_map(|c| c.keys().copied()).collect(),
                    steps: all.iter().map(|&(x, shift)| {
                        let step = W::from_u64(((x as i64) >> shift) as u64);
                        if step == W::default() { W::from_u64(1) } else { step }
                    }).collect(),
                };
                let mut stream = round_trip(&partition, 4000, 62);
                let count = partition.ranks.len() as u32;
                let mut got = Partition::<W>::default();
                // Each of a short stream, some of a long one.
                for end in (0..stream.len()).step_by(1 + stream.len() / 60) {
                    assert!(decode(&stream[..end], count, 4000, 62, &mut got).is_err());
                }
                stream.push(0);
                assert!(decode(&stream, count, 4000, 62, &mut got).is_err());
            }
            match pick {
                0 => part::<u8>(lists, &all, classes, groups, top, &rows),
                1 => part::<u16>(lists, &all, classes, groups, top, &rows),
                2 => part::<u32>(lists, &all, classes, groups, top, &rows),
                _ => part::<u64>(lists, &all, classes, groups, top, &rows),
            }
        }

        #[test]
        fn any_bytes_give_changes_in_the_tile_or_an_error(
            stream in prop::collection::vec(any::<u8>(), 0..90), count in 1u32..60,
        ) {
            let mut got = Partition::<u16>::default();
            if decode(&stream, count, 1000, 10, &mut got).is_ok() {
                prop_assert!(got.ranks.iter().all(|&r| r < 1000));
                prop_assert!(got.steps.iter().all(|&s| s != 0));
                prop_assert_eq!(got.ranks.len() as u32, count);
                prop_assert_eq!(got.steps.len() as u32, count);
                prop_assert!(got.rows.len() <= 10);
            }
        }
    }

    #[test]
    fn extreme_steps() {
        for steps in [vec![0x8000u16, 0x7fff, 1, 0xffff], vec![0x8000; 4]] {
            round_trip(&flat(&[0, 1, 2, 3], steps), 4, 1);
        }
        round_trip(&flat(&[5], vec![1u64 << 63]), 9, 3);
    }

    #[test]
    fn many_changes_take_turns() {
        for n in [4095u32, 4096, 16383, 16384, 20_001] {
            let positions: Vec<u32> = (0..n).map(|i| i * 7 + i % 5).collect();
            let steps = (0..n).map(|i| if i % 3 == 0 { 1 } else { 0xfffe_u16 });
            round_trip(&flat(&positions, steps.collect()), n * 8, 1);
        }
    }
}
