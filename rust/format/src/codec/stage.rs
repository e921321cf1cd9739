//! The stage behind a codec: none, or LZ4.

use crate::bits::{put_varint, take_varint};
use crate::error::{Error, Result};

/// Most bytes that one byte of an LZ4 block can stand for, and a constant for short blocks [F18].
const MAX_RATIO: u64 = 255;
const SLACK: u64 = 64;

/// How a codec's stream is stored. Ids are those of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// As it is.
    None = 0,
    /// Its length as a varint, then one LZ4 block.
    Lz4 = 1,
}

impl Stage {
    /// By id.
    pub fn from_id(id: u8) -> Result<Self> {
        match id {
            0 => Ok(Self::None),
            1 => Ok(Self::Lz4),
            _ => Err(Error::corrupt(format!("stage {id} is reserved [F2]"))),
        }
    }
}

/// The stored form of a stream as an LZ4 stage.
pub fn compress(stream: &[u8]) -> Vec<u8> {
    compress_with(stream, &[])
}

/// The same with a dictionary that precedes the stream.
pub(crate) fn compress_with(stream: &[u8], dictionary: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(stream.len() as u64, &mut out);
    out.extend_from_slice(&lz4_flex::block::compress_with_dict(stream, dictionary));
    out
}

/// Undoes `compress` into `out`, replacing it; at most `max_len` bytes.
pub fn decompress(stored: &[u8], max_len: u64, out: &mut Vec<u8>) -> Result<()> {
    decompress_with(stored, max_len, &[], out)
}

/// Undoes `compress_with`.
pub(crate) fn decompress_with(
    stored: &[u8],
    max_len: u64,
    dictionary: &[u8],
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut block = stored;
    let length =
        take_varint(&mut block).map_err(|_| Error::corrupt("an LZ4 stage is cut short [F18]"))?;
    if length > max_len || length > MAX_RATIO * block.len() as u64 + SLACK {
        return Err(Error::corrupt(format!(
            "an LZ4 stage of {} bytes claims {length} bytes [F18]",
            block.len()
        )));
    }
    out.clear();
    out.resize(length as usize, 0);
    let got = lz4_flex::block::decompress_into_with_dict(block, out, dictionary)
        .map_err(|e| Error::corrupt(format!("LZ4 block: {e} [F18]")))?;
    if got as u64 != length {
        return Err(Error::corrupt(format!(
            "an LZ4 block holds {got} bytes instead of {length} [F18]"
        )));
    }
    Ok(())
}

/// The stream of a stored form: itself, or decompressed into `scratch`.
pub fn open<'a>(
    stage: Stage,
    stored: &'a [u8],
    max_len: u64,
    scratch: &'a mut Vec<u8>,
) -> Result<&'a [u8]> {
    match stage {
        Stage::None => Ok(stored),
        Stage::Lz4 => {
            decompress(stored, max_len, scratch)?;
            Ok(scratch)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(stream in prop::collection::vec(0u8..4, 0..500)) {
            let stored = compress(&stream);
            let mut out = vec![];
            decompress(&stored, 500, &mut out).unwrap();
            prop_assert_eq!(&out, &stream);
            if !stream.is_empty() {
                prop_assert!(decompress(&stored, stream.len() as u64 - 1, &mut out).is_err());
            }
        }
    }

    #[test]
    fn a_bomb_is_refused_before_memory_is_taken() {
        let mut stored = vec![0xff, 0xff, 0xff, 0xff, 0x0f];
        stored.extend_from_slice(&[0; 10]);
        let mut out = vec![];
        assert!(decompress(&stored, u64::MAX, &mut out).is_err());
        assert_eq!(out.capacity(), 0);
    }
}
