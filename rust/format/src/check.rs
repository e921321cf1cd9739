//! Checking a chunk against the tile that it would change.

use deltawire_kernels::ordered::advance_all;
use deltawire_kernels::scan::{self, Elements};
use deltawire_kernels::{digest, Block, Digest, Matrix, Word};

use crate::chunk::{Chunk, Places, Scratch};
use crate::codec::Values;
use crate::error::{Error, Kind, Result};
use crate::scratch::{Reusable, KEPT_BYTES};
use crate::shard::check_matrix;
use crate::table::Tensor;
use crate::with_word;

/// Changes that are looked at together.
const BATCH: usize = 32;

/// What a chunk finds in its tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileCheck {
    /// False where the tile has the result already.
    pub(crate) apply: bool,
    /// The tile's digest now, and what the chunk adds to it.
    pub(crate) now: Digest,
    pub(crate) change: Digest,
}

/// Memory that checking a chunk reuses: what it decodes to, and the elements at its positions.
#[derive(Default)]
pub(crate) struct Memory<W> {
    pub(crate) scratch: Scratch<W>,
    /// What the elements become, in the order of the positions.
    pub(crate) new: Vec<W>,
    /// What they were.
    pub(crate) old: Vec<W>,
    part: Vec<u32>,
}

impl<W: Word> Reusable for Memory<W> {
    fn keep(&self) -> bool {
        self.scratch.held() + W::WIDTH * (self.new.capacity() + self.old.capacity()) < KEPT_BYTES
    }
}

/// Checks one chunk against a tile of `matrix`, decoding it into `memory`.
///
/// A tile that is `trusted` to hold the base is not digested: what the chunk changes is for the caller to
/// prove.
pub(crate) fn check_chunk<T: Word>(
    chunk: &Chunk,
    tensors: &[Tensor],
    matrix: &Matrix<'_>,
    trusted: bool,
    memory: &mut Memory<T>,
) -> Result<TileCheck> {
    chunk.decode(tensors, &mut memory.scratch)?;
    check_decoded(chunk, tensors, matrix, trusted, memory)
}

/// Checks a chunk that is decoded in `memory` already.
fn check_decoded<T: Word>(
    chunk: &Chunk,
    tensors: &[Tensor],
    matrix: &Matrix<'_>,
    trusted: bool,
    memory: &mut Memory<T>,
) -> Result<TileCheck> {
    let tensor = chunk.tensor(tensors);
    let block = chunk.tile_box(tensors)?.block(tensor.width);
    let place = |e: Error| e.at(chunk.offset).of(&tensor.name);
    if !matrix.held().contains(&block) {
        let message = format!("the shard does not hold tile {}", chunk.header.tile);
        return Err(place(Error::new(Kind::Layout, message)));
    }
    let neither = || {
        let message = format!(
            "tile {} holds neither the base that the delta starts from nor its result; apply it \
             to the right version, or fetch an anchor",
            chunk.header.tile
        );
        place(Error::new(Kind::WrongBase, message))
    };
    let Seen {
        now,
        change,
        located,
    } = look(tensor, matrix, &block, !trusted, memory).map_err(place)?;
    let (base, result) = (chunk.header.base, chunk.header.result);
    if trusted {
        located.map_err(|_| neither())?;
        return Ok(TileCheck {
            apply: true,
            now,
            change,
        });
    }
    if result == Some(now.lanes[0]) {
        return Ok(TileCheck {
            apply: false,
            now,
            change: Digest::default(),
        });
    }
    if base.is_some_and(|base| base != now.lanes[0]) {
        return Err(neither());
    }
    located.map_err(|e| match base {
        Some(_) => place(e),
        None => neither(),
    })?;
    if result.is_some_and(|result| now.plus(change).lanes[0] != result) {
        return Err(match base {
            // Its base was there, so the chunk itself is wrong.
            Some(_) => place(Error::corrupt(
                "the chunk does not lead to its result digest [F13]",
            )),
            None => neither(),
        });
    }
    Ok(TileCheck {
        apply: true,
        now,
        change,
    })
}

/// What the changes of a chunk find in a tile.
struct Seen {
    /// The tile's digest; zero where it was not asked for.
    now: Digest,
    /// What the changes add to it.
    change: Digest,
    /// Whether every rank was found.
    located: Result<()>,
}

/// Finds the decoded changes' elements in a tile: what they are and become, left in `memory`.
fn look<T: Word>(
    tensor: &Tensor,
    matrix: &Matrix<'_>,
    block: &Block,
    digested: bool,
    memory: &mut Memory<T>,
) -> Result<Seen> {
    let Memory {
        scratch,
        new,
        old,
        part: places,
    } = memory;
    let (key, order) = (tensor.key(), tensor.order());
    let cols = (block.bytes / T::WIDTH) as u32;
    let (mut now, mut change) = (Digest::default(), Digest::default());
    new.clear();
    old.clear();
    let mut listed = scratch.places(tensor)?;
    if let (Places::Listed(positions, values), false) = (&listed, digested) {
        return Ok(Seen {
            now,
            change: look_here_and_there(tensor, (matrix, block), (positions, values), old, new),
            located: Ok(()),
        });
    }
    // A few rows at a time, so that all but the digest finds their memory in the cache.
    for part in block.parts() {
        if digested {
            now = now.plus(digest::block(key, matrix, &part));
        }
        let begun = new.len();
        let first = (part.row - block.row) as u32 * cols;
        places.clear();
        match &mut listed {
            Places::Ranks(locator) => {
                locator.next(matrix, &part);
                let (positions, steps) = locator.since(begun);
                places.extend(positions.iter().map(|p| p - first));
                scan::gather(matrix, &part, places, old);
                advance_all(&old[begun..], steps, order, new);
            }
            Places::Listed(positions, values) => {
                let end = first + part.rows as u32 * cols;
                let left = &positions[begun..];
                let count = left.partition_point(|&p| p < end);
                places.extend(left[..count].iter().map(|p| p - first));
                scan::gather(matrix, &part, places, old);
                values.resolve_all(begun, &old[begun..], order, new);
            }
        }
        if !places.is_empty() {
            let (old, new) = (&old[begun..], &new[begun..]);
            change = change.plus(digest::change(key, matrix, &part, places, old, new));
        }
    }
    let located = match listed {
        Places::Ranks(locator) => locator.check(),
        Places::Listed(..) => Ok(()),
    };
    Ok(Seen {
        now,
        change,
        located,
    })
}

/// [`look`] at nothing but what changes; the sum of the changes.
fn look_here_and_there<T: Word>(
    tensor: &Tensor,
    (matrix, block): (&Matrix<'_>, &Block),
    (positions, values): (&[u32], &Values<T>),
    old: &mut Vec<T>,
    new: &mut Vec<T>,
) -> Digest {
    new.reserve(positions.len());
    old.reserve(positions.len());
    let elements = Elements::of::<T>(matrix, block);
    let mut changes = digest::Changes::<T>::of(tensor.key(), matrix, block);
    for &position in positions.iter().take(BATCH) {
        elements.ask::<T>(position);
    }
    // Summing a batch hides the wait for the next one.
    for batch in positions.chunks(BATCH) {
        let begun = old.len();
        elements.read_all(batch, old);
        values.resolve_all(begun, &old[begun..], tensor.order(), new);
        let next = positions.get(begun + BATCH..).unwrap_or_default();
        changes.add(batch, &old[begun..], &new[begun..], |i| {
            if let Some(&position) = next.get(i) {
                elements.ask::<T>(position);
            }
        });
    }
    changes.digest()
}

/// Positions of a chunk as element numbers of its whole tensor, ascending within the tile.
///
/// Ranks are located in `base`, the tensor before the chunk.
///
/// # Errors
/// `WrongBase` where a base is needed and not given, or is not the one that the chunk changes.
pub fn flat_positions(
    chunk: &Chunk,
    tensors: &[Tensor],
    base: Option<&Matrix<'_>>,
) -> Result<Vec<i64>> {
    let tensor = chunk.tensor(tensors);
    let place = chunk.tile_box(tensors)?;
    with_word!(tensor.width, T => {
        let mut memory = Memory::<T>::default();
        chunk.decode(tensors, &mut memory.scratch)?;
        if memory.scratch.is_by_class() {
            let wrong = |message: &str| {
                Error::new(Kind::WrongBase, message).at(chunk.offset).of(&tensor.name)
            };
            let base = base.ok_or_else(|| {
                wrong("positions are ranks within exponent classes; give the base to locate them")
            })?;
            check_matrix(tensor, base)?;
            if !check_decoded(chunk, tensors, base, false, &mut memory)?.apply {
                return Err(wrong("the tensor has the result already; positions need the base"));
            }
            memory.scratch.positions.sort_unstable();
        }
        Ok(memory
            .scratch
            .positions
            .iter()
            .map(|&p| {
                let (row, col) = (u64::from(p) / place.cols, u64::from(p) % place.cols);
                ((place.row + row) * tensor.cols + place.col + col) as i64
            })
            .collect())
    })
}
