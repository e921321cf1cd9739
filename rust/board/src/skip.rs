//! Skip records: a delta that leads from an earlier version straight to a later one, added to a board
//! beside the chain that it folds.

use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::hex::{Blake3, State, WriteId};
use crate::layout;
use crate::manifest::{
    check_parts, parse_record, to_record, untrusted, Part, VersionRef, MAX_RECORD,
};
use crate::runtime::block_on;
use crate::sign::{Signed, SigningKey};
use crate::store::{Created, Store};

/// Records on their way at once.
const IN_FLIGHT: usize = 8;

/// A delta over several versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkipRecord {
    /// Format of the record, as in the manifest.
    pub format: u64,
    /// Features that a reader must know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// The version that it leads to.
    pub version: u64,
    /// BLAKE3 of that version's manifest.
    pub manifest: Blake3,
    /// The version that it starts from, with the digest of its manifest.
    pub base: VersionRef,
    /// State of the base, equal to the one in its manifest.
    pub base_state: State,
    /// State of the version, equal to the one in its manifest.
    pub result_state: State,
    /// The delta.
    pub objects: Vec<Part>,
    /// Elements that it changes.
    #[serde(default)]
    pub changed: u64,
    /// Random name of the attempt that wrote this.
    pub write_id: WriteId,
    /// Wall time, milliseconds since 1970.
    pub time_ms: u64,
    /// Who wrote it, for readers that trust certain keys; see [`crate::sign`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<serde_json::Value>,
}

impl SkipRecord {
    /// Reads and checks the record of the delta from `base` to `version`.
    ///
    /// # Errors
    /// As [`crate::Manifest::parse`].
    pub fn parse(bytes: &[u8], version: u64, base: u64) -> Result<Self> {
        let record: Self = parse_record(bytes, "skip record")?;
        if (record.version, record.base.version) != (version, base) {
            return Err(untrusted(format!(
                "the skip record from version {base} to {version} says that it leads from {} to {}",
                record.base.version, record.version
            )));
        }
        record.check()?;
        Ok(record)
    }

    /// Reads the records of pairs of version and base, several at a time: the checked bytes of each, or
    /// `None` where there is none.
    ///
    /// # Errors
    /// As [`SkipRecord::parse`], for the first pair that fails, and [`ErrorKind::Store`].
    pub fn read(store: &Store, pairs: &[(u64, u64)]) -> Result<Vec<Option<Vec<u8>>>> {
        let read = |&(version, base): &(u64, u64)| async move {
            let path = layout::skip_record(version, base);
            let bytes = store.read_soon(&path, MAX_RECORD).await;
            let bytes = bytes.map_err(|error| error.version(version))?;
            if let Some(bytes) = &bytes {
                Self::parse(bytes, version, base)
                    .map_err(|error| error.at(path).version(version))?;
            }
            Ok(bytes)
        };
        block_on(
            futures::stream::iter(pairs)
                .map(read)
                .buffered(IN_FLIGHT)
                .try_collect(),
        )?
    }

    /// Commits the record, create-only, signed by `key` if there is one. Returns the BLAKE3 of its bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if there is such a record already; [`ErrorKind::Store`].
    pub fn commit(&self, store: &Store, key: Option<&SigningKey>) -> Result<Blake3> {
        self.check()?;
        let mut bytes = to_record(self)?;
        if let Some(key) = key {
            bytes = key.sign_record(Signed::Skip, &bytes)?;
        }
        let path = layout::skip_record(self.version, self.base.version);
        match store.create(&path, &bytes)? {
            Created::Now | Created::Recovered => Ok(Blake3::of(&bytes)),
            Created::Taken(_) => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "there is a delta from version {} already; nothing to do",
                    self.base.version
                ),
            )
            .at(path)
            .version(self.version)),
        }
    }

    fn check(&self) -> Result<()> {
        if self.version > layout::MAX_VERSION || self.base.version >= self.version {
            return Err(untrusted(format!(
                "a delta cannot lead from version {} to {}",
                self.base.version, self.version
            )));
        }
        if self.objects.is_empty() {
            return Err(untrusted("a skip record without a delta".to_owned()));
        }
        check_parts(&self.objects)
    }
}
