//! Memory that is asked for while something else is computed.
//!
//! A tile is worked through in parts: first a pass that waits for memory, then work that only computes. What
//! the latter asks for meanwhile is in the second-level cache when the next pass needs it.

use crate::block::Block;
use crate::matrix::Matrix;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Matrices that are read at the same places.
const MOST: usize = 2;

/// Asks for blocks of matrices, line after line.
#[derive(Debug, Default)]
pub struct Ahead {
    areas: [Area; MOST],
}

/// What is left of a block.
#[derive(Debug, Default)]
struct Area {
    /// Address of the row.
    row: usize,
    rows: usize,
    bytes: usize,
    stride: usize,
    /// Next byte within the row.
    at: usize,
}

impl Area {
    #[inline(always)]
    fn ask(&mut self) {
        if self.rows == 0 {
            return;
        }
        prefetch(self.row.wrapping_add(self.at));
        self.at += LINE;
        if self.at >= self.bytes {
            self.at = 0;
            self.rows -= 1;
            self.row = self.row.wrapping_add(self.stride);
        }
    }
}

/// Asks for the memory at an address for the second-level cache; a wrong one is harmless.
#[inline(always)]
fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that a program can see, for any address.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T1};
        _mm_prefetch::<_MM_HINT_T1>(address as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl Ahead {
    /// A block of up to two matrices; nothing where there is none.
    ///
    /// # Panics
    /// Where the block lies outside one of them.
    pub fn of<const N: usize>(matrices: [&Matrix<'_>; N], block: Option<&Block>) -> Self {
        let mut areas = <[Area; MOST]>::default();
        for (area, matrix) in areas.iter_mut().zip(matrices) {
            let Some(block) = block.filter(|block| !block.is_empty()) else {
                break;
            };
            let first = matrix.row(block, 0).as_ptr() as usize;
            *area = match matrix.contiguous(block) {
                Some(bytes) => Area {
                    row: first,
                    rows: 1,
                    bytes: bytes.len(),
                    ..Area::default()
                },
                None => Area {
                    row: first,
                    rows: block.rows,
                    bytes: block.bytes,
                    stride: (matrix.row(block, 1).as_ptr() as usize).wrapping_sub(first),
                    at: 0,
                },
            };
        }
        Self { areas }
    }

    /// Asks for the next lines, `lines` of each matrix.
    #[inline(always)]
    pub fn ask(&mut self, lines: usize) {
        for area in &mut self.areas {
            for _ in 0..lines {
                area.ask();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_asked_for_once() {
        let bytes = vec![0u8; 40 * 1000];
        let matrix = Matrix::new(&bytes, 40, 1000).unwrap();
        for (block, lines) in [
            (
                Block {
                    row: 3,
                    rows: 5,
                    byte: 0,
                    bytes: 1000,
                },
                79,
            ),
            (
                Block {
                    row: 3,
                    rows: 5,
                    byte: 8,
                    bytes: 130,
                },
                15,
            ),
            (
                Block {
                    row: 3,
                    rows: 1,
                    byte: 8,
                    bytes: 130,
                },
                3,
            ),
            (
                Block {
                    row: 3,
                    rows: 0,
                    byte: 8,
                    bytes: 130,
                },
                0,
            ),
        ] {
            let mut ahead = Ahead::of([&matrix, &matrix], Some(&block));
            let mut count = 0;
            while ahead.areas[0].rows > 0 {
                ahead.ask(1);
                count += 1;
            }
            assert_eq!((count, ahead.areas[1].rows), (lines, 0));
        }
        assert_eq!(Ahead::of([&matrix], None).areas[0].rows, 0);
    }
}
