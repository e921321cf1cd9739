//! Counts and parameters of classes: choosing, writing and reading them.

use deltawire_kernels::Word;

use super::classes::{wrong, Partition};
use super::law;
use super::tables::{cost, cost_of_escaped, parameter, PARAMETERS};
use crate::bits::{bits_at, unzigzag, zigzag, BitWriter};
use crate::error::Result;

/// How one class is coded: parameter of the gaps between ranks, and one more than that of the sizes (0:
/// all steps are one).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) count: u32,
    pub(super) ranks: u8,
    pub(super) sizes: u8,
}

/// What choosing parameters needs to know of a class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    pub(super) count: u64,
    /// Sum of the gaps between ranks.
    gaps: u64,
    /// Sizes less one: for each number of bits, how many have it, and their sum.
    sizes: [(u32, u64); 65],
    /// Whether any is larger than one.
    large: bool,
    /// One more than the bits of the largest.
    most_bits: usize,
}

/// Low bits that suit numbers of about this size.
pub(super) fn width(expected: u64) -> u32 {
    63 - (expected | 1).leading_zeros()
}

/// Appends a number by an Exp-Golomb code with `k` low bits.
pub(super) fn put_number(value: u64, k: u32, out: &mut BitWriter<Vec<u8>>) {
    let value = value + (1 << k);
    let bits = 64 - value.leading_zeros();
    out.put_unary(u64::from(bits - 1 - k));
    out.put(value & ((1 << (bits - 1)) - 1), bits - 1);
}

/// Reads the parameters' bits.
pub(super) struct Bits<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl Bits<'_> {
    pub(super) fn take(&mut self, bits: u32) -> u64 {
        let value = bits_at(self.bytes, self.at, bits);
        self.at += bits as usize;
        value
    }

    /// Undoes `put_number` for values below 2^40.
    pub(super) fn number(&mut self, k: u32) -> Result<u64> {
        let zeros = bits_at(self.bytes, self.at, 40).trailing_zeros();
        if zeros + k >= 40 {
            return Err(wrong("have a number that is cut short or too large"));
        }
        self.at += zeros as usize + 1;
        Ok((self.take(zeros + k) | 1 << (zeros + k)) - (1 << k))
    }
}

/// Sums of each class.
pub(super) fn sums<W: Word>(partition: &Partition<W>, out: &mut Vec<Sums>) {
    out.clear();
    let mut at = 0;
    for &count in &partition.counts {
        let end = at + count as usize;
        let mut sum = Sums {
            count: count.into(),
            gaps: 0,
            sizes: [(0, 0); 65],
            large: false,
            most_bits: 0,
        };
        if let Some(&last) = partition.ranks[at..end].last() {
            sum.gaps = u64::from(last) + 1 - sum.count;
        }
        for step in &partition.steps[at..end] {
            let more = step.to_i64().unsigned_abs() - 1;
            let bits = (64 - more.leading_zeros()) as usize;
            let bucket = &mut sum.sizes[bits];
            sum.most_bits = sum.most_bits.max(bits + 1);
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
    let filled = sum.sizes[..sum.most_bits].iter().enumerate();
    filled
        .map(|(bits, &(n, sum))| {
            let usual = cost(q, n.into(), sum);
            usual.min(u64::from(n) * cost_of_escaped(bits as u32))
        })
        .sum()
}

/// The parameter that suits sizes of which at least one is larger than one: near the best of every
/// octave's.
fn best_sizes(sum: &Sums) -> u8 {
    let cheapest = |candidates: &mut dyn Iterator<Item = u8>| {
        let best = candidates.min_by_key(|&s| sizes_cost(s, sum));
        best.unwrap_or(1)
    };
    let octave = cheapest(&mut (1..=PARAMETERS as u8).step_by(8));
    let near = octave.saturating_sub(7).max(1)..=(octave + 7).min(PARAMETERS as u8);
    cheapest(&mut { near })
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
    // Each class by itself has its best first distance; that of all lies among them.
    let guesses = || filled().map(|(k, s)| i32::from(best(s)) + offset(k));
    let low = guesses().min().unwrap_or(0).saturating_sub(4).clamp(0, 255);
    let high = guesses().max().unwrap_or(0).saturating_add(4).clamp(0, 255);
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

/// Whether writing the differences from the law costs less than they save.
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

/// Counts and parameters of one group's classes.
pub(super) fn put_group(
    sums: &[Sums],
    classes: &mut [Class],
    total: u64,
    bits: &mut BitWriter<Vec<u8>>,
) {
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

/// Undoes `put_group`.
pub(super) fn take_group(bits: &mut Bits<'_>, total: u64, classes: &mut [Class]) -> Result<()> {
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
