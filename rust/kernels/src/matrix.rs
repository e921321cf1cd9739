//! Tensors as byte matrices over memory that somebody else owns.

use std::marker::PhantomData;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Word;

/// Bytes of a part of a block.
const PART_BYTES: usize = 32 << 10;
/// Scattered elements are asked for so many before they are needed.
const AHEAD: usize = 32;

/// Asks for the memory at an address; a wrong one is harmless.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that a program can see, for any address.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A box of a matrix: rows, and columns counted in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First row.
    pub row: usize,
    /// Number of rows.
    pub rows: usize,
    /// First byte of each row.
    pub byte: usize,
    /// Bytes of each row.
    pub bytes: usize,
}

impl Block {
    /// Bytes of the block.
    pub fn len(&self) -> usize {
        self.rows * self.bytes
    }

    /// The block in parts of some rows each, few enough bytes for what is read again to be in the cache.
    pub fn parts(self) -> impl Iterator<Item = Self> {
        let step = (PART_BYTES / self.bytes.max(1)).max(1);
        (0..self.rows).step_by(step).map(move |first| Self {
            row: self.row + first,
            rows: step.min(self.rows - first),
            ..self
        })
    }

    /// Whether the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Divides element numbers below 2^32 by a number of columns, without a division.
#[derive(Clone, Copy, Debug)]
pub struct Divider {
    inverse: u64,
    shift: u32,
}

impl Divider {
    /// For a divisor of at least 1 and below 2^32.
    pub fn new(divisor: usize) -> Self {
        let divisor = (divisor as u64).max(1);
        // 2^shift >= 2^32 * divisor, so that rounding the inverse up never shows (Granlund and
        // Montgomery 1994); the product is taken in 128 bits.
        let shift = 32 + (64 - (divisor - 1).leading_zeros());
        let inverse = ((1u128 << shift) / u128::from(divisor) + 1) as u64;
        Self { inverse, shift }
    }

    /// `number / divisor`.
    #[inline(always)]
    pub fn divide(&self, number: u32) -> u32 {
        ((u128::from(number) * u128::from(self.inverse)) >> self.shift) as u32
    }
}

/// A read-only matrix of `rows` rows of `row_bytes` bytes, `row_stride` bytes apart.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    ptr: *const u8,
    rows: usize,
    row_bytes: usize,
    row_stride: usize,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a Matrix is a shared reference to bytes (see `from_raw`), and `&[u8]` is Send.
unsafe impl Send for Matrix<'_> {}
// SAFETY: as above; `&[u8]` is Sync.
unsafe impl Sync for Matrix<'_> {}

impl<'a> Matrix<'a> {
    /// Over contiguous bytes; `None` where their number does not fit.
    pub fn new(bytes: &'a [u8], rows: usize, row_bytes: usize) -> Option<Self> {
        if rows.checked_mul(row_bytes)? != bytes.len() {
            return None;
        }
        Some(Self {
            ptr: bytes.as_ptr(),
            rows,
            row_bytes,
            row_stride: row_bytes,
            memory: PhantomData,
        })
    }

    /// Over strided memory. A stride of zero repeats one row.
    ///
    /// # Safety
    /// For all of `'a`, every row `r < rows` is valid for reads of `row_bytes` bytes at
    /// `ptr + r * row_stride` within one allocation, and nobody writes to them.
    pub unsafe fn from_raw(
        ptr: *const u8,
        rows: usize,
        row_bytes: usize,
        row_stride: usize,
    ) -> Self {
        Self {
            ptr,
            rows,
            row_bytes,
            row_stride,
            memory: PhantomData,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The whole matrix as a block.
    pub fn whole(&self) -> Block {
        Block {
            row: 0,
            rows: self.rows,
            byte: 0,
            bytes: self.row_bytes,
        }
    }

    fn check(&self, block: &Block) {
        assert!(
            block.row <= self.rows
                && block.rows <= self.rows - block.row
                && block.byte <= self.row_bytes
                && block.bytes <= self.row_bytes - block.byte,
            "{block:?} lies outside a matrix of {} rows of {} bytes",
            self.rows,
            self.row_bytes,
        );
    }

    /// The bytes of one row of a block.
    ///
    /// # Panics
    /// Where the block or `row` lies outside.
    #[inline]
    pub fn row(&self, block: &Block, row: usize) -> &'a [u8] {
        self.check(block);
        assert!(row < block.rows);
        if block.bytes == 0 {
            return &[];
        }
        // SAFETY: `check` and the assertion keep the range within row `block.row + row`, which is
        // readable and not written for 'a by the contract of the constructors.
        unsafe {
            let start = self
                .ptr
                .add((block.row + row) * self.row_stride + block.byte);
            slice::from_raw_parts(start, block.bytes)
        }
    }

    /// The bytes of a block, where its rows lie back to back.
    ///
    /// # Panics
    /// Where the block lies outside.
    #[inline]
    pub fn contiguous(&self, block: &Block) -> Option<&'a [u8]> {
        self.check(block);
        if block.is_empty() {
            return Some(&[]);
        }
        if block.rows > 1 && (block.bytes != self.row_bytes || self.row_stride != self.row_bytes) {
            return None;
        }
        // SAFETY: the block is one row, or whole rows without gaps between them; inside by `check`
        // and readable by the contract of the constructors.
        unsafe {
            let start = self.ptr.add(block.row * self.row_stride + block.byte);
            Some(slice::from_raw_parts(start, block.len()))
        }
    }
}

/// A matrix that is changed in place, by several threads if it is cut into tiles.
#[derive(Debug)]
pub struct Target<'a> {
    ptr: *mut u8,
    rows: usize,
    row_bytes: usize,
    row_stride: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a Target is an exclusive reference to bytes, and `&mut [u8]` is Send.
unsafe impl Send for Target<'_> {}
// SAFETY: nothing can be reached through `&Target`.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    /// Over contiguous bytes; `None` where their number does not fit.
    pub fn new(bytes: &'a mut [u8], rows: usize, row_bytes: usize) -> Option<Self> {
        if rows.checked_mul(row_bytes)? != bytes.len() {
            return None;
        }
        let ptr = bytes.as_mut_ptr();
        Some(Self {
            ptr,
            rows,
            row_bytes,
            row_stride: row_bytes,
            memory: PhantomData,
        })
    }

    /// Over strided memory.
    ///
    /// # Safety
    /// For all of `'a`, every row `r < rows` is valid for reads and writes of `row_bytes` bytes at
    /// `ptr + r * row_stride` within one allocation, rows do not overlap, and nobody else accesses
    /// them.
    pub unsafe fn from_raw(ptr: *mut u8, rows: usize, row_bytes: usize, row_stride: usize) -> Self {
        Self {
            ptr,
            rows,
            row_bytes,
            row_stride,
            memory: PhantomData,
        }
    }

    /// Reads the target while nothing can be stored.
    pub fn as_matrix(&mut self) -> Matrix<'_> {
        // SAFETY: the exclusive borrow rules out stores for the lifetime of the result; readable
        // by the contract of the constructors.
        unsafe { Matrix::from_raw(self.ptr, self.rows, self.row_bytes, self.row_stride) }
    }

    /// Cuts the target into tiles that different threads may change at the same time.
    ///
    /// Tiles are `rows` by `bytes`, numbered row-major; those at the lower and right border are
    /// smaller. Both sizes must be at least 1 unless the target is empty.
    pub fn divide(self, rows: usize, bytes: usize) -> Tiles<'a> {
        let across = self.row_bytes.div_ceil(bytes.max(1));
        let count = self.rows.div_ceil(rows.max(1)) * across;
        let taken = (0..count).map(|_| AtomicBool::new(false)).collect();
        Tiles {
            target: self,
            rows,
            bytes,
            across,
            taken,
        }
    }
}

/// A target in tiles, each to be taken once.
#[derive(Debug)]
pub struct Tiles<'a> {
    target: Target<'a>,
    rows: usize,
    bytes: usize,
    across: usize,
    taken: Vec<AtomicBool>,
}

impl<'a> Tiles<'a> {
    /// Tile number `tile`; `None` where there is no such tile, or it was taken before.
    pub fn take(&self, tile: usize) -> Option<TileMut<'_>> {
        if self.taken.get(tile)?.swap(true, Ordering::Relaxed) {
            return None;
        }
        let (row, byte) = (
            tile / self.across * self.rows,
            tile % self.across * self.bytes,
        );
        let rows = self.rows.min(self.target.rows - row);
        let row_bytes = self.bytes.min(self.target.row_bytes - byte);
        // SAFETY: tiles of a grid do not overlap, and `taken` gives each out once, so nobody else
        // accesses these bytes while `self`, which owns the target, is borrowed. The box is inside the
        // target, so its rows are valid and apart by the contract of the target's constructor.
        let target = unsafe {
            let start = self.target.ptr.add(row * self.target.row_stride + byte);
            Target::from_raw(start, rows, row_bytes, self.target.row_stride)
        };
        Some(TileMut { target })
    }
}

/// One tile, for one thread.
#[derive(Debug)]
pub struct TileMut<'a> {
    target: Target<'a>,
}

impl TileMut<'_> {
    /// Reads the tile.
    pub fn as_matrix(&mut self) -> Matrix<'_> {
        self.target.as_matrix()
    }

    /// Replaces elements: element `first + offsets[i]`, counted row-major, becomes the element at
    /// `values[i * W::WIDTH..]`.
    ///
    /// # Panics
    /// Where values are too few, or a position lies outside; the ones before it are then replaced.
    pub fn store<W: Word>(&mut self, first: u32, offsets: &[u16], values: &[u8]) {
        assert!(values.len() >= offsets.len() * W::WIDTH);
        let place = self.place::<W>();
        let start = self.target.ptr;
        let values = values.chunks_exact(W::WIDTH);
        for (i, (&offset, value)) in offsets.iter().zip(values).enumerate() {
            if let Some(&later) = offsets.get(i + AHEAD) {
                prefetch(start.wrapping_add(place.offset(first as usize + usize::from(later))));
            }
            let position = first as usize + usize::from(offset);
            assert!(position < place.elements, "element {position} lies outside");
            // SAFETY: as in `update`.
            unsafe { W::read(value).store(start.add(place.offset(position))) };
        }
    }

    fn place<W: Word>(&self) -> Place {
        let target = &self.target;
        let cols = target.row_bytes / W::WIDTH;
        Place {
            elements: target.rows * cols,
            cols,
            width: W::WIDTH,
            dense: target.row_stride == target.row_bytes || target.rows <= 1,
            row_stride: target.row_stride,
            divider: Divider::new(cols),
        }
    }

    /// Replaces elements: element `positions[i]`, counted row-major, becomes `value(i, old)`.
    ///
    /// # Panics
    /// Where a position lies outside; the ones before it are then replaced.
    pub fn update<W: Word>(&mut self, positions: &[u32], mut value: impl FnMut(usize, W) -> W) {
        let place = self.place::<W>();
        let start = self.target.ptr;
        for (i, &position) in positions.iter().enumerate() {
            if let Some(&later) = positions.get(i + AHEAD) {
                prefetch(start.wrapping_add(place.offset(later as usize)));
            }
            let position = position as usize;
            assert!(
                position < place.elements,
                "element {position} lies outside a tile of {}",
                place.elements
            );
            // SAFETY: the position is inside the tile, whose bytes are valid and nobody else's by the
            // contract of the target's constructor; unaligned access is allowed by these functions.
            unsafe {
                let element = start.add(place.offset(position));
                value(i, W::load(element)).store(element);
            }
        }
    }
}

/// Where elements of a tile lie in its memory.
struct Place {
    elements: usize,
    cols: usize,
    width: usize,
    dense: bool,
    row_stride: usize,
    divider: Divider,
}

impl Place {
    #[inline(always)]
    fn offset(&self, position: usize) -> usize {
        if self.dense {
            return position * self.width;
        }
        let row = self.divider.divide(position as u32) as usize;
        row * self.row_stride + (position - row * self.cols) * self.width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_blocks_and_unaligned_elements() {
        // Three rows of four u16 in rows of 10 bytes, from an odd address.
        let mut memory = vec![0u8; 1 + 3 * 10];
        let base = memory.as_mut_ptr();
        // SAFETY: 3 rows of 8 bytes, 10 apart, from byte 1, all within `memory`.
        let target = unsafe { Target::from_raw(base.add(1), 3, 8, 10) };
        let tiles = target.divide(2, 4);
        assert!(tiles.take(4).is_none());
        let mut lower_right = tiles.take(3).unwrap();
        assert!(tiles.take(3).is_none(), "a tile is given out once");
        lower_right.store::<u16>(0, &[1], &[9, 9]);
        lower_right.store::<u16>(1, &[0], &[0, 0]);
        lower_right.update::<u16>(&[0, 1], |i, old| {
            assert_eq!(old, 0);
            0x1234 + i as u16
        });
        assert_eq!(lower_right.as_matrix().rows(), 1);
        let mut upper_right = tiles.take(1).unwrap();
        upper_right.update::<u16>(&[3], |_, _| 0x0506);
        let matrix = upper_right.as_matrix();
        assert_eq!(matrix.row(&matrix.whole(), 1), &[0, 0, 6, 5]);
        assert_eq!(memory[1 + 4..1 + 8], [0; 4]);
        assert_eq!(memory[1 + 10 + 4..1 + 10 + 8], [0, 0, 6, 5]);
        assert_eq!(memory[1 + 20 + 4..1 + 20 + 8], [0x34, 0x12, 0x35, 0x12]);
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn a_position_outside_is_not_stored() {
        let mut memory = [0u8; 8];
        let tiles = Target::new(&mut memory, 1, 8).unwrap().divide(1, 8);
        tiles.take(0).unwrap().update::<u16>(&[4], |_, _| 1);
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn an_offset_outside_is_not_stored() {
        let mut memory = [0u8; 8];
        let tiles = Target::new(&mut memory, 1, 8).unwrap().divide(1, 8);
        tiles.take(0).unwrap().store::<u16>(1, &[3], &[1, 1]);
    }

    #[test]
    fn parts_follow_one_another() {
        for (rows, bytes) in [
            (0, 8),
            (1, 1 << 20),
            (1000, 100),
            (5, PART_BYTES / 2),
            (7, 0),
        ] {
            let block = Block {
                row: 3,
                rows,
                byte: 16,
                bytes,
            };
            let mut row = 3;
            for part in block.parts() {
                assert_eq!((part.row, part.byte, part.bytes), (row, 16, bytes));
                assert!(part.rows > 0 && (part.rows == 1 || part.len() <= PART_BYTES));
                row += part.rows;
            }
            assert_eq!(row, 3 + rows);
        }
    }

    #[test]
    fn divider_equals_division() {
        let numbers = [
            0u32,
            1,
            2,
            3,
            7,
            575,
            576,
            577,
            1 << 22,
            u32::MAX - 1,
            u32::MAX,
        ];
        for divisor in (1..3000).chain([1 << 16, (1 << 22) - 1, 1 << 22, (1 << 32) - 1]) {
            let divider = Divider::new(divisor);
            for n in numbers
                .into_iter()
                .chain((0..50).map(|k| (divisor as u32).wrapping_mul(k)))
            {
                for n in [n, n.wrapping_sub(1)] {
                    assert_eq!(divider.divide(n), n / divisor as u32, "{n} / {divisor}");
                }
            }
        }
    }

    #[test]
    fn sizes_must_agree() {
        assert!(Matrix::new(&[0; 6], 2, 4).is_none());
        assert!(Matrix::new(&[], usize::MAX, 2).is_none());
        assert!(Target::new(&mut [0; 6], 2, 3).is_some());
    }
}
