//! Exponent classes: the elements of a block grouped by the exponent that they have in the base.
//!
//! How likely an element changes in a step, and by how much, follows from its exponent, and the
//! receiver holds the base. So positions are sent as ranks within classes, and exponents cost
//! nothing. Where rows differ much in how often they change (embeddings), they are put into groups, and
//! each group has classes of its own.

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod arm;
mod batch;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::block::Block;
use crate::matrix::Matrix;
use crate::Word;

use batch::{Batch, Scalar, Simd, GROUP, GROUPS};

/// Most classes of a map.
pub const MAX_CLASSES: usize = 16;
/// Most groups of rows.
pub const MAX_GROUPS: usize = 8;
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

/// What is done with the elements of a block, batch after batch.
trait Visitor {
    /// Handles a batch; `range` is the number of its first element in the block, and how many there are. They
    /// lie in rows of one group, in which `before` elements of each class precede them.
    fn visit<S: Simd>(&mut self, group: usize, range: (u32, u32), batch: &Batch, before: &Lanes);
}

/// One number a class.
type Lanes = [u32; MAX_CLASSES];

/// How far a walk through a block has come. A block may be walked through part by part, as long as the
/// parts follow one another.
#[derive(Default)]
pub struct Progress {
    batch: Batch,
    /// Elements of each class so far, for each group of rows.
    before: [Lanes; MAX_GROUPS],
    first: u32,
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
        self.before = [[0; MAX_CLASSES]; MAX_GROUPS];
        self.first = 0;
    }

    /// Visits the `length` elements that were added to the batch, which lie in rows of one group.
    #[inline(always)]
    fn visit<S: Simd, V: Visitor>(
        &mut self,
        map: &ClassMap,
        length: usize,
        group: usize,
        visitor: &mut V,
    ) {
        let classes = map.count as usize;
        let before = &mut self.before[group];
        self.batch.close::<S>(length, classes);
        visitor.visit::<S>(group, (self.first, length as u32), &self.batch, before);
        for (before, &total) in before.iter_mut().zip(&self.batch.totals[..classes]) {
            *before += u32::from(total);
        }
        self.first += length as u32;
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

/// Visits a part in batches. Rows that follow one another share them where they are whole groups of
/// elements.
#[inline(always)]
fn walk<W: Word, S: Simd, V: Visitor>(part: &Part<'_>, progress: &mut Progress, visitor: &mut V) {
    let Part {
        matrix,
        block,
        map,
        rows,
    } = part;
    let whole = matrix.contiguous(block).filter(|_| rows.is_empty());
    let lines = if whole.is_some() { 1 } else { block.rows };
    let (mut length, mut group) = (0, 0);
    for line in 0..lines {
        let own = rows.get(line).map_or(0, |&g| usize::from(g)) % MAX_GROUPS;
        if length > 0 && (own != group || length % GROUP != 0) {
            progress.visit::<S, V>(map, length, group, visitor);
            length = 0;
        }
        group = own;
        let mut bytes = whole.unwrap_or_else(|| matrix.row(block, line));
        while !bytes.is_empty() {
            let filled = progress.batch.add::<W, S>(length, bytes, map);
            bytes = &bytes[(filled - length) * W::WIDTH..];
            length = filled;
            if length == GROUPS * GROUP {
                progress.visit::<S, V>(map, length, group, visitor);
                length = 0;
            }
        }
    }
    if length > 0 {
        progress.visit::<S, V>(map, length, group, visitor);
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
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Neon,
}

impl Level {
    /// Those that the processor offers, the best one first.
    fn offered() -> impl Iterator<Item = Self> {
        [
            #[cfg(target_arch = "x86_64")]
            x86::has_avx512().then_some(Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            x86::has_avx2().then_some(Self::Avx2),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Some(Self::Neon),
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
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        Level::Neon => walk::<W, arm::Neon, V>(part, progress, visitor),
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
        (first, length): (u32, u32),
        batch: &Batch,
        before: &Lanes,
    ) {
        let mut taken = 0;
        let changes = self.positions.iter().zip(self.classes);
        for ((&position, &class), rank) in changes.zip(&mut *self.out) {
            let at = position.wrapping_sub(first);
            if at >= length {
                break;
            }
            let class = usize::from(class) % MAX_CLASSES;
            *rank = before[class] + batch.rank(class, at);
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

    /// How many ranks were found.
    pub fn found(&self) -> usize {
        self.found
    }

    /// Positions found after the first `from` ones, and where each was found in the ranks.
    ///
    /// # Panics
    /// Where there are fewer.
    pub fn since(&self, from: usize) -> (&[u32], &[u32]) {
        let range = from..self.found;
        (&self.positions[range.clone()], &self.order[range])
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
        (first, _): (u32, u32),
        batch: &Batch,
        before: &Lanes,
    ) {
        let places = &mut self.places[group * self.classes..(group + 1) * self.classes];
        let mut found = self.found;
        for (class, place) in places.iter_mut().enumerate().take(MAX_CLASSES) {
            let (from, total) = (before[class], batch.totals[class]);
            let left = &self.ranks[place.0 as usize..place.1 as usize];
            let out = self.positions[found..]
                .iter_mut()
                .zip(&mut self.order[found..]);
            let mut taken = 0;
            for (&rank, (position, order)) in left.iter().zip(out) {
                // A rank before the batch does not ascend; it is never found.
                let wanted = rank.wrapping_sub(from);
                if wanted >= u32::from(total) {
                    break;
                }
                *position = first + batch.element::<S>(class, wanted as u16);
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
