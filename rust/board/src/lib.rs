//! The bulletin board: immutable, numbered versions on any object store.
//!
//! `spec/commit-v1.md` is the contract; a file here is about one part of it:
//!
//! - [`location`]: what a board's URL or path names;
//! - [`store`]: the few storage operations that the protocol needs, made synchronous;
//! - [`upload`], [`download`]: streams with BLAKE3 computed, or checked, on the way;
//! - [`layout`]: names of all objects;
//! - [`manifest`], [`anchor`]: the JSON records, their limits and checks;
//! - [`epoch`], [`commit`]: how a version comes to exist;
//! - [`head`], [`chain`]: how a reader finds it and what it checks first;
//! - [`lease`]: what a reader asks to be left in place;
//! - [`control`], [`retention`], [`collect`], [`sweep`], with the storage operations of
//!   [`housekeeping`]: how old versions go.
//!
//! Nothing here reads a clock or draws a random number: write ids and times come from the
//! caller, so a run can be repeated exactly.

#![forbid(unsafe_code)]

pub mod anchor;
pub mod chain;
pub mod collect;
pub mod commit;
pub mod control;
pub mod download;
pub mod epoch;
pub mod error;
pub mod head;
pub mod hex;
pub mod housekeeping;
pub mod layout;
pub mod lease;
pub mod location;
pub mod manifest;
pub mod retention;
mod runtime;
pub mod store;
pub mod sweep;
pub mod upload;

pub use anchor::{AnchorFiles, AnchorRecord};
pub use chain::{validate_chain, ChainStart, Link};
pub use collect::{collect, Collected, Settings};
pub use control::Control;
pub use download::Download;
pub use error::{Error, ErrorKind, Result};
pub use hex::{Blake3, Hex, State, WriteId};
pub use lease::{HeldLease, Lease};
pub use location::Location;
pub use manifest::{Manifest, ObjectRef, VersionRef};
pub use store::{Created, Store};
pub use upload::Upload;
