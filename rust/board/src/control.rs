//! What `control/` says: epochs, claims on anchor directories, and how far collection has come.
//!
//! Collection markers are created, never replaced. The highest is the *boundary*: versions below it may
//! go at any moment. The lowest is the *floor*: nothing below it is left. Between a crash and the
//! next collection the two differ, and the versions between them are what that collection finishes.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::hex::WriteId;
use crate::layout::{self, CONTROL, FIRST};
use crate::manifest::{to_record, untrusted, MAX_RECORD};
use crate::store::{Created, Store};

/// A claim on an anchor directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The anchor's version.
    pub version: u64,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// When the store says that it was written, milliseconds since 1970.
    pub modified_ms: u64,
}

impl Claim {
    /// The directory that only this attempt writes.
    #[must_use]
    pub fn directory(&self) -> String {
        layout::anchor_directory(self.version, self.attempt)
    }

    /// The claim's own path.
    #[must_use]
    pub fn path(&self) -> String {
        layout::anchor_claim(self.version, self.attempt)
    }
}

/// One listing of `control/`, every part in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Control {
    /// Epochs.
    pub epochs: Vec<u64>,
    /// Claims.
    pub claims: Vec<Claim>,
    /// Versions of the collection markers.
    pub markers: Vec<u64>,
}

/// What a marker holds; only its existence counts.
#[derive(Serialize)]
struct Marker {
    version: u64,
    write_id: WriteId,
    time_ms: u64,
}

impl Control {
    /// Lists `control/`: one request, whose size follows what was not collected yet.
    ///
    /// # Errors
    /// [`ErrorKind::Store`].
    pub fn list(store: &Store) -> Result<Self> {
        let mut found = Self::default();
        for object in store.list_dated(CONTROL)? {
            let name = object.path.as_str();
            if let Some(epoch) = layout::parse_epoch_name(name) {
                found.epochs.push(epoch);
            } else if let Some((version, attempt)) = layout::parse_claim_name(name) {
                found.claims.push(Claim {
                    version,
                    attempt,
                    modified_ms: object.modified_ms,
                });
            } else if let Some(version) = layout::parse_collected_name(name) {
                found.markers.push(version);
            }
        }
        found.epochs.sort_unstable();
        found.claims.sort_unstable();
        found.markers.sort_unstable();
        Ok(found)
    }

    /// Versions below this one may go at any moment; `None` if nothing was ever collected.
    #[must_use]
    pub fn boundary(&self) -> Option<u64> {
        self.markers.last().copied()
    }

    /// Nothing below this version is left; `None` if nothing was ever collected.
    #[must_use]
    pub fn floor(&self) -> Option<u64> {
        self.markers.first().copied()
    }
}

/// Creates a collection marker; one that is there already is as good.
///
/// # Errors
/// [`ErrorKind::Store`].
pub fn mark(store: &Store, version: u64, write_id: WriteId, time_ms: u64) -> Result<()> {
    let record = to_record(&Marker {
        version,
        write_id,
        time_ms,
    })?;
    match store.create(&layout::collected(version), &record)? {
        Created::Now | Created::Recovered | Created::Taken(_) => Ok(()),
    }
}

/// The number of a board's first version.
#[derive(Serialize, Deserialize)]
struct First {
    version: u64,
    write_id: WriteId,
    time_ms: u64,
}

/// The number that begins this board, if one was ever chosen.
///
/// # Errors
/// [`ErrorKind::Untrusted`] for a record that is none; [`ErrorKind::Store`].
pub fn first_version(store: &Store) -> Result<Option<u64>> {
    let Some(bytes) = store.read(FIRST, MAX_RECORD)? else {
        return Ok(None);
    };
    match serde_json::from_slice::<First>(&bytes) {
        Ok(first) => Ok(Some(first.version)),
        Err(error) => {
            Err(untrusted(format!("not the number of a first version: {error}")).at(FIRST))
        }
    }
}

/// Makes sure that no other number than `version` begins the board: of two publishers that find
/// it empty, both could otherwise commit a first version.
///
/// # Errors
/// [`ErrorKind::Conflict`] if another number does; [`ErrorKind::Store`].
pub fn claim_first(store: &Store, version: u64, write_id: WriteId, time_ms: u64) -> Result<()> {
    let claim = to_record(&First {
        version,
        write_id,
        time_ms,
    })?;
    match store.create(FIRST, &claim)? {
        Created::Now | Created::Recovered => return Ok(()),
        // Read anew: the bytes at hand may have been cut off.
        Created::Taken(_) => {}
    }
    match first_version(store)? {
        Some(first) if first == version => Ok(()),
        first => {
            let first = first.map_or_else(|| "another".to_owned(), |first| first.to_string());
            Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "another publisher began this board with version {first}; publish that number"
                ),
            )
            .at(FIRST)
            .version(version))
        }
    }
}
