//! What a delta would do to a target, proven before anything is written.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use deltawire_kernels::{digest, Digest, Matrix, Word};
use rayon::prelude::*;

use crate::check::{check_chunk, Memory, TileCheck};
use crate::chunk::Chunk;
use crate::error::{Error, Kind, Result};
use crate::index::Index;
use crate::permits::Permits;
use crate::prepared::Prepared;
use crate::reader::{Delta, ReadAt};
use crate::scratch::Pool;
use crate::shard::{check_matrix, check_target, is_whole, start_of};
use crate::tasks::{followers, tasks, Task};
use crate::with_word;

pub use crate::commit::{apply_chunk, commit};

/// Tiles that each thread checks between two calls of `progress`.
const TILES_PER_THREAD: usize = 16;

/// Bytes of located changes that a plan usually keeps for the commit: about 33 million changes of
/// two-byte elements.
pub const KEEP: usize = 128 << 20;

/// The states that a plan was proven from and to, over the delta's tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// State now; `None` where it is neither of those that the delta names.
    pub base_state: Option<Digest>,
    /// State after the delta.
    pub result_state: Digest,
}

/// A chunk to write: its number, its record's checksum, and its changes if they were kept.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) chunk: usize,
    pub(crate) crc: u32,
    pub(crate) prepared: Option<Prepared>,
}

/// What a delta does to a target: checked in full, nothing written.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) writes: Vec<Write>,
    /// Chunks whose tile has the result already.
    pub skipped: u64,
    /// Elements that will be written.
    pub changed: u64,
    /// States before and after, where all tiles were checked and the target is not a shard.
    pub proof: Option<Proof>,
    /// Sums of the digests before and after of what the target holds, where all of that was checked. Those
    /// of all shards of a state add up to it.
    pub sums: Option<[Digest; 2]>,
}

/// A chunk that was checked.
struct Record {
    changes: u32,
    crc: u32,
    /// What the commit writes.
    prepared: Option<Prepared>,
    /// What it changes under the keys of the tensors that share the memory.
    shared: Vec<Digest>,
}

/// What was found in a tile, and its chunk.
type Checked = (TileCheck, Option<Record>);

/// What a delta is planned against.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// One matrix a table entry.
    pub target: &'a [Matrix<'a>],
    /// `aliases[t]` names an earlier tensor whose memory tensor `t` is (tied weights). The delta must
    /// change both alike, and only the first is written.
    pub aliases: &'a [Option<usize>],
    /// Tiles, by tensor and number, that will have been overwritten with these before the plan is carried
    /// out: each a shard that holds the tile.
    pub replaced: &'a Replaced<'a>,
    /// The caller vouches that the target holds the base. Where the delta names both its states, and the
    /// target is whole, what changes is then proven to change the state by what the two differ by, and
    /// nothing is digested. Where that fails, all is checked as if nobody vouched.
    pub trusted: bool,
}

/// Contents of tiles, by tensor and number.
pub type Replaced<'a> = BTreeMap<(u32, u32), Matrix<'a>>;

/// As [`plan_with`], with nothing replaced.
///
/// # Errors
/// As [`plan_with`].
pub fn plan<R: ReadAt>(
    delta: &Delta<R>,
    target: &[Matrix<'_>],
    aliases: &[Option<usize>],
    full: bool,
    keep: usize,
    pool: &rayon::ThreadPool,
    progress: impl FnMut(u64) -> Result<()>,
) -> Result<Plan> {
    let held = Held {
        target,
        aliases,
        replaced: &Replaced::new(),
        trusted: false,
    };
    plan_with(delta, held, full, keep, pool, progress)
}

/// Checks all of a delta against a target without writing.
///
/// Up to `keep` bytes of located changes are kept for the commit ([`KEEP`] as a rule); chunks beyond are
/// read and located again.
///
/// With `full`, every tile is digested, and the state after the delta is proven to be the one that
/// the index names, tensor by tensor. `progress` gets dense bytes done.
///
/// Matrices may be shards. Chunks of tiles that they do not hold are not read; changed tiles are
/// proven one by one, and the rest by whoever adds up the shards' sums.
///
/// # Errors
/// `Corrupt` for bytes that fail a check, `WrongBase` for a target that holds something else, `Layout`
/// for one that does not fit.
pub fn plan_with<R: ReadAt>(
    delta: &Delta<R>,
    held: Held<'_>,
    full: bool,
    keep: usize,
    pool: &rayon::ThreadPool,
    mut progress: impl FnMut(u64) -> Result<()>,
) -> Result<Plan> {
    if let Some(states) = vouched(delta, &held) {
        match examine(delta, held, false, Some(states), keep, pool, &mut progress) {
            // It is not what the caller took it for. All of it tells what it is.
            Err(error) if matches!(error.kind, Kind::WrongBase | Kind::Corrupt) => {
                return examine(delta, held, true, None, keep, pool, &mut progress);
            }
            found => return found,
        }
    }
    examine(delta, held, full, None, keep, pool, &mut progress)
}

/// The states that what changes has to lead from and to, where the base is vouched for and that is enough.
fn vouched<R>(delta: &Delta<R>, held: &Held<'_>) -> Option<[Digest; 2]> {
    let whole = held.target.iter().all(is_whole) && held.replaced.is_empty();
    let (base, result) = (delta.index.base_state?, delta.index.result_state?);
    // Numbers that are not reduced are no state; the full proof refuses them.
    let sound = base.plus(result.minus(base)) == result;
    (held.trusted && whole && sound).then_some([base, result])
}

/// [`plan_with`]; with `vouched` states tiles are taken to hold the base.
fn examine<R: ReadAt>(
    delta: &Delta<R>,
    held: Held<'_>,
    full: bool,
    vouched: Option<[Digest; 2]>,
    keep: usize,
    pool: &rayon::ThreadPool,
    progress: &mut impl FnMut(u64) -> Result<()>,
) -> Result<Plan> {
    let tensors = &delta.header.tensors;
    let Held {
        target,
        aliases,
        replaced,
        trusted: _,
    } = held;
    check_target(tensors, target)?;
    if aliases.len() != tensors.len() {
        let message = format!("{} aliases for {} tensors", aliases.len(), tensors.len());
        return Err(Error::new(Kind::Layout, message));
    }
    for (&(t, tile), matrix) in replaced {
        let tensor = tensors
            .get(t as usize)
            .ok_or_else(|| Error::new(Kind::Layout, format!("a tile of tensor {t} is replaced")))?;
        check_matrix(tensor, matrix)?;
        if !tensor.holds(matrix, tile) {
            let message = format!("tile {tile} is replaced by a shard that does not hold it");
            return Err(Error::new(Kind::Layout, message).of(&tensor.name));
        }
    }
    let whole: Vec<bool> = target.iter().map(is_whole).collect();
    let all_whole = whole.iter().all(|&whole| whole);
    let mut tasks = tasks(delta, full)
        .filter(|&(t, tile, _)| tensors[t as usize].holds(&target[t as usize], tile))
        .peekable();
    let window = TILES_PER_THREAD * pool.current_num_threads();
    let mut plan = Plan {
        writes: Vec::new(),
        skipped: 0,
        changed: 0,
        proof: None,
        sums: None,
    };
    let starts = tensors.iter().zip(target);
    let mut before: Vec<Digest> = starts.map(|(t, matrix)| start_of(t, matrix)).collect();
    let mut after = before.clone();
    // What is changed through this name, and what the writes do to it through the first one.
    let mut own: Vec<Digest> = vec![Digest::default(); tensors.len()];
    let mut shared = own.clone();
    let checker = Checker {
        delta,
        target,
        replaced,
        followers: followers(aliases),
        permits: Permits::new(),
        pool: Pool::default(),
        keep: AtomicUsize::new(keep),
        trusted: vouched.is_some(),
    };
    let mut counted = 0u64;
    while tasks.peek().is_some() {
        let batch: Vec<Task> = tasks.by_ref().take(window).collect();
        let checks: Vec<Result<Checked>> =
            pool.install(|| batch.par_iter().map(|task| checker.check(*task)).collect());
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
            own[t] = own[t].plus(check.change);
            for (follower, change) in checker.followers[t]
                .iter()
                .zip(record.iter().flat_map(|r| &r.shared))
            {
                shared[*follower] = shared[*follower].plus(*change);
            }
            if let (Some(i), Some(record)) = (chunk, record) {
                counted += u64::from(record.changes);
                if check.apply && aliases[t].is_none() {
                    plan.writes.push(Write {
                        chunk: i,
                        crc: record.crc,
                        prepared: record.prepared,
                    });
                    plan.changed += u64::from(record.changes);
                } else if !check.apply {
                    plan.skipped += 1;
                }
            }
        }
        progress(dense)?;
    }
    if all_whole && counted != delta.index.changed {
        let message = "the index does not count the chunks' changes [F19]";
        return Err(Error::corrupt(message).at(delta.index_at));
    }
    for (t, alias) in aliases.iter().enumerate() {
        if let Some(first) = alias.filter(|_| own[t] != shared[t]) {
            let message = format!(
                "shares its memory with {:?}, but the delta changes the two differently; give them \
                 memory of their own",
                tensors[first].name
            );
            return Err(Error::new(Kind::WrongBase, message).of(&tensors[t].name));
        }
    }
    let sum = |all: &[Digest]| all.iter().fold(Digest::default(), |a, d| a.plus(*d));
    if let Some([base, result]) = vouched {
        if base.plus(sum(&own)) != result {
            let message = "the delta would not lead from its base state to its result";
            return Err(Error::new(Kind::WrongBase, message));
        }
        plan.sums = vouched;
        plan.proof = Some(Proof {
            base_state: Some(base),
            result_state: result,
        });
    }
    if full {
        for (t, tensor) in tensors.iter().enumerate().filter(|(t, _)| whole[*t]) {
            let claimed = delta.index.digests[t];
            if claimed.is_some_and(|claimed| claimed != after[t].lanes[0] as u32) {
                let message =
                    "would not end with the delta's result: elements that the delta does \
                               not touch are not those of the base; apply it to the right version, \
                               or fetch an anchor";
                return Err(Error::new(Kind::WrongBase, message).of(&tensor.name));
            }
        }
        let (now, then) = (sum(&before), sum(&after));
        plan.sums = Some([now, then]);
        if !all_whole {
            return Ok(plan);
        }
        let Index {
            base_state,
            result_state,
            ..
        } = &delta.index;
        plan.proof = Some(match result_state {
            None => Proof {
                base_state: Some(now),
                result_state: then,
            },
            Some(result) if *result == then => Proof {
                base_state: [*base_state, Some(*result)]
                    .into_iter()
                    .flatten()
                    .find(|named| *named == now),
                result_state: *result,
            },
            Some(_) => {
                let message =
                    "the tensors would not end with the delta's result: elements that it \
                               does not touch are not those of the base; apply it to the right \
                               version, or fetch an anchor";
                return Err(Error::new(Kind::WrongBase, message));
            }
        });
    }
    Ok(plan)
}

/// What checking the tiles of one delta has in common.
struct Checker<'a, R> {
    delta: &'a Delta<R>,
    target: &'a [Matrix<'a>],
    replaced: &'a Replaced<'a>,
    followers: Vec<Vec<usize>>,
    permits: Permits,
    pool: Pool,
    /// Bytes of changes that may still be kept.
    keep: AtomicUsize,
    /// Whether tiles are taken to hold the base.
    trusted: bool,
}

impl<R: ReadAt> Checker<'_, R> {
    /// Digest of a tile, and what its chunk does to it.
    fn check(&self, (t, tile, chunk): Task) -> Result<Checked> {
        let tensors = &self.delta.header.tensors;
        let tensor = &tensors[t as usize];
        let replaced = self.replaced.get(&(t, tile));
        let matrix = replaced.unwrap_or(&self.target[t as usize]);
        if let Some(i) = chunk {
            let chunk = self.delta.chunk(i)?;
            let _permit = self.permits.enter(chunk.header.changes as usize);
            return with_word!(tensor.width, T => self.check_chunk::<T>(&chunk, matrix));
        }
        let now = tensor.tile_box(tile).map_or(Digest::default(), |place| {
            let block = place.block(tensor.width);
            digest::block(tensor.key(), matrix, &block)
        });
        let change = Digest::default();
        Ok((
            TileCheck {
                apply: false,
                now,
                change,
            },
            None,
        ))
    }

    fn check_chunk<T: Word>(&self, chunk: &Chunk, matrix: &Matrix<'_>) -> Result<Checked> {
        self.pool
            .with(|memory: &mut Memory<T>| self.check_with(chunk, matrix, memory))
    }

    fn check_with<T: Word>(
        &self,
        chunk: &Chunk,
        matrix: &Matrix<'_>,
        memory: &mut Memory<T>,
    ) -> Result<Checked> {
        let tensors = &self.delta.header.tensors;
        let check = check_chunk(chunk, tensors, matrix, self.trusted, memory)?;
        let mut record = Record {
            changes: chunk.header.changes,
            crc: chunk.checksum(),
            prepared: None,
            shared: Vec::new(),
        };
        if check.apply {
            let Memory {
                scratch, new, old, ..
            } = memory;
            let positions = &scratch.positions[..];
            let followers = &self.followers[chunk.header.tensor as usize];
            if !followers.is_empty() {
                let block = chunk.tile_box(tensors)?.block(chunk.tensor(tensors).width);
                let under = |key| digest::change(key, matrix, &block, positions, old, new);
                record.shared = followers.iter().map(|&f| under(tensors[f].key())).collect();
            }
            if self.keep.load(Ordering::Relaxed) >= Prepared::estimate::<T>(positions.len()) {
                let prepared = Prepared::new(positions, new);
                let taken = self
                    .keep
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        left.checked_sub(prepared.len())
                    });
                record.prepared = taken.ok().map(|_| prepared);
            }
        }
        Ok((check, Some(record)))
    }
}
