//! Tensors that are here in part only: one rank's shard of them.
//!
//! A shard is a box of the tensor's matrix that cuts no tile. Everything about it is in the whole tensor's
//! coordinates, so its chunks are those of the whole, and its digests add up with those of other shards.

use deltawire_kernels::{Block, Digest, Matrix};

use crate::error::{Error, Kind, Result};
use crate::table::Tensor;

fn check_shape(entry: &Tensor, matrix: &Matrix<'_>) -> Result<()> {
    let row_bytes = entry.cols * u64::from(entry.width);
    if (matrix.rows() as u64, matrix.row_bytes() as u64) == (entry.rows, row_bytes) {
        return Ok(());
    }
    let message = format!(
        "a matrix of {} rows of {} bytes does not hold {} elements of shape {:?}",
        matrix.rows(),
        matrix.row_bytes(),
        entry.dtype,
        entry.shape
    );
    Err(Error::new(Kind::Layout, message).of(&entry.name))
}

/// The matrix must have the table's shape, and a shard must not cut words of the digest.
pub(crate) fn check_words(entry: &Tensor, matrix: &Matrix<'_>) -> Result<()> {
    check_shape(entry, matrix)?;
    let held = matrix.held();
    let end = held.byte + held.bytes;
    if held.byte.is_multiple_of(8) && (end.is_multiple_of(8) || end == matrix.row_bytes()) {
        return Ok(());
    }
    let message = format!(
        "a shard from byte {} to {end} of each row cuts words of the digest; cut the tensor at \
         multiples of 8 bytes",
        held.byte
    );
    Err(Error::new(Kind::Layout, message).of(&entry.name))
}

/// The matrix must have the table's shape, and a shard must not cut tiles.
pub(crate) fn check_matrix(entry: &Tensor, matrix: &Matrix<'_>) -> Result<()> {
    check_shape(entry, matrix)?;
    let width = usize::from(entry.width);
    let wrong = |message: String| Err(Error::new(Kind::Layout, message).of(&entry.name));
    let held = matrix.held();
    if held.is_empty() {
        return Ok(());
    }
    let [tile_rows, tile_cols] = entry.tile.map(|n| n as usize);
    let on_border = |at: usize, tile: usize, end: usize| at == end || at.is_multiple_of(tile);
    let (rows, cols) = (held.row + held.rows, held.byte + held.bytes);
    if on_border(held.row, tile_rows, matrix.rows())
        && on_border(rows, tile_rows, matrix.rows())
        && on_border(held.byte, tile_cols * width, matrix.row_bytes())
        && on_border(cols, tile_cols * width, matrix.row_bytes())
    {
        return Ok(());
    }
    wrong(format!(
        "a shard of rows {} to {rows} and columns {} to {} cuts tiles of {tile_rows} rows and \
         {tile_cols} columns; cut the tensor where its tiles end, or make the delta with other tiles",
        held.row,
        held.byte / width,
        cols / width,
    ))
}

/// A target has one matrix a table entry, and each fits.
pub(crate) fn check_target(tensors: &[Tensor], target: &[Matrix<'_>]) -> Result<()> {
    if target.len() != tensors.len() {
        let message = format!("{} tensors for a delta of {}", target.len(), tensors.len());
        return Err(Error::new(Kind::Layout, message));
    }
    tensors
        .iter()
        .zip(target)
        .try_for_each(|(tensor, matrix)| check_matrix(tensor, matrix))
}

/// Whether a matrix holds all of its tensor.
pub(crate) fn is_whole(matrix: &Matrix<'_>) -> bool {
    matrix.held() == matrix.whole()
}

/// What the digest of a shard begins with: the tensor's start value where its first element is there, so that
/// the digests of all shards add up to the tensor's.
pub(crate) fn start_of(entry: &Tensor, matrix: &Matrix<'_>) -> Digest {
    start_within(entry, &matrix.held())
}

/// As [`start_of`], of a box.
pub(crate) fn start_within(entry: &Tensor, held: &Block) -> Digest {
    let first = held.row == 0 && held.byte == 0 && (!held.is_empty() || entry.elements() == 0);
    if first {
        entry.start()
    } else {
        Digest::default()
    }
}

/// Tiles that a matrix holds.
pub(crate) fn held_tiles<'a>(
    entry: &'a Tensor,
    matrix: &'a Matrix<'_>,
) -> impl Iterator<Item = u32> + 'a {
    (0..entry.tiles()).filter(move |&tile| entry.holds(matrix, tile))
}

impl Tensor {
    /// Whether a matrix of this tensor, or a shard of it, holds all of a tile.
    pub fn holds(&self, matrix: &Matrix<'_>, tile: u32) -> bool {
        let place = self.tile_box(tile);
        place.is_some_and(|place| matrix.held().contains(&place.block(self.width)))
    }
}
