//! What a reader accepts.

/// Bounds on what a delta may claim. A claim above them is refused before memory is taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the header payload and of the index payload, also after decompression.
    pub max_header_bytes: u64,
    /// Entries of the tensor table; 2^20 at most [F8].
    pub max_tensors: u64,
    /// Bytes of one chunk record.
    pub max_chunk_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_header_bytes: 256 << 20,
            max_tensors: 1 << 20,
            max_chunk_bytes: 72 << 20,
        }
    }
}

/// Most elements of a tile [F5].
pub const MAX_TILE_ELEMENTS: u64 = 1 << 22;
/// Most bytes of a tensor name [F8].
pub const MAX_NAME_BYTES: usize = 4096;
/// Most dimensions of a tensor [F8].
pub const MAX_RANK: usize = 32;
/// Most tensors of a table [F8].
pub const MAX_TENSORS: usize = 1 << 20;
/// Most dtypes of a table, whose numbers are bytes [F8].
pub const MAX_DTYPES: usize = 256;
