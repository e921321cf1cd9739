//! Carrying out what was checked: the changes of chunks, written into their tiles.

use std::sync::atomic::{AtomicBool, Ordering};

use deltawire_kernels::{Target, TileMut, Tiles, Word};
use rayon::prelude::*;

use crate::apply::Plan;
use crate::check::{check_chunk, Memory};
use crate::chunk::{Chunk, Scratch};
use crate::error::{Error, Kind, Result};
use crate::permits::Permits;
use crate::reader::{Delta, ReadAt};
use crate::shard::check_matrix;
use crate::table::Tensor;
use crate::with_word;

/// Writes a located chunk into its tile.
fn write_chunk<T: Word>(tensor: &Tensor, tile: &mut TileMut<'_>, scratch: &Scratch<T>) {
    let order = tensor.order();
    tile.update::<T>(&scratch.positions, |i, old| {
        scratch.values.resolve(i, old, order)
    });
}

/// A target cut into the tensor's tiles.
fn divide<'a>(tensor: &Tensor, target: Target<'a>) -> Tiles<'a> {
    let [rows, cols] = tensor.tile;
    target.divide(rows as usize, cols as usize * usize::from(tensor.width))
}

/// A tile to write, which exists and is free by the order of chunks [F11].
fn tile_of<'a>(chunk: &Chunk, tensor: &Tensor, tiles: &'a Tiles<'_>) -> Result<TileMut<'a>> {
    tiles.take(chunk.header.tile as usize).ok_or_else(|| {
        Error::corrupt("the tile does not exist or has two chunks [F11]")
            .at(chunk.offset)
            .of(&tensor.name)
    })
}

/// Checks one chunk and applies it in place; false where the tile had the result already.
///
/// # Errors
/// As for a plan; the tile is then as before.
pub fn apply_chunk(chunk: &Chunk, tensors: &[Tensor], mut target: Target<'_>) -> Result<bool> {
    let tensor = chunk.tensor(tensors);
    check_matrix(tensor, &target.as_matrix())?;
    with_word!(tensor.width, T => {
        let mut memory = Memory::<T>::default();
        let check = check_chunk(chunk, tensors, &target.as_matrix(), false, &mut memory)?;
        if check.apply {
            let tiles = divide(tensor, target);
            let mut tile = tile_of(chunk, tensor, &tiles)?;
            tile.update::<T>(&memory.scratch.positions, |i, _| memory.new[i]);
        }
        Ok(check.apply)
    })
}

/// Carries out a plan and returns how many elements were written. Costs O(changes).
///
/// # Errors
/// `Torn` where the delta can no longer be read as it was checked. Tiles written by then have the
/// result, the others the base; a new plan skips the former.
pub fn commit<R: ReadAt>(
    delta: &Delta<R>,
    plan: &Plan,
    target: Vec<Target<'_>>,
    pool: &rayon::ThreadPool,
) -> Result<u64> {
    let tensors = &delta.header.tensors;
    let tiles: Vec<Tiles<'_>> = tensors
        .iter()
        .zip(target)
        .map(|(tensor, target)| divide(tensor, target))
        .collect();
    let begun = AtomicBool::new(false);
    let permits = Permits::new();
    let result: Result<()> = pool.install(|| {
        plan.writes.par_iter().try_for_each(|write| {
            let place = &delta.index.chunks[write.chunk];
            let tensor = &tensors[place.tensor as usize];
            let take = || {
                tiles[place.tensor as usize]
                    .take(place.tile as usize)
                    .ok_or_else(|| {
                        Error::corrupt("the tile has two chunks [F11]")
                            .at(place.offset)
                            .of(&tensor.name)
                    })
            };
            with_word!(tensor.width, T => {
                match &write.prepared {
                    Some(prepared) => {
                        let mut tile = take()?;
                        begun.store(true, Ordering::Relaxed);
                        prepared.write::<T>(&mut tile);
                    }
                    None => {
                        let chunk = delta.chunk(write.chunk)?;
                        let _permit = permits.enter(chunk.header.changes as usize);
                        if chunk.checksum() != write.crc {
                            let message = "the delta changed after it was checked";
                            return Err(Error::corrupt(message).at(place.offset).of(&tensor.name));
                        }
                        let mut scratch = Scratch::<T>::default();
                        chunk.decode(tensors, &mut scratch)?;
                        let mut tile = take()?;
                        let matrix = tile.as_matrix();
                        scratch.locate(tensor, &matrix, &matrix.whole())?;
                        begun.store(true, Ordering::Relaxed);
                        write_chunk(tensor, &mut tile, &scratch);
                    }
                }
            });
            Ok(())
        })
    });
    match result {
        Ok(()) => Ok(plan.changed),
        Err(error) if !begun.into_inner() => Err(error),
        Err(error) => Err(Error {
            kind: Kind::Torn,
            message: format!(
                "{}; some tiles have the new bits, the others the old: apply the delta again",
                error.message
            ),
            ..error
        }),
    }
}
