//! Boxes of matrices, and what of a matrix is in memory.

/// Bytes of a part of a block.
const PART_BYTES: usize = 64 << 10;

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

    /// Whether all of another block lies in this one.
    pub fn contains(&self, other: &Self) -> bool {
        let along = |first: usize, count: usize, other_first: usize, other_count: usize| {
            other_first
                .checked_sub(first)
                .and_then(|skipped| count.checked_sub(skipped))
                .is_some_and(|left| other_count <= left)
        };
        along(self.row, self.rows, other.row, other.rows)
            && along(self.byte, self.bytes, other.byte, other.bytes)
    }

    /// What two blocks have in common, if anything.
    pub fn common(&self, other: &Self) -> Option<Self> {
        let along = |first: usize, count: usize, other_first: usize, other_count: usize| {
            let begin = first.max(other_first);
            let end = (first + count).min(other_first + other_count);
            (begin < end).then(|| (begin, end - begin))
        };
        let (row, rows) = along(self.row, self.rows, other.row, other.rows)?;
        let (byte, bytes) = along(self.byte, self.bytes, other.byte, other.bytes)?;
        Some(Self {
            row,
            rows,
            byte,
            bytes,
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

/// The size of a matrix, and the box of it that is in memory: all of it, or a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) rows: usize,
    pub(crate) row_bytes: usize,
    pub(crate) held: Block,
}

impl Extent {
    pub(crate) fn whole(rows: usize, row_bytes: usize) -> Self {
        let held = Block {
            row: 0,
            rows,
            byte: 0,
            bytes: row_bytes,
        };
        Self {
            rows,
            row_bytes,
            held,
        }
    }

    /// As the box from `row` and `byte` on of a matrix of `rows` by `row_bytes`.
    pub(crate) fn within(
        self,
        rows: usize,
        row_bytes: usize,
        row: usize,
        byte: usize,
    ) -> Option<Self> {
        let held = Block {
            row,
            byte,
            ..self.held
        };
        let fits = self.held == self.all()
            && row.checked_add(held.rows)? <= rows
            && byte.checked_add(held.bytes)? <= row_bytes;
        fits.then_some(Self {
            rows,
            row_bytes,
            held,
        })
    }

    pub(crate) fn all(&self) -> Block {
        Self::whole(self.rows, self.row_bytes).held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Matrix, Target};

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
