//! Changes by exponent class: positions as ranks within the classes, values as steps.
//!
//! This is the boundary between who scans the dense buffers and who packs bytes: packing and
//! unpacking cost O(changes) and see no dense data.

use deltawire_kernels::classes::{MAX_CLASSES, MAX_GROUPS};
use deltawire_kernels::ordered::{step, Order};
use deltawire_kernels::Word;

use super::geometric::{
    cost, cost_of_escaped, lanes, parameter, Decoder, Encoder, Table, PARAMETERS, SLOT_BITS,
};
use super::law;
use crate::bits::{bits_at, unzigzag, zero_from, zigzag, BitWriter};
use crate::error::{Error, Result};

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

/// How one class is coded: parameter of the gaps between ranks, and one more than that of the sizes (0:
/// all steps are one).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Class {
    count: u32,
    ranks: u8,
    sizes: u8,
}

/// What choosing parameters needs to know of a class.
#[derive(Clone, Copy, Debug)]
struct Sums {
    count: u64,
    /// Sum of the gaps between ranks.
    gaps: u64,
    /// Sizes less one: for each number of bits, how many have it, and their sum.
    sizes: [(u32, u64); 65],
    /// Whether any is larger than one.
    large: bool,
}

/// Memory that encoding reuses.
#[derive(Debug, Default)]
pub struct Scratch {
    encoder: Encoder,
    classes: Vec<Class>,
    sums: Vec<Sums>,
}

/// Low bits that suit numbers of about this size.
fn width(expected: u64) -> u32 {
    63 - (expected | 1).leading_zeros()
}

/// Appends a number by an Exp-Golomb code with `k` low bits.
fn put_number(value: u64, k: u32, out: &mut BitWriter<Vec<u8>>) {
    let value = value + (1 << k);
    let bits = 64 - value.leading_zeros();
    out.put_unary(u64::from(bits - 1 - k));
    out.put(value & ((1 << (bits - 1)) - 1), bits - 1);
}

/// Reads the parameters' bits.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, bits: u32) -> u64 {
        let value = bits_at(self.bytes, self.at, bits);
        self.at += bits as usize;
        value
    }

    /// Undoes `put_number` for values below 2^40.
    fn number(&mut self, k: u32) -> Result<u64> {
        let zeros = bits_at(self.bytes, self.at, 40).trailing_zeros();
        if zeros + k >= 40 {
            return Err(wrong("have a number that is cut short or too large"));
        }
        self.at += zeros as usize + 1;
        Ok((self.take(zeros + k) | 1 << (zeros + k)) - (1 << k))
    }
}

fn wrong(what: &str) -> Error {
    Error::corrupt(format!("classes {what} [F25]"))
}

/// Sums of each class.
fn sums<W: Word>(partition: &Partition<W>, out: &mut Vec<Sums>) {
    out.clear();
    let mut at = 0;
    for &count in &partition.counts {
        let end = at + count as usize;
        let mut sum = Sums {
            count: count.into(),
            gaps: 0,
            sizes: [(0, 0); 65],
            large: false,
        };
        if let Some(&last) = partition.ranks[at..end].last() {
            sum.gaps = u64::from(last) + 1 - sum.count;
        }
        for step in &partition.steps[at..end] {
            let more = step.to_i64().unsigned_abs() - 1;
            let bucket = &mut sum.sizes[(64 - more.leading_zeros()) as usize];
            bucket.0 += 1;
            bucket.1 = bucket.1.saturating_add(more);
            sum.large |= more > 0;
        }
        out.push(sum);
        at = end;
    }
}

/// More than any class costs.
const NEVER: u64 = 1 << 58;

/// Cost of a class' sizes with parameter `sizes - 1`; never where 0 cannot hold them.
fn sizes_cost(sizes: u8, sum: &Sums) -> u64 {
    let Some(q) = sizes.checked_sub(1) else {
        return if sum.large { NEVER } else { 0 };
    };
    let filled = sum.sizes.iter().enumerate().filter(|(_, b)| b.0 > 0);
    filled
        .map(|(bits, &(n, sum))| {
            let usual = cost(q, n.into(), sum);
            usual.min(u64::from(n) * cost_of_escaped(bits as u32))
        })
        .sum()
}

/// The parameter that suits sizes of which at least one is larger than one.
fn best_sizes(sum: &Sums) -> u8 {
    (1..=PARAMETERS as u8)
        .min_by_key(|&s| sizes_cost(s, sum))
        .unwrap_or(1)
}

/// Bits of a difference, in 2^-16.
fn difference_cost(difference: i32) -> u64 {
    let value = zigzag(difference.into()) + 1;
    u64::from(2 * (63 - value.leading_zeros()) + 1) << 16
}

/// The parameter at or between the predicted and the best one that costs least with its difference.
fn refine(predicted: u8, best: u8, price: impl Fn(u8) -> u64) -> u8 {
    let (low, high) = (predicted.min(best), predicted.max(best));
    (low..=high)
        .min_by_key(|&q| price(q) + difference_cost(i32::from(q) - i32::from(predicted)))
        .unwrap_or(best)
}

/// Parameters of a group's classes, and the distance of its first one.
fn fit(sums: &[Sums], classes: &mut [Class]) -> u8 {
    let best = |s: &Sums| parameter(s.count, s.gaps);
    let offset = |k: usize| law::OCTAVE * k as i32;
    let filled = || sums.iter().enumerate().filter(|(_, s)| s.count > 0);
    let price = |distance: i32| -> u64 {
        filled()
            .map(|(k, s)| cost(law::ranks(distance - offset(k)), s.count, s.gaps))
            .sum()
    };
    // The largest classes say where the minimum is.
    let mut guesses: Vec<i32> = filled()
        .map(|(k, s)| i32::from(best(s)) + offset(k))
        .collect();
    guesses.sort_unstable();
    let (low, high) = match (guesses.first(), guesses.last()) {
        (Some(low), Some(high)) => ((low - 4).clamp(0, 255), (high + 4).clamp(0, 255)),
        _ => (0, 0),
    };
    let first = (low..=high).min_by_key(|&d| price(d)).unwrap_or(0);
    for (k, (sum, class)) in sums.iter().zip(classes).enumerate() {
        class.count = sum.count as u32;
        if sum.count == 0 {
            continue;
        }
        let distance = first - offset(k);
        class.ranks = refine(law::ranks(distance), best(sum), |q| {
            cost(q, sum.count, sum.gaps)
        });
        let best = if sum.large { best_sizes(sum) } else { 0 };
        class.sizes = refine(law::sizes(distance), best, |s| sizes_cost(s, sum));
    }
    first as u8
}

/// Whether the differences from the law are worth writing, and what they save.
fn worth<'a>(
    classes: impl Iterator<Item = (&'a Sums, u8, u8)>,
    price: impl Fn(u8, &Sums) -> u64,
) -> bool {
    let (mut with, mut without) = (0u64, 0u64);
    for (sum, predicted, chosen) in classes {
        with += price(chosen, sum);
        with += difference_cost(i32::from(chosen) - i32::from(predicted));
        without += price(predicted, sum);
    }
    with < without
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
        bits.put(partition.top.into(), 11);
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
        encoder.choice(starts[group], shares[group].into(), i % lanes);
    }
}

/// Counts and parameters of one group's classes.
fn put_group(sums: &[Sums], classes: &mut [Class], total: u64, bits: &mut BitWriter<Vec<u8>>) {
    let first = fit(sums, classes);
    let mut left = total;
    let mut previous = None;
    for (k, sum) in sums.iter().enumerate().take(sums.len() - 1) {
        match previous {
            None => put_number(sum.count, width(left / (sums.len() - k) as u64), bits),
            Some(previous) => {
                let difference = sum.count as i64 - previous as i64;
                put_number(zigzag(difference), spread(previous), bits);
            }
        }
        previous = Some(sum.count);
        left -= sum.count;
    }
    bits.put(first.into(), 8);
    let distance = |k: usize| i32::from(first) - law::OCTAVE * k as i32;
    let mut write =
        |predict: fn(i32) -> u8, field: fn(&mut Class) -> &mut u8, price: fn(u8, &Sums) -> u64| {
            let filled = || sums.iter().enumerate().filter(|(_, s)| s.count > 0);
            let chosen: Vec<u8> = classes.iter_mut().map(|c| *field(c)).collect();
            let differ = worth(
                filled().map(|(k, s)| (s, predict(distance(k)), chosen[k])),
                price,
            );
            bits.put(differ.into(), 1);
            for (k, _) in filled() {
                let predicted = predict(distance(k));
                if differ {
                    let difference = i64::from(chosen[k]) - i64::from(predicted);
                    put_number(zigzag(difference), 0, bits);
                } else {
                    *field(&mut classes[k]) = predicted;
                }
            }
        };
    write(
        law::ranks,
        |c| &mut c.ranks,
        |q, s| cost(q, s.count, s.gaps),
    );
    write(law::sizes, |c| &mut c.sizes, sizes_cost);
}

/// Low bits that suit the difference of two counts of about this size.
fn spread(count: u64) -> u32 {
    (width(count) + 2) / 2
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
        _ => bits.take(3) as usize + 1,
    };
    if out.classes * groups > 1 {
        out.top = bits.take(11) as u16;
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

/// Undoes `put_group`.
fn take_group(bits: &mut Bits<'_>, total: u64, classes: &mut [Class]) -> Result<()> {
    let number = classes.len();
    let mut left = total;
    let mut previous = None;
    for (k, class) in classes.iter_mut().enumerate() {
        let count = if k + 1 == number {
            left
        } else {
            match previous {
                None => bits.number(width(left / (number - k) as u64))?,
                Some(previous) => {
                    let difference = unzigzag(bits.number(spread(previous))?);
                    previous
                        .checked_add_signed(difference)
                        .ok_or_else(|| wrong("have less than no changes"))?
                }
            }
        };
        left = left
            .checked_sub(count)
            .ok_or_else(|| wrong("have more changes than stated"))?;
        previous = Some(count);
        class.count = count as u32;
    }
    let first = bits.take(8) as i32;
    let distance = |k: usize| first - law::OCTAVE * k as i32;
    let mut read =
        |predict: fn(i32) -> u8, field: fn(&mut Class) -> &mut u8, most: usize| -> Result<()> {
            let differ = bits.take(1) == 1;
            for (k, class) in classes.iter_mut().enumerate().filter(|(_, c)| c.count > 0) {
                let mut value = i64::from(predict(distance(k)));
                if differ {
                    value += unzigzag(bits.number(0)?);
                }
                *field(class) = u8::try_from(value)
                    .ok()
                    .filter(|&v| usize::from(v) <= most)
                    .ok_or_else(|| wrong("have a parameter out of range"))?;
            }
            Ok(())
        };
    read(law::ranks, |c| &mut c.ranks, PARAMETERS - 1)?;
    read(law::sizes, |c| &mut c.sizes, PARAMETERS)
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
    if next > u64::from(elements) || decoder.is_bad() {
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
    if too_large || decoder.is_bad() {
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
                for end in 0..stream.len() {
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
