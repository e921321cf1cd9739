//! Tensors as byte matrices over memory that somebody else owns.

use std::marker::PhantomData;
use std::slice;

use crate::block::{Block, Extent};

/// A read-only matrix of `rows` rows of `row_bytes` bytes, `row_stride` bytes apart; or a box of it.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// First byte of the box that is held.
    ptr: *const u8,
    extent: Extent,
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
            extent: Extent::whole(rows, row_bytes),
            row_stride: row_bytes,
            memory: PhantomData,
        })
    }

    /// This memory as the box from `row` and `byte` on of a matrix of `rows` by `row_bytes`. Blocks and all
    /// results are then in that matrix's coordinates, and blocks must lie in the box. `None` where the
    /// box does not fit, or this is one already.
    #[must_use]
    pub fn within(self, rows: usize, row_bytes: usize, row: usize, byte: usize) -> Option<Self> {
        let extent = self.extent.within(rows, row_bytes, row, byte)?;
        Some(Self { extent, ..self })
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
            extent: Extent::whole(rows, row_bytes),
            row_stride,
            memory: PhantomData,
        }
    }

    /// The same memory as what is held of `extent`.
    pub(crate) fn with(self, extent: Extent) -> Self {
        debug_assert_eq!(
            (self.extent.held.rows, self.extent.held.bytes),
            (extent.held.rows, extent.held.bytes)
        );
        Self { extent, ..self }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.extent.rows
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.extent.row_bytes
    }

    /// The whole matrix as a block.
    pub fn whole(&self) -> Block {
        self.extent.all()
    }

    /// The box that is in memory.
    pub fn held(&self) -> Block {
        self.extent.held
    }

    fn check(&self, block: &Block) {
        assert!(
            self.extent.held.contains(block),
            "{block:?} lies outside {:?}",
            self.extent,
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
        let held = &self.extent.held;
        // SAFETY: `check` and the assertion keep the range within row `block.row + row` of the box, which
        // is readable and not written for 'a by the contract of the constructors.
        unsafe {
            let start = self
                .ptr
                .add((block.row - held.row + row) * self.row_stride + block.byte - held.byte);
            slice::from_raw_parts(start, block.bytes)
        }
    }

    /// The bytes of a block, where it is one row, or whole rows of the matrix that lie back to back.
    ///
    /// # Panics
    /// Where the block lies outside.
    #[inline]
    pub fn contiguous(&self, block: &Block) -> Option<&'a [u8]> {
        self.check(block);
        if block.is_empty() {
            return Some(&[]);
        }
        let (held, row_bytes) = (&self.extent.held, self.extent.row_bytes);
        if block.rows > 1 && (block.bytes != row_bytes || self.row_stride != row_bytes) {
            return None;
        }
        // SAFETY: the block is one row, or whole rows without gaps between them; inside the box by
        // `check`, which is readable by the contract of the constructors.
        unsafe {
            let start = self
                .ptr
                .add((block.row - held.row) * self.row_stride + block.byte - held.byte);
            Some(slice::from_raw_parts(start, block.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::{self, ClassMap, Part, Progress};
    use crate::digest::{self, MixKey};
    use crate::{compare, scan};
    use proptest::prelude::*;

    const KEY: MixKey = MixKey { k0: 3, k1: 5 };

    /// Everything that the kernels say about a block.
    fn all_of(
        base: &Matrix<'_>,
        new: &Matrix<'_>,
        block: &Block,
    ) -> impl PartialEq + std::fmt::Debug {
        let mut positions = vec![];
        let digest = compare::differing::<u16>(KEY, base, new, block, &mut positions);
        assert_eq!(digest, digest::block(KEY, base, block));
        let mut values: Vec<u16> = vec![];
        scan::gather(new, block, &positions, &mut values);
        let mut old: Vec<u16> = vec![];
        scan::gather(base, block, &positions, &mut old);
        let change = digest::change::<u16>(KEY, base, block, &positions, &old, &values);
        let map = ClassMap {
            shift: 7,
            mask: 0xff,
            top: 3,
            count: 4,
        };
        let part = Part {
            matrix: base,
            block: *block,
            map,
            rows: &[],
        };
        let numbers: Vec<u8> = old.iter().map(|&x| map.class(x) as u8).collect();
        let mut ranks = vec![];
        classes::ranks::<u16>(
            &part,
            &mut Progress::default(),
            &positions,
            &numbers,
            &mut ranks,
        );
        (digest, positions, values, change, ranks)
    }

    proptest! {
        #[test]
        fn a_shard_is_as_the_whole(
            rows in 1usize..12, words in 1usize..12, row in 0usize..12, word in 0usize..12,
            flips in prop::collection::vec(any::<prop::sample::Index>(), 0..40), gap in 0usize..9,
        ) {
            let (width, row, byte) = (8 * words, row % rows, 8 * (word % words));
            let old: Vec<u8> = (0..rows * width).map(|i| (i * 37) as u8).collect();
            let mut new = old.clone();
            for at in flips {
                new[at.index(rows * width)] ^= 1;
            }
            let block = Block { row, rows: rows - row, byte, bytes: width - byte };
            // The box, with gaps between its rows.
            let cut = |bytes: &[u8]| -> Vec<u8> {
                let rows = bytes.chunks_exact(width).skip(row);
                rows.flat_map(|r| [&r[byte..], &[9; 9][..gap]].concat()).collect()
            };
            let (a, b) = (cut(&old), cut(&new));
            let shard = |bytes: &[u8]| {
                // SAFETY: the rows are in `bytes`, which outlives the matrix and is not written.
                let memory = unsafe {
                    Matrix::from_raw(bytes.as_ptr(), block.rows, block.bytes, block.bytes + gap)
                };
                let shard = memory.within(rows, width, row, byte).unwrap();
                assert_eq!((shard.whole().len(), shard.held()), (rows * width, block));
                shard
            };
            let whole = [&old, &new].map(|bytes| Matrix::new(bytes, rows, width).unwrap());
            for part in [block, Block { rows: 1, ..block }] {
                prop_assert_eq!(
                    all_of(&shard(&a), &shard(&b), &part), all_of(&whole[0], &whole[1], &part)
                );
            }
        }
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn what_is_not_held_cannot_be_read() {
        let bytes = [0; 16];
        let shard = Matrix::new(&bytes, 2, 8)
            .unwrap()
            .within(4, 8, 2, 0)
            .unwrap();
        shard.row(&shard.whole(), 0);
    }
}
