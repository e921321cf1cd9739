//! Class masks of some thousand consecutive elements, and how many elements of each class precede each.
//!
//! Class numbers have four bits. A group of 64 elements gives four *planes*, one bit an element each; the
//! masks of all classes follow from the planes by a few logical operations, for eight groups at a time.

use super::{ClassMap, MAX_CLASSES};
use crate::block::prefetch;
use crate::Word;

/// Elements that share a mask.
pub(super) const GROUP: usize = 64;
/// Groups of a batch: few enough for its masks to stay in the nearest cache.
pub(super) const GROUPS: usize = 64;
/// Bits of a class number.
pub(super) const PLANES: usize = 4;
/// Groups that are counted together.
pub(super) const HALF: usize = GROUPS / 2;
/// Bytes that memory is asked for before it is used.
const AHEAD: usize = 4096;

/// One bit an element: 64 elements of each group, groups in the order of [`place`].
pub(super) type Bits = [u64; GROUPS];

/// Where a group's bits stand among those of a batch.
///
/// Groups 0, 4, 8, ... of a half come first, then 1, 5, 9, ...: so the counts of four neighbours fall into
/// one 64-bit word when four vectors of counts are shifted into each other.
#[inline(always)]
pub(super) const fn place(group: usize) -> usize {
    (group & HALF) + group % 4 * 8 + group / 4 % 8
}

/// See the module.
#[repr(align(64))]
pub(super) struct Batch {
    /// Bits of the class numbers.
    pub(super) planes: [Bits; PLANES],
    /// Which elements there are.
    pub(super) real: Bits,
    /// Elements that `real` stands for, those of the batch once it is closed.
    length: usize,
    /// Elements of each class.
    pub(super) masks: [Bits; MAX_CLASSES],
    /// Elements of each class in the groups before each group.
    pub(super) before: [[u16; GROUPS]; MAX_CLASSES],
    /// Elements of each class in all groups.
    pub(super) totals: [u16; MAX_CLASSES],
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            planes: [[0; GROUPS]; PLANES],
            real: [0; GROUPS],
            length: 0,
            masks: [[0; GROUPS]; MAX_CLASSES],
            before: [[0; GROUPS]; MAX_CLASSES],
            totals: [0; MAX_CLASSES],
        }
    }
}

/// What the processor offers. What it has nothing better for is done by the portable code here.
pub(super) trait Simd {
    /// The planes of 64 elements.
    fn planes<W: Word>(bytes: &[u8], map: &ClassMap) -> [u64; PLANES];
    /// Makes masks and counts of the first `count` classes in the first `halves` halves from the planes.
    #[inline(always)]
    fn count(batch: &mut Batch, count: usize, halves: usize) {
        for class in 0..count {
            // A plane's bit must equal the class's; where that is 0, the plane is turned.
            let turn: [u64; PLANES] =
                std::array::from_fn(|k| if class >> k & 1 == 1 { 0 } else { u64::MAX });
            let masks = &mut batch.masks[class];
            for (at, mask) in masks[..halves * HALF].iter_mut().enumerate() {
                *mask = (0..PLANES).fold(batch.real[at], |mask, k| {
                    mask & (batch.planes[k][at] ^ turn[k])
                });
            }
            let mut sum = 0;
            for (group, before) in batch.before[class][..halves * HALF].iter_mut().enumerate() {
                *before = sum;
                sum += masks[place(group)].count_ones() as u16;
            }
            batch.totals[class] = sum;
        }
    }

    /// The last group of the first `halves` halves that no more than `wanted` elements precede.
    #[inline(always)]
    fn find(before: &[u16; GROUPS], wanted: u16, halves: usize) -> usize {
        let fitting = before[..halves * HALF].partition_point(|&n| n <= wanted);
        fitting.saturating_sub(1)
    }

    /// The place of set bit number `n` (from 0), of more than `n`.
    #[inline(always)]
    fn select(mut mask: u64, n: u32) -> u32 {
        for _ in 0..n {
            mask &= mask.wrapping_sub(1);
        }
        mask.trailing_zeros()
    }
}

pub(super) struct Scalar;

impl Simd for Scalar {
    #[inline(always)]
    fn planes<W: Word>(bytes: &[u8], map: &ClassMap) -> [u64; PLANES] {
        planes_of(&class_numbers::<W>(bytes, map))
    }
}

/// Class numbers of up to 64 elements, one by one.
#[inline(always)]
pub(super) fn class_numbers<W: Word>(bytes: &[u8], map: &ClassMap) -> [u8; GROUP] {
    let mut classes = [0; GROUP];
    for (class, element) in classes.iter_mut().zip(bytes.chunks_exact(W::WIDTH)) {
        *class = map.class(W::read(element)) as u8;
    }
    classes
}

#[inline(always)]
fn planes_of(classes: &[u8; GROUP]) -> [u64; PLANES] {
    let mut planes = [0; PLANES];
    for (i, &class) in classes.iter().enumerate() {
        for (k, plane) in planes.iter_mut().enumerate() {
            *plane |= u64::from(class >> k & 1) << i;
        }
    }
    planes
}

impl Batch {
    /// Adds elements behind `length` others, which fill whole groups, and returns how many there are then:
    /// all of them, or as many as the batch holds.
    #[inline(always)]
    pub(super) fn add<W: Word, S: Simd>(
        &mut self,
        length: usize,
        bytes: &[u8],
        map: &ClassMap,
    ) -> usize {
        let first = length / GROUP;
        let bytes = &bytes[..bytes.len().min((GROUPS - first) * GROUP * W::WIDTH)];
        let groups = bytes.chunks_exact(GROUP * W::WIDTH);
        let rest = groups.remainder();
        let whole = groups.len();
        for (group, bytes) in groups.enumerate() {
            for line in 0..W::WIDTH {
                prefetch(bytes.as_ptr().wrapping_add(AHEAD + 64 * line));
            }
            self.put(first + group, S::planes::<W>(bytes, map));
        }
        if !rest.is_empty() {
            self.put(first + whole, planes_of(&class_numbers::<W>(rest, map)));
        }
        length + bytes.len() / W::WIDTH
    }

    /// Makes masks and counts of the `length` elements that were added.
    #[inline(always)]
    pub(super) fn close<S: Simd>(&mut self, length: usize, classes: usize) {
        if length != self.length {
            self.length = length;
            for group in 0..GROUPS {
                let there = length.saturating_sub(group * GROUP).min(GROUP);
                self.real[place(group)] = match there {
                    0 => 0,
                    n => u64::MAX >> (GROUP - n),
                };
            }
        }
        S::count(self, classes, self.halves());
    }

    #[inline(always)]
    fn put(&mut self, group: usize, planes: [u64; PLANES]) {
        for (all, plane) in self.planes.iter_mut().zip(planes) {
            all[place(group % GROUPS)] = plane;
        }
    }

    /// Halves that have elements.
    #[inline(always)]
    fn halves(&self) -> usize {
        1 + usize::from(self.length > HALF * GROUP)
    }

    /// How many elements of `class` precede element `at` of the batch.
    #[inline(always)]
    pub(super) fn rank(&self, class: usize, at: u32) -> u32 {
        let (group, bit) = (at as usize / GROUP % GROUPS, 1u64 << (at % GROUP as u32));
        let within = self.masks[class][place(group)] & (bit - 1);
        u32::from(self.before[class][group]) + within.count_ones()
    }

    /// The element of `class` that `wanted` others precede, fewer than there are.
    #[inline(always)]
    pub(super) fn element<S: Simd>(&self, class: usize, wanted: u16) -> u32 {
        let group = S::find(&self.before[class], wanted, self.halves()) % GROUPS;
        let within = u32::from(wanted - self.before[class][group]);
        (group * GROUP) as u32 + S::select(self.masks[class][place(group)], within)
    }
}
