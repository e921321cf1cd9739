//! The tensor table: what the tensors are and how they are cut into tiles.

use deltawire_kernels::classes::ClassMap;
use deltawire_kernels::ordered::Order;
use deltawire_kernels::{Block, Digest, MixKey, Word};
use sha2::{Digest as _, Sha256};

use crate::dtype::{exponent_field, order_of, width_of};
use crate::error::{Error, Kind, Result};
use crate::limits::{MAX_NAME_BYTES, MAX_RANK, MAX_TILE_ELEMENTS};

/// One tensor of a delta, seen as a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name in the checkpoint.
    pub name: String,
    /// safetensors name of the dtype.
    pub dtype: String,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub width: u8,
    /// The tensor's own shape.
    pub shape: Vec<u64>,
    /// Rows of the matrix.
    pub rows: u64,
    /// Columns of the matrix, in elements.
    pub cols: u64,
    /// Rows and columns of a tile.
    pub tile: [u64; 2],
    key: MixKey,
    start: Digest,
}

/// A tile's place in its tensor, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileBox {
    /// First row.
    pub row: u64,
    /// Number of rows.
    pub rows: u64,
    /// First column.
    pub col: u64,
    /// Number of columns.
    pub cols: u64,
}

impl TileBox {
    /// Elements of the tile; at most 2^22.
    pub fn elements(&self) -> u32 {
        (self.rows * self.cols) as u32
    }

    /// The tile's bytes in the tensor's matrix.
    pub fn block(&self, width: u8) -> Block {
        let width = usize::from(width);
        Block {
            row: self.row as usize,
            rows: self.rows as usize,
            byte: self.col as usize * width,
            bytes: self.cols as usize * width,
        }
    }
}

/// Rows and columns of the matrix that stands for a shape; `None` on overflow of 63 bits.
pub fn matrix(shape: &[u64], width: u8) -> Option<(u64, u64)> {
    let (rows, cols) = match shape {
        [] => (1, 1),
        [length] => (*length, 1),
        [rows @ .., cols] => (rows.iter().try_fold(1u64, |a, &b| a.checked_mul(b))?, *cols),
    };
    let bytes = rows.checked_mul(cols)?.checked_mul(u64::from(width))?;
    (bytes < 1 << 63).then_some((rows, cols))
}

fn key_of(name: &str, dtype: &str, shape: &[u64]) -> (MixKey, Digest) {
    let mut hash = Sha256::new();
    hash.update(b"deltawire digest v1\0");
    for text in [name, dtype] {
        hash.update((text.len() as u32).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.update((shape.len() as u32).to_le_bytes());
    for dimension in shape {
        hash.update(dimension.to_le_bytes());
    }
    let bytes = hash.finalize();
    let word = |i: usize| u64::read(&bytes[8 * i..]);
    (
        MixKey {
            k0: word(0),
            k1: word(1),
        },
        Digest::of(word(2), word(3)),
    )
}

impl Tensor {
    /// A tensor with the given tiles.
    ///
    /// # Errors
    /// `Kind::Layout` where the parts do not fit together; the message names the rule.
    pub fn new(name: String, dtype: String, shape: Vec<u64>, tile: [u64; 2]) -> Result<Self> {
        // A name that is too long is not repeated whole.
        let shown = name.chars().take(200).collect::<String>();
        let wrong = |message: String| Error::new(Kind::Layout, message).of(&shown);
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(wrong(format!(
                "a name has 1 to {MAX_NAME_BYTES} bytes [F8]"
            )));
        }
        if shape.len() > MAX_RANK {
            return Err(wrong(format!(
                "a tensor has at most {MAX_RANK} dimensions [F8]"
            )));
        }
        let Some(width) = width_of(&dtype) else {
            let message = format!("dtype {dtype:?} is not known to this version [F9]");
            return Err(Error::new(Kind::Unsupported, message).of(&name));
        };
        let Some((rows, cols)) = matrix(&shape, width) else {
            return Err(wrong(format!(
                "shape {shape:?} exceeds 63 bits of bytes [F8]"
            )));
        };
        let [tile_rows, tile_cols] = tile;
        if rows == 0 || cols == 0 {
            if tile != [0, 0] {
                return Err(wrong(
                    "a tensor without elements has tiles [0, 0] [F4]".into(),
                ));
            }
        } else {
            let elements = tile_rows.min(rows).checked_mul(tile_cols.min(cols));
            if tile_rows == 0 || tile_cols == 0 {
                return Err(wrong(
                    "a tile has at least one row and one column [F4]".into(),
                ));
            }
            if elements.is_none_or(|n| n > MAX_TILE_ELEMENTS) {
                return Err(wrong(format!(
                    "a tile has at most {MAX_TILE_ELEMENTS} elements [F5]"
                )));
            }
            let tiles = rows
                .div_ceil(tile_rows)
                .checked_mul(cols.div_ceil(tile_cols));
            if tiles.is_none_or(|n| n > u64::from(u32::MAX)) {
                return Err(wrong("a tensor has at most 2^32 - 1 tiles [F5]".into()));
            }
            if tile_cols < cols && !(tile_cols % 8 * u64::from(width)).is_multiple_of(8) {
                return Err(wrong(
                    "tile columns must keep 8-byte words whole [F6]".into(),
                ));
            }
        }
        let (key, start) = key_of(&name, &dtype, &shape);
        Ok(Self {
            name,
            dtype,
            width,
            shape,
            rows,
            cols,
            tile,
            key,
            start,
        })
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.rows * self.cols
    }

    /// Dense bytes.
    pub fn bytes(&self) -> u64 {
        self.elements() * u64::from(self.width)
    }

    /// Number of tiles.
    pub fn tiles(&self) -> u32 {
        if self.elements() == 0 {
            return 0;
        }
        (self.rows.div_ceil(self.tile[0]) * self.cols.div_ceil(self.tile[1])) as u32
    }

    /// All of its matrix.
    pub(crate) fn whole(&self) -> Block {
        Block {
            row: 0,
            rows: self.rows as usize,
            byte: 0,
            bytes: self.cols as usize * usize::from(self.width),
        }
    }

    /// Place of a tile, `None` where there is no such tile.
    pub fn tile_box(&self, tile: u32) -> Option<TileBox> {
        if tile >= self.tiles() {
            return None;
        }
        let across = self.cols.div_ceil(self.tile[1]);
        let row = u64::from(tile) / across * self.tile[0];
        let col = u64::from(tile) % across * self.tile[1];
        Some(TileBox {
            row,
            rows: self.tile[0].min(self.rows - row),
            col,
            cols: self.tile[1].min(self.cols - col),
        })
    }

    /// How this tensor's elements are ordered.
    pub fn order(&self) -> Order {
        order_of(&self.dtype)
    }

    /// The class map with these classes; `None` where elements have no exponent.
    pub fn class_map(&self, top: u16, count: usize) -> Option<ClassMap> {
        let (shift, mask) = exponent_field(&self.dtype)?;
        Some(ClassMap {
            shift,
            mask,
            top: top.into(),
            count: count as u32,
        })
    }

    /// Mixing keys of the state digest.
    pub fn key(&self) -> MixKey {
        self.key
    }

    /// Start value of the state digest, added once a tensor.
    pub fn start(&self) -> Digest {
        self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[u64], tile: [u64; 2]) -> Result<Tensor> {
        Tensor::new("w".into(), "BF16".into(), shape.to_vec(), tile)
    }

    #[test]
    fn tiles_cover_the_matrix() {
        let t = tensor(&[3, 5, 10], [4, 8]).unwrap();
        assert_eq!((t.rows, t.cols, t.tiles()), (15, 10, 8));
        let elements: u32 = (0..8).map(|i| t.tile_box(i).unwrap().elements()).sum();
        assert_eq!(elements, 150);
        assert_eq!(
            t.tile_box(7).unwrap(),
            TileBox {
                row: 12,
                rows: 3,
                col: 8,
                cols: 2
            }
        );
        assert!(t.tile_box(8).is_none());
    }

    #[test]
    fn more_than_2_to_the_31_elements() {
        let t = tensor(&[1 << 20, 1 << 14], [16, 1 << 14]).unwrap();
        assert_eq!(t.elements(), 1 << 34);
        assert_eq!(t.tile_box(t.tiles() - 1).unwrap().row, (1 << 20) - 16);
    }

    #[test]
    fn rules() {
        assert!(tensor(&[], [1, 1]).is_ok());
        assert!(tensor(&[0], [0, 0]).is_ok());
        assert!(tensor(&[1 << 40, 0, 1 << 40], [0, 0]).is_ok());
        for (shape, tile) in [
            (vec![4, 4], [0, 4]),
            (vec![4, 4], [4, 2]),
            (vec![0], [1, 1]),
            (vec![1 << 40, 1 << 40], [1, 4]),
            (vec![1 << 12, 1 << 12], [1 << 12, 1 << 12]),
            (vec![1 << 33], [1, 1]),
        ] {
            assert_eq!(
                tensor(&shape, tile).unwrap_err().kind,
                Kind::Layout,
                "{shape:?}"
            );
        }
    }
}
