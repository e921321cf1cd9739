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
//! - [`sign`], [`keyfile`], [`trust`]: who wrote it, and whom a reader believes.
//!
//! Nothing here reads a clock or draws a random number: write ids and times come from the
//! caller, so a run can be repeated exactly.

#![forbid(unsafe_code)]

pub mod anchor;
pub mod chain;
pub mod commit;
pub mod download;
pub mod epoch;
pub mod error;
pub mod head;
pub mod hex;
pub mod keyfile;
pub mod layout;
pub mod location;
pub mod manifest;
mod runtime;
pub mod sign;
pub mod store;
pub mod trust;
pub mod upload;

pub use anchor::{AnchorFiles, AnchorRecord};
pub use chain::{validate_chain, ChainStart, Link};
pub use download::Download;
pub use error::{Error, ErrorKind, Result};
pub use hex::{Blake3, Hex, State, WriteId};
pub use location::Location;
pub use manifest::{Manifest, ObjectRef, VersionRef};
pub use sign::{PublicKey, Signed, SigningKey};
pub use store::{Created, Store};
pub use trust::{Keyring, TrustedKey};
pub use upload::Upload;
