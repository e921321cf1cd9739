//! Exponent classes: the elements of a block grouped by the exponent that they have in the base.
//!
//! How likely an element changes in a step, and by how much, follows from its exponent, and the
//! receiver holds the base. So positions are sent as ranks within classes, and exponents cost
//! nothing. Where rows differ much in how often they change (embeddings), they are put into groups, and
//! each group has classes of its own.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::hint::select_unpredictable;

use crate::matrix::{prefetch, Block, Matrix};
use crate::Word;

/// Most classes of a map.
pub const MAX_CLASSES: usize = 16;
/// Most groups of rows.
pub const MAX_GROUPS: usize = 8;
/// Elements that share a mask.
const GROUP: usize = 64;
/// Bytes that memory is asked for before it is used.
const AHEAD: usize = 4096;
/// Masks that are made before they are used: few enough for the nearest cache.
const BATCH: usize = 64;

/// Which class an element belongs to: `min(max(top - exponent, 0), count - 1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassMap {
    /// Bits below the exponent field.
    pub shift: u32,
    /// The exponent field, after shifting.
    pub mask: u32,
    /// Exponents from here on up are class 0.
    pub top: u32,
    /// Number of classes, 1 to 16.
    pub count: u32,
}

impl ClassMap {
    /// The exponent field of a pattern.
    #[inline(always)]
    pub fn exponent<W: Word>(&self, bits: W) -> u32 {
        (bits.to_u64() >> self.shift) as u32 & self.mask
    }

    /// The class of a pattern.
    #[inline(always)]
    pub fn class<W: Word>(&self, bits: W) -> usize {
        self.top
            .saturating_sub(self.exponent(bits))
            .min(self.count - 1) as usize
    }
}

/// One bit per element of 64 for each class.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Masks([u64; MAX_CLASSES]);

/// One number a class.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lanes([u32; MAX_CLASSES]);

/// Class masks of consecutive elements, and how many elements of each class precede each mask.
struct Batch {
    masks: [Masks; BATCH],
    before: [Lanes; BATCH],
}

/// What the processor offers.
trait Simd {
    /// Class numbers of 64 elements.
    fn numbers<W: Word>(bytes: &[u8], map: &ClassMap) -> [u8; GROUP] {
        class_numbers::<W>(bytes, map)
    }
    /// Masks of 64 class numbers.
    fn masks(classes: &[u8; GROUP], count: u32, out: &mut Masks);
    /// The numbers before, plus the bits of each mask.
    fn advance(before: &Lanes, masks: &Masks) -> Lanes;
    /// The place of set bit number `n` (from 0), of more than `n`.
    fn select(mask: u64, n: u32) -> u32;
}

struct Scalar;

impl Simd for Scalar {
    #[inline(always)]
    fn masks(classes: &[u8; GROUP], _count: u32, out: &mut Masks) {
        *out = Masks([0; MAX_CLASSES]);
        for (i, &class) in classes.iter().enumerate() {
            out.0[usize::from(class) % MAX_CLASSES] |= 1 << i;
        }
    }

    #[inline(always)]
    fn advance(before: &Lanes, masks: &Masks) -> Lanes {
        let mut after = *before;
        for (sum, mask) in after.0.iter_mut().zip(&masks.0) {
            *sum += mask.count_ones();
        }
        after
    }

    #[inline(always)]
    fn select(mut mask: u64, n: u32) -> u32 {
        for _ in 0..n {
            mask &= mask.wrapping_sub(1);
        }
        mask.trailing_zeros()
    }
}

/// Class numbers of up to 64 elements, one by one.
#[inline(always)]
fn class_numbers<W: Word>(bytes: &[u8], map: &ClassMap) -> [u8; GROUP] {
    let mut classes = [0; GROUP];
    for (class, element) in classes.iter_mut().zip(bytes.chunks_exact(W::WIDTH)) {
        *class = map.class(W::read(element)) as u8;
    }
    classes
}

/// Fills a batch from up to `BATCH * 64` elements and adds them to `before`.
#[inline(always)]
fn fill<W: Word, S: Simd>(bytes: &[u8], map: &ClassMap, before: &mut Lanes, batch: &mut Batch) {
    let groups = bytes.chunks_exact(GROUP * W::WIDTH);
    let rest = groups.remainder();
    let whole = groups.len();
    for (group, masks) in groups.zip(&mut batch.masks) {
        for line in 0..W::WIDTH {
            prefetch(group.as_ptr().wrapping_add(AHEAD + 64 * line));
        }
        S::masks(&S::numbers::<W>(group, map), map.count, masks);
    }
    let mut filled = whole;
    if !rest.is_empty() {
        let mut padded = [0u8; GROUP * 8];
        padded[..rest.len()].copy_from_slice(rest);
        let numbers = class_numbers::<W>(&padded[..GROUP * W::WIDTH], map);
        let masks = &mut batch.masks[whole];
        S::masks(&numbers, map.count, masks);
        let real = u64::MAX >> (GROUP - rest.len() / W::WIDTH);
        masks.0.iter_mut().for_each(|mask| *mask &= real);
        filled += 1;
    }
    for (masks, place) in batch.masks[..filled].iter().zip(&mut batch.before) {
        *place = *before;
        *before = S::advance(before, masks);
    }
}

/// What is done with the elements of a block, batch after batch.
trait Visitor {
    /// Handles the elements `first..first + length`, which lie in rows of one group. The elements
    /// before them are counted in `before`, those including them in `after`.
    fn visit<S: Simd>(
        &mut self,
        group: usize,
        first: u32,
        length: u32,
        batch: &Batch,
        after: &Lanes,
    );
}

/// A walk through a block.
struct Walk<'a> {
    map: &'a ClassMap,
    batch: Batch,
    before: [Lanes; MAX_GROUPS],
    first: u32,
}

impl Walk<'_> {
    /// Visits the next elements in batches. (Closures would not get the caller's target features.)
    #[inline(always)]
    fn visit<W: Word, S: Simd, V: Visitor>(&mut self, bytes: &[u8], group: usize, visitor: &mut V) {
        for part in bytes.chunks(BATCH * GROUP * W::WIDTH) {
            let length = (part.len() / W::WIDTH) as u32;
            let before = &mut self.before[group];
            fill::<W, S>(part, self.map, before, &mut self.batch);
            visitor.visit::<S>(group, self.first, length, &self.batch, before);
            self.first += length;
        }
    }
}

/// Visits a block in batches.
#[inline(always)]
fn walk<W: Word, S: Simd, V: Visitor>(
    matrix: &Matrix<'_>,
    block: &Block,
    map: &ClassMap,
    rows: &[u8],
    visitor: &mut V,
) {
    let mut walk = Walk {
        map,
        batch: Batch {
            masks: [Masks([0; MAX_CLASSES]); BATCH],
            before: [Lanes([0; MAX_CLASSES]); BATCH],
        },
        before: [Lanes([0; MAX_CLASSES]); MAX_GROUPS],
        first: 0,
    };
    if rows.is_empty() {
        if let Some(bytes) = matrix.contiguous(block) {
            walk.visit::<W, S, V>(bytes, 0, visitor);
            return;
        }
    }
    for row in 0..block.rows {
        let group = rows.get(row).map_or(0, |&g| usize::from(g)) % MAX_GROUPS;
        walk.visit::<W, S, V>(matrix.row(block, row), group, visitor);
    }
}

/// Which twin runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// Those that the processor offers, the best one first.
    fn offered() -> impl Iterator<Item = Self> {
        [
            #[cfg(target_arch = "x86_64")]
            x86::has_avx512().then_some(Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            x86::has_avx2().then_some(Self::Avx2),
            Some(Self::Scalar),
        ]
        .into_iter()
        .flatten()
    }

    fn best() -> Self {
        Self::offered().next().unwrap_or(Self::Scalar)
    }
}

/// `level` is one of those offered.
fn dispatch<W: Word, V: Visitor>(
    level: Level,
    matrix: &Matrix<'_>,
    block: &Block,
    map: &ClassMap,
    rows: &[u8],
    visitor: &mut V,
) {
    assert!((1..=MAX_CLASSES as u32).contains(&map.count));
    assert!(rows.is_empty() || rows.len() == block.rows);
    assert!(u32::try_from(block.len() / W::WIDTH).is_ok());
    match level {
        Level::Scalar => walk::<W, Scalar, V>(matrix, block, map, rows, visitor),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: levels come from `offered`, which has detected the features.
        Level::Avx2 => unsafe { x86::walk_avx2::<W, V>(matrix, block, map, rows, visitor) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512 => unsafe { x86::walk_avx512::<W, V>(matrix, block, map, rows, visitor) },
    }
}

/// Ranks of changed elements: how many elements of its class precede each in the block.
///
/// `positions` ascend, and `classes[i]` is the class of the element at `positions[i]`. `rows` holds the
/// group of each row, or nothing where all are in one. The rank of each element goes to `out` at the next
/// place of its class, which `places[group * map.count + class]` says and counts on.
///
/// # Panics
/// Where block, positions, classes or places lie outside, or the map has no or too many classes.
#[allow(clippy::too_many_arguments)]
pub fn ranks<W: Word>(
    matrix: &Matrix<'_>,
    block: &Block,
    map: &ClassMap,
    rows: &[u8],
    positions: &[u32],
    classes: &[u8],
    places: &mut [u32],
    out: &mut [u32],
) {
    ranks_at::<W>(
        Level::best(),
        matrix,
        block,
        map,
        rows,
        positions,
        classes,
        places,
        out,
    );
}

#[allow(clippy::too_many_arguments)]
fn ranks_at<W: Word>(
    level: Level,
    matrix: &Matrix<'_>,
    block: &Block,
    map: &ClassMap,
    rows: &[u8],
    positions: &[u32],
    classes: &[u8],
    places: &mut [u32],
    out: &mut [u32],
) {
    assert_eq!(positions.len(), classes.len());
    let mut visitor = RankVisitor {
        count: map.count as usize,
        positions,
        classes,
        places,
        out,
    };
    dispatch::<W, _>(level, matrix, block, map, rows, &mut visitor);
    let left = visitor.positions.len();
    assert_eq!(left, 0, "{left} positions lie outside {block:?}");
}

struct RankVisitor<'a> {
    count: usize,
    positions: &'a [u32],
    classes: &'a [u8],
    places: &'a mut [u32],
    out: &'a mut [u32],
}

impl Visitor for RankVisitor<'_> {
    #[inline(always)]
    fn visit<S: Simd>(
        &mut self,
        group: usize,
        first: u32,
        length: u32,
        batch: &Batch,
        _after: &Lanes,
    ) {
        let places = &mut self.places[group * self.count..(group + 1) * self.count];
        let mut taken = 0;
        for (&position, &class) in self.positions.iter().zip(self.classes) {
            let at = position - first;
            if at >= length {
                break;
            }
            let (mask, bit) = (at as usize / GROUP % BATCH, 1u64 << (at % GROUP as u32));
            let class = usize::from(class) % MAX_CLASSES;
            let within = (batch.masks[mask].0[class] & (bit - 1)).count_ones();
            let place = &mut places[class];
            self.out[*place as usize] = batch.before[mask].0[class] + within;
            *place += 1;
            taken += 1;
        }
        self.positions = &self.positions[taken..];
        self.classes = &self.classes[taken..];
    }
}

/// Positions of ranks: undoes [`ranks`].
///
/// `ranks` holds the ascending ranks of class after class, group after group, `counts` how many each
/// class has. Appends to `positions`, and to `order` where each was found in `ranks`. Positions ascend
/// only from batch to batch of some thousand elements.
///
/// Returns whether all ranks exist in the block; if not, what was appended is incomplete.
///
/// # Panics
/// Where the block lies outside, or the counts do not fit the map and the ranks.
#[allow(clippy::too_many_arguments)]
pub fn select<W: Word>(
    matrix: &Matrix<'_>,
    block: &Block,
    map: &ClassMap,
    rows: &[u8],
    counts: &[u32],
    ranks: &[u32],
    positions: &mut Vec<u32>,
    order: &mut Vec<u32>,
) -> bool {
    select_at::<W>(
        Level::best(),
        matrix,
        block,
        map,
        rows,
        counts,
        ranks,
        positions,
        order,
    )
}

#[allow(clippy::too_many_arguments)]
fn select_at<W: Word>(
    level: Level,
    matrix: &Matrix<'_>,
    block: &Block,
    map: &ClassMap,
    rows: &[u8],
    counts: &[u32],
    ranks: &[u32],
    positions: &mut Vec<u32>,
    order: &mut Vec<u32>,
) -> bool {
    assert!(counts.len().is_multiple_of(map.count as usize));
    assert!(counts.len() <= map.count as usize * MAX_GROUPS);
    let sum = counts.iter().map(|&c| c as usize).sum::<usize>();
    assert_eq!(sum, ranks.len());
    let begun = positions.len();
    positions.reserve(ranks.len());
    order.reserve(ranks.len());
    let mut visitor = SelectVisitor {
        count: map.count as usize,
        ranks,
        places: [(0, 0); MAX_CLASSES * MAX_GROUPS],
        positions,
        order,
    };
    let mut at = 0;
    for (place, &count) in visitor.places.iter_mut().zip(counts) {
        *place = (at, at + count);
        at += count;
    }
    dispatch::<W, _>(level, matrix, block, map, rows, &mut visitor);
    positions.len() - begun == ranks.len()
}

struct SelectVisitor<'a> {
    count: usize,
    ranks: &'a [u32],
    /// Next rank of each class and the end of its ranks.
    places: [(u32, u32); MAX_CLASSES * MAX_GROUPS],
    positions: &'a mut Vec<u32>,
    order: &'a mut Vec<u32>,
}

impl Visitor for SelectVisitor<'_> {
    #[inline(always)]
    fn visit<S: Simd>(
        &mut self,
        group: usize,
        first: u32,
        length: u32,
        batch: &Batch,
        after: &Lanes,
    ) {
        let masks = (length as usize).div_ceil(GROUP);
        for class in 0..self.count % (MAX_CLASSES + 1) {
            let (mut next, end) = self.places[group * self.count + class];
            let (from, to) = (batch.before[0].0[class], after.0[class]);
            while next < end {
                let wanted = self.ranks[next as usize];
                // A rank before the batch does not ascend; it is never found.
                if wanted >= to || wanted < from {
                    break;
                }
                // The last mask that no more than `wanted` elements precede.
                let (mut mask, mut size) = (0, masks);
                while size > 1 {
                    let half = size / 2;
                    let later = batch.before[(mask + half) % BATCH].0[class] <= wanted;
                    mask += select_unpredictable(later, half, 0);
                    size -= half;
                }
                let mask = mask % BATCH;
                let within = wanted - batch.before[mask].0[class];
                let bit = S::select(batch.masks[mask].0[class], within);
                self.positions.push(first + (mask * GROUP) as u32 + bit);
                self.order.push(next);
                next += 1;
            }
            self.places[group * self.count + class].0 = next;
        }
    }
}

#[cfg(test)]
mod tests;
