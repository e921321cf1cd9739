//! Deltas that follow one another, folded into one.
//!
//! Tile by tile: with the state that the first delta starts from, its chunks are applied to a copy of
//! the tile, and what became of it is encoded anew. Without it, changes at known positions are merged;
//! ranks within exponent classes say nothing without the base.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use deltawire_kernels::ordered::{advance, Order};
use deltawire_kernels::{Digest, Matrix, Target, Word};
use rayon::prelude::*;

use crate::apply::apply_chunk;
use crate::chunk::{Places, Scratch};
use crate::encode::{self, Profile, TileChanges};
use crate::error::{Error, Kind, Result};
use crate::header::Header;
use crate::limits::Limits;
use crate::permits::Permits;
use crate::reader::{Delta, ReadAt};
use crate::scratch::Pool;
use crate::shard::check_matrix;
use crate::state::tensor_digests;
use crate::table::Tensor;
use crate::tile::{self, EncodedTile, Work};
use crate::with_word;
use crate::writer::{Pair, Summary, Writer};

/// Tiles that each thread folds before their records are written in order.
const TILES_PER_THREAD: usize = 16;
/// Dense bytes of the tiles that are folded before their records are written.
const WINDOW_BYTES: u64 = 32 << 20;

/// A tile and the chunks that change it: which delta's, and which chunk there.
type Task = ((u32, u32), Vec<(usize, usize)>);

/// Writes the delta that does what `deltas` do one after the other.
///
/// `base` is the state that the first one starts from, one matrix a table entry. Without it the deltas
/// must have positions of their own (profiles `fast` and `overwrite`), and the result has the steps or
/// elements that these have. The header has the last one's version, run and metadata. `progress` gets
/// dense bytes done, of the tiles that change.
///
/// With a base, the changes of all tiles must add up from the state that the first delta names to that
/// which the last one names.
///
/// # Errors
/// `Layout` for deltas that do not follow one another or differ in their tables; `WrongBase` where a base
/// is needed or is not the right one; `Corrupt` for bytes that fail a check; `Sink`.
pub fn compose<R: ReadAt, S: Write>(
    deltas: &[&Delta<R>],
    base: Option<&[Matrix<'_>]>,
    profile: Profile,
    sink: S,
    pool: &Arc<rayon::ThreadPool>,
    mut progress: impl FnMut(u64) -> Result<()>,
) -> Result<(S, Summary)> {
    let (Some(first), Some(last)) = (deltas.first(), deltas.last()) else {
        return Err(Error::new(Kind::Layout, "no deltas to compose"));
    };
    let numbers = check_chain(deltas)?;
    let tensors = &first.header.tensors;
    if let Some(base) = base {
        if base.len() != tensors.len() {
            let message = format!("{} tensors for deltas of {}", base.len(), tensors.len());
            return Err(Error::new(Kind::Layout, message));
        }
        for (tensor, matrix) in tensors.iter().zip(base) {
            check_matrix(tensor, matrix)?;
        }
    }
    let header = Header {
        base_version: first.header.base_version,
        base_state: first.index.base_state,
        profile: profile.name().into(),
        tensors: tensors.clone(),
        ..last.header.clone()
    };
    let mut writer = Writer::new(sink, header, profile, Limits::default(), Arc::clone(pool))?;
    let (permits, scratch) = (Permits::new(), Pool::default());
    let work = Work {
        profile,
        permits: &permits,
        scratch: &scratch,
    };
    let folder = Folder {
        deltas,
        tensors,
        base,
        work: &work,
    };
    let mut change = Digest::default();
    let mut tasks = tasks(deltas, &numbers).into_iter().peekable();
    let window = TILES_PER_THREAD * pool.current_num_threads();
    while tasks.peek().is_some() {
        let mut batch: Vec<Task> = Vec::with_capacity(window);
        let mut dense = 0;
        while batch.len() < window && dense < WINDOW_BYTES {
            let Some(task) = tasks.next() else { break };
            let tensor = &tensors[task.0 .0 as usize];
            let place = tensor.tile_box(task.0 .1);
            dense += place.map_or(0, |p| u64::from(p.elements()) * u64::from(tensor.width));
            batch.push(task);
        }
        let folded: Vec<Result<EncodedTile>> =
            pool.install(|| batch.par_iter().map(|task| folder.fold(task)).collect());
        for tile in folded {
            let tile = tile?;
            change = change.plus(tile.result.minus(tile.base));
            writer.write_tile(tile)?;
        }
        progress(dense)?;
    }
    let states = (first.index.base_state, last.index.result_state);
    if let (Some(base), (Some(from), Some(to))) = (base, states) {
        if from.plus(change) != to {
            // Tiles that hold what a later delta leads to were taken for done.
            let found = tensor_digests(tensors, base, pool, |_| Ok(()))?;
            let found = found.into_iter().fold(Digest::default(), Digest::plus);
            return Err(if found == from {
                Error::corrupt(format!(
                    "the changes up to version {} do not add up to the state that it names [F20]",
                    last.header.version
                ))
            } else {
                let message = "the base is not the state that the first delta starts from";
                Error::new(Kind::WrongBase, message)
            });
        }
    }
    let mut digests = vec![None; tensors.len()];
    for (own, &number) in numbers.last().into_iter().flatten().enumerate() {
        digests[number as usize] = digest_after(last, own);
    }
    writer.finish_as(states, digests)
}

/// The deltas must follow one another, and be of the same tensors in the same tiles. Returns for each
/// the number that each of its tensors has in the first one: the order of the tables may differ, as where
/// one writer made the one and several the other.
fn check_chain<R: ReadAt>(deltas: &[&Delta<R>]) -> Result<Vec<Vec<u32>>> {
    for pair in deltas.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        let version = after.header.version;
        let wrong = |message: String| Err(Error::new(Kind::Layout, message));
        if after
            .header
            .base_version
            .is_some_and(|base| base != before.header.version)
        {
            return wrong(format!(
                "the delta of version {version} does not start from version {}",
                before.header.version
            ));
        }
        let states = (before.index.result_state, after.index.base_state);
        if let (Some(a), Some(b)) = states {
            if a != b {
                return wrong(format!(
                    "the delta of version {version} starts from another state than the one before \
                     leads to"
                ));
            }
        }
    }
    let Some(first) = deltas.first().map(|delta| &delta.header.tensors) else {
        return Ok(vec![]);
    };
    let known: BTreeMap<&str, u32> = first.iter().map(|t| &*t.name).zip(0..).collect();
    let number = |tensor: &Tensor| {
        let number = known.get(&*tensor.name).copied();
        number.filter(|&number| first[number as usize] == *tensor)
    };
    let numbers = deltas.iter().map(|delta| {
        let own = &delta.header.tensors;
        // Names do not repeat, so as many that are known are all.
        let numbers: Option<Vec<u32>> = own.iter().map(number).collect();
        numbers
            .filter(|numbers| numbers.len() == first.len())
            .ok_or_else(|| {
                let message = format!(
                    "the delta of version {} has other tensors or tiles than the one before",
                    delta.header.version
                );
                Error::new(Kind::Layout, message)
            })
    });
    numbers.collect()
}

/// All tiles that change, in the order of the table.
fn tasks<R: ReadAt>(
    deltas: &[&Delta<R>],
    numbers: &[Vec<u32>],
) -> BTreeMap<(u32, u32), Vec<(usize, usize)>> {
    let mut tasks: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (d, (delta, numbers)) in deltas.iter().zip(numbers).enumerate() {
        for (i, place) in delta.index.chunks.iter().enumerate() {
            tasks
                .entry((numbers[place.tensor as usize], place.tile))
                .or_default()
                .push((d, i));
        }
    }
    tasks
}

/// Low half of lane 0 of a tensor's digest after a delta, from its index, or from its chunks where all
/// tiles have one.
fn digest_after<R: ReadAt>(delta: &Delta<R>, t: usize) -> Option<u32> {
    if let Some(named) = delta.index.digests[t] {
        return Some(named);
    }
    let tensor = &delta.header.tensors[t];
    let chunks = delta.index.chunks.iter().enumerate();
    let own: Vec<usize> = chunks
        .filter(|(_, place)| place.tensor as usize == t)
        .map(|(i, _)| i)
        .collect();
    if own.len() != tensor.tiles() as usize {
        return None;
    }
    own.into_iter()
        .try_fold(tensor.start(), |sum, i| {
            Some(sum.plus(Digest::new(delta.chunk(i).ok()?.header.result?, 0)))
        })
        .map(|sum| sum.lanes[0] as u32)
}

/// What folding the tiles has in common.
struct Folder<'a, R> {
    deltas: &'a [&'a Delta<R>],
    tensors: &'a [Tensor],
    base: Option<&'a [Matrix<'a>]>,
    work: &'a Work<'a>,
}

impl<R: ReadAt> Folder<'_, R> {
    fn fold(&self, ((t, tile), chunks): &Task) -> Result<EncodedTile> {
        let width = self.tensors[*t as usize].width;
        with_word!(width, T => match self.base {
            Some(base) => self.apply::<T>(*t, *tile, chunks, &base[*t as usize]),
            None => self.merge::<T>(*t, *tile, chunks),
        })
    }

    /// Applies the chunks to a copy of the tile.
    fn apply<T: Word>(
        &self,
        t: u32,
        tile: u32,
        chunks: &[(usize, usize)],
        base: &Matrix<'_>,
    ) -> Result<EncodedTile> {
        let tensor = &self.tensors[t as usize];
        let Some(place) = tensor.tile_box(tile) else {
            return Ok(EncodedTile::new(t, tile));
        };
        let block = place.block(tensor.width);
        let mut memory = Vec::with_capacity(block.len());
        (0..block.rows).for_each(|row| memory.extend_from_slice(base.row(&block, row)));
        let lost = || Error::corrupt("the tile lies outside its tensor").of(&tensor.name);
        let (rows, row_bytes) = (base.rows(), base.row_bytes());
        for &(d, i) in chunks {
            let chunk = self.deltas[d].chunk(i)?;
            let target = Target::new(&mut memory, block.rows, block.bytes)
                .and_then(|target| target.within(rows, row_bytes, block.row, block.byte));
            apply_chunk(
                &chunk,
                &self.deltas[d].header.tensors,
                target.ok_or_else(lost)?,
            )
            .map_err(|e| in_version(e, self.deltas[d].header.version))?;
        }
        let new = Matrix::new(&memory, block.rows, block.bytes)
            .and_then(|matrix| matrix.within(rows, row_bytes, block.row, block.byte));
        let pair = Pair {
            tensor: t,
            base: *base,
            new: new.ok_or_else(lost)?,
        };
        Ok(tile::compare::<T>(self.work, &pair, tensor, tile))
    }

    /// Merges the chunks' changes, one after the other.
    fn merge<T: Word>(&self, t: u32, tile: u32, chunks: &[(usize, usize)]) -> Result<EncodedTile> {
        let tensor = &self.tensors[t as usize];
        let mut merged = Merged::<T>::default();
        let mut scratch = Scratch::<T>::default();
        let mut result = None;
        for &(d, i) in chunks {
            let chunk = self.deltas[d].chunk(i)?;
            chunk.decode(&self.deltas[d].header.tensors, &mut scratch)?;
            let Places::Listed(positions, values) = scratch.places(tensor)? else {
                let message =
                    "positions are ranks within exponent classes; give the state that the \
                               first delta starts from";
                let error = Error::new(Kind::WrongBase, message);
                return Err(error.at(chunk.offset).of(&tensor.name));
            };
            let changes = positions.iter().zip(values.words());
            let steps = values.are_steps();
            merged.add(
                changes.map(|(&at, &word)| {
                    (
                        at,
                        if steps {
                            Change::Step(word)
                        } else {
                            Change::To(word)
                        },
                    )
                }),
                tensor.order(),
            );
            result = chunk.header.result;
        }
        let mut out = EncodedTile::new(t, tile);
        let (Some(place), false) = (tensor.tile_box(tile), merged.changes.is_empty()) else {
            return Ok(out);
        };
        let positions: Vec<u32> = merged.changes.iter().map(|c| c.0).collect();
        let steps = merged.all(|change| match change {
            Change::Step(step) => Some(step),
            Change::To(_) => None,
        });
        let absolute = merged.all(|change| match change {
            Change::To(word) => Some(word),
            Change::Step(_) => None,
        });
        let none = vec![T::default(); positions.len()];
        let (old, new, order) = match (&steps, &absolute) {
            // The step from zero to a pattern, as integers, is that pattern.
            (Some(steps), _) => (Some(&none[..]), &steps[..], Order::Integer),
            (None, Some(words)) => (None, &words[..], tensor.order()),
            (None, None) => {
                let message = format!(
                    "tile {tile} has steps in one delta and new elements in another; give the state \
                     that the first delta starts from"
                );
                return Err(Error::new(Kind::WrongBase, message).of(&tensor.name));
            }
        };
        out.changed = positions.len() as u64;
        let changes = TileChanges {
            tensor: t,
            tile,
            elements: place.elements(),
            order,
            positions: &positions,
            old,
            new,
            result,
        };
        out.record = encode::known(self.work.profile, &changes);
        Ok(out)
    }
}

fn in_version(error: Error, version: u64) -> Error {
    Error {
        message: format!("{} (in the delta of version {version})", error.message),
        ..error
    }
}

/// What happens to an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change<T> {
    /// A step in ordered-integer space.
    Step(T),
    /// It becomes this.
    To(T),
}

/// Changes of a tile by position, ascending.
#[derive(Debug, Default)]
struct Merged<T> {
    changes: Vec<(u32, Change<T>)>,
}

impl<T: Word> Merged<T> {
    /// Adds later changes, in ascending order.
    fn add(&mut self, later: impl Iterator<Item = (u32, Change<T>)>, order: Order) {
        let mut out = Vec::with_capacity(self.changes.len());
        let mut earlier = std::mem::take(&mut self.changes).into_iter().peekable();
        for (at, change) in later {
            while let Some(before) = earlier.next_if(|c| c.0 < at) {
                out.push(before);
            }
            let before = earlier.next_if(|c| c.0 == at).map(|c| c.1);
            let both = match (before, change) {
                (Some(Change::Step(a)), Change::Step(b)) => Change::Step(a.wrapping_add(b)),
                (Some(Change::To(word)), Change::Step(step)) => {
                    Change::To(advance(word, step, order))
                }
                (_, change) => change,
            };
            if both != Change::Step(T::default()) {
                out.push((at, both));
            }
        }
        out.extend(earlier);
        self.changes = out;
    }

    /// What `pick` picks of each, if it does of all.
    fn all(&self, pick: impl Fn(Change<T>) -> Option<T>) -> Option<Vec<T>> {
        self.changes.iter().map(|c| pick(c.1)).collect()
    }
}
