//! The index and the trailer: where the chunks are, and the digests of the whole.

use deltawire_kernels::Digest;
use serde_bytes::{ByteArray, ByteBuf};

use crate::bits::{put_varint, take_varint};
use crate::error::{Error, Result};
use crate::header::{seal, u32_at, u64_at, unseal, CRC_LEN};
use crate::limits::Limits;
use crate::payload::{from_bytes16, pack, payload, to_bytes16, unpack};
use crate::table::Tensor;

/// Record type of the index.
pub const RECORD: u8 = 2;
/// Record type of the trailer.
pub const TRAILER_RECORD: u8 = 3;
/// Bytes before the index' payload.
pub const FIXED_LEN: usize = 8;
/// Bytes of the trailer.
pub const TRAILER_LEN: usize = 24;
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
    /// State digest of each tensor after the delta.
    pub digests: Vec<Option<Digest>>,
    /// State digest of the base, over all tensors.
    pub base_state: Option<Digest>,
    /// State digest after the delta, over all tensors.
    pub result_state: Option<Digest>,
}

payload!(Payload {
    count: u64,
    changed: u64,
    chunks: ByteBuf,
    digests: Vec<Option<ByteArray<16>>>,
    base_state: Option<ByteArray<16>>,
    result_state: Option<ByteArray<16>>,
});

impl Index {
    /// The index record.
    pub fn encode(&self, limits: &Limits) -> Result<Vec<u8>> {
        let mut chunks = Vec::with_capacity(6 * self.chunks.len());
        for place in &self.chunks {
            put_varint(place.tensor.into(), &mut chunks);
            put_varint(place.tile.into(), &mut chunks);
            put_varint(place.length.into(), &mut chunks);
        }
        let payload = Payload {
            count: self.chunks.len() as u64,
            changed: self.changed,
            chunks: ByteBuf::from(chunks),
            digests: self.digests.iter().map(|d| to_bytes16(*d)).collect(),
            base_state: to_bytes16(self.base_state),
            result_state: to_bytes16(self.result_state),
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
        let short = || Error::corrupt("the index is cut short");
        let fixed = record.first_chunk::<FIXED_LEN>().ok_or_else(short)?;
        if Self::length(fixed, limits)? != record.len() as u64 {
            return Err(short());
        }
        let body = unseal(record, "index")?;
        if body[0] != RECORD || body[1] > 1 || body[2..4] != [0, 0] {
            return Err(Error::corrupt(
                "not an index record, or reserved bits are set [F2]",
            ));
        }
        let payload: Payload = unpack(&body[FIXED_LEN..], body[1] == 1, limits, "index")?;
        let chunks = parse_places(&payload, first_chunk, tensors)?;
        let end = chunks
            .last()
            .map_or(first_chunk, |c| c.offset + u64::from(c.length));
        if end != offset {
            return Err(Error::corrupt(format!(
                "the chunks end at byte {end} [F19]"
            )));
        }
        if payload.digests.len() != tensors.len() {
            let (n, m) = (payload.digests.len(), tensors.len());
            return Err(Error::corrupt(format!("{n} digests for {m} tensors [F19]")));
        }
        let index = Self {
            chunks,
            changed: payload.changed,
            digests: payload.digests.into_iter().map(from_bytes16).collect(),
            base_state: from_bytes16(payload.base_state),
            result_state: from_bytes16(payload.result_state),
        };
        if let (Some(sum), Some(state)) = (sum(&index.digests), index.result_state) {
            if sum != state {
                let message = "the tensors' digests do not add up to the result state [F20]";
                return Err(Error::corrupt(message));
            }
        }
        Ok(index)
    }

    /// Refuses a base state that differs from the header's [F20].
    pub fn check_base(&self, header: Option<Digest>) -> Result<()> {
        match (self.base_state, header) {
            (Some(a), Some(b)) if a != b => Err(Error::corrupt(
                "header and index name different base states [F20]",
            )),
            _ => Ok(()),
        }
    }
}

/// Sum of the digests, where all are known.
pub(crate) fn sum(digests: &[Option<Digest>]) -> Option<Digest> {
    digests
        .iter()
        .try_fold(Digest::default(), |sum, d| d.map(|d| sum.plus(d)))
}

fn parse_places(
    payload: &Payload,
    first_chunk: u64,
    tensors: &[Tensor],
) -> Result<Vec<ChunkPlace>> {
    // Three varints of at least a byte each.
    if payload.count > payload.chunks.len() as u64 / 3 {
        return Err(Error::corrupt(format!(
            "{} chunks do not fit [F19]",
            payload.count
        )));
    }
    let mut places: Vec<ChunkPlace> = Vec::with_capacity(payload.count as usize);
    let mut seen = vec![false; tensors.len()];
    let mut rest = &payload.chunks[..];
    let mut offset = first_chunk;
    for _ in 0..payload.count {
        let mut field = || -> Result<u32> {
            u32::try_from(take_varint(&mut rest)?)
                .map_err(|_| Error::corrupt("a chunk's place exceeds 32 bits [F19]"))
        };
        let (tensor, tile, length) = (field()?, field()?, field()?);
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
    if !rest.is_empty() {
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
                    "tensor {tensor} is not in the table"
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
pub fn encode_trailer(index_offset: u64, index_len: u32) -> [u8; TRAILER_LEN] {
    let mut out = vec![TRAILER_RECORD, 0, 0, 0];
    out.extend_from_slice(&index_len.to_le_bytes());
    out.extend_from_slice(&index_offset.to_le_bytes());
    seal(&mut out, 0);
    out.extend_from_slice(&END_MAGIC);
    let mut trailer = [0; TRAILER_LEN];
    trailer.copy_from_slice(&out);
    trailer
}

/// Offset and length of the index, from a trailer at `offset`.
pub fn decode_trailer(bytes: &[u8; TRAILER_LEN], offset: u64) -> Result<(u64, u32)> {
    let check = || {
        if bytes[20..] != END_MAGIC {
            return Err(Error::corrupt(
                "the end of a delta is missing: cut short, or not a delta",
            ));
        }
        let body = unseal(&bytes[..20], "trailer")?;
        if body[..4] != [TRAILER_RECORD, 0, 0, 0] {
            return Err(Error::corrupt(
                "not a trailer, or reserved bytes are set [F2]",
            ));
        }
        let (length, at) = (u32_at(body, 4), u64_at(body, 8));
        if at.checked_add(u64::from(length)) != Some(offset) {
            return Err(Error::corrupt(
                "the index does not end where the trailer begins [F21]",
            ));
        }
        Ok((at, length))
    };
    check().map_err(|e: Error| e.at(offset))
}
