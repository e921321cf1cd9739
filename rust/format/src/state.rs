//! State digests of whole tensors.

use deltawire_kernels::{digest, Digest, Matrix};
use rayon::prelude::*;

use crate::error::Result;
use crate::shard::{check_words, start_of};
use crate::table::Tensor;

/// Tiles that each thread digests between two calls of `progress`.
const TILES_PER_THREAD: usize = 32;

/// The digest of each tensor, one matrix each. Those of the shards of a tensor add up to that of the tensor.
/// `progress` gets dense bytes done.
///
/// # Errors
/// `Layout` where a matrix does not have its tensor's shape, or is a shard that cuts 8-byte words; what
/// `progress` returns.
pub fn tensor_digests(
    tensors: &[Tensor],
    matrices: &[Matrix<'_>],
    pool: &rayon::ThreadPool,
    mut progress: impl FnMut(u64) -> Result<()>,
) -> Result<Vec<Digest>> {
    let mut digests = Vec::with_capacity(tensors.len());
    let mut tiles = Vec::new();
    for (t, (tensor, matrix)) in tensors.iter().zip(matrices).enumerate() {
        check_words(tensor, matrix)?;
        digests.push(start_of(tensor, matrix));
        tiles.extend((0..tensor.tiles()).map(|tile| (t, tile)));
    }
    for batch in tiles.chunks(TILES_PER_THREAD * pool.current_num_threads()) {
        let parts: Vec<(usize, Digest, u64)> = pool.install(|| {
            batch
                .par_iter()
                .filter_map(|&(t, tile)| {
                    let tensor = &tensors[t];
                    let tile = tensor.tile_box(tile)?.block(tensor.width);
                    let block = tile.common(&matrices[t].held())?;
                    let sum = digest::block(tensor.key(), &matrices[t], &block);
                    Some((t, sum, block.len() as u64))
                })
                .collect()
        });
        let mut dense = 0;
        for (t, sum, bytes) in parts {
            digests[t] = digests[t].plus(sum);
            dense += bytes;
        }
        progress(dense)?;
    }
    Ok(digests)
}
