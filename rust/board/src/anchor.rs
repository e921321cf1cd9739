//! Anchors: full checkpoints in the ordinary Hugging Face layout.

use serde::{Deserialize, Serialize};

use crate::blocks::Blocks;
use crate::error::{Error, ErrorKind, Result};
use crate::hex::{Blake3, State, WriteId};
use crate::layout::{self, check_path, ANCHORS};
use crate::manifest::{parse_record, to_record, untrusted, ObjectRef, MAX_RECORD};
use crate::sign::{Signed, SigningKey};
use crate::store::{Created, Store};

/// A file of an anchor, and what those who read only some of it need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnchorFile {
    /// The file.
    #[serde(flatten)]
    pub object: ObjectRef,
    /// The BLAKE3 of each block of it. Who reads parts of the file checks them with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Blocks>,
}

/// A checkpoint directory on the board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnchorFiles {
    /// The directory, `anchors/<version>` or `anchors/<version>-<attempt>`.
    pub path: String,
    /// All files of the checkpoint, paths from the board's root.
    pub files: Vec<AnchorFile>,
}

impl AnchorFiles {
    /// Bytes of all files of the checkpoint.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files
            .iter()
            .map(|file| file.object.bytes)
            .fold(0, u64::saturating_add)
    }

    /// Everything that lies in the directory: the files, and the hashes of their blocks.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        self.files
            .iter()
            .flat_map(|file| [Some(&file.object), file.blocks.as_ref().map(|b| &b.object)])
            .flatten()
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_path(&self.path, ANCHORS)?;
        if self.path.matches('/').count() != 1 {
            return Err(untrusted(format!(
                "the anchor directory {:?} is nested",
                self.path
            )));
        }
        if self.files.is_empty() {
            return Err(untrusted("an anchor without files".to_owned()));
        }
        let mut names = std::collections::BTreeSet::new();
        for object in self.objects() {
            check_path(&object.path, &self.path)?;
            if !names.insert(object.path.as_str()) {
                return Err(untrusted(format!("{:?} is listed twice", object.path)));
            }
        }
        for file in &self.files {
            if let Some(blocks) = &file.blocks {
                blocks.check(&file.object)?;
            }
        }
        Ok(())
    }
}

/// An anchor added to a version that was committed without one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnchorRecord {
    /// Format of the record, as in the manifest.
    pub format: u64,
    /// Features that a reader must know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// The version.
    pub version: u64,
    /// BLAKE3 of that version's manifest.
    pub manifest: Blake3,
    /// State of the checkpoint, equal to the manifest's.
    pub result_state: State,
    /// The checkpoint.
    pub anchor: AnchorFiles,
    /// Epoch of the writer.
    pub epoch: u64,
    /// Random name of the attempt that wrote this.
    pub write_id: WriteId,
    /// Wall time, milliseconds since 1970.
    pub time_ms: u64,
    /// Who wrote it, for readers that trust certain keys; see [`crate::sign`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<serde_json::Value>,
}

impl AnchorRecord {
    /// Reads and checks the anchor record of `version`.
    ///
    /// # Errors
    /// As [`crate::Manifest::parse`].
    pub fn parse(bytes: &[u8], version: u64) -> Result<Self> {
        let record: Self = parse_record(bytes, "anchor record")?;
        record.anchor.check()?;
        if record.version != version {
            return Err(untrusted(format!(
                "the anchor record of version {version} says that it is for version {}",
                record.version
            )));
        }
        Ok(record)
    }

    /// Reads the anchor record of `version`, if there is one, with the BLAKE3 of its bytes.
    ///
    /// # Errors
    /// As [`AnchorRecord::parse`], and [`ErrorKind::Store`].
    pub fn read(store: &Store, version: u64) -> Result<Option<(Self, Blake3)>> {
        Ok(match Self::read_bytes(store, version)? {
            Some(bytes) => Some((Self::parse(&bytes, version)?, Blake3::of(&bytes))),
            None => None,
        })
    }

    /// As [`AnchorRecord::read`], but gives the checked bytes.
    ///
    /// # Errors
    /// As [`AnchorRecord::read`].
    pub fn read_bytes(store: &Store, version: u64) -> Result<Option<Vec<u8>>> {
        let path = layout::anchor_record(version);
        let Some(bytes) = store.read(&path, MAX_RECORD)? else {
            return Ok(None);
        };
        Self::parse(&bytes, version).map_err(|error| error.at(&path).version(version))?;
        Ok(Some(bytes))
    }

    /// Commits the record, create-only, and returns the BLAKE3 of its bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the version already has an anchor record; [`ErrorKind::Store`].
    pub fn commit(&self, store: &Store) -> Result<Blake3> {
        self.commit_signed(store, None)
    }

    /// As [`AnchorRecord::commit`], signed by `key` if there is one.
    ///
    /// # Errors
    /// As [`AnchorRecord::commit`].
    pub fn commit_signed(&self, store: &Store, key: Option<&SigningKey>) -> Result<Blake3> {
        self.anchor.check()?;
        let mut bytes = to_record(self)?;
        if let Some(key) = key {
            bytes = key.sign_record(Signed::Anchor, &bytes)?;
        }
        let path = layout::anchor_record(self.version);
        match store.create(&path, &bytes)? {
            Created::Now | Created::Recovered => Ok(Blake3::of(&bytes)),
            Created::Taken(_) => Err(Error::new(
                ErrorKind::Conflict,
                "this version already has an anchor; nothing to do",
            )
            .at(path)
            .version(self.version)),
        }
    }
}

/// The claim on an anchor directory. Its only purpose is to exist once.
#[derive(Serialize)]
struct Claim {
    epoch: u64,
    write_id: WriteId,
    time_ms: u64,
}

/// Attempts at one anchor before this gives up.
const MAX_ATTEMPTS: u32 = 1000;

/// Picks the directory for an anchor of `version` that no other writer has used or will use.
///
/// File names in a checkpoint are fixed (`model.safetensors`), so two writers in one directory would
/// overwrite each other's committed files.
///
/// # Errors
/// [`ErrorKind::Store`].
pub fn claim_directory(
    store: &Store,
    version: u64,
    epoch: u64,
    write_id: WriteId,
    time_ms: u64,
) -> Result<String> {
    let claim = to_record(&Claim {
        epoch,
        write_id,
        time_ms,
    })?;
    for attempt in 1..=MAX_ATTEMPTS {
        match store.create(&layout::anchor_claim(version, attempt), &claim)? {
            Created::Now | Created::Recovered => {
                return Ok(layout::anchor_directory(version, attempt))
            }
            Created::Taken(_) => {}
        }
    }
    Err(Error::new(
        ErrorKind::Store,
        format!("{MAX_ATTEMPTS} attempts at an anchor failed; look for what stops them"),
    )
    .version(version))
}
