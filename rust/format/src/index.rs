//! The index and the trailer: where the chunks are, and the digests of the whole.

use std::ops::Range;

use deltawire_kernels::Digest;

use crate::bits::{put_varint, take_varint, unzigzag, zigzag};
use crate::chunk::MIN_LEN;
use crate::error::{Error, Result};
use crate::header::{seal, u32_at, unseal, CRC_LEN};
use crate::limits::{Limits, MAX_TENSORS};
use crate::payload::{pack, payload, unpack, Bin, List, State};
use crate::table::Tensor;

/// Record type of the index.
pub const RECORD: u8 = 2;
/// Bytes before the index' payload.
pub const FIXED_LEN: usize = 8;
/// Bytes of the trailer.
pub const TRAILER_LEN: usize = 12;
/// Last bytes of a delta.
pub const END_MAGIC: [u8; 4] = *b"DWE\n";

/// Place of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// Index in the tensor table.
    pub tensor: u32,
    /// Tile of the tensor.
    pub tile: u32,
    /// Bytes of the record.
    pub length: u32,
    /// Offset of the record in the stream.
    pub offset: u64,
}

/// What is known once all chunks are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Chunks in stream order.
    pub chunks: Vec<ChunkPlace>,
    /// Sum of their changes.
    pub changed: u64,
    /// Low half of lane 0 of the state digest of each tensor after the delta, where it is known and the
    /// chunks do not tell it.
    pub digests: Vec<Option<u32>>,
    /// State digest of the base, over all tensors.
    pub base_state: Option<Digest>,
    /// State digest after the delta, over all tensors.
    pub result_state: Option<Digest>,
}

payload!(Payload {
    changed: u64,
    tensors: Bin,
    tiles: Bin,
    lengths: Bin,
    digests: List<Option<u32>, MAX_TENSORS>,
    base_state: Option<State>,
    result_state: Option<State>,
});

impl Index {
    /// The index record.
    pub fn encode(&self, limits: &Limits) -> Result<Vec<u8>> {
        let (mut tensors, mut tiles, mut lengths) = (vec![], vec![], vec![]);
        let (mut tensor, mut tile) = (0, 0);
        for place in &self.chunks {
            if place.tensor != tensor {
                tile = 0;
            }
            let difference = i64::from(place.tensor) - i64::from(tensor);
            put_varint(zigzag(difference), &mut tensors);
            put_varint(u64::from(place.tile).saturating_sub(tile), &mut tiles);
            put_varint(place.length.into(), &mut lengths);
            (tensor, tile) = (place.tensor, u64::from(place.tile) + 1);
        }
        let payload = Payload {
            changed: self.changed,
            tensors: Bin(tensors),
            tiles: Bin(tiles),
            lengths: Bin(lengths),
            digests: List(self.digests.clone()),
            base_state: self.base_state.map(State),
            result_state: self.result_state.map(State),
        };
        let (payload, lz4) = pack(&payload)?;
        if payload.len() as u64 > limits.max_header_bytes {
            return Err(Error::limit(format!("an index of {} bytes", payload.len())));
        }
        let mut out = vec![RECORD, u8::from(lz4), 0, 0];
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&payload);
        seal(&mut out, 0);
        Ok(out)
    }

    /// Length of the record, from its first eight bytes.
    pub fn length(fixed: &[u8; FIXED_LEN], limits: &Limits) -> Result<u64> {
        let payload = u64::from(u32_at(fixed, 4));
        if payload > limits.max_header_bytes {
            return Err(Error::limit(format!("an index of {payload} bytes")));
        }
        Ok((FIXED_LEN + CRC_LEN) as u64 + payload)
    }

    /// Reads an index record at `offset`; `first_chunk` is where the header ends.
    pub fn decode(
        record: &[u8],
        offset: u64,
        first_chunk: u64,
        tensors: &[Tensor],
        limits: &Limits,
    ) -> Result<Self> {
        Self::parse(record, offset, first_chunk, tensors, limits).map_err(|e| e.at(offset))
    }

    fn parse(
        record: &[u8],
        offset: u64,
        first_chunk: u64,
        tensors: &[Tensor],
        limits: &Limits,
    ) -> Result<Self> {
        let short = || Error::corrupt("the index is cut short [F21]");
        let fixed = record.first_chunk::<FIXED_LEN>().ok_or_else(short)?;
        if fixed[0] != RECORD {
            return Err(Error::corrupt("not an index record [F21]"));
        }
        if Self::length(fixed, limits)? != record.len() as u64 {
            return Err(short());
        }
        let body = unseal(record, "index")?;
        if body[1] > 1 || body[2..4] != [0, 0] {
            return Err(Error::corrupt("reserved bits of the index are set [F2]"));
        }
        let payload: Payload = unpack(&body[FIXED_LEN..], body[1] == 1, limits, "index")?;
        let chunks = parse_places(&payload, first_chunk..offset, tensors)?;
        let end = chunks
            .last()
            .map_or(first_chunk, |c| c.offset + u64::from(c.length));
        if end != offset {
            return Err(Error::corrupt(format!(
                "the chunks end at byte {end} [F19]"
            )));
        }
        if payload.digests.0.len() != tensors.len() {
            let (n, m) = (payload.digests.0.len(), tensors.len());
            return Err(Error::corrupt(format!("{n} digests for {m} tensors [F19]")));
        }
        Ok(Self {
            chunks,
            changed: payload.changed,
            digests: payload.digests.0,
            base_state: payload.base_state.map(|s| s.0),
            result_state: payload.result_state.map(|s| s.0),
        })
    }

    /// Takes over the header's base state.
    ///
    /// # Errors
    /// `Corrupt` where the index names another one [F20].
    pub fn take_base(&mut self, header: Option<Digest>) -> Result<()> {
        match (self.base_state, header) {
            (Some(a), Some(b)) if a != b => Err(Error::corrupt(
                "header and index name different base states [F20]",
            )),
            (own, header) => {
                self.base_state = own.or(header);
                Ok(())
            }
        }
    }
}

/// Sum of the digests, where all are known.
pub(crate) fn sum(mut digests: impl Iterator<Item = Option<Digest>>) -> Option<Digest> {
    digests.try_fold(Digest::default(), |sum, d| d.map(|d| sum.plus(d)))
}

fn parse_places(
    payload: &Payload,
    range: Range<u64>,
    tensors: &[Tensor],
) -> Result<Vec<ChunkPlace>> {
    let mut places: Vec<ChunkPlace> = Vec::new();
    let mut seen = vec![false; tensors.len()];
    let [mut numbers, mut tiles, mut lengths] =
        [&payload.tensors, &payload.tiles, &payload.lengths].map(|column| &column.0[..]);
    let mut offset = range.start;
    while !numbers.is_empty() {
        let field = |value: Option<u64>| -> Result<u32> {
            value
                .and_then(|v| u32::try_from(v).ok())
                .ok_or_else(|| Error::corrupt("a chunk's place exceeds 32 bits [F19]"))
        };
        let difference = unzigzag(take_varint(&mut numbers)?);
        let last = places.last().map_or((0, 0), |p| (p.tensor, p.tile + 1));
        let tensor = field(u64::from(last.0).checked_add_signed(difference))?;
        let skipped = take_varint(&mut tiles)?;
        let tile = field(if tensor == last.0 {
            u64::from(last.1).checked_add(skipped)
        } else {
            Some(skipped)
        })?;
        let length = field(Some(take_varint(&mut lengths)?))?;
        // Places are believed only as far as there are bytes for their records.
        let left = range.end.saturating_sub(offset);
        if (length as usize) < MIN_LEN || u64::from(length) > left {
            return Err(Error::corrupt(format!(
                "a chunk of {length} bytes among {left} [F19]"
            )));
        }
        check_order(
            places.last().map(|p| (p.tensor, p.tile)),
            (tensor, tile),
            &mut seen,
        )?;
        if tensors[tensor as usize].tile_box(tile).is_none() {
            return Err(Error::corrupt(format!(
                "no tile {tile} in tensor {tensor} [F19]"
            )));
        }
        places.push(ChunkPlace {
            tensor,
            tile,
            length,
            offset,
        });
        offset = offset.saturating_add(u64::from(length));
    }
    if !(tiles.is_empty() && lengths.is_empty()) {
        return Err(Error::corrupt("bytes follow the chunks' places [F19]"));
    }
    Ok(places)
}

/// Chunks of a tensor stand together, tiles ascending [F11]. `seen` marks tensors begun.
pub(crate) fn check_order(
    last: Option<(u32, u32)>,
    (tensor, tile): (u32, u32),
    seen: &mut [bool],
) -> Result<()> {
    match last {
        Some((t, previous)) if t == tensor => {
            if tile <= previous {
                return Err(Error::corrupt("tiles do not ascend [F11]"));
            }
        }
        _ => match seen.get_mut(tensor as usize) {
            None => {
                return Err(Error::corrupt(format!(
                    "tensor {tensor} is not in the table [F10]"
                )));
            }
            Some(true) => {
                return Err(Error::corrupt(
                    "the chunks of a tensor do not stand together [F11]",
                ));
            }
            Some(unseen) => *unseen = true,
        },
    }
    Ok(())
}

/// The trailer's bytes.
pub fn encode_trailer(index_len: u32) -> [u8; TRAILER_LEN] {
    let mut out = index_len.to_le_bytes().to_vec();
    seal(&mut out, 0);
    out.extend_from_slice(&END_MAGIC);
    let mut trailer = [0; TRAILER_LEN];
    trailer.copy_from_slice(&out);
    trailer
}

/// Offset and length of the index, from a trailer at `offset`.
pub fn decode_trailer(bytes: &[u8; TRAILER_LEN], offset: u64) -> Result<(u64, u32)> {
    let check = || {
        if bytes[8..] != END_MAGIC {
            return Err(Error::corrupt(
                "the end of a delta is missing: cut short, or not a delta [F21]",
            ));
        }
        let length = u32_at(unseal(&bytes[..8], "trailer")?, 0);
        match offset.checked_sub(length.into()) {
            Some(at) => Ok((at, length)),
            None => Err(Error::corrupt(
                "the index is longer than what is before the trailer [F21]",
            )),
        }
    };
    check().map_err(|e: Error| e.at(offset))
}
