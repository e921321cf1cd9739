//! Which elements of two matrices differ, by bits.

use crate::block::{prefetch, Block, Divider};
#[cfg(target_arch = "x86_64")]
use crate::features;
use crate::matrix::Matrix;
use crate::Word;

/// Scattered elements are asked for so many before they are read.
const AHEAD: usize = 32;
/// Elements compared at a time.
pub(crate) const GROUP: usize = 64;

/// Bit i is set where element i of the two slices differs; at most 64 elements.
#[inline(always)]
pub(crate) fn mask_scalar<W: Word>(a: &[u8], b: &[u8]) -> u64 {
    let mut mask = 0;
    for (i, (x, y)) in a
        .chunks_exact(W::WIDTH)
        .zip(b.chunks_exact(W::WIDTH))
        .enumerate()
    {
        mask |= u64::from(x != y) << i;
    }
    mask
}

/// Positions that are collected before they are appended.
const COLLECTED: usize = 64;
/// Most bits of a mask that one vector of numbers holds.
#[cfg(target_arch = "x86_64")]
const WIDE: usize = 16;
/// Bits of a mask that are written whether they are set or not: how many there are cannot be predicted.
const SURE: usize = 4;

/// Appends the numbers of set bits to a vector.
pub(crate) struct Positions<'a> {
    out: &'a mut Vec<u32>,
    collected: [u32; COLLECTED + GROUP],
    len: usize,
}

impl<'a> Positions<'a> {
    #[inline(always)]
    pub(crate) fn new(out: &'a mut Vec<u32>) -> Self {
        Self {
            out,
            collected: [0; COLLECTED + GROUP],
            len: 0,
        }
    }

    /// Appends `first + i` for every bit i of `mask`.
    #[inline(always)]
    pub(crate) fn push(&mut self, mask: u64, first: u32) {
        let at = self.len % COLLECTED;
        let slots = &mut self.collected[at..at + GROUP];
        let mut left = mask;
        for slot in &mut slots[..SURE] {
            *slot = first.wrapping_add(left.trailing_zeros());
            left &= left.wrapping_sub(1);
        }
        if left != 0 {
            for slot in &mut slots[SURE..] {
                *slot = first.wrapping_add(left.trailing_zeros());
                left &= left.wrapping_sub(1);
                if left == 0 {
                    break;
                }
            }
        }
        self.len = at + mask.count_ones() as usize;
        if self.len >= COLLECTED {
            self.flush();
        }
    }

    /// [`Positions::push`] without a loop, where few bits are set.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi1,bmi2,popcnt")]
    pub(crate) fn push_vbmi2(&mut self, mask: u64, first: u32) {
        use std::arch::x86_64::*;
        const NUMBERS: [u8; GROUP] = {
            let mut numbers = [0; GROUP];
            let mut i = 0;
            while i < GROUP {
                numbers[i] = i as u8;
                i += 1;
            }
            numbers
        };
        let count = mask.count_ones() as usize;
        if count > WIDE {
            return self.push(mask, first);
        }
        let at = self.len % COLLECTED;
        let slots = &mut self.collected[at..at + WIDE];
        // SAFETY: there are 64 numbers, and 16 slots of four bytes.
        unsafe {
            let numbers = _mm512_loadu_si512(NUMBERS.as_ptr().cast());
            let set = _mm512_castsi512_si128(_mm512_maskz_compress_epi8(mask, numbers));
            let set = _mm512_add_epi32(_mm512_cvtepu8_epi32(set), _mm512_set1_epi32(first as i32));
            _mm512_storeu_si512(slots.as_mut_ptr().cast(), set);
        }
        self.len = at + count;
        if self.len >= COLLECTED {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.out.extend_from_slice(&self.collected[..self.len]);
        self.len = 0;
    }

    /// Appends what is left.
    #[inline(always)]
    pub(crate) fn finish(mut self) {
        self.flush();
    }
}

#[inline(always)]
fn scan_groups<W: Word>(
    a: &[u8],
    b: &[u8],
    first: u32,
    out: &mut Vec<u32>,
    mask_group: impl Fn(&[u8], &[u8]) -> u64,
) {
    let size = GROUP * W::WIDTH;
    let mut positions = Positions::new(out);
    let mut at = first;
    let mut left = a.chunks_exact(size);
    let mut right = b.chunks_exact(size);
    for (x, y) in left.by_ref().zip(right.by_ref()) {
        positions.push(mask_group(x, y), at);
        at += GROUP as u32;
    }
    let rest = mask_scalar::<W>(left.remainder(), right.remainder());
    positions.push(rest, at);
    positions.finish();
}

#[cfg(test)]
fn scan_scalar<W: Word>(a: &[u8], b: &[u8], first: u32, out: &mut Vec<u32>) {
    scan_groups::<W>(a, b, first, out, mask_scalar::<W>);
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use super::{scan_groups, Word, GROUP};
    use std::arch::x86_64::*;

    /// # Safety
    /// Needs avx512f and avx512bw, and 64 elements in both slices.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(crate) unsafe fn mask_avx512<W: Word>(a: &[u8], b: &[u8]) -> u64 {
        debug_assert!(a.len() == GROUP * W::WIDTH && b.len() == GROUP * W::WIDTH);
        let mut mask = 0;
        for i in 0..W::WIDTH {
            // SAFETY: WIDTH vectors of 64 bytes are within the 64 * WIDTH bytes of each slice.
            let (x, y) = unsafe {
                (
                    _mm512_loadu_si512(a.as_ptr().add(64 * i).cast()),
                    _mm512_loadu_si512(b.as_ptr().add(64 * i).cast()),
                )
            };
            mask |= match W::WIDTH {
                1 => _mm512_cmpneq_epi8_mask(x, y),
                2 => u64::from(_mm512_cmpneq_epi16_mask(x, y)) << (32 * i),
                4 => u64::from(_mm512_cmpneq_epi32_mask(x, y)) << (16 * i),
                _ => u64::from(_mm512_cmpneq_epi64_mask(x, y)) << (8 * i),
            };
        }
        mask
    }

    #[target_feature(enable = "avx512f,avx512bw,bmi1,bmi2,popcnt")]
    pub(super) fn scan_avx512<W: Word>(a: &[u8], b: &[u8], first: u32, out: &mut Vec<u32>) {
        // SAFETY: the features are enabled here, and scan_groups passes groups of 64 elements.
        scan_groups::<W>(a, b, first, out, |x, y| unsafe { mask_avx512::<W>(x, y) });
    }

    /// # Safety
    /// Needs avx2, and 64 elements in both slices.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) unsafe fn mask_avx2<W: Word>(a: &[u8], b: &[u8]) -> u64 {
        debug_assert!(a.len() == GROUP * W::WIDTH && b.len() == GROUP * W::WIDTH);
        let mut mask = 0u64;
        for i in 0..2 * W::WIDTH {
            // SAFETY: 2 * WIDTH vectors of 32 bytes are within the 64 * WIDTH bytes of each slice.
            let (x, y) = unsafe {
                (
                    _mm256_loadu_si256(a.as_ptr().add(32 * i).cast()),
                    _mm256_loadu_si256(b.as_ptr().add(32 * i).cast()),
                )
            };
            let equal = match W::WIDTH {
                1 => _mm256_movemask_epi8(_mm256_cmpeq_epi8(x, y)) as u32,
                2 => {
                    // Equal words become bytes; the pack works within 128-bit halves.
                    let equal = _mm256_cmpeq_epi16(x, y);
                    let packed = _mm256_packs_epi16(equal, equal);
                    let bits = _mm256_movemask_epi8(packed) as u32;
                    (bits & 0xff) | ((bits >> 8) & 0xff00)
                }
                4 => _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(x, y))) as u32,
                _ => _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(x, y))) as u32,
            };
            let lanes = 32 / W::WIDTH;
            let different = !u64::from(equal) & (u64::MAX >> (64 - lanes));
            mask |= different << (lanes * i);
        }
        mask
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    pub(super) fn scan_avx2<W: Word>(a: &[u8], b: &[u8], first: u32, out: &mut Vec<u32>) {
        // SAFETY: the feature is enabled here, and scan_groups passes groups of 64 elements.
        scan_groups::<W>(a, b, first, out, |x, y| unsafe { mask_avx2::<W>(x, y) });
    }
}

fn scan_dispatch<W: Word>(a: &[u8], b: &[u8], first: u32, out: &mut Vec<u32>) {
    #[cfg(target_arch = "x86_64")]
    {
        if features::avx512() {
            // SAFETY: the features were just detected.
            return unsafe { x86::scan_avx512::<W>(a, b, first, out) };
        }
        if features::avx2() {
            // SAFETY: the feature was just detected.
            return unsafe { x86::scan_avx2::<W>(a, b, first, out) };
        }
    }
    scan_groups::<W>(a, b, first, out, mask_best::<W>);
}

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(crate) use crate::neon::mask as mask_best;
/// The mask of 64 elements without any feature that has to be asked for.
#[cfg(not(all(target_arch = "aarch64", target_endian = "little")))]
pub(crate) use mask_scalar as mask_best;

/// Appends the element numbers, row-major within `block`, at which the two matrices differ.
///
/// # Panics
/// Where the block lies outside either matrix, or holds 2^32 elements or more.
pub fn differing<W: Word>(a: &Matrix<'_>, b: &Matrix<'_>, block: &Block, out: &mut Vec<u32>) {
    assert!(u32::try_from(block.len() / W::WIDTH).is_ok());
    if let (Some(x), Some(y)) = (a.contiguous(block), b.contiguous(block)) {
        return scan_dispatch::<W>(x, y, 0, out);
    }
    let cols = (block.bytes / W::WIDTH) as u32;
    for row in 0..block.rows {
        scan_dispatch::<W>(a.row(block, row), b.row(block, row), row as u32 * cols, out);
    }
}

/// Elements of a block that are read here and there.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    matrix: &'a Matrix<'a>,
    block: &'a Block,
    /// All of the block, where it lies in one piece.
    bytes: Option<&'a [u8]>,
    cols: usize,
    divider: Divider,
}

impl<'a> Elements<'a> {
    /// Of `block`.
    ///
    /// # Panics
    /// Where it lies outside.
    pub fn of<W: Word>(matrix: &'a Matrix<'a>, block: &'a Block) -> Self {
        let cols = block.bytes / W::WIDTH;
        Self {
            matrix,
            block,
            bytes: matrix.contiguous(block),
            cols,
            divider: Divider::new(cols),
        }
    }

    /// The row's bytes, and where in them the element begins.
    #[inline(always)]
    fn place<W: Word>(&self, position: u32) -> (&'a [u8], usize) {
        match self.bytes {
            Some(bytes) => (bytes, position as usize * W::WIDTH),
            None => {
                let row = self.divider.divide(position) as usize;
                let bytes = self.matrix.row(self.block, row);
                (bytes, (position as usize - row * self.cols) * W::WIDTH)
            }
        }
    }

    /// The element at a position.
    ///
    /// # Panics
    /// Where the position lies outside.
    #[inline(always)]
    pub fn read<W: Word>(&self, position: u32) -> W {
        let (bytes, at) = self.place::<W>(position);
        W::read(&bytes[at..])
    }

    /// Asks for the element's memory, which makes a later [`Elements::read`] faster. A position outside is
    /// harmless where the block lies in one piece.
    ///
    /// # Panics
    /// Where the position lies outside of a block that does not.
    #[inline(always)]
    pub fn ask<W: Word>(&self, position: u32) {
        let (bytes, at) = self.place::<W>(position);
        prefetch(bytes.as_ptr().wrapping_add(at));
    }

    /// Appends the elements at `positions`.
    ///
    /// # Panics
    /// Where a position lies outside.
    #[inline(always)]
    pub fn read_all<W: Word>(&self, positions: &[u32], out: &mut Vec<W>) {
        out.extend(positions.iter().map(|&p| self.read::<W>(p)));
    }
}

/// Appends the elements of `block` at `positions`.
///
/// # Panics
/// Where the block or a position lies outside.
pub fn gather<W: Word>(matrix: &Matrix<'_>, block: &Block, positions: &[u32], out: &mut Vec<W>) {
    let elements = Elements::of::<W>(matrix, block);
    out.extend(positions.iter().enumerate().map(|(i, &position)| {
        if let Some(&later) = positions.get(i + AHEAD) {
            elements.ask::<W>(later);
        }
        elements.read::<W>(position)
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<W: Word>(a: &[u8], b: &[u8]) {
        let n = a.len().min(b.len()) / W::WIDTH * W::WIDTH;
        let (a, b) = (&a[..n], &b[..n]);
        let naive: Vec<u32> = (0..n / W::WIDTH)
            .filter(|&i| W::read(&a[i * W::WIDTH..]) != W::read(&b[i * W::WIDTH..]))
            .map(|i| i as u32)
            .collect();
        let mut got = vec![];
        scan_scalar::<W>(a, b, 0, &mut got);
        assert_eq!(got, naive);
        got.clear();
        scan_dispatch::<W>(a, b, 0, &mut got);
        assert_eq!(got, naive);
        #[cfg(target_arch = "x86_64")]
        if features::avx2() {
            got.clear();
            // SAFETY: the feature was just detected.
            unsafe { x86::scan_avx2::<W>(a, b, 0, &mut got) };
            assert_eq!(got, naive);
        }
        let (x, y) = (Matrix::new(a, 1, n).unwrap(), Matrix::new(b, 1, n).unwrap());
        let mut values: Vec<W> = vec![];
        gather(&y, &x.whole(), &naive, &mut values);
        assert!(naive
            .iter()
            .zip(&values)
            .all(|(&p, &v)| W::read(&b[p as usize * W::WIDTH..]) == v));
    }

    proptest! {
        #[test]
        fn every_width_equals_the_naive_loop(
            a in prop::collection::vec(any::<u8>(), 0..1500),
            flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..40),
        ) {
            let mut b = a.clone();
            for (at, x) in flips {
                if !b.is_empty() {
                    let i = at.index(b.len());
                    b[i] ^= x;
                }
            }
            check::<u8>(&a, &b);
            check::<u16>(&a, &b);
            check::<u32>(&a, &b);
            check::<u64>(&a, &b);
        }

        #[test]
        fn boxes_with_row_strides(
            rows in 1usize..9, cols in 1usize..200, row in 0usize..9, col in 0usize..200,
            changes in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        ) {
            let (row, col) = (row % rows, col % cols);
            let block = Block { row, rows: rows - row, byte: 2 * col, bytes: 2 * (cols - col) };
            let old = vec![7u8; rows * cols * 2];
            let mut new = old.clone();
            for c in changes {
                new[2 * c.index(rows * cols) + 1] = 9;
            }
            let a = Matrix::new(&old, rows, cols * 2).unwrap();
            let b = Matrix::new(&new, rows, cols * 2).unwrap();
            let mut got = vec![];
            differing::<u16>(&a, &b, &block, &mut got);
            let mut naive = vec![];
            for r in row..rows {
                for c in col..cols {
                    if new[2 * (r * cols + c) + 1] == 9 {
                        naive.push(((r - row) * (cols - col) + c - col) as u32);
                    }
                }
            }
            prop_assert_eq!(&got, &naive);
            let mut values: Vec<u16> = vec![];
            gather(&b, &block, &got, &mut values);
            prop_assert!(values.iter().all(|&v| v == 0x0907));
        }
    }
}
