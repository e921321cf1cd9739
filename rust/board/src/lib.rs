//! The bulletin board: immutable, numbered versions on any object store.
//!
//! `spec/commit-v1.md` is the contract; a file here is about one part of it:
//!
//! - [`location`], [`options`]: what a board's URL or path names, and how it is reached;
//! - `remote`: clients of S3, GCS, Azure and web servers;
//! - [`store`]: the few storage operations that the protocol needs, made synchronous;
//! - [`upload`], [`download`]: streams with BLAKE3 computed, or checked, on the way;
//! - `pieces`, `ranges`, `cache`: parallel range requests, many ranges at once, what was downloaded;
//! - [`layout`]: names of all objects;
//! - [`manifest`], [`anchor`], [`skip`]: the JSON records, their limits and checks;
//! - [`blocks`]: hashes with which parts of a file are checked;
//! - [`epoch`], [`commit`]: how a version comes to exist;
//! - [`head`], [`chain`]: how a reader finds it and what it checks first;
//! - [`sign`], [`keyfile`], [`trust`]: who wrote it, and whom a reader believes;
//! - [`lease`]: what a reader asks to be left in place;
//! - [`control`], [`retention`], [`collect`], [`sweep`], with the storage operations of
//!   [`housekeeping`]: how old versions go;
//! - [`faults`]: a store that misbehaves on purpose, for tests.
//!
//! Nothing here reads a clock or draws a random number: write ids and times come from the
//! caller, so a run can be repeated exactly. The clients below `remote` do both, to sign requests and to
//! wait between retries.

#![forbid(unsafe_code)]

pub mod anchor;
mod backend;
pub mod blocks;
mod boundary;
mod cache;
pub mod chain;
pub mod collect;
pub mod commit;
pub mod control;
pub mod download;
pub mod epoch;
pub mod error;
pub mod faults;
pub mod head;
pub mod hex;
pub mod housekeeping;
pub mod keyfile;
pub mod layout;
pub mod lease;
pub mod location;
pub mod manifest;
pub mod options;
mod pieces;
mod ranges;
mod remote;
pub mod retention;
mod runtime;
pub mod sign;
pub mod skip;
pub mod store;
pub mod sweep;
pub mod trust;
pub mod upload;

pub use anchor::{AnchorFile, AnchorFiles, AnchorRecord};
pub use blocks::Blocks;
pub use chain::{validate_chain, ChainStart, Link};
pub use collect::{collect, Collected, Settings};
pub use control::Control;
pub use download::Download;
pub use error::{Error, ErrorKind, Result};
pub use faults::FaultPlan;
pub use hex::{Blake3, Hex, State, WriteId};
pub use lease::{HeldLease, Lease};
pub use location::Location;
pub use manifest::{Manifest, ObjectRef, Part, VersionRef};
pub use options::{CacheOptions, Credentials, StoreOptions};
pub use sign::{PublicKey, Signed, SigningKey};
pub use skip::SkipRecord;
pub use store::{Created, Store};
pub use trust::{Keyring, TrustedKey};
pub use upload::Upload;
