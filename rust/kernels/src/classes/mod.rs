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

/// How far a walk through a block has come. A block may be walked through part by part, as long as the
/// parts follow one another.
pub struct Progress {
    batch: Batch,
    /// Elements of each class so far, for each group of rows.
    before: [Lanes; MAX_GROUPS],
    first: u32,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            batch: Batch {
                masks: [Masks([0; MAX_CLASSES]); BATCH],
                before: [Lanes([0; MAX_CLASSES]); BATCH],
            },
            before: [Lanes([0; MAX_CLASSES]); MAX_GROUPS],
            first: 0,
        }
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress")
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

impl Progress {
    /// Goes back to the beginning of a block.
    pub fn restart(&mut self) {
        // Masks of classes that a map does not have must be empty, and another map may have had them.
        self.batch.masks = [Masks([0; MAX_CLASSES]); BATCH];
        self.before = [Lanes([0; MAX_CLASSES]); MAX_GROUPS];
        self.first = 0;
    }

    /// Visits the next elements in batches. (Closures would not get the caller's target features.)
    #[inline(always)]
    fn visit<W: Word, S: Simd, V: Visitor>(
        &mut self,
        map: &ClassMap,
        bytes: &[u8],
        group: usize,
        visitor: &mut V,
    ) {
        for part in bytes.chunks(BATCH * GROUP * W::WIDTH) {
            let length = (part.len() / W::WIDTH) as u32;
            let before = &mut self.before[group];
            fill::<W, S>(part, map, before, &mut self.batch);
            visitor.visit::<S>(group, self.first, length, &self.batch, before);
            self.first += length;
        }
    }
}

/// A part of a block, its classes, and the groups of its rows.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The tensor.
    pub matrix: &'a Matrix<'a>,
    /// The part.
    pub block: Block,
    /// Classes of its elements.
    pub map: ClassMap,
    /// Group of each row of the part; nothing where all are in one.
    pub rows: &'a [u8],
}

/// Visits a part in batches.
#[inline(always)]
fn walk<W: Word, S: Simd, V: Visitor>(part: &Part<'_>, progress: &mut Progress, visitor: &mut V) {
    let Part {
        matrix,
        block,
        map,
        rows,
    } = part;
    if rows.is_empty() {
        if let Some(bytes) = matrix.contiguous(block) {
            progress.visit::<W, S, V>(map, bytes, 0, visitor);
            return;
        }
    }
    for row in 0..block.rows {
        let group = rows.get(row).map_or(0, |&g| usize::from(g)) % MAX_GROUPS;
        progress.visit::<W, S, V>(map, matrix.row(block, row), group, visitor);
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
    part: &Part<'_>,
    progress: &mut Progress,
    visitor: &mut V,
) {
    assert!((1..=MAX_CLASSES as u32).contains(&part.map.count));
    assert!(part.rows.is_empty() || part.rows.len() == part.block.rows);
    let elements = (part.block.len() / W::WIDTH) as u64 + u64::from(progress.first);
    assert!(u32::try_from(elements).is_ok());
    match level {
        Level::Scalar => walk::<W, Scalar, V>(part, progress, visitor),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: levels come from `offered`, which has detected the features.
        Level::Avx2 => unsafe { x86::walk_avx2::<W, V>(part, progress, visitor) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512 => unsafe { x86::walk_avx512::<W, V>(part, progress, visitor) },
    }
}

/// Appends the rank of each changed element of the next part of a block: how many elements of its class
/// precede it in the block.
///
/// `positions` are element numbers in the block, ascending and within the part; `classes[i]` is the class
/// of the element at `positions[i]`.
///
/// # Panics
/// Where part or positions lie outside, or the map has no or too many classes.
pub fn ranks<W: Word>(
    part: &Part<'_>,
    progress: &mut Progress,
    positions: &[u32],
    classes: &[u8],
    out: &mut Vec<u32>,
) {
    ranks_at::<W>(Level::best(), part, progress, positions, classes, out);
}

fn ranks_at<W: Word>(
    level: Level,
    part: &Part<'_>,
    progress: &mut Progress,
    positions: &[u32],
    classes: &[u8],
    out: &mut Vec<u32>,
) {
    assert_eq!(positions.len(), classes.len());
    let begun = out.len();
    out.resize(begun + positions.len(), 0);
    let mut visitor = RankVisitor {
        positions,
        classes,
        out: &mut out[begun..],
    };
    dispatch::<W, _>(level, part, progress, &mut visitor);
    let left = visitor.positions.len();
    assert_eq!(left, 0, "{left} positions lie outside {:?}", part.block);
}

struct RankVisitor<'a> {
    positions: &'a [u32],
    classes: &'a [u8],
    out: &'a mut [u32],
}

impl Visitor for RankVisitor<'_> {
    #[inline(always)]
    fn visit<S: Simd>(
        &mut self,
        _group: usize,
        first: u32,
        length: u32,
        batch: &Batch,
        _after: &Lanes,
    ) {
        let mut taken = 0;
        let changes = self.positions.iter().zip(self.classes);
        for ((&position, &class), rank) in changes.zip(&mut *self.out) {
            let at = position.wrapping_sub(first);
            if at >= length {
                break;
            }
            let (mask, bit) = (at as usize / GROUP % BATCH, 1u64 << (at % GROUP as u32));
            let class = usize::from(class) % MAX_CLASSES;
            let within = (batch.masks[mask].0[class] & (bit - 1)).count_ones();
            *rank = batch.before[mask].0[class] + within;
            taken += 1;
        }
        self.positions = &self.positions[taken..];
        self.classes = &self.classes[taken..];
        self.out = &mut std::mem::take(&mut self.out)[taken..];
    }
}

/// Positions of ranks: undoes [`ranks`], part by part.
#[derive(Debug)]
pub struct Selector<'a> {
    ranks: &'a [u32],
    positions: &'a mut [u32],
    order: &'a mut [u32],
    classes: usize,
    /// Next rank of each class and the end of its ranks.
    places: [(u32, u32); MAX_CLASSES * MAX_GROUPS],
    found: usize,
}

impl<'a> Selector<'a> {
    /// For the ascending ranks of class after class, group of rows after group; `counts` says how many
    /// each class has, `classes` how many there are in a group. `positions` is replaced by the
    /// positions of the ranks, `order` by where each was found in the ranks; what is not found stays 0.
    /// Positions ascend only from batch to batch of some thousand elements.
    ///
    /// # Panics
    /// Where these do not fit together.
    pub fn new(
        classes: usize,
        counts: &[u32],
        ranks: &'a [u32],
        positions: &'a mut Vec<u32>,
        order: &'a mut Vec<u32>,
    ) -> Self {
        assert!((1..=MAX_CLASSES).contains(&classes) && counts.len().is_multiple_of(classes));
        assert!(counts.len() <= classes * MAX_GROUPS);
        let mut places = [(0, 0); MAX_CLASSES * MAX_GROUPS];
        let mut at = 0;
        for (place, &count) in places.iter_mut().zip(counts) {
            *place = (at, at + count);
            at += count;
        }
        assert_eq!(at as usize, ranks.len());
        for out in [&mut *positions, &mut *order] {
            out.clear();
            out.resize(ranks.len(), 0);
        }
        Self {
            ranks,
            positions,
            order,
            classes,
            places,
            found: 0,
        }
    }

    /// Looks through the next part of a block.
    ///
    /// # Panics
    /// Where the part lies outside, or its map has another number of classes.
    pub fn next<W: Word>(&mut self, part: &Part<'_>, progress: &mut Progress) {
        self.next_at::<W>(Level::best(), part, progress);
    }

    fn next_at<W: Word>(&mut self, level: Level, part: &Part<'_>, progress: &mut Progress) {
        assert_eq!(part.map.count as usize, self.classes);
        dispatch::<W, _>(level, part, progress, self);
    }

    /// Whether all ranks were found.
    pub fn is_complete(&self) -> bool {
        self.found == self.ranks.len()
    }

    /// Where each was found in the ranks, if all were.
    pub fn finish(self) -> Option<&'a [u32]> {
        self.is_complete().then_some(self.order)
    }
}

impl Visitor for Selector<'_> {
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
        let places = &mut self.places[group * self.classes..(group + 1) * self.classes];
        let mut found = self.found;
        for (class, place) in places.iter_mut().enumerate().take(MAX_CLASSES) {
            let (from, to) = (batch.before[0].0[class], after.0[class]);
            let left = &self.ranks[place.0 as usize..place.1 as usize];
            let out = self.positions[found..]
                .iter_mut()
                .zip(&mut self.order[found..]);
            let mut taken = 0;
            for (&wanted, (position, order)) in left.iter().zip(out) {
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
                *position = first + (mask * GROUP) as u32 + bit;
                *order = place.0 + taken;
                taken += 1;
            }
            place.0 += taken;
            found += taken as usize;
        }
        self.found = found;
    }
}

#[cfg(test)]
mod tests;
