//! One tile's changes into one chunk record, under a profile.

use deltawire_kernels::ordered::{step, Order};
use deltawire_kernels::Word;

use crate::chunk::{self, ChunkHeader};
use crate::classify::Classified;
use crate::codec::positions::{self, Plan};
use crate::codec::stage::compress;
use crate::codec::{grouped, ranks, values, Partition, PositionCodec, Stage, ValueCodec};
use crate::error::{Error, Kind, Result};
use crate::header::seal;

/// Bits a change below which changes by class are taken without trying other codecs.
const USUAL_BITS: usize = 10;

/// What a writer optimises for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Smallest; relative to the base.
    Compact,
    /// Fastest; relative to the base.
    Fast,
    /// Needs no base and may be applied twice.
    Overwrite,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 3] = [Self::Compact, Self::Fast, Self::Overwrite];

    /// By name.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| {
                let message = format!(
                    "profile {name:?} is not known; use \"compact\", \"fast\" or \"overwrite\""
                );
                Error::new(Kind::Layout, message)
            })
    }

    /// Its name in headers, the CLI and Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Fast => "fast",
            Self::Overwrite => "overwrite",
        }
    }

    /// Whether chunks name the base that they belong to.
    pub const fn is_relative(self) -> bool {
        !matches!(self, Self::Overwrite)
    }
}

/// A tile's changes: never empty, positions ascending, `old` there if a base is.
#[derive(Clone, Copy, Debug)]
pub struct TileChanges<'a, W> {
    /// Index in the tensor table.
    pub tensor: u32,
    /// Tile of the tensor.
    pub tile: u32,
    /// Elements of the tile.
    pub elements: u32,
    /// How the elements are ordered.
    pub order: Order,
    /// Element numbers within the tile.
    pub positions: &'a [u32],
    /// Elements before.
    pub old: Option<&'a [W]>,
    /// Elements after; they differ from `old`.
    pub new: &'a [W],
    /// The same by class, where that was worth finding.
    pub classified: Option<&'a Classified>,
    /// Lane 0 of the tile before.
    pub base: Option<u64>,
    /// Lane 0 of the tile after.
    pub result: Option<u64>,
}

/// A stream with its codec and stage, already stored.
struct Part<C> {
    codec: C,
    stage: Stage,
    bytes: Vec<u8>,
}

impl<C> Part<C> {
    /// Itself or its LZ4 stage, whichever is smaller.
    fn staged(self) -> Self {
        let packed = compress(&self.bytes);
        if packed.len() < self.bytes.len() {
            return Self {
                stage: Stage::Lz4,
                bytes: packed,
                ..self
            };
        }
        self
    }

    fn smaller(self, other: Self) -> Self {
        if other.bytes.len() < self.bytes.len() {
            other
        } else {
            self
        }
    }
}

/// Positions without classes, and the bytes that they take.
fn encode_positions(profile: Profile, list: &[u32], elements: u32) -> Part<PositionCodec> {
    let plans = positions::plans(list, elements);
    let run = |plan: &Plan| {
        let mut bytes = Vec::with_capacity(plan.bytes as usize);
        positions::encode(plan, list, elements, &mut bytes);
        Part {
            codec: plan.codec,
            stage: Stage::None,
            bytes,
        }
    };
    // `plans` is never empty; the first is the usual winner.
    let best = plans.iter().min_by_key(|p| p.bytes).unwrap_or(&plans[0]);
    let mut part = run(best);
    if profile == Profile::Fast {
        return part;
    }
    if best.codec == PositionCodec::Rice {
        part = part.smaller(with(PositionCodec::Ranks, |out| {
            ranks::encode(&Partition::flat(list), out);
        }));
    }
    // Regular patterns (a column, a stride) make a byte stream that LZ4 sees through.
    match plans.last() {
        Some(gaps) if gaps.codec == PositionCodec::Gaps => part.smaller(run(gaps).staged()),
        _ => part,
    }
}

/// A part without a stage, written by a function.
fn with<C>(codec: C, write: impl FnOnce(&mut Vec<u8>)) -> Part<C> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    Part {
        codec,
        stage: Stage::None,
        bytes,
    }
}

/// Grouped steps of groups with these counts; `None` where a step is too large for the codec.
fn grouped(steps: &[i64], counts: &[u32]) -> Option<Part<ValueCodec>> {
    let mut bytes = Vec::new();
    grouped::encode(steps, counts, &mut bytes).then_some(Part {
        codec: ValueCodec::Grouped,
        stage: Stage::None,
        bytes,
    })
}

/// Values in the order of the positions.
fn encode_values<W: Word>(profile: Profile, tile: &TileChanges<'_, W>) -> Part<ValueCodec> {
    let raw = || with(ValueCodec::Raw, |out| values::encode_raw(tile.new, out));
    let planes = || {
        with(ValueCodec::Planes, |out| {
            values::encode_planes(tile.new, out)
        })
    };
    match relative_to(profile, tile) {
        Some(old) => {
            let mut steps = with(ValueCodec::Step, |out| {
                values::encode_steps(old, tile.new, tile.order, out)
            });
            // Large steps are no better by group, and the lists are long.
            if profile == Profile::Compact && steps.bytes.len() <= tile.new.len() * W::WIDTH {
                let list = values::steps(old, tile.new, tile.order);
                if let Some(grouped) = grouped(&list, &[list.len() as u32]) {
                    steps = steps.smaller(grouped);
                }
            }
            // Steps of half an element's width and less are not beaten by absolute values.
            if steps.bytes.len() <= tile.new.len() * W::WIDTH / 2 {
                return steps;
            }
            let best = steps.smaller(raw());
            if profile == Profile::Fast {
                best
            } else {
                best.smaller(planes())
            }
        }
        None => raw().staged().smaller(planes()),
    }
}

/// The old elements, where the profile lets values refer to them.
fn relative_to<'a, W>(profile: Profile, tile: &TileChanges<'a, W>) -> Option<&'a [W]> {
    tile.old
        .filter(|_| profile.is_relative() && tile.base.is_some())
}

/// Positions and values by exponent class.
fn encode_classes<W: Word>(
    profile: Profile,
    tile: &TileChanges<'_, W>,
) -> Option<(Part<PositionCodec>, Part<ValueCodec>)> {
    let classified = tile.classified.filter(|_| profile == Profile::Compact)?;
    let old = relative_to(profile, tile)?;
    let step = |&i: &u32| step(old[i as usize], tile.new[i as usize], tile.order).to_i64();
    let steps: Vec<i64> = classified.order.iter().map(step).collect();
    let values = grouped(&steps, &classified.partition.counts)?;
    let positions = with(PositionCodec::Ranks, |out| {
        ranks::encode(&classified.partition, out)
    });
    Some((positions, values))
}

/// The smallest pair of positions and values under the profile.
fn choose<W: Word>(
    profile: Profile,
    tile: &TileChanges<'_, W>,
) -> (Part<PositionCodec>, Part<ValueCodec>) {
    let Some(classes) = encode_classes(profile, tile) else {
        return (
            encode_positions(profile, tile.positions, tile.elements),
            encode_values(profile, tile),
        );
    };
    let size = classes.0.bytes.len() + classes.1.bytes.len();
    // Scattered changes at the usual cost: nothing else comes near.
    let touching = tile
        .positions
        .windows(2)
        .filter(|w| w[0] + 1 == w[1])
        .count();
    if 8 * size <= USUAL_BITS * tile.new.len() && 4 * touching <= tile.new.len() {
        return classes;
    }
    let positions = encode_positions(profile, tile.positions, tile.elements);
    // Without classes a change takes its position and at least a sign.
    if positions.bytes.len() + tile.new.len() / 8 >= size {
        return classes;
    }
    let values = encode_values(profile, tile);
    if positions.bytes.len() + values.bytes.len() < size {
        (positions, values)
    } else {
        classes
    }
}

/// The chunk record of a tile.
pub fn tile<W: Word>(profile: Profile, tile: &TileChanges<'_, W>) -> Vec<u8> {
    let (positions, values) = choose(profile, tile);
    let header = ChunkHeader {
        positions: (positions.codec, positions.stage),
        values: (values.codec, values.stage),
        tensor: tile.tensor,
        tile: tile.tile,
        changes: tile.positions.len() as u32,
        base: tile.base.filter(|_| profile.is_relative()),
        result: tile.result,
    };
    let mut out = Vec::with_capacity(64 + positions.bytes.len() + values.bytes.len());
    chunk::encode(&header, &positions.bytes, &values.bytes, &mut out);
    seal(&mut out, 0);
    out
}
