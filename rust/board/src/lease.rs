//! Leases: what a reader asks the collector to leave in place, and until when.

use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, READERS};
use crate::manifest::{parse_record, to_record, untrusted, FORMAT};
use crate::store::Store;

/// A lease that the store has not seen renewed for so long is ignored, whatever expiry it claims: a
/// clock that is far ahead must not stop collection for ever. Milliseconds.
pub const MAX_LEASE_MS: u64 = 7 * 24 * 3600 * 1000;
/// Bytes of a reader's name.
pub const MAX_NAME: usize = 256;

const MAX_LEASE_BYTES: u64 = 4096;
const IN_FLIGHT: usize = 8;

/// `readers/<id>.json`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Format of the record, as in the manifest.
    pub format: u64,
    /// Who reads; free text.
    pub name: String,
    /// Version that the reader holds; none before the first.
    pub version: Option<u64>,
    /// Version that it is on its way to.
    pub target: Option<u64>,
    /// Oldest version whose records and objects it still needs.
    pub needs: u64,
    /// When the lease ends, by the reader's clock, milliseconds since 1970.
    pub expires_ms: u64,
    /// When it was written, by the reader's clock.
    pub time_ms: u64,
}

/// A lease on the board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLease {
    /// Its id, from its name.
    pub id: String,
    /// What it says.
    pub lease: Lease,
    /// When the store says that it was written, milliseconds since 1970.
    pub modified_ms: u64,
}

impl HeldLease {
    /// When the lease ends, before any grace.
    #[must_use]
    pub fn ends_ms(&self) -> u64 {
        self.lease
            .expires_ms
            .min(self.modified_ms.saturating_add(MAX_LEASE_MS))
    }

    /// Whether a collector must respect it.
    #[must_use]
    pub fn is_active(&self, now_ms: u64, grace_ms: u64) -> bool {
        self.ends_ms().saturating_add(grace_ms) > now_ms
    }
}

impl Lease {
    /// Reads and checks a lease.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`], [`ErrorKind::Unsupported`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let lease: Self = parse_record(bytes, "lease")?;
        lease.check()?;
        Ok(lease)
    }

    /// Writes the lease under `id`, replacing the one before.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`] for an id or a name that cannot be one; [`ErrorKind::Store`].
    pub fn write(&self, store: &Store, id: &str) -> Result<()> {
        self.check()?;
        store.overwrite(&layout::lease(id)?, &to_record(self)?)
    }

    fn check(&self) -> Result<()> {
        if self.name.len() > MAX_NAME {
            return Err(untrusted(format!(
                "the name of a reader has {} bytes, more than {MAX_NAME}",
                self.name.len()
            )));
        }
        Ok(())
    }

    /// A lease of this format.
    #[must_use]
    pub fn new(name: String, needs: u64, expires_ms: u64, time_ms: u64) -> Self {
        Self {
            format: FORMAT,
            name,
            version: None,
            target: None,
            needs,
            expires_ms,
            time_ms,
        }
    }
}

/// Removes a lease; one that is not there is no error.
///
/// # Errors
/// [`ErrorKind::Store`].
pub fn remove(store: &Store, id: &str) -> Result<()> {
    store.delete(&layout::lease(id)?)
}

/// All leases, expired ones included, by id: one listing and one read for each.
///
/// # Errors
/// An object that is no lease, or one of a newer format, is an error: what it protects is not known.
/// [`ErrorKind::Store`].
pub fn list(store: &Store) -> Result<Vec<HeldLease>> {
    let listed = store.list_dated(READERS)?;
    let read = |object: crate::housekeeping::Dated| async move {
        let Some(id) = layout::parse_lease_name(&object.path) else {
            return Ok::<_, Error>(None);
        };
        let path = layout::lease(id)?;
        let Some(bytes) = store.read_soon(&path, MAX_LEASE_BYTES).await? else {
            return Ok(None); // removed since
        };
        let lease = Lease::parse(&bytes).map_err(|mut error| {
            if error.kind == ErrorKind::Untrusted {
                error.message += "; remove it if no reader needs it";
            }
            error.at(&path)
        })?;
        Ok(Some(HeldLease {
            id: id.to_owned(),
            lease,
            modified_ms: object.modified_ms,
        }))
    };
    let found = crate::runtime::block_on(
        futures::stream::iter(listed)
            .map(read)
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<Vec<_>>(),
    )??;
    let mut leases: Vec<_> = found.into_iter().flatten().collect();
    leases.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(leases)
}
