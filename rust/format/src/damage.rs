//! Tiles of a target that hold neither what a delta starts from nor what it leads to.
//!
//! Chunks carry the digests of their tile before and after, so that damage shows tile by tile. Of tiles that
//! the delta does not change only the sum over their tensor is known: damage there is not found here, and
//! [`plan`](crate::apply::plan) refuses the target as a whole.

use deltawire_kernels::Matrix;
use rayon::prelude::*;

use crate::check::{check_chunk, Memory};
use crate::error::{Error, Kind, Result};
use crate::permits::Permits;
use crate::reader::{Delta, ReadAt};
use crate::scratch::Pool;
use crate::shard::check_target;
use crate::table::TileBox;
use crate::with_word;

/// A tile that its chunk fits neither before nor after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Number of its tensor in the table.
    pub tensor: u32,
    /// Number of the tile.
    pub tile: u32,
    /// Number of its chunk.
    pub chunk: usize,
    /// Its place in the tensor's matrix.
    pub place: TileBox,
}

/// The damaged tiles of a target, one matrix a table entry, in the order of the chunks.
///
/// Matrices may be shards; tiles that they do not hold are not looked at. What is overwritten by a chunk that
/// need not know the old elements is no damage.
///
/// # Errors
/// `Corrupt` for chunks that fail a check, `Layout` for a target that does not fit, `Store`.
pub fn damaged<R: ReadAt>(
    delta: &Delta<R>,
    target: &[Matrix<'_>],
    pool: &rayon::ThreadPool,
) -> Result<Vec<Damaged>> {
    let tensors = &delta.header.tensors;
    check_target(tensors, target)?;
    let permits = Permits::new();
    let scratch = Pool::default();
    let check = |i: usize| -> Result<Option<Damaged>> {
        let found = &delta.index.chunks[i];
        let (tensor, matrix) = (
            &tensors[found.tensor as usize],
            &target[found.tensor as usize],
        );
        if !tensor.holds(matrix, found.tile) {
            return Ok(None);
        }
        let chunk = delta.chunk(i)?;
        let _permit = permits.enter(chunk.header.changes as usize);
        let checked = with_word!(tensor.width, T => {
            scratch.with(|memory: &mut Memory<T>| {
                check_chunk(&chunk, tensors, matrix, false, memory).map(drop)
            })
        });
        match checked {
            Ok(()) => Ok(None),
            Err(Error {
                kind: Kind::WrongBase,
                ..
            }) => Ok(Some(Damaged {
                tensor: found.tensor,
                tile: found.tile,
                chunk: i,
                place: chunk.tile_box(tensors)?,
            })),
            Err(error) => Err(error),
        }
    };
    let all: Result<Vec<Option<Damaged>>> = pool.install(|| {
        let chunks = 0..delta.index.chunks.len();
        chunks.into_par_iter().map(check).collect()
    });
    Ok(all?.into_iter().flatten().collect())
}
