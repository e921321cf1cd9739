//! One tile of one tensor: comparing it, digesting it, and encoding its changes.

use deltawire_kernels::compare;
use deltawire_kernels::{digest, scan, Block, Digest, Matrix, Word};

use crate::classify::{Changes, Classifier};
use crate::codec::classes::GROUPED_COLS;
use crate::codec::{classes, Partition};
use crate::detected::{After, Told};
use crate::encode::{self, Profile, TileChanges};
use crate::error::{Error, Kind, Result};
use crate::permits::Permits;
use crate::rewind::{self, Findings};
use crate::scratch::{Pool, Reusable, KEPT_BYTES};
use crate::table::Tensor;
use crate::writer::{Found, Pair, Partitioned};

/// Bytes by which a chunk may exceed its dense tile before it is thought about.
const SLACK: usize = 48;

/// What all tiles of a writer share.
pub(crate) struct Work<'a> {
    pub(crate) profile: Profile,
    pub(crate) permits: &'a Permits,
    pub(crate) scratch: &'a Pool,
}

/// A tile as encoded: no record where nothing changed.
pub(crate) struct EncodedTile {
    pub(crate) tensor: u32,
    pub(crate) tile: u32,
    pub(crate) record: Vec<u8>,
    pub(crate) changed: u64,
    pub(crate) base: Digest,
    pub(crate) result: Digest,
}

impl EncodedTile {
    pub(crate) fn new(tensor: u32, tile: u32) -> Self {
        Self {
            tensor,
            tile,
            record: Vec::new(),
            changed: 0,
            base: Digest::default(),
            result: Digest::default(),
        }
    }
}

/// Memory that encoding a tile reuses.
#[derive(Default)]
struct Scratch<W> {
    part: Vec<u32>,
    positions: Vec<u32>,
    old: Vec<W>,
    new: Vec<W>,
    classifier: Classifier,
    partition: Partition<W>,
    encode: classes::Scratch,
}

impl<W: Word> Reusable for Scratch<W> {
    fn keep(&self) -> bool {
        4 * self.positions.capacity() + self.partition.held() + self.classifier.held() < KEPT_BYTES
    }
}

/// Compares a tile's two states, leaving its changes in `scratch`; its digests go to `out`.
fn scan_tile<T: Word>(
    pair: &Pair<'_>,
    entry: &Tensor,
    block: Block,
    by_class: bool,
    scratch: &mut Scratch<T>,
    out: &mut EncodedTile,
) {
    let Scratch {
        part: part_positions,
        positions,
        old,
        new,
        classifier,
        ..
    } = scratch;
    positions.clear();
    old.clear();
    new.clear();
    classifier.restart();
    let (key, base) = (entry.key(), &pair.base);
    // A few rows at a time, so that all that follows the comparison finds its memory in the cache.
    for part in block.parts() {
        part_positions.clear();
        let digest = compare::differing::<T>(key, base, &pair.new, &part, part_positions);
        let begun = old.len();
        scan::gather(base, &part, part_positions, old);
        scan::gather(&pair.new, &part, part_positions, new);
        let first = part.row - block.row;
        let (from, to) = (&old[begun..], &new[begun..]);
        let change = digest::change(key, base, &part, part_positions, from, to);
        out.base = out.base.plus(digest);
        out.result = out.result.plus(digest).plus(change);
        let offset = (first * block.bytes / T::WIDTH) as u32;
        positions.extend(part_positions.iter().map(|p| p + offset));
        if by_class {
            let changes = Changes {
                tensor: entry,
                base,
                block: &block,
                positions,
                old,
            };
            classifier.add(&changes, first + part.rows);
        }
    }
}

/// Compares a tile's two states and encodes its changes.
pub(crate) fn compare<T: Word>(
    work: &Work<'_>,
    pair: &Pair<'_>,
    entry: &Tensor,
    tile: u32,
) -> EncodedTile {
    let mut out = EncodedTile::new(pair.tensor, tile);
    let Some(place) = entry.tile_box(tile) else {
        return out;
    };
    work.scratch.with(|scratch: &mut Scratch<T>| {
        let by_class = work.profile == Profile::Compact;
        let block = place.block(entry.width);
        scan_tile(pair, entry, block, by_class, scratch, &mut out);
        if !scratch.positions.is_empty() {
            let _permit = work.permits.enter(scratch.positions.len());
            finish(work.profile, &pair.base, entry, scratch, &mut out);
        }
    });
    out
}

/// Where nearly all elements of a tile become something else, naming the few that stay costs more than
/// sending them along. `scratch` then holds all elements.
fn send_whole_if_smaller<T: Word>(
    profile: Profile,
    base: &Matrix<'_>,
    entry: &Tensor,
    block: &Block,
    scratch: &mut Scratch<T>,
    out: &mut EncodedTile,
) {
    let elements = block.len() / T::WIDTH;
    let most = block.len() + block.len() / 2000 + SLACK;
    if out.record.len() <= most || scratch.positions.len() == elements {
        return;
    }
    let Scratch {
        part: all,
        positions,
        old,
        new,
        encode: encoder,
        ..
    } = scratch;
    all.clear();
    all.extend(0..elements as u32);
    old.clear();
    scan::gather(base, block, all, old);
    for (&position, &new) in positions.iter().zip(&*new) {
        old[position as usize] = new;
    }
    let record = all_elements(profile, entry, (all, old), encoder, out);
    if record.len() < out.record.len() {
        out.changed = elements as u64;
        out.record = record;
    }
}

/// A tile's changes by class, where there are any, and its digests before and after.
pub(crate) fn partition<T: Word>(
    pair: &Pair<'_>,
    entry: &Tensor,
    tile: u32,
) -> (Option<Partition<T>>, [Digest; 2]) {
    let mut out = EncodedTile::new(pair.tensor, tile);
    let mut scratch = Scratch::<T>::default();
    if let Some(place) = entry.tile_box(tile) {
        let block = place.block(entry.width);
        scan_tile(pair, entry, block, true, &mut scratch, &mut out);
        if !scratch.positions.is_empty() {
            scratch.classify(&pair.base, entry, &block);
        }
    }
    let found = (!scratch.positions.is_empty()).then_some(scratch.partition);
    (found, [out.base, out.result])
}

impl<T: Word> Scratch<T> {
    /// Puts the changes into classes, or into one where more do not pay.
    fn classify(&mut self, base: &Matrix<'_>, entry: &Tensor, block: &Block) {
        let changes = Changes {
            tensor: entry,
            base,
            block,
            positions: &self.positions,
            old: &self.old,
        };
        let partition = &mut self.partition;
        if !self.classifier.finish(&changes, &self.new, partition) {
            partition.set_flat(&self.positions, &self.old, &self.new, entry.order());
        }
    }
}

/// Encodes the changes in `scratch` of a tile whose base is at hand; both digests are known.
fn finish<T: Word>(
    profile: Profile,
    base: &Matrix<'_>,
    entry: &Tensor,
    scratch: &mut Scratch<T>,
    out: &mut EncodedTile,
) {
    let Some(place) = entry.tile_box(out.tile) else {
        return;
    };
    let block = place.block(entry.width);
    let by_class = profile == Profile::Compact;
    if by_class {
        scratch.classify(base, entry, &block);
    }
    let Scratch {
        positions,
        old,
        new,
        partition,
        encode: encoder,
        ..
    } = scratch;
    out.changed = positions.len() as u64;
    let changes = TileChanges {
        tensor: out.tensor,
        tile: out.tile,
        elements: place.elements(),
        order: entry.order(),
        positions,
        old: Some(old),
        new,
        result: Some(out.result.lanes[0]),
    };
    out.record = encode::tile(profile, &changes, by_class.then_some(&*partition), encoder);
    send_whole_if_smaller(profile, base, entry, &block, scratch, out);
}

/// A change by tile, element within it, and index among the changes given.
pub(crate) type TilePick = (u32, u32, usize);

/// Changes in tile order, for positions within a box of the tensor that cuts no tile. Flat order is tile order
/// only where tiles span all columns of the box.
pub(crate) fn picks(entry: &Tensor, held: &Block, positions: &[i64]) -> Vec<TilePick> {
    let width = u64::from(entry.width);
    let cols = (held.bytes as u64 / width).max(1);
    let (first_row, first_col) = (held.row as u64, held.byte as u64 / width);
    let across = entry.cols.div_ceil(entry.tile[1].max(1)).max(1);
    let mut picks: Vec<TilePick> = positions
        .iter()
        .enumerate()
        .map(|(i, &position)| {
            let position = position as u64;
            let (row, col) = (first_row + position / cols, first_col + position % cols);
            let (down, right) = (row / entry.tile[0], col / entry.tile[1]);
            let tile_cols = entry.tile[1].min(entry.cols - right * entry.tile[1]);
            let within = (row % entry.tile[0]) * tile_cols + col % entry.tile[1];
            ((down * across + right) as u32, within as u32, i)
        })
        .collect();
    if across > 1 {
        picks.sort_unstable();
    }
    picks
}

/// Encodes changes of a tile that somebody else has found.
pub(crate) fn found<T: Word>(
    work: &Work<'_>,
    found: &Found<'_>,
    entry: &Tensor,
    tile: u32,
    run: &[TilePick],
) -> EncodedTile {
    let mut out = EncodedTile::new(found.tensor, tile);
    let Some(place) = entry.tile_box(tile) else {
        return out;
    };
    let _permit = work.permits.enter(run.len());
    work.scratch.with(|scratch: &mut Scratch<T>| {
        let value = |i: usize| T::read(&found.values[i * T::WIDTH..]);
        let Scratch {
            part,
            positions,
            old,
            new,
            classifier,
            ..
        } = scratch;
        positions.clear();
        new.clear();
        old.clear();
        classifier.restart();
        let Some(base) = &found.base else {
            positions.extend(run.iter().map(|pick| pick.1));
            new.extend(run.iter().map(|pick| value(pick.2)));
            out.changed = positions.len() as u64;
            let changes = TileChanges {
                tensor: found.tensor,
                tile,
                elements: place.elements(),
                order: entry.order(),
                positions,
                old: None,
                new,
                result: None,
            };
            out.record = encode::tile(work.profile, &changes, None, &mut scratch.encode);
            return;
        };
        let block = place.block(entry.width);
        out.base = digest::block(entry.key(), base, &block);
        part.clear();
        part.extend(run.iter().map(|pick| pick.1));
        scan::gather(base, &block, part, old);
        // Elements that stay as they are were no changes.
        for (i, pick) in run.iter().enumerate() {
            let new_value = value(pick.2);
            if old[i] != new_value {
                old[positions.len()] = old[i];
                positions.push(pick.1);
                new.push(new_value);
            }
        }
        old.truncate(positions.len());
        let change = digest::change(entry.key(), base, &block, positions, old, new);
        out.result = out.base.plus(change);
        if !positions.is_empty() {
            finish(work.profile, base, entry, scratch, &mut out);
        }
    });
    out
}

/// Finds the base of a tile again and encodes its changes, or all of it where there is none.
pub(crate) fn rewound<T: Word>(
    work: &Work<'_>,
    findings: &Findings,
    item: &After<'_>,
) -> Result<(EncodedTile, Told)> {
    let entry = findings.tensor();
    let mut out = EncodedTile::new(item.tensor, item.tile);
    work.scratch.with(|memory: &mut rewind::Scratch| {
        let found = findings.rewind::<T>(item.tile, &item.new, item.before, memory)?;
        let sum = |digests: &[Digest]| digests.iter().fold(Digest::default(), |a, &b| a.plus(b));
        (out.base, out.result) = (sum(item.before), sum(&found.after));
        let told = Told {
            outcome: found.outcome,
            after: found.after,
        };
        let Some(place) = entry.tile_box(item.tile) else {
            return Ok((out, told));
        };
        let block = place.block(entry.width);
        let _permit = work.permits.enter(if told.outcome.is_whole() {
            block.len() / T::WIDTH
        } else {
            found.positions.len()
        });
        work.scratch.with(|scratch: &mut Scratch<T>| {
            if told.outcome.is_whole() {
                whole(work.profile, &item.new, entry, &block, scratch, &mut out);
            } else if !found.positions.is_empty() {
                scratch.classifier.restart();
                scratch.positions = found.positions;
                scratch.old = found.old;
                scratch.new = found.new;
                let base = memory.matrix(entry, &block)?;
                finish(work.profile, &base, entry, scratch, &mut out);
            }
            Ok((out, told))
        })
    })
}

/// Encodes all elements of a tile, whatever they were.
fn whole<T: Word>(
    profile: Profile,
    new: &Matrix<'_>,
    entry: &Tensor,
    block: &Block,
    scratch: &mut Scratch<T>,
    out: &mut EncodedTile,
) {
    let elements = (block.len() / T::WIDTH) as u32;
    let Scratch {
        positions,
        new: values,
        encode: encoder,
        ..
    } = scratch;
    positions.clear();
    positions.extend(0..elements);
    values.clear();
    scan::gather(new, block, positions, values);
    out.changed = elements.into();
    out.record = all_elements(profile, entry, (positions, values), encoder, out);
}

/// The record of a tile all of whose elements are sent: their numbers, and what they are.
fn all_elements<T: Word>(
    profile: Profile,
    entry: &Tensor,
    (positions, new): (&[u32], &[T]),
    encoder: &mut classes::Scratch,
    out: &EncodedTile,
) -> Vec<u8> {
    let changes = TileChanges {
        tensor: out.tensor,
        tile: out.tile,
        elements: positions.len() as u32,
        order: entry.order(),
        positions,
        old: None,
        new,
        result: Some(out.result.lanes[0]),
    };
    encode::tile(profile, &changes, None, encoder)
}

/// Refuses a partition that no tile of the tensor can have.
pub(crate) fn check_partition<W: Word>(entry: &Tensor, item: &Partitioned<'_, W>) -> Result<()> {
    let wrong = |message: String| Err(Error::new(Kind::Layout, message));
    let (partition, tile) = (item.partition, item.tile);
    let Some(place) = entry.tile_box(tile) else {
        return wrong(format!("there is no tile {tile}"));
    };
    if usize::from(entry.width) != W::WIDTH {
        return wrong(format!("steps of {} bytes for {}", W::WIDTH, entry.dtype));
    }
    if !partition.is_valid(place.rows as usize, place.elements()) {
        return wrong(format!(
            "the partition of tile {tile} contradicts itself [F25]"
        ));
    }
    let grouped = !partition.rows.is_empty();
    if grouped && place.cols < GROUPED_COLS {
        return wrong(format!(
            "rows of tile {tile} are too short for groups [F25]"
        ));
    }
    if partition.needs_base() && entry.class_map(0, 1).is_none() {
        return wrong(format!(
            "{} has no exponents for classes [F25]",
            entry.dtype
        ));
    }
    Ok(())
}

/// Encodes a partition that was checked. The tile's digests count for nothing; the tensor's are known.
pub(crate) fn partitioned<W: Word>(
    tensor: u32,
    item: &Partitioned<'_, W>,
    scratch: &mut classes::Scratch,
) -> EncodedTile {
    let mut out = EncodedTile::new(tensor, item.tile);
    out.changed = item.partition.ranks.len() as u64;
    out.record = encode::partition(tensor, item, scratch);
    out
}
