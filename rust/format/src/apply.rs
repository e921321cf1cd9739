//! What a delta would do to a target, proven before anything is written; and doing it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use deltawire_kernels::{digest, scan, Digest, Matrix, Target, Word};
use rayon::prelude::*;

use crate::chunk::{Chunk, Scratch};
use crate::error::{Error, Kind, Result};
use crate::reader::{Delta, ReadAt};
use crate::table::Tensor;
use crate::with_word;
use crate::writer::check_matrix;

/// Tiles that each thread checks between two calls of `progress`.
const TILES_PER_THREAD: usize = 16;

/// What a chunk finds in its tile.
#[derive(Clone, Copy, Debug)]
struct TileCheck {
    /// False where the tile has the result already.
    apply: bool,
    /// The tile's digest now, and what the chunk adds to it.
    now: Digest,
    change: Digest,
}

/// Checks one chunk against a tile of `matrix`, decoding it into `scratch`.
fn check_chunk<T: Word>(
    chunk: &Chunk,
    tensors: &[Tensor],
    matrix: &Matrix<'_>,
    scratch: &mut Scratch<T>,
) -> Result<TileCheck> {
    let tensor = chunk.tensor(tensors);
    let block = chunk.tile_box(tensors)?.block(tensor.width);
    let place = |e: Error| e.at(chunk.offset).of(&tensor.name);
    chunk.decode(tensors, scratch)?;
    let now = digest::block(tensor.key(), matrix, &block);
    if chunk.header.result == Some(now.lanes[0]) {
        return Ok(TileCheck {
            apply: false,
            now,
            change: Digest::default(),
        });
    }
    if chunk.header.base.is_some_and(|base| base != now.lanes[0]) {
        let message = format!(
            "tile {} holds neither the base that the delta starts from nor its result; apply it \
             to the right version, or fetch an anchor",
            chunk.header.tile
        );
        return Err(place(Error::new(Kind::WrongBase, message)));
    }
    let mut old: Vec<T> = Vec::new();
    scan::gather(matrix, &block, &scratch.positions, &mut old);
    let order = tensor.order();
    for (i, element) in old.iter_mut().enumerate() {
        *element = scratch.values.resolve(i, *element, order);
    }
    let change = digest::change(tensor.key(), matrix, &block, &scratch.positions, &old);
    match chunk.header.result {
        Some(result) if now.plus(change).lanes[0] != result => {
            Err(place(match chunk.header.base {
                Some(_) => Error::corrupt("the chunk does not lead to its result digest [F13]"),
                None => Error::new(
                    Kind::WrongBase,
                    format!(
                    "tile {} would not end with the delta's result; its other elements are not \
                     those of the base",
                    chunk.header.tile
                ),
                ),
            }))
        }
        _ => Ok(TileCheck {
            apply: true,
            now,
            change,
        }),
    }
}

/// Writes a decoded chunk.
fn write_chunk<T: Word>(
    chunk: &Chunk,
    tensors: &[Tensor],
    target: &Target<'_>,
    scratch: &Scratch<T>,
) -> Result<()> {
    let tensor = chunk.tensor(tensors);
    let block = chunk.tile_box(tensors)?.block(tensor.width);
    let order = tensor.order();
    target.update::<T>(&block, &scratch.positions, |i, old| {
        scratch.values.resolve(i, old, order)
    });
    Ok(())
}

/// Checks one chunk and applies it in place; false where the tile had the result already.
///
/// # Errors
/// As for a plan; the tile is then as before.
pub fn apply_chunk(chunk: &Chunk, tensors: &[Tensor], target: &mut Target<'_>) -> Result<bool> {
    let tensor = chunk.tensor(tensors);
    check_matrix(tensor, &target.as_matrix())?;
    with_word!(tensor.width, T => {
        let mut scratch = Scratch::<T>::default();
        let check = check_chunk(chunk, tensors, &target.as_matrix(), &mut scratch)?;
        if check.apply {
            write_chunk(chunk, tensors, target, &scratch)?;
        }
        Ok(check.apply)
    })
}

/// Positions of a chunk as element numbers of its whole tensor, ascending within the tile.
pub fn flat_positions(chunk: &Chunk, tensors: &[Tensor]) -> Result<Vec<i64>> {
    let tensor = chunk.tensor(tensors);
    let place = chunk.tile_box(tensors)?;
    with_word!(tensor.width, T => {
        let mut scratch = Scratch::<T>::default();
        chunk.decode(tensors, &mut scratch)?;
        Ok(scratch
            .positions
            .iter()
            .map(|&p| {
                let (row, col) = (u64::from(p) / place.cols, u64::from(p) % place.cols);
                ((place.row + row) * tensor.cols + place.col + col) as i64
            })
            .collect())
    })
}

/// The states that a plan was proven from and to, over the delta's tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Sum of the checked tiles and start values now.
    pub base_state: Digest,
    /// The same after the delta.
    pub result_state: Digest,
}

/// What a delta does to a target: checked in full, nothing written.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Chunks to write, each with its record's checksum.
    writes: Vec<(usize, u32)>,
    /// Chunks whose tile has the result already.
    pub skipped: u64,
    /// Elements that will be written.
    pub changed: u64,
    /// States before and after, where all tiles were checked.
    pub proof: Option<Proof>,
}

/// What was found, with the chunk's changes and checksum.
type Checked = (TileCheck, Option<(u32, u32)>);

/// A tile to check: tensor, tile, and the chunk that changes it, if any.
type Task = (u32, u32, Option<usize>);

/// Every tile of every tensor, or only those with chunks; made one at a time, since a tensor may
/// have very many tiles.
fn tasks<R: ReadAt>(delta: &Delta<R>, full: bool) -> Box<dyn Iterator<Item = Task> + '_> {
    let places = &delta.index.chunks;
    if !full {
        return Box::new(
            places
                .iter()
                .enumerate()
                .map(|(i, c)| (c.tensor, c.tile, Some(i))),
        );
    }
    let tensors = &delta.header.tensors;
    let mut first = vec![None; tensors.len()];
    for (i, c) in places.iter().enumerate() {
        first[c.tensor as usize].get_or_insert(i);
    }
    Box::new(
        first
            .into_iter()
            .enumerate()
            .flat_map(move |(t, mut next)| {
                (0..tensors[t].tiles()).map(move |tile| {
                    let here =
                        |i: &usize| places[*i].tensor as usize == t && places[*i].tile == tile;
                    let chunk = next.filter(here);
                    if let Some(i) = chunk {
                        next = (i + 1 < places.len()).then_some(i + 1);
                    }
                    (t as u32, tile, chunk)
                })
            }),
    )
}

/// Checks all of a delta against a target, one matrix a table entry, without writing.
///
/// With `full`, every tile is digested, and the state after the delta is proven to be the one that
/// the index names, tensor by tensor. `progress` gets dense bytes done.
///
/// # Errors
/// `Corrupt` for bytes that fail a check, `WrongBase` for a target that holds something else.
pub fn plan<R: ReadAt>(
    delta: &Delta<R>,
    target: &[Matrix<'_>],
    full: bool,
    pool: &rayon::ThreadPool,
    mut progress: impl FnMut(u64) -> Result<()>,
) -> Result<Plan> {
    let tensors = &delta.header.tensors;
    if target.len() != tensors.len() {
        let message = format!("{} tensors for a delta of {}", target.len(), tensors.len());
        return Err(Error::new(Kind::Layout, message));
    }
    for (tensor, matrix) in tensors.iter().zip(target) {
        check_matrix(tensor, matrix)?;
    }
    let mut tasks = tasks(delta, full).peekable();
    let window = TILES_PER_THREAD * pool.current_num_threads();
    let mut plan = Plan {
        writes: Vec::new(),
        skipped: 0,
        changed: 0,
        proof: None,
    };
    let mut before: Vec<Digest> = tensors.iter().map(Tensor::start).collect();
    let mut after = before.clone();
    let mut counted = 0u64;
    while tasks.peek().is_some() {
        let batch: Vec<Task> = tasks.by_ref().take(window).collect();
        let checks: Vec<Result<Checked>> = pool.install(|| {
            batch
                .par_iter()
                .map(|task| check_task(delta, target, *task))
                .collect()
        });
        let mut dense = 0;
        for (&(t, tile, chunk), check) in batch.iter().zip(checks) {
            let (check, record) = check?;
            let t = t as usize;
            before[t] = before[t].plus(check.now);
            after[t] = after[t].plus(check.now).plus(check.change);
            dense += tensors[t]
                .tile_box(tile)
                .map_or(0, |b| u64::from(b.elements()))
                * u64::from(tensors[t].width);
            if let (Some(i), Some((changes, crc))) = (chunk, record) {
                counted += u64::from(changes);
                if check.apply {
                    plan.writes.push((i, crc));
                    plan.changed += u64::from(changes);
                } else {
                    plan.skipped += 1;
                }
            }
        }
        progress(dense)?;
    }
    if counted != delta.index.changed {
        let message = "the index does not count the chunks' changes [F19]";
        return Err(Error::corrupt(message).at(delta.index_at));
    }
    if full {
        for ((tensor, claimed), found) in tensors.iter().zip(&delta.index.digests).zip(&after) {
            if claimed.is_some_and(|claimed| claimed != *found) {
                let message =
                    "would not end with the delta's result: elements that the delta does \
                               not touch are not those of the base; apply it to the right version, \
                               or fetch an anchor";
                return Err(Error::new(Kind::WrongBase, message).of(&tensor.name));
            }
        }
        let sum = |all: &[Digest]| all.iter().fold(Digest::default(), |a, d| a.plus(*d));
        plan.proof = Some(Proof {
            base_state: sum(&before),
            result_state: sum(&after),
        });
    }
    Ok(plan)
}

/// Digest of a tile, and what its chunk does to it.
fn check_task<R: ReadAt>(
    delta: &Delta<R>,
    target: &[Matrix<'_>],
    (t, tile, chunk): Task,
) -> Result<Checked> {
    let tensors = &delta.header.tensors;
    let tensor = &tensors[t as usize];
    let matrix = &target[t as usize];
    match chunk {
        Some(i) => {
            let chunk = delta.chunk(i)?;
            let check = with_word!(tensor.width, T => {
                check_chunk::<T>(&chunk, tensors, matrix, &mut Scratch::default())
            })?;
            Ok((check, Some((chunk.header.changes, chunk.checksum()))))
        }
        None => {
            let now = tensor.tile_box(tile).map_or(Digest::default(), |place| {
                digest::block(tensor.key(), matrix, &place.block(tensor.width))
            });
            Ok((
                TileCheck {
                    apply: false,
                    now,
                    change: Digest::default(),
                },
                None,
            ))
        }
    }
}

/// Carries out a plan and returns how many elements were written. Costs O(changes).
///
/// # Errors
/// `Torn` where the delta can no longer be read as it was checked. Tiles written by then have the
/// result, the others the base; a new plan skips the former.
pub fn commit<R: ReadAt>(
    delta: &Delta<R>,
    plan: &Plan,
    target: &[Target<'_>],
    pool: &rayon::ThreadPool,
) -> Result<u64> {
    let tensors = &delta.header.tensors;
    let written = AtomicU64::new(0);
    let begun = AtomicBool::new(false);
    let result: Result<()> = pool.install(|| {
        plan.writes.par_iter().try_for_each(|&(i, crc)| {
            let chunk = delta.chunk(i)?;
            if chunk.checksum() != crc {
                return Err(Error::corrupt("the delta changed after it was checked")
                    .at(chunk.offset)
                    .of(&chunk.tensor(tensors).name));
            }
            with_word!(chunk.tensor(tensors).width, T => {
                let mut scratch = Scratch::<T>::default();
                chunk.decode(tensors, &mut scratch)?;
                begun.store(true, Ordering::Relaxed);
                write_chunk(&chunk, tensors, &target[chunk.header.tensor as usize], &scratch)?;
            });
            written.fetch_add(chunk.header.changes.into(), Ordering::Relaxed);
            Ok(())
        })
    });
    match result {
        Ok(()) => Ok(written.into_inner()),
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
