//! The deltawire delta format (`spec/format-v1.md`): pure functions and streams over bytes.
//!
//! A delta is `header, chunk*, index, trailer`:
//!
//! - [`header`], [`chunk`], [`index`](mod@index): one file a structure, encoding and decoding
//! - [`table`] and [`tiling`]: tensors as matrices, and how a writer cuts them into tiles
//! - [`codec`]: changes of a tile as bytes; [`classify`] groups them by exponent, and [`encode`] picks
//!   the smallest under a [`Profile`]
//! - [`writer`]: front to back, tiles in parallel
//! - [`reader`] by range and [`push`] front to back: whole and checked chunks
//! - [`state`]: digests of whole tensors
//! - [`rewind`]: from the elements after a step back to those before, proven by digests, and [`detected`]:
//!   writing what changed
//! - [`apply`]: what a delta would do to a target, and doing it
//! - [`damage`]: tiles of a target that a delta fits neither before nor after
//! - [`compose`]: several deltas folded into one
//! - [`join`]: the deltas of several writers of one step put together
//!
//! No input makes this crate panic or take memory that the input has not earned.

#![forbid(unsafe_code)]

pub mod apply;
pub mod bits;
mod check;
pub mod chunk;
pub mod classify;
pub mod codec;
mod columns;
mod commit;
pub mod compose;
pub mod damage;
pub mod detected;
mod doubts;
pub mod dtype;
pub mod encode;
pub mod error;
pub mod header;
pub mod index;
pub mod join;
pub mod limits;
mod payload;
mod permits;
mod prepared;
pub mod push;
pub mod reader;
pub mod rewind;
mod scratch;
mod settle;
mod shard;
pub mod state;
pub mod table;
mod tasks;
mod tile;
pub mod tiling;
pub mod writer;

pub use apply::{Plan, Proof};
pub use check::flat_positions;
pub use chunk::Chunk;
pub use encode::Profile;
pub use error::{Error, Kind, Result};
pub use header::Header;
pub use limits::Limits;
pub use push::PushReader;
pub use reader::{Delta, ReadAt};
pub use table::Tensor;
pub use tiling::Tiling;
pub use writer::Writer;
