//! Matrices that are changed in place, tile by tile.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::block::{prefetch, Block, Divider, Extent};
use crate::matrix::Matrix;
use crate::Word;

/// Scattered elements are asked for so many before they are needed.
const AHEAD: usize = 32;

/// A matrix, or a box of it, that is changed in place, by several threads if it is cut into tiles.
#[derive(Debug)]
pub struct Target<'a> {
    /// First byte of the box that is held.
    ptr: *mut u8,
    extent: Extent,
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
            extent: Extent::whole(rows, row_bytes),
            row_stride: row_bytes,
            memory: PhantomData,
        })
    }

    /// This memory as a box of a larger matrix, as [`Matrix::within`].
    #[must_use]
    pub fn within(self, rows: usize, row_bytes: usize, row: usize, byte: usize) -> Option<Self> {
        let extent = self.extent.within(rows, row_bytes, row, byte)?;
        Some(Self { extent, ..self })
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
            extent: Extent::whole(rows, row_bytes),
            row_stride,
            memory: PhantomData,
        }
    }

    /// Reads the target while nothing can be stored.
    pub fn as_matrix(&mut self) -> Matrix<'_> {
        let held = self.extent.held;
        // SAFETY: the exclusive borrow rules out stores for the lifetime of the result; readable
        // by the contract of the constructors.
        let memory = unsafe { Matrix::from_raw(self.ptr, held.rows, held.bytes, self.row_stride) };
        memory.with(self.extent)
    }

    /// Cuts the target into tiles that different threads may change at the same time.
    ///
    /// Tiles are `rows` by `bytes`, numbered row-major; those at the lower and right border are
    /// smaller. Both sizes must be at least 1 unless the target is empty.
    pub fn divide(self, rows: usize, bytes: usize) -> Tiles<'a> {
        let across = self.extent.row_bytes.div_ceil(bytes.max(1));
        let count = self.extent.rows.div_ceil(rows.max(1)) * across;
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
    /// Tile number `tile`; `None` where there is no such tile, it is not held, or it was taken before.
    pub fn take(&self, tile: usize) -> Option<TileMut<'_>> {
        let taken = self.taken.get(tile)?;
        let Extent {
            rows,
            row_bytes,
            held,
        } = self.target.extent;
        let (row, byte) = (
            tile / self.across * self.rows,
            tile % self.across * self.bytes,
        );
        let place = Block {
            row,
            rows: self.rows.min(rows - row),
            byte,
            bytes: self.bytes.min(row_bytes - byte),
        };
        if !held.contains(&place) || taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        let stride = self.target.row_stride;
        // SAFETY: tiles of a grid do not overlap, and `taken` gives each out once, so nobody else
        // accesses these bytes while `self`, which owns the target, is borrowed. The box is inside the
        // one that is held, so its rows are valid and apart by the contract of the target's constructor.
        let target = unsafe {
            let start = self
                .target
                .ptr
                .add((row - held.row) * stride + byte - held.byte);
            Target::from_raw(start, place.rows, place.bytes, stride)
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
        // One loop for each, so that it holds nothing but what is needed.
        if place.dense {
            self.store_at::<W>(&place, first, offsets, values, |position| {
                position * W::WIDTH
            });
        } else {
            self.store_at::<W>(&place, first, offsets, values, |position| {
                place.offset(position)
            });
        }
    }

    /// `offset` is that of the place.
    #[inline(always)]
    fn store_at<W: Word>(
        &mut self,
        place: &Place,
        first: u32,
        offsets: &[u16],
        values: &[u8],
        offset: impl Fn(usize) -> usize,
    ) {
        let start = self.target.ptr;
        let values = values.chunks_exact(W::WIDTH);
        for (i, (&at, value)) in offsets.iter().zip(values).enumerate() {
            if let Some(&later) = offsets.get(i + AHEAD) {
                prefetch(start.wrapping_add(offset(first as usize + usize::from(later))));
            }
            let position = first as usize + usize::from(at);
            assert!(position < place.elements, "element {position} lies outside");
            // SAFETY: as in `update`; the offset is that of the position.
            unsafe { W::read(value).store(start.add(offset(position))) };
        }
    }

    fn place<W: Word>(&self) -> Place {
        let Extent {
            rows, row_bytes, ..
        } = self.target.extent;
        let (cols, row_stride) = (row_bytes / W::WIDTH, self.target.row_stride);
        Place {
            elements: rows * cols,
            cols,
            width: W::WIDTH,
            dense: row_stride == row_bytes || rows <= 1,
            row_stride,
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
    fn a_shard_has_the_tiles_that_lie_in_it() {
        // Rows 2 to 5 and bytes 4 to 12 of a matrix of 6 rows of 12 bytes, in tiles of 2 by 4.
        let mut memory = [0u8; 4 * 8];
        let mut target = Target::new(&mut memory, 4, 8)
            .unwrap()
            .within(6, 12, 2, 4)
            .unwrap();
        let held = target.as_matrix().held();
        let tiles = target.divide(2, 4);
        for tile in 0..9 {
            let taken = tiles.take(tile);
            assert_eq!(taken.is_some(), tile >= 3 && tile % 3 != 0, "{tile}");
            if let Some(mut taken) = taken {
                taken.store::<u8>(0, &[0, 7], &[tile as u8, tile as u8]);
            }
        }
        drop(tiles);
        let rows: Vec<&[u8]> = memory.chunks(8).collect();
        assert_eq!(rows[0], [4, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(rows[1], [0, 0, 0, 4, 0, 0, 0, 5]);
        assert_eq!(rows[2], [7, 0, 0, 0, 8, 0, 0, 0]);
        assert_eq!(
            held,
            Block {
                row: 2,
                rows: 4,
                byte: 4,
                bytes: 8
            }
        );
        // A tile that is held in part only is not given out.
        let target = Target::new(&mut memory, 4, 8).unwrap();
        let tiles = target.within(6, 12, 1, 4).unwrap().divide(2, 4);
        assert!(tiles.take(1).is_none() && tiles.take(4).is_some());
        for (row, byte) in [(3, 0), (0, 5), (usize::MAX, 0)] {
            let target = Target::new(&mut memory, 4, 8).unwrap();
            assert!(target.within(6, 12, row, byte).is_none());
        }
    }
}
