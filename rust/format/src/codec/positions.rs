//! Position codecs: which elements of a tile change.

use super::rice::{self, Escapes};
use crate::bits::{put_varint, take_varint, varint_len, word_at, zero_from};
use crate::error::{Error, Result};

/// How positions are written. Ids are those of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PositionCodec {
    /// Every element.
    All = 1,
    /// Varints: unchanged elements, then changed ones less one, in turn.
    Runs = 2,
    /// One bit an element.
    Bitmap = 3,
    /// One varint a gap.
    Gaps = 4,
    /// A Rice stream of the gaps.
    Rice = 5,
    /// Ranks within exponent classes of the base, with the steps.
    Classes = 6,
}

impl PositionCodec {
    /// Every codec.
    pub const ALL: [Self; 6] = [
        Self::All,
        Self::Runs,
        Self::Bitmap,
        Self::Gaps,
        Self::Rice,
        Self::Classes,
    ];

    /// By id.
    pub fn from_id(id: u8) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|c| *c as u8 == id)
            .ok_or_else(|| Error::corrupt(format!("position codec {id} is reserved [F2]")))
    }

    /// As `inspect` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Runs => "runs",
            Self::Bitmap => "bitmap",
            Self::Gaps => "gaps",
            Self::Rice => "rice",
            Self::Classes => "classes",
        }
    }

    /// Most bytes a stream of `count` positions among `elements` can have.
    pub fn max_len(self, count: u32, elements: u32) -> u64 {
        let (count, elements) = (u64::from(count), u64::from(elements));
        match self {
            Self::All => 0,
            // A tile has at most 2^22 elements: four bytes a varint.
            Self::Runs => 8 * count,
            Self::Bitmap => elements.div_ceil(8),
            Self::Gaps => 4 * count,
            // 24 low bits, and one unary bit per element and number.
            Self::Rice => 3 + 3 * count + (elements + count).div_ceil(8),
            // Never behind a stage.
            Self::Classes => 0,
        }
    }
}

/// The gaps between ascending positions.
pub(super) fn gaps(positions: &[u32]) -> impl Iterator<Item = u64> + Clone + '_ {
    let previous = std::iter::once(None).chain(positions.iter().copied().map(Some));
    positions
        .iter()
        .zip(previous)
        .map(|(&p, previous)| match previous {
            None => u64::from(p),
            Some(q) => u64::from(p - q - 1),
        })
}

/// Maximal runs as (unchanged before, length).
fn runs(positions: &[u32]) -> impl Iterator<Item = (u32, u32)> + '_ {
    let mut rest = positions;
    let mut at = 0u32;
    std::iter::from_fn(move || {
        let (&first, _) = rest.split_first()?;
        let n = rest
            .iter()
            .zip(first..)
            .take_while(|(&p, want)| p == *want)
            .count();
        rest = &rest[n..];
        let skipped = first - at;
        at = first + n as u32;
        Some((skipped, n as u32))
    })
}

/// A codec with its stream's exact length, and the Rice parameter where it has one.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The codec.
    pub codec: PositionCodec,
    /// Bytes of its stream.
    pub bytes: u64,
    k: u32,
}

/// The plans of all codecs for these positions; `Gaps` last.
pub fn plans(positions: &[u32], elements: u32) -> Vec<Plan> {
    let mut plans = Vec::with_capacity(4);
    let mut plan = |codec, bytes, k| plans.push(Plan { codec, bytes, k });
    if positions.len() as u32 == elements {
        plan(PositionCodec::All, 0, 0);
        return plans;
    }
    let (k, bytes) = rice::choose_for_positions(positions);
    plan(PositionCodec::Rice, bytes, k);
    plan(PositionCodec::Bitmap, u64::from(elements).div_ceil(8), 0);
    // Scattered changes make runs longer than gaps; count them only where many touch.
    let pairs = || positions.iter().zip(&positions[1..]);
    let touching: usize = pairs().map(|(a, b)| usize::from(a + 1 == *b)).sum();
    if 2 * touching >= positions.len() {
        let bytes = runs(positions)
            .map(|(skip, n)| varint_len(skip.into()) + varint_len(u64::from(n) - 1))
            .sum::<usize>();
        plan(PositionCodec::Runs, bytes as u64, 0);
    }
    // A byte for each seven bits, without a branch.
    let more = |gap: u32| {
        [7, 14, 21, 28]
            .map(|bits| u32::from(gap >> bits > 0))
            .iter()
            .sum::<u32>()
    };
    let longer: u32 = pairs().map(|(a, b)| more(b - a - 1)).sum();
    let bytes = positions.len() as u64 + u64::from(longer + more(positions[0]));
    plan(PositionCodec::Gaps, bytes, 0);
    plans
}

/// Appends the stream of a plan.
pub fn encode(plan: &Plan, positions: &[u32], elements: u32, out: &mut Vec<u8>) {
    match plan.codec {
        PositionCodec::All => {}
        PositionCodec::Runs => {
            for (skipped, n) in runs(positions) {
                put_varint(skipped.into(), out);
                put_varint(u64::from(n) - 1, out);
            }
        }
        PositionCodec::Bitmap => {
            let start = out.len();
            out.resize(start + (elements as usize).div_ceil(8), 0);
            for &p in positions {
                out[start + p as usize / 8] |= 1 << (p % 8);
            }
        }
        PositionCodec::Gaps => gaps(positions).for_each(|gap| put_varint(gap, out)),
        PositionCodec::Rice => rice::encode(gaps(positions), plan.k, Escapes::Never, out),
        // `classes` writes these.
        PositionCodec::Classes => {}
    }
}

/// Replaces `out` by the `count` positions of `stream`, all below `elements`.
pub fn decode(
    codec: PositionCodec,
    stream: &[u8],
    count: u32,
    elements: u32,
    out: &mut Vec<u32>,
) -> Result<()> {
    out.clear();
    let wrong = |what: &str| Error::corrupt(format!("{} positions {what} [F14]", codec.name()));
    let count = count as usize;
    match codec {
        PositionCodec::All => {
            if count != elements as usize || !stream.is_empty() {
                return Err(wrong("do not cover the tile"));
            }
            out.extend(0..elements);
        }
        PositionCodec::Runs => {
            let mut rest = stream;
            let mut at = 0u64;
            while !rest.is_empty() {
                let skipped = take_varint(&mut rest)?;
                let n = take_varint(&mut rest)?.saturating_add(1);
                if skipped == 0 && !out.is_empty() {
                    return Err(wrong("have runs that touch"));
                }
                let from = at.saturating_add(skipped);
                at = from.saturating_add(n);
                if at > u64::from(elements) || n > (count - out.len()) as u64 {
                    return Err(wrong("leave the tile or are too many"));
                }
                out.extend(from as u32..at as u32);
            }
        }
        PositionCodec::Bitmap => {
            if stream.len() != (elements as usize).div_ceil(8)
                || !zero_from(stream, elements as usize)
            {
                return Err(wrong("have the wrong length, or bits outside the tile"));
            }
            let ones: usize = stream.iter().map(|b| b.count_ones() as usize).sum();
            if ones != count {
                return Err(wrong("are not as many as stated"));
            }
            out.reserve(count);
            for byte in (0..stream.len()).step_by(8) {
                let mut word = word_at(stream, byte);
                while word != 0 {
                    out.push((byte * 8) as u32 + word.trailing_zeros());
                    word &= word - 1;
                }
            }
        }
        PositionCodec::Gaps => {
            if count > stream.len() {
                return Err(wrong("are cut short"));
            }
            out.reserve(count);
            let mut rest = stream;
            let mut next = 0u64;
            for _ in 0..count {
                let position = next.saturating_add(take_varint(&mut rest)?);
                if position >= u64::from(elements) {
                    return Err(wrong("leave the tile"));
                }
                out.push(position as u32);
                next = position + 1;
            }
            if !rest.is_empty() {
                return Err(wrong("do not end with the stream"));
            }
        }
        PositionCodec::Rice => {
            if rice::decode_positions(stream, count, elements, out)? != stream.len() {
                return Err(wrong("do not end with the stream"));
            }
        }
        PositionCodec::Classes => return Err(wrong("come with their steps")),
    }
    if out.len() != count {
        return Err(wrong("are not as many as stated"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_codec_round_trips(
            elements in 1u32..3000, picks in prop::collection::vec(any::<prop::sample::Index>(), 1..80),
            run in 0u32..300,
        ) {
            let mut set: std::collections::BTreeSet<u32> =
                picks.iter().map(|p| p.index(elements as usize) as u32).collect();
            let from = *set.first().unwrap();
            set.extend(from..(from + run).min(elements));
            let positions: Vec<u32> = set.into_iter().collect();
            let count = positions.len() as u32;
            for plan in plans(&positions, elements) {
                let mut stream = vec![];
                encode(&plan, &positions, elements, &mut stream);
                prop_assert_eq!(stream.len() as u64, plan.bytes);
                prop_assert!(plan.bytes <= plan.codec.max_len(count, elements));
                let mut got = vec![9];
                decode(plan.codec, &stream, count, elements, &mut got).unwrap();
                prop_assert_eq!(&got, &positions);
                for end in 0..stream.len() {
                    prop_assert!(decode(plan.codec, &stream[..end], count, elements, &mut got).is_err());
                }
                stream.push(0);
                prop_assert!(decode(plan.codec, &stream, count, elements, &mut got).is_err());
            }
        }

        #[test]
        fn any_bytes_give_positions_in_the_tile_or_an_error(
            stream in prop::collection::vec(any::<u8>(), 0..60), count in 1u32..100, elements in 1u32..200,
        ) {
            let mut got = vec![];
            for codec in PositionCodec::ALL {
                if decode(codec, &stream, count, elements, &mut got).is_ok() {
                    prop_assert_eq!(got.len() as u32, count);
                    prop_assert!(got.windows(2).all(|w| w[0] < w[1]));
                    prop_assert!(got.iter().all(|&p| p < elements));
                }
            }
        }
    }
}
