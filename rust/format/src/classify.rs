//! Which exponent classes and groups of rows suit a tile's changes, and the changes in their order.

use deltawire_kernels::block::Divider;
use deltawire_kernels::classes::{self, ClassMap, Part, Progress, MAX_CLASSES, MAX_GROUPS};
use deltawire_kernels::ordered::step;
use deltawire_kernels::{Block, Matrix, Word};

use crate::codec::classes::{Partition, GROUPED_COLS};
use crate::codec::tables::{cost, minus_log2, parameter};
use crate::table::Tensor;

/// Fewest changes of a tile that are worth classes.
const FEW: usize = 24;
/// Changes that tell which classes suit a tile.
const SAMPLE: usize = 512;
/// Fewest changes of a tile whose rows are worth groups.
const FEW_FOR_GROUPS: usize = 512;
/// Bits that a group's parameters take, about, in 2^-16.
const GROUP_COST: u64 = 160 << 16;
/// Different sizes of rows that groups are made of.
const BUCKETS: usize = 40;

/// Changes of a tile as they are found, being put into classes. Keeps its memory from tile to tile.
///
/// Ranks are counted part by part, right after a part was compared, while the base is in the cache.
#[derive(Debug, Default)]
pub struct Classifier {
    map: Option<ClassMap>,
    /// Class and rank of each change, in the order of the positions.
    classes: Vec<u8>,
    ranks: Vec<u32>,
    /// Rows of the tile whose changes are counted.
    rows: usize,
    progress: Progress,
    exponents: Vec<u32>,
    places: Vec<u32>,
    row_counts: Vec<u32>,
}

/// A tile and its changes so far: ascending positions, and the elements there before.
#[derive(Clone, Copy, Debug)]
pub struct Changes<'a, W> {
    /// The tensor.
    pub tensor: &'a Tensor,
    /// Its elements before.
    pub base: &'a Matrix<'a>,
    /// The tile.
    pub block: &'a Block,
    /// Element numbers within the tile.
    pub positions: &'a [u32],
    /// Elements before, at these positions.
    pub old: &'a [W],
}

impl Classifier {
    /// Forgets the last tile.
    pub fn restart(&mut self) {
        self.map = None;
        self.classes.clear();
        self.ranks.clear();
        self.rows = 0;
        self.progress.restart();
    }

    /// Takes the changes in the rows before `end`. Classes are chosen once there are enough changes.
    pub fn add<W: Word>(&mut self, changes: &Changes<'_, W>, end: usize) {
        if self.map.is_none() && changes.positions.len() >= SAMPLE {
            self.map = self.choose(changes, false);
        }
        if let Some(map) = self.map {
            self.count(changes, map, end, &[]);
        }
    }

    /// The changes of the whole tile by class; false where that does not pay. `new` are the elements after.
    pub fn finish<W: Word>(
        &mut self,
        changes: &Changes<'_, W>,
        new: &[W],
        out: &mut Partition<W>,
    ) -> bool {
        out.clear();
        let (positions, block) = (changes.positions, changes.block);
        if positions.len() < FEW {
            return false;
        }
        if self.map.is_none() {
            self.map = self.choose(changes, true);
        }
        let Some(map) = self.map else {
            return false;
        };
        group_rows(
            block,
            W::WIDTH,
            positions,
            &mut self.row_counts,
            &mut out.rows,
        );
        if !out.rows.is_empty() && self.rows > 0 {
            // Ranks within groups of rows are other ranks.
            self.restart();
        }
        self.count(changes, map, block.rows, &out.rows);

        let groups = out.rows.iter().max().map_or(1, |&g| usize::from(g) + 1);
        let classes = map.count as usize;
        out.classes = classes;
        out.top = if classes * groups > 1 {
            map.top as u16
        } else {
            0
        };
        out.counts.resize(groups * classes, 0);
        if groups > 1 {
            let divider = Divider::new(block.bytes / W::WIDTH);
            for (class, &position) in self.classes.iter_mut().zip(positions) {
                *class += out.rows[divider.divide(position) as usize] * classes as u8;
            }
        }
        for &class in &self.classes {
            out.counts[usize::from(class)] += 1;
        }
        let mut sum = 0;
        self.places.clear();
        self.places.extend(out.counts.iter().map(|&n| {
            sum += n;
            sum - n
        }));
        out.ranks.resize(positions.len(), 0);
        out.steps.resize(positions.len(), W::default());
        let order = changes.tensor.order();
        let values = changes.old.iter().zip(new);
        for ((&class, &rank), (&old, &new)) in self.classes.iter().zip(&self.ranks).zip(values) {
            let place = &mut self.places[usize::from(class)];
            out.ranks[*place as usize] = rank;
            out.steps[*place as usize] = step(old, new, order);
            *place += 1;
        }
        true
    }

    /// Classes that suit the changes so far; the lowest is only known from all.
    fn choose<W: Word>(&mut self, changes: &Changes<'_, W>, all: bool) -> Option<ClassMap> {
        let probe = changes.tensor.class_map(0, 1)?;
        self.exponents.clear();
        self.exponents.resize(probe.mask as usize + 1, 0);
        for &bits in changes.old {
            self.exponents[probe.exponent(bits) as usize] += 1;
        }
        let total = changes.positions.len();
        let few = total / 512 + if all { 8 } else { 1 };
        let (top, low) = bounds(&self.exponents, few);
        let count = if all {
            top - low + 1
        } else {
            MAX_CLASSES as u32
        };
        Some(ClassMap {
            top,
            count: count.min(MAX_CLASSES as u32),
            ..probe
        })
    }

    /// Counts the ranks of changes in rows before `end` that were not counted yet.
    fn count<W: Word>(
        &mut self,
        changes: &Changes<'_, W>,
        map: ClassMap,
        end: usize,
        groups: &[u8],
    ) {
        let begun = self.classes.len();
        let fresh = changes.old[begun..].iter();
        self.classes
            .extend(fresh.map(|&bits| map.class(bits) as u8));
        let part = Part {
            matrix: changes.base,
            block: Block {
                row: changes.block.row + self.rows,
                rows: end - self.rows,
                ..*changes.block
            },
            map,
            rows: groups.get(self.rows..end).unwrap_or(&[]),
        };
        let (positions, classes) = (&changes.positions[begun..], &self.classes[begun..]);
        classes::ranks::<W>(
            &part,
            &mut self.progress,
            positions,
            classes,
            &mut self.ranks,
        );
        self.rows = end;
    }

    /// Bytes of memory held.
    pub(crate) fn held(&self) -> usize {
        self.classes.capacity() + 4 * self.ranks.capacity()
    }
}

/// Highest and lowest exponent that get a class of their own, from the exponents of changes.
fn bounds(counts: &[u32], few: usize) -> (u32, u32) {
    let reach = |exponents: &mut dyn Iterator<Item = usize>| {
        let mut sum = 0;
        for e in exponents {
            sum += counts[e] as usize;
            if sum > few {
                return e;
            }
        }
        0
    };
    let top = reach(&mut (0..counts.len()).rev());
    let low = reach(&mut (0..counts.len())).min(top);
    (top as u32, low as u32)
}

/// Bucket of a row with so many changes.
fn bucket(changes: u32) -> usize {
    if changes < 8 {
        return changes as usize;
    }
    // Four buckets an octave.
    let octave = 31 - changes.leading_zeros();
    let within = (changes >> (octave - 2)) & 3;
    ((octave - 3) * 4 + within + 8).min(BUCKETS as u32 - 1) as usize
}

/// Rows and changes of one bucket, or of several.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    rows: u64,
    changes: u64,
}

impl Share {
    fn plus(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            changes: self.changes + other.changes,
        }
    }

    /// About what the places of its changes take, and naming its rows among `rows`, in 2^-16 bits.
    fn cost(self, cols: u64, rows: u64) -> u64 {
        if self.rows == 0 {
            return 0;
        }
        let unchanged = self.rows * cols - self.changes;
        let places = match self.changes {
            0 => 0,
            n => cost(parameter(n, unchanged), n, unchanged),
        };
        let share = ((self.rows << 32) / rows).max(1);
        places + self.rows * minus_log2(share) + GROUP_COST
    }
}

/// Puts the rows of a tile into groups by how many changes they have, where that pays; else `out` stays
/// empty.
fn group_rows(
    block: &Block,
    width: usize,
    positions: &[u32],
    counts: &mut Vec<u32>,
    out: &mut Vec<u8>,
) {
    let cols = block.bytes / width;
    if (cols as u64) < GROUPED_COLS || positions.len() < FEW_FOR_GROUPS || block.rows < 16 {
        return;
    }
    counts.clear();
    counts.resize(block.rows, 0);
    let divider = Divider::new(cols);
    for &position in positions {
        counts[divider.divide(position) as usize] += 1;
    }
    // Rows that differ by chance alone vary by their mean.
    let (n, rows) = (positions.len() as u64, block.rows as u64);
    let squares: u64 = counts.iter().map(|&c| u64::from(c) * u64::from(c)).sum();
    let variance = (squares * rows).saturating_sub(n * n) / rows;
    if variance < 2 * n {
        return;
    }
    let mut shares = [Share::default(); BUCKETS];
    for &count in counts.iter() {
        let share = &mut shares[bucket(count)];
        share.rows += 1;
        share.changes += u64::from(count);
    }
    let ends = cut(&shares, cols as u64, rows);
    if ends.len() < 2 {
        return;
    }
    let mut group_of = [0u8; BUCKETS];
    let mut first = 0;
    for (group, &end) in ends.iter().enumerate() {
        group_of[first..end].fill(group as u8);
        first = end;
    }
    out.extend(counts.iter().map(|&c| group_of[bucket(c)]));
    // Every group has rows, since an empty range never pays.
    debug_assert!((0..ends.len()).all(|g| out.contains(&(g as u8))));
}

/// The cheapest division of the buckets into ranges: where each ends.
fn cut(shares: &[Share; BUCKETS], cols: u64, rows: u64) -> Vec<usize> {
    // costs[a][b] of buckets a..b as one group; empty ranges are not groups.
    let mut costs = vec![[u64::MAX; BUCKETS + 1]; BUCKETS];
    for (a, costs) in costs.iter_mut().enumerate() {
        let mut share = Share::default();
        for (b, next) in shares.iter().enumerate().skip(a) {
            share = share.plus(*next);
            if share.rows > 0 {
                costs[b + 1] = share.cost(cols, rows);
            }
        }
    }
    // best[g][b]: cost of the first b buckets in g + 1 groups, and where the last group begins.
    let mut best = vec![[(u64::MAX, 0usize); BUCKETS + 1]; MAX_GROUPS];
    for b in 1..=BUCKETS {
        best[0][b] = (costs[0][b], 0);
    }
    for g in 1..MAX_GROUPS {
        for b in 1..=BUCKETS {
            for (a, costs) in costs.iter().enumerate().take(b).skip(1) {
                let total = best[g - 1][a].0.saturating_add(costs[b]);
                if total < best[g][b].0 {
                    best[g][b] = (total, a);
                }
            }
        }
    }
    let groups = (0..MAX_GROUPS)
        .min_by_key(|&g| best[g][BUCKETS].0)
        .unwrap_or(0);
    let mut ends = vec![BUCKETS];
    let mut end = BUCKETS;
    for g in (1..=groups).rev() {
        end = best[g][end].1;
        ends.push(end);
    }
    ends.reverse();
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_ascend() {
        let mut last = 0;
        for changes in 0..3_000_000u32 {
            let b = bucket(changes);
            assert!(b == last || b == last + 1, "{changes}");
            last = b;
        }
        assert!(last < BUCKETS);
    }

    #[test]
    fn rows_that_never_change_get_a_group() {
        // 1,000 rows of 256: every tenth has 50 changes, the others none.
        let block = Block {
            row: 0,
            rows: 1000,
            byte: 0,
            bytes: 512,
        };
        let positions: Vec<u32> = (0..1000u32)
            .step_by(10)
            .flat_map(|row| (0..50).map(move |i| row * 256 + 5 * i))
            .collect();
        let (mut counts, mut rows) = (vec![], vec![]);
        group_rows(&block, 2, &positions, &mut counts, &mut rows);
        assert!(rows
            .iter()
            .enumerate()
            .all(|(i, &g)| g == u8::from(i % 10 == 0)));
        // As many, spread evenly.
        let positions: Vec<u32> = (0..5000).map(|i| i * 51).collect();
        rows.clear();
        group_rows(&block, 2, &positions, &mut counts, &mut rows);
        assert!(rows.is_empty());
    }
}
