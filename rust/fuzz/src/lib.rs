//! What the fuzz targets do: each function takes any bytes and panics where a promise is broken.
//!
//! - [`stream`]: any bytes, front to back in pieces and by range: the two must agree
//! - [`sealed`]: the same after every checksum was made right, so that the parsers are reached
//! - [`codec`]: streams of one chunk: what decodes is in bounds, has taken no memory that the stream has
//!   not earned, and encodes and decodes again
//! - [`round_trip`]: any tensors under any profile: written, read, planned and committed
//! - [`apply`]: any sealed delta on a small target: refused without a trace, or proven
//!
//! `tests/replay.rs` runs all of them over the golden files, `seeds/`, and what the writer makes today
//! ([`made()`]).

mod apply;
mod codec;
mod made;
mod round_trip;
mod seal;
mod stream;

pub use apply::apply;
pub use codec::codec;
pub use made::made;
pub use round_trip::round_trip;
pub use stream::{sealed, stream};

use std::sync::{Arc, OnceLock};

pub(crate) use deltawire_format::with_word as with_width;

/// Two threads for all runs.
pub(crate) fn pool() -> &'static Arc<rayon::ThreadPool> {
    static POOL: OnceLock<Arc<rayon::ThreadPool>> = OnceLock::new();
    POOL.get_or_init(|| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
        Arc::new(pool.expect("threads can be started"))
    })
}
