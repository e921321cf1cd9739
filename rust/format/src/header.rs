//! The header of a delta.

use std::collections::BTreeMap;

use deltawire_kernels::Digest;

use crate::columns::Columns;
use crate::error::{Error, Kind, Result};
use crate::limits::{Limits, MAX_DTYPES, MAX_TENSORS};
use crate::payload::{pack, payload, unpack, Bin, List, State, Text, TextMap};
use crate::table::Tensor;

/// First bytes of a delta.
pub const MAGIC: [u8; 8] = *b"\x93DWIRE\x1a\n";
/// Version that this crate writes and reads.
pub const MAJOR: u16 = 1;
/// Minor version that this crate writes.
pub const MINOR: u16 = 0;
/// Bytes before the payload.
pub const FIXED_LEN: usize = 24;
/// Bytes of a checksum.
pub const CRC_LEN: usize = 4;

/// Required feature: the payload is an LZ4 stage.
const LZ4_HEADER: u32 = 1;
const KNOWN_REQUIRED: u32 = LZ4_HEADER;

/// What a delta says about itself before its first chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Run name.
    pub run: String,
    /// Version that the delta leads to.
    pub version: u64,
    /// Version that it starts from.
    pub base_version: Option<u64>,
    /// State digest of the base, where the writer knew it beforehand.
    pub base_state: Option<Digest>,
    /// Profile's name; informative.
    pub profile: String,
    /// Free text.
    pub meta: BTreeMap<String, String>,
    /// The tensor table.
    pub tensors: Vec<Tensor>,
    /// Major and minor version as read.
    pub format: (u16, u16),
}

payload!(Payload {
    run: Text,
    version: u64,
    base_version: Option<u64>,
    base_state: Option<State>,
    profile: Text,
    meta: TextMap,
    names: List<Text, MAX_TENSORS>,
    numbers: Bin,
    dtypes: List<Text, MAX_DTYPES>,
    dtype: Bin,
    rank: Bin,
    shapes: Bin,
    tiles: Bin,
});

/// Appends a CRC-32 of `out[from..]`.
pub(crate) fn seal(out: &mut Vec<u8>, from: usize) {
    let crc = crc32fast::hash(&out[from..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// The bytes before the CRC-32 at the end of `record`, once it is right.
pub(crate) fn unseal<'a>(record: &'a [u8], what: &str) -> Result<&'a [u8]> {
    let (body, crc) = record
        .split_last_chunk::<CRC_LEN>()
        .ok_or_else(|| Error::corrupt(format!("the {what} is cut short")))?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err(Error::corrupt(format!(
            "the checksum of the {what} is wrong [F3]"
        )));
    }
    Ok(body)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

impl Header {
    /// The header's bytes.
    pub fn encode(&self, limits: &Limits) -> Result<Vec<u8>> {
        let columns = Columns::of(&self.tensors);
        let payload = Payload {
            run: Text(self.run.clone()),
            version: self.version,
            base_version: self.base_version,
            base_state: self.base_state.map(State),
            profile: Text(self.profile.clone()),
            meta: TextMap(self.meta.clone()),
            names: List(columns.names.into_iter().map(Text).collect()),
            numbers: Bin(columns.numbers),
            dtypes: List(columns.dtypes.into_iter().map(Text).collect()),
            dtype: Bin(columns.dtype),
            rank: Bin(columns.rank),
            shapes: Bin(columns.shapes),
            tiles: Bin(columns.tiles),
        };
        let (payload, lz4) = pack(&payload)?;
        if payload.len() as u64 > limits.max_header_bytes {
            return Err(Error::limit(format!("a header of {} bytes", payload.len())));
        }
        let mut out = Vec::with_capacity(FIXED_LEN + payload.len() + CRC_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&MAJOR.to_le_bytes());
        out.extend_from_slice(&MINOR.to_le_bytes());
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&(if lz4 { LZ4_HEADER } else { 0 }).to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        out.extend_from_slice(&payload);
        seal(&mut out, 0);
        Ok(out)
    }

    /// Length of the whole header, from its first 24 bytes.
    ///
    /// Magic and major version are checked before the length is believed.
    pub fn length(fixed: &[u8; FIXED_LEN], limits: &Limits) -> Result<u64> {
        if fixed[..8] != MAGIC {
            return Err(
                Error::corrupt("not a deltawire delta (the first bytes differ) [F21]").at(0),
            );
        }
        let major = u16::from_le_bytes([fixed[8], fixed[9]]);
        if major != MAJOR {
            let message = format!("format version {major}, this reader knows {MAJOR} [F7]");
            return Err(Error::new(Kind::Unsupported, message).at(8));
        }
        let payload = u64::from(u32_at(fixed, 12));
        if payload > limits.max_header_bytes {
            return Err(Error::limit(format!("a header of {payload} bytes")).at(12));
        }
        Ok(FIXED_LEN as u64 + payload + CRC_LEN as u64)
    }

    /// Reads a header of exactly the right length.
    pub fn decode(record: &[u8], limits: &Limits) -> Result<Self> {
        let short = || Error::corrupt("the header is cut short");
        let fixed = record.first_chunk::<FIXED_LEN>().ok_or_else(short)?;
        if Self::length(fixed, limits)? != record.len() as u64 {
            return Err(short());
        }
        let body = unseal(record, "header").map_err(|e| e.at(0))?;
        let required = u32_at(body, 16);
        if required & !KNOWN_REQUIRED != 0 {
            let message = format!(
                "required features {:#x} are not known; a newer deltawire reads this delta [F7]",
                required & !KNOWN_REQUIRED
            );
            return Err(Error::new(Kind::Unsupported, message).at(16));
        }
        let at_payload = |e: Error| e.at(FIXED_LEN as u64);
        let payload: Payload = unpack(
            &body[FIXED_LEN..],
            required & LZ4_HEADER != 0,
            limits,
            "header",
        )
        .map_err(at_payload)?;
        if payload.names.0.len() as u64 > limits.max_tensors {
            let message = format!("{} tensors", payload.names.0.len());
            return Err(at_payload(Error::limit(message)));
        }
        let texts = |list: Vec<Text>| list.into_iter().map(|t| t.0).collect();
        let columns = Columns {
            names: texts(payload.names.0),
            numbers: payload.numbers.0,
            dtypes: texts(payload.dtypes.0),
            dtype: payload.dtype.0,
            rank: payload.rank.0,
            shapes: payload.shapes.0,
            tiles: payload.tiles.0,
        };
        // A layout that no writer can mean is a corrupt delta, not a mismatch.
        let tensors = columns.tensors().map_err(|e| match e.kind {
            Kind::Layout => at_payload(Error {
                kind: Kind::Corrupt,
                ..e
            }),
            _ => at_payload(e),
        })?;
        check_unique(&tensors).map_err(|e| {
            at_payload(Error {
                kind: Kind::Corrupt,
                ..e
            })
        })?;
        Ok(Self {
            run: payload.run.0,
            version: payload.version,
            base_version: payload.base_version,
            base_state: payload.base_state.map(|s| s.0),
            profile: payload.profile.0,
            meta: payload.meta.0,
            tensors,
            format: (MAJOR, u16::from_le_bytes([body[10], body[11]])),
        })
    }
}

/// Names must not repeat [F8].
pub(crate) fn check_unique(tensors: &[Tensor]) -> Result<()> {
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|w| w[0] == w[1]) {
        Some(twice) => Err(Error::new(
            Kind::Layout,
            "the name stands twice in the tensor table [F8]",
        )
        .of(twice[0])),
        None => Ok(()),
    }
}
