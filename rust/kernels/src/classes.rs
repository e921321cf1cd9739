//! Exponent classes: the elements of a block grouped by the exponent that they have in the base.
//!
//! How likely an element changes in a step, and by how much, follows from its exponent, and the
//! receiver holds the base. So positions are sent as ranks within classes, and exponents cost
//! nothing.

use crate::matrix::{Block, Matrix};
use crate::Word;

/// Most classes of a map.
pub const MAX_CLASSES: usize = 16;
/// Elements that share a mask.
const GROUP: usize = 64;
/// Groups whose masks are made before they are used, so that the loads do not wait for the stores.
const GROUPS: usize = 32;

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

/// Calls `block` with runs of up to `GROUPS` groups of 64 elements (the last group may be shorter) and
/// the number of the first element.
#[inline(always)]
fn runs(matrix: &Matrix<'_>, block: &Block, width: usize, mut run: impl FnMut(&[u8], u32)) {
    let mut first = 0u32;
    let mut cut = |bytes: &[u8]| {
        for part in bytes.chunks(GROUPS * GROUP * width) {
            run(part, first);
            first += (part.len() / width) as u32;
        }
    };
    match matrix.contiguous(block) {
        Some(bytes) => cut(bytes),
        None => (0..block.rows).for_each(|row| cut(matrix.row(block, row))),
    }
}

/// One bit per element of a group for each class.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Masks([u64; MAX_CLASSES]);

/// One number a class.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lanes([u32; MAX_CLASSES]);

/// Arithmetic on all classes at once.
trait Arithmetic {
    /// Adds the number of elements of each class in a group to `before`; bit k of the result is set
    /// where `wanted` of class k is below the sum.
    fn advance(before: &mut Lanes, wanted: &Lanes, masks: &Masks) -> u32;
}

struct Scalar;

impl Arithmetic for Scalar {
    #[inline(always)]
    fn advance(before: &mut Lanes, wanted: &Lanes, masks: &Masks) -> u32 {
        let mut hits = 0;
        for class in 0..MAX_CLASSES {
            before.0[class] += masks.0[class].count_ones();
            hits |= u32::from(wanted.0[class] < before.0[class]) << class;
        }
        hits
    }
}

#[inline(always)]
fn masks_scalar<W: Word>(bytes: &[u8], map: &ClassMap) -> Masks {
    let mut masks = Masks([0; MAX_CLASSES]);
    for (i, element) in bytes.chunks_exact(W::WIDTH).enumerate() {
        masks.0[map.class(W::read(element)) % MAX_CLASSES] |= 1 << i;
    }
    masks
}

/// Class and rank of each changed element: how many elements of its class precede it.
///
/// `positions` ascend. `out` gets one `(class, rank)` a position.
///
/// # Panics
/// Where the block or a position lies outside, or the map has no or too many classes.
pub fn ranks<W: Word>(
    matrix: &Matrix<'_>,
    block: &Block,
    map: &ClassMap,
    positions: &[u32],
    out: &mut Vec<(u8, u32)>,
) {
    let before = Lanes([0; MAX_CLASSES]);
    dispatch::<W, _>(
        matrix,
        block,
        map,
        RankVisitor {
            positions,
            out,
            before,
        },
    );
    assert_eq!(
        out.len(),
        positions.len(),
        "a position lies outside {block:?}"
    );
}

/// What is done with the class masks of each group, in order.
trait Visitor {
    fn visit<A: Arithmetic>(&mut self, first: u32, length: u32, masks: &Masks);
}

struct RankVisitor<'a> {
    positions: &'a [u32],
    out: &'a mut Vec<(u8, u32)>,
    before: Lanes,
}

impl Visitor for RankVisitor<'_> {
    #[inline(always)]
    fn visit<A: Arithmetic>(&mut self, first: u32, length: u32, masks: &Masks) {
        while let Some((&position, rest)) = self.positions.split_first() {
            if position - first >= length {
                break;
            }
            let bit = 1u64 << (position - first);
            let mut class = 0;
            while masks.0[class] & bit == 0 {
                class += 1;
            }
            let rank = self.before.0[class] + (masks.0[class] & (bit - 1)).count_ones();
            self.out.push((class as u8, rank));
            self.positions = rest;
        }
        A::advance(&mut self.before, &Lanes([0; MAX_CLASSES]), masks);
    }
}

/// Positions of ranks: undoes [`ranks`].
///
/// `ranks` holds the ascending ranks of class after class, `counts` how many each has. Appends to
/// `positions` in ascending order, and to `order` where each was found in `ranks`.
///
/// Returns whether all ranks exist in the block; if not, what was appended is incomplete.
///
/// # Panics
/// Where the block lies outside, or the counts do not fit the map and the ranks.
pub fn select<W: Word>(
    matrix: &Matrix<'_>,
    block: &Block,
    map: &ClassMap,
    counts: &[u32],
    ranks: &[u32],
    positions: &mut Vec<u32>,
    order: &mut Vec<u32>,
) -> bool {
    assert_eq!(counts.len(), map.count as usize);
    assert_eq!(
        counts.iter().map(|&c| c as usize).sum::<usize>(),
        ranks.len()
    );
    let begun = positions.len();
    let mut visitor = SelectVisitor {
        ranks,
        next: [0; MAX_CLASSES],
        end: [0; MAX_CLASSES],
        before: Lanes([0; MAX_CLASSES]),
        wanted: Lanes([u32::MAX; MAX_CLASSES]),
        positions,
        order,
    };
    let mut at = 0;
    for (class, &count) in counts.iter().enumerate() {
        visitor.next[class] = at;
        visitor.end[class] = at + count;
        at += count;
        if count > 0 {
            visitor.wanted.0[class] = ranks[visitor.next[class] as usize];
        }
    }
    dispatch::<W, _>(matrix, block, map, visitor);
    positions.len() - begun == ranks.len()
}

struct SelectVisitor<'a> {
    ranks: &'a [u32],
    /// Per class: the rank to find next and the end of its ranks, as indices.
    next: [u32; MAX_CLASSES],
    end: [u32; MAX_CLASSES],
    /// Per class: elements in earlier groups, and the rank at `next` (MAX if none).
    before: Lanes,
    wanted: Lanes,
    positions: &'a mut Vec<u32>,
    order: &'a mut Vec<u32>,
}

impl Visitor for SelectVisitor<'_> {
    #[inline(always)]
    fn visit<A: Arithmetic>(&mut self, first: u32, _length: u32, masks: &Masks) {
        let mut hits = A::advance(&mut self.before, &self.wanted, masks);
        if hits == 0 {
            return;
        }
        let begun = self.positions.len();
        let classes = hits.count_ones();
        while hits != 0 {
            let class = hits.trailing_zeros() as usize % MAX_CLASSES;
            hits &= hits - 1;
            self.take(class, first, masks.0[class]);
        }
        if classes > 1 {
            // Found class by class; a group has few.
            let (positions, order) = (&mut self.positions[begun..], &mut self.order[begun..]);
            for i in 1..positions.len() {
                let mut j = i;
                while j > 0 && positions[j - 1] > positions[j] {
                    positions.swap(j - 1, j);
                    order.swap(j - 1, j);
                    j -= 1;
                }
            }
        }
    }
}

impl SelectVisitor<'_> {
    /// Takes the ranks of a class that fall into this group; there is at least one.
    #[inline(always)]
    fn take(&mut self, class: usize, first: u32, mask: u64) {
        let mut rest = mask;
        let end = self.before.0[class];
        let mut rank = end - mask.count_ones();
        let mut next = self.next[class];
        let mut wanted = self.wanted.0[class];
        while wanted < end {
            rest = drop_lowest(rest, wanted - rank);
            self.positions.push(first + rest.trailing_zeros());
            self.order.push(next);
            rank = wanted;
            next += 1;
            let more = next < self.end[class];
            let following = if more {
                self.ranks[next as usize]
            } else {
                u32::MAX
            };
            if following <= wanted {
                // Not ascending: no rank is found any more, and the caller sees that some are missing.
                wanted = u32::MAX;
                break;
            }
            wanted = following;
        }
        self.next[class] = next;
        self.wanted.0[class] = wanted;
    }
}

/// `mask` without its `n` lowest set bits.
#[inline(always)]
fn drop_lowest(mut mask: u64, n: u32) -> u64 {
    for _ in 0..n {
        mask &= mask.wrapping_sub(1);
    }
    mask
}

fn run_scalar<W: Word, V: Visitor>(
    matrix: &Matrix<'_>,
    block: &Block,
    map: &ClassMap,
    visitor: &mut V,
) {
    runs(matrix, block, W::WIDTH, |bytes, mut first| {
        for group in bytes.chunks(GROUP * W::WIDTH) {
            let length = (group.len() / W::WIDTH) as u32;
            visitor.visit::<Scalar>(first, length, &masks_scalar::<W>(group, map));
            first += length;
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{
        masks_scalar, runs, Arithmetic, ClassMap, Lanes, Masks, Visitor, GROUP, GROUPS, MAX_CLASSES,
    };
    use crate::matrix::{Block, Matrix};
    use crate::Word;
    use std::arch::x86_64::*;

    /// Exponents of 64 elements of two bytes as bytes; their field has at most eight bits.
    ///
    /// # Safety
    /// Needs avx512bw, and 128 readable bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn exponents16(bytes: *const u8, map: &ClassMap) -> __m512i {
        let shift = _mm_cvtsi32_si128(map.shift as i32);
        let mask = _mm512_set1_epi16(map.mask as i16);
        let half = |at: usize| {
            // SAFETY: 64 bytes from 0 or 64 on, within the 128 by contract.
            let words = unsafe { _mm512_loadu_si512(bytes.add(at).cast()) };
            _mm512_cvtepi16_epi8(_mm512_and_si512(_mm512_srl_epi16(words, shift), mask))
        };
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(half(0)), half(64))
    }

    /// The least exponent of each class but the last, in every byte.
    type Thresholds = [__m512i; MAX_CLASSES];

    /// # Safety
    /// Needs avx512bw, and 64 elements of one or two bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn masks_avx512<W: Word>(
        bytes: &[u8],
        map: &ClassMap,
        thresholds: &Thresholds,
        masks: &mut Masks,
    ) {
        debug_assert!(bytes.len() == GROUP * W::WIDTH && W::WIDTH <= 2);
        // SAFETY: 64 elements by contract.
        let exponents = unsafe {
            if W::WIDTH == 2 {
                exponents16(bytes.as_ptr(), map)
            } else {
                let shift = _mm_cvtsi32_si128(map.shift as i32);
                // Bytes shift as words; the mask removes what comes from the neighbour.
                let bytes = _mm512_loadu_si512(bytes.as_ptr().cast());
                _mm512_and_si512(
                    _mm512_srl_epi16(bytes, shift),
                    _mm512_set1_epi8(map.mask as i8),
                )
            }
        };
        let last = map.count as usize - 1;
        let mut above = 0u64;
        for (mask, threshold) in masks.0.iter_mut().zip(thresholds).take(last) {
            let at_least = _mm512_cmpge_epu8_mask(exponents, *threshold);
            *mask = at_least & !above;
            above = at_least;
        }
        masks.0[last] = !above;
    }

    struct Avx512;

    impl Arithmetic for Avx512 {
        #[inline(always)]
        fn advance(before: &mut Lanes, wanted: &Lanes, masks: &Masks) -> u32 {
            // SAFETY: only `run_avx512` names this type, with the features enabled; the loads and the
            // store cover exactly the 64 and 128 aligned bytes of the arrays.
            unsafe {
                let low = _mm512_load_si512(masks.0.as_ptr().cast());
                let high = _mm512_load_si512(masks.0.as_ptr().add(8).cast());
                let low = _mm512_cvtepi64_epi32(_mm512_popcnt_epi64(low));
                let high = _mm512_cvtepi64_epi32(_mm512_popcnt_epi64(high));
                let counts = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                let sum = _mm512_add_epi32(_mm512_load_si512(before.0.as_ptr().cast()), counts);
                _mm512_store_si512(before.0.as_mut_ptr().cast(), sum);
                let wanted = _mm512_load_si512(wanted.0.as_ptr().cast());
                _mm512_cmplt_epu32_mask(wanted, sum).into()
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vpopcntdq,bmi1,bmi2,popcnt")]
    pub(super) fn run_avx512<W: Word, V: Visitor>(
        matrix: &Matrix<'_>,
        block: &Block,
        map: &ClassMap,
        visitor: &mut V,
    ) {
        let mut thresholds: Thresholds = [_mm512_setzero_si512(); MAX_CLASSES];
        for (class, threshold) in thresholds.iter_mut().enumerate() {
            *threshold = _mm512_set1_epi8(map.top.saturating_sub(class as u32) as i8);
        }
        let mut masks = [Masks([0; MAX_CLASSES]); GROUPS];
        runs(matrix, block, W::WIDTH, |bytes, mut first| {
            let groups = bytes.chunks_exact(GROUP * W::WIDTH);
            let rest = groups.remainder();
            let whole = groups.len();
            for (group, masks) in groups.zip(&mut masks) {
                // SAFETY: the features are enabled here; groups are whole, and the caller has checked
                // the width.
                unsafe { masks_avx512::<W>(group, map, &thresholds, masks) };
            }
            for masks in &masks[..whole] {
                visitor.visit::<Avx512>(first, GROUP as u32, masks);
                first += GROUP as u32;
            }
            if !rest.is_empty() {
                let length = (rest.len() / W::WIDTH) as u32;
                visitor.visit::<Avx512>(first, length, &masks_scalar::<W>(rest, map));
            }
        });
    }
}

fn dispatch<W: Word, V: Visitor>(
    matrix: &Matrix<'_>,
    block: &Block,
    map: &ClassMap,
    mut visitor: V,
) {
    assert!((1..=MAX_CLASSES as u32).contains(&map.count));
    #[cfg(target_arch = "x86_64")]
    if W::WIDTH <= 2
        && map.mask <= 0xff
        && map.top <= 0xff
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vpopcntdq")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
    {
        // SAFETY: the features were just detected (bmi2 comes with bmi1 in all AVX-512 processors).
        return unsafe { x86::run_avx512::<W, V>(matrix, block, map, &mut visitor) };
    }
    run_scalar::<W, V>(matrix, block, map, &mut visitor);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BF16: ClassMap = ClassMap {
        shift: 7,
        mask: 0xff,
        top: 125,
        count: 9,
    };

    fn check<W: Word>(
        bytes: &[u8],
        row_bytes: usize,
        block: Block,
        map: ClassMap,
        picks: &[usize],
    ) {
        let matrix = Matrix::new(bytes, bytes.len() / row_bytes, row_bytes).unwrap();
        let elements = block.len() / W::WIDTH;
        let mut positions: Vec<u32> = picks.iter().map(|p| (p % elements) as u32).collect();
        positions.sort_unstable();
        positions.dedup();
        // Straight from the definition.
        let mut naive = vec![];
        let mut seen = [0u32; MAX_CLASSES];
        let per_row = block.bytes / W::WIDTH;
        for i in 0..elements {
            let row = matrix.row(&block, i / per_row);
            let class = map.class(W::read(&row[(i % per_row) * W::WIDTH..]));
            if positions.binary_search(&(i as u32)).is_ok() {
                naive.push((class as u8, seen[class]));
            }
            seen[class] += 1;
        }
        let mut got = vec![];
        ranks::<W>(&matrix, &block, &map, &positions, &mut got);
        assert_eq!(got, naive);
        let mut scalar = vec![];
        let mut visitor = RankVisitor {
            positions: &positions,
            out: &mut scalar,
            before: Lanes([0; MAX_CLASSES]),
        };
        run_scalar::<W, _>(&matrix, &block, &map, &mut visitor);
        assert_eq!(scalar, naive);

        let mut counts = vec![0u32; map.count as usize];
        let mut grouped = vec![];
        for class in 0..map.count as u8 {
            for (c, rank) in &naive {
                if *c == class {
                    counts[class as usize] += 1;
                    grouped.push(*rank);
                }
            }
        }
        let (mut back, mut order) = (vec![], vec![]);
        assert!(select::<W>(
            &matrix, &block, &map, &counts, &grouped, &mut back, &mut order
        ));
        assert_eq!(back, positions);
        for (rank, &at) in naive.iter().zip(&order) {
            assert_eq!(grouped[at as usize], rank.1);
        }
        // One rank more than a class has elements.
        let mut too_far = grouped.clone();
        let class = counts.iter().position(|&c| c > 0);
        if let Some(class) = class {
            let end = counts[..=class].iter().sum::<u32>() as usize;
            too_far[end - 1] = seen[class];
            back.clear();
            order.clear();
            assert!(!select::<W>(
                &matrix, &block, &map, &counts, &too_far, &mut back, &mut order
            ));
        }
    }

    proptest! {
        #[test]
        fn ranks_and_select_equal_the_definition(
            seed in any::<u64>(), rows in 1usize..6, cols in 1usize..300, col in 0usize..300,
            picks in prop::collection::vec(any::<usize>(), 1..200), count in 1u32..=16, top in 0u32..140,
        ) {
            let bytes: Vec<u8> = (0..rows * cols * 4)
                .map(|i| (seed.wrapping_mul(i as u64 | 1) >> 29) as u8 & if i % 2 == 1 { 0x3f } else { 0xff })
                .collect();
            let col = col % cols;
            for (width, shift, mask) in [(1, 3, 15), (1, 2, 31), (2, 7, 255), (2, 10, 31), (4, 23, 255)] {
                let block = Block { row: 0, rows, byte: col * width, bytes: (cols - col) * width };
                let map = ClassMap { shift, mask, top, count };
                let bytes = &bytes[..rows * cols * width];
                match width {
                    1 => check::<u8>(bytes, cols, block, map, &picks),
                    2 => check::<u16>(bytes, cols * 2, block, map, &picks),
                    _ => check::<u32>(bytes, cols * 4, block, map, &picks),
                }
            }
        }
    }

    #[test]
    fn classes_of_bf16() {
        assert_eq!(BF16.class(0x3f80u16), 0); // 1.0, exponent 127
        assert_eq!(BF16.class(0xbe00u16), 1); // exponent 124
        assert_eq!(BF16.class(0x0000u16), 8);
    }
}
