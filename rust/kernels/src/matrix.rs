//! Tensors as byte matrices over memory that somebody else owns.

use std::marker::PhantomData;
use std::slice;

use crate::Word;

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

    /// Whether the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

/// A matrix that is changed in place, element by element.
///
/// Loads and stores are relaxed atomics (plain moves on the processors that matter), so several
/// threads may work on one target without a data race, whatever elements they touch.
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
// SAFETY: all access through `&Target` is atomic.
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

    /// Replaces elements of a block: element `positions[i]` becomes `value(i, old)`.
    ///
    /// Positions are element numbers within the block, row-major.
    ///
    /// # Panics
    /// Where the block, or a position, lies outside; nothing is stored beyond that position.
    pub fn update<W: Word>(
        &self,
        block: &Block,
        positions: &[u32],
        mut value: impl FnMut(usize, W) -> W,
    ) {
        let shape = Matrix {
            ptr: self.ptr,
            rows: self.rows,
            row_bytes: self.row_bytes,
            row_stride: 0,
            memory: PhantomData,
        };
        shape.check(block);
        let elements = block.len() / W::WIDTH;
        let cols = block.bytes / W::WIDTH;
        let dense = block.bytes == self.row_bytes && self.row_stride == self.row_bytes;
        let start = block.row * self.row_stride + block.byte;
        for (i, &position) in positions.iter().enumerate() {
            let position = position as usize;
            assert!(
                position < elements,
                "element {position} lies outside {block:?}"
            );
            let offset = if dense {
                position * W::WIDTH
            } else {
                (position / cols) * self.row_stride + (position % cols) * W::WIDTH
            };
            // SAFETY: the position is inside the block, the block inside the matrix, so the WIDTH
            // bytes are valid by the contract of the constructors; all access to them through
            // `&Target` is atomic.
            unsafe {
                let element = self.ptr.add(start + offset);
                value(i, W::load_relaxed(element)).store_relaxed(element);
            }
        }
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
        let mut target = unsafe { Target::from_raw(base.add(1), 3, 8, 10) };
        let block = Block {
            row: 1,
            rows: 2,
            byte: 2,
            bytes: 4,
        };
        target.update::<u16>(&block, &[0, 3], |i, old| {
            assert_eq!(old, 0);
            0x1234 + i as u16
        });
        let matrix = target.as_matrix();
        assert_eq!(matrix.row(&block, 0), &[0x34, 0x12, 0, 0]);
        assert_eq!(matrix.row(&block, 1), &[0, 0, 0x35, 0x12]);
        assert!(matrix.contiguous(&block).is_none());
        let expected: u32 = 0x34 + 0x12 + 0x35 + 0x12;
        assert_eq!(memory.iter().map(|&b| u32::from(b)).sum::<u32>(), expected);
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn a_position_outside_is_not_stored() {
        let mut memory = [0u8; 8];
        let target = Target::new(&mut memory, 1, 8).unwrap();
        target.update::<u16>(
            &Block {
                row: 0,
                rows: 1,
                byte: 0,
                bytes: 8,
            },
            &[4],
            |_, _| 1,
        );
    }

    #[test]
    fn sizes_must_agree() {
        assert!(Matrix::new(&[0; 6], 2, 4).is_none());
        assert!(Matrix::new(&[], usize::MAX, 2).is_none());
        assert!(Target::new(&mut [0; 6], 2, 3).is_some());
    }
}
