//! One tile's changes into one chunk record, under a profile.

use deltawire_kernels::ordered::Order;
use deltawire_kernels::Word;

use crate::chunk::{self, ChunkHeader};
use crate::codec::positions::{self, Plan};
use crate::codec::stage::compress;
use crate::codec::{values, PositionCodec, Stage, ValueCodec};
use crate::error::{Error, Kind, Result};
use crate::header::seal;

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
    let plain = run(best);
    if profile == Profile::Fast {
        return plain;
    }
    // Regular patterns (a column, a stride) make a byte stream that LZ4 sees through.
    match plans.last() {
        Some(gaps) if gaps.codec == PositionCodec::Gaps => plain.smaller(run(gaps).staged()),
        _ => plain,
    }
}

fn encode_values<W: Word>(profile: Profile, tile: &TileChanges<'_, W>) -> Part<ValueCodec> {
    let with = |codec, write: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        write(&mut bytes);
        Part {
            codec,
            stage: Stage::None,
            bytes,
        }
    };
    let raw = || with(ValueCodec::Raw, &|out| values::encode_raw(tile.new, out));
    let planes = || {
        with(ValueCodec::Planes, &|out| {
            values::encode_planes(tile.new, out)
        })
    };
    match tile
        .old
        .filter(|_| profile.is_relative() && tile.base.is_some())
    {
        Some(old) => {
            let steps = with(ValueCodec::Step, &|out| {
                values::encode_steps(old, tile.new, tile.order, out)
            });
            // Steps of a byte an element and less are not beaten by absolute values.
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

/// The chunk record of a tile.
pub fn tile<W: Word>(profile: Profile, tile: &TileChanges<'_, W>) -> Vec<u8> {
    let positions = encode_positions(profile, tile.positions, tile.elements);
    let values = encode_values(profile, tile);
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
