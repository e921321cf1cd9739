//! How a writer cuts tensors into tiles.

use crate::dtype::width_of;

/// Rules for cutting a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Most elements of a tile of two bytes an element or less; wider ones have as many bytes.
    pub max_elements: u64,
    /// Splits up to this many ways (a power of two) fall on tile borders where the shape allows.
    pub ways: u64,
    /// Shards smaller than this many elements are not cut off: small chunks cost more in headers
    /// than a rank saves by not reading them.
    pub min_elements: u64,
}

impl Default for Tiling {
    fn default() -> Self {
        Self {
            max_elements: 1 << 20,
            ways: 8,
            min_elements: 1 << 19,
        }
    }
}

/// Names of weights that tensor parallelism splits along the input dimension (columns).
const ROW_PARALLEL: [&str; 8] = [
    "o_proj.weight",
    "down_proj.weight",
    "out_proj.weight",
    "wo.weight",
    "w2.weight",
    "dense_4h_to_h.weight",
    "attention.dense.weight",
    "linear_fc2.weight",
];

/// All divisors of `n` up to `most`.
fn divisors(n: u64, most: u64) -> impl Iterator<Item = u64> {
    let small = (1..=1 << 16).take_while(move |d| d * d <= n);
    small
        .filter(move |d| n.is_multiple_of(*d))
        .flat_map(move |d| [d, n / d])
        .filter(move |&d| d <= most)
}

/// The largest divisor of `n` that is a multiple of `unit` and at most `most`, if any.
fn divisor(n: u64, unit: u64, most: u64) -> Option<u64> {
    if !n.is_multiple_of(unit) {
        return None;
    }
    let units = n / unit;
    // Divisors come in pairs; the smaller of each is at most the root.
    let mut best = None;
    let mut d = 1;
    while d * d <= units && d <= 1 << 16 {
        if units.is_multiple_of(d) {
            for candidate in [d * unit, units / d * unit] {
                if candidate <= most && Some(candidate) > best {
                    best = Some(candidate);
                }
            }
        }
        d += 1;
    }
    best
}

impl Tiling {
    /// Tile shape for a tensor whose matrix is `rows` by `cols`.
    ///
    /// The tensor is first split as tensor parallelism would (columns for row-parallel weights,
    /// rows for all others, 8-way where shards stay above `min_elements`); the tile is the
    /// largest part of such a shard, below `max_elements`, that divides it evenly.
    pub fn tile(&self, name: &str, dtype: &str, rows: u64, cols: u64) -> [u64; 2] {
        if rows == 0 || cols == 0 {
            return [0, 0];
        }
        let width = u64::from(width_of(dtype).unwrap_or(8));
        let most = (self.max_elements * 2 / width.max(2)).max(8);
        let unit = 8 / width;
        let elements = rows.saturating_mul(cols);
        let mut ways = self.ways.max(1);
        while ways > 1 && elements / ways < self.min_elements {
            ways /= 2;
        }
        let mut tile_cols = cols;
        let mut shard_rows = rows;
        if ROW_PARALLEL.iter().any(|suffix| name.ends_with(suffix)) {
            while ways > 1 && !cols.is_multiple_of(ways * unit) {
                ways /= 2;
            }
            tile_cols = cols / ways;
        } else {
            while ways > 1 && !rows.is_multiple_of(ways) {
                ways /= 2;
            }
            shard_rows = rows / ways;
        }
        if tile_cols > most {
            tile_cols = divisor(tile_cols, unit, most).unwrap_or(most / unit * unit);
        }
        let fit = (most / tile_cols).max(1);
        let tile_rows = if shard_rows <= fit {
            shard_rows
        } else {
            match divisor(shard_rows, 1, fit) {
                // An awkward number of rows may only have tiny divisors; then borders give way.
                Some(d) if d * 4 >= fit => d,
                _ => fit,
            }
        };
        // 2^32 - 1 tiles at most.
        let mut tile = [tile_rows, tile_cols];
        while rows
            .div_ceil(tile[0])
            .saturating_mul(cols.div_ceil(tile[1]))
            > u64::from(u32::MAX)
        {
            tile[0] *= 2;
        }
        tile
    }

    /// Tile shape for a tensor of which ranks hold `steps` rows and columns each (but the last ones); `None`: all
    /// of them. No tile crosses from one rank to the next: the largest that does not, below `max_elements`.
    /// `None` where columns are cut within 8-byte words.
    pub fn tile_for_ranks(
        &self,
        name: &str,
        dtype: &str,
        [rows, cols]: [u64; 2],
        [row_step, col_step]: [Option<u64>; 2],
    ) -> Option<[u64; 2]> {
        let row_step = row_step.filter(|&step| step < rows);
        let col_step = col_step.filter(|&step| step < cols);
        if rows == 0 || cols == 0 || (row_step.is_none() && col_step.is_none()) {
            return Some(self.tile(name, dtype, rows, cols));
        }
        let width = u64::from(width_of(dtype).unwrap_or(8));
        let most = (self.max_elements * 2 / width.max(2)).max(8);
        let unit = 8 / width;
        let columns = |tile_rows: u64| {
            let fit = most / tile_rows;
            match col_step {
                Some(step) => divisor(step, unit, fit),
                None if cols <= fit => Some(cols),
                None => Some(fit / unit * unit).filter(|&n| n > 0),
            }
        };
        let tile = match row_step {
            Some(step) => divisors(step, most)
                .filter_map(|tile_rows| Some([tile_rows, columns(tile_rows)?]))
                .max_by_key(|&[r, c]| (r * c, c)),
            None => columns(1).map(|c| [rows.min(most / c), c]),
        };
        tile.filter(|t| {
            rows.div_ceil(t[0]).saturating_mul(cols.div_ceil(t[1])) <= u64::from(u32::MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Tensor;
    use proptest::prelude::*;

    #[test]
    fn splits_fall_on_tile_borders() {
        let t = Tiling::default();
        // Column-parallel: rows in eight, whole rows.
        assert_eq!(t.tile("q_proj.weight", "BF16", 4096, 4096), [256, 4096]);
        // Row-parallel: columns in eight.
        assert_eq!(t.tile("x.o_proj.weight", "BF16", 4096, 4096), [2048, 512]);
        // Too small to be cut in eight: in two.
        assert_eq!(t.tile("up_proj.weight", "BF16", 2048, 576), [1024, 576]);
        // Wide elements: as many bytes.
        assert_eq!(t.tile("q_proj.weight", "F32", 4096, 4096), [128, 4096]);
        // Small ones stay whole.
        assert_eq!(t.tile("gate_proj.weight", "BF16", 1536, 576), [1536, 576]);
        assert_eq!(t.tile("norm.weight", "BF16", 576, 1), [576, 1]);
        // Smaller tiles on request, still on the shards' borders.
        let small = Tiling {
            max_elements: 1 << 18,
            min_elements: 1 << 16,
            ..t
        };
        assert_eq!(
            small.tile("gate_proj.weight", "BF16", 1536, 576),
            [192, 576]
        );
    }

    #[test]
    fn ranks_end_where_tiles_do() {
        let t = Tiling::default();
        let of = |shape, steps| t.tile_for_ranks("q_proj.weight", "BF16", shape, steps);
        assert_eq!(of([4096, 4096], [None, None]), Some([256, 4096]));
        assert_eq!(of([4096, 4096], [Some(1024), None]), Some([256, 4096]));
        assert_eq!(of([4096, 4096], [None, Some(1024)]), Some([1024, 1024]));
        // Three ranks: 1366 rows, which are 2 times 683.
        assert_eq!(of([4096, 4096], [Some(1366), None]), Some([683, 1532]));
        // Two numbers that do not divide.
        assert_eq!(
            of([4096, 4096], [Some(1366), Some(1368)]),
            Some([683, 1368])
        );
        assert_eq!(of([64, 30], [None, Some(10)]), None);
        // All that is held by one rank.
        assert_eq!(of([100, 8], [Some(100), Some(9)]), Some([100, 8]));
        assert_eq!(of([0, 8], [Some(1), None]), Some([0, 0]));
    }

    proptest! {
        #[test]
        fn every_tile_for_ranks_is_valid(
            rows in 1u64..1 << 22, cols in 1u64..1 << 12, row_step in prop::option::of(1u64..1 << 20),
            col_words in prop::option::of(1u64..1 << 9),
        ) {
            let col_step = col_words.map(|n| 4 * n);
            let got = Tiling::default().tile_for_ranks("w", "BF16", [rows, cols], [row_step, col_step]);
            let tile = got.unwrap();
            prop_assert!(Tensor::new("w".into(), "BF16".into(), vec![rows, cols], tile).is_ok(), "{tile:?}");
            for (step, tile, all) in [(row_step, tile[0], rows), (col_step, tile[1], cols)] {
                if let Some(step) = step.filter(|&step| step < all) {
                    prop_assert!(step.is_multiple_of(tile), "{step} {tile}");
                }
            }
        }

        #[test]
        fn every_tile_is_valid(
            rows in 0u64..1 << 30, cols in 0u64..1 << 20, down in any::<bool>(),
            dtype in prop::sample::select(vec!["I8", "BF16", "F32", "F64"]),
        ) {
            let name = if down { "down_proj.weight" } else { "up_proj.weight" };
            let tile = Tiling::default().tile(name, dtype, rows, cols);
            prop_assert!(Tensor::new(name.into(), dtype.into(), vec![rows, cols], tile).is_ok(), "{tile:?}");
        }
    }
}
