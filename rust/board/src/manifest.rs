//! The manifest: the JSON record whose existence is the existence of a version.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::anchor::AnchorFiles;
use crate::error::{Error, ErrorKind, Result};
use crate::hex::{Blake3, State, WriteId};
use crate::layout::{check_path, part_prefix, MAX_VERSION, OBJECTS};

/// Manifest format that this crate writes, and the newest that it reads.
pub const FORMAT: u64 = 1;
/// A record larger than this is refused before it is read, in bytes.
pub const MAX_RECORD: u64 = 8 << 20;
/// Bytes of keys and values of `meta` together.
pub const MAX_META: usize = 256 << 10;
/// Most spans in `skips`.
pub const MAX_SKIPS: usize = 16;
/// Most parts of a delta.
pub const MAX_PARTS: usize = 4096;
/// Names that may stand in `requires`.
pub const KNOWN_FEATURES: &[&str] = &[];

/// An immutable object that a record vouches for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRef {
    /// Path from the board's root.
    pub path: String,
    /// Length.
    pub bytes: u64,
    /// BLAKE3 of the bytes.
    pub blake3: Blake3,
}

/// A version's delta, and what those who fetch only some of it need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The delta.
    #[serde(flatten)]
    pub object: ObjectRef,
    /// An object that holds the BLAKE3 of each of its records, 32 bytes each: the header, every chunk,
    /// and index and trailer together. Who reads parts of the delta checks them with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<ObjectRef>,
}

/// Another version, named so that no other bytes can stand in for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRef {
    /// The version.
    pub version: u64,
    /// BLAKE3 of the bytes of its manifest (or anchor record).
    pub digest: Blake3,
}

/// One version. Field order is the order of the JSON keys; keys that a reader does not know are
/// ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format of the record, [`FORMAT`].
    pub format: u64,
    /// Features that a reader must know to use this version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Name of the run, may be empty.
    #[serde(default)]
    pub run: String,
    /// The version that this manifest commits; also in its file name.
    pub version: u64,
    /// The version before; `None` only for the first of a board.
    pub parent: Option<VersionRef>,
    /// State that the delta starts from; `None` where there is no delta.
    pub base_state: Option<State>,
    /// State of this version.
    pub result_state: State,
    /// The delta: one object, or the parts of several writers in the order of their numbers; none for a
    /// version that only has an anchor.
    pub objects: Vec<Part>,
    /// A full checkpoint of this version.
    #[serde(default)]
    pub anchor: Option<AnchorFiles>,
    /// The newest anchor when this was committed, if not this version's own. The digest is that of
    /// the manifest, or anchor record, that lists its files.
    #[serde(default)]
    pub last_anchor: Option<VersionRef>,
    /// Elements of all tensors.
    #[serde(default)]
    pub elements: u64,
    /// Elements that the delta changes.
    #[serde(default)]
    pub changed: u64,
    /// Bytes of all tensors.
    #[serde(default)]
    pub dense_bytes: u64,
    /// Epoch of the writer.
    pub epoch: u64,
    /// Random name of the attempt that wrote this.
    pub write_id: WriteId,
    /// Wall time of the commit, milliseconds since 1970.
    pub time_ms: u64,
    /// Spans of skip records that the publisher means to add: for each `s` one from version - s. A reader
    /// that is that far behind looks for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skips: Vec<u64>,
    /// Free.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
    /// Who wrote it, for readers that trust certain keys; see [`crate::sign`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<serde_json::Value>,
}

impl Manifest {
    /// Reads and checks the manifest of `version`.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`] for bytes that are not such a manifest; [`ErrorKind::Unsupported`]
    /// for a newer format or an unknown required feature; [`ErrorKind::Limit`].
    pub fn parse(bytes: &[u8], version: u64) -> Result<Self> {
        let manifest: Self = parse_record(bytes, "manifest")?;
        manifest.check()?;
        if manifest.version != version {
            return Err(untrusted(format!(
                "the manifest of version {version} says that it is version {}",
                manifest.version
            )));
        }
        Ok(manifest)
    }

    /// The bytes to store: JSON with the keys in a fixed order and no spaces.
    ///
    /// # Errors
    /// Those of [`Manifest::parse`]: what could not be read back is not written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        to_record(self)
    }

    /// The objects of the delta: its parts, and the hashes of their records.
    pub fn delta_objects(&self) -> impl Iterator<Item = &ObjectRef> {
        objects_of(&self.objects)
    }

    /// Bytes of the delta.
    #[must_use]
    pub fn delta_bytes(&self) -> u64 {
        self.objects
            .iter()
            .map(|part| part.object.bytes)
            .fold(0, u64::saturating_add)
    }

    fn check(&self) -> Result<()> {
        if self.version > MAX_VERSION {
            return Err(untrusted(format!(
                "version {} is out of range",
                self.version
            )));
        }
        if self
            .parent
            .is_some_and(|parent| parent.version.checked_add(1) != Some(self.version))
        {
            return Err(untrusted("the parent is not the version before".to_owned()));
        }
        match self.objects.as_slice() {
            [] if self.anchor.is_none() => {
                return Err(untrusted("neither a delta nor an anchor".to_owned()))
            }
            [] => {}
            [_, _, ..] if self.objects.len() > MAX_PARTS => {
                let message = format!("{} parts, more than {MAX_PARTS} [C100]", self.objects.len());
                return Err(Error::new(ErrorKind::Limit, message));
            }
            _ if self.parent.is_some() && self.base_state.is_some() => {}
            _ => return Err(untrusted("a delta without parent or base state".to_owned())),
        }
        if self.objects.len() > 1 {
            (0..)
                .zip(&self.objects)
                .try_for_each(|(number, part)| self.check_part(number, part))?;
        }
        check_parts(&self.objects)?;
        if self.skips.len() > MAX_SKIPS || self.skips.iter().any(|s| *s < 2 || *s > self.version) {
            return Err(untrusted(format!(
                "skips are at most {MAX_SKIPS} numbers of versions, from 2 to this version's"
            )));
        }
        if let Some(anchor) = &self.anchor {
            anchor.check()?;
        }
        if self
            .last_anchor
            .is_some_and(|anchor| anchor.version >= self.version)
        {
            return Err(untrusted(
                "the last anchor is not of an earlier version".to_owned(),
            ));
        }
        let meta: usize = self
            .meta
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if meta > MAX_META {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("meta holds {meta} bytes, more than {MAX_META}; store it elsewhere"),
            ));
        }
        Ok(())
    }
}

/// The parts of a delta, and the hashes of their records.
pub(crate) fn objects_of(parts: &[Part]) -> impl Iterator<Item = &ObjectRef> {
    parts
        .iter()
        .flat_map(|part| [Some(&part.object), part.records.as_ref()])
        .flatten()
}

/// Checks paths and lengths of the objects of a delta.
pub(crate) fn check_parts(parts: &[Part]) -> Result<()> {
    let mut paths = BTreeSet::new();
    for part in parts {
        check_path(&part.object.path, OBJECTS)?;
        let mut fresh = paths.insert(&part.object.path);
        if let Some(records) = &part.records {
            check_path(&records.path, OBJECTS)?;
            fresh &= paths.insert(&records.path);
            if !records.bytes.is_multiple_of(32) || records.bytes < 64 {
                return Err(untrusted(format!(
                    "hashes of records take 32 bytes each, not {} in all",
                    records.bytes
                )));
            }
        }
        if !fresh {
            return Err(untrusted("an object stands twice".to_owned()));
        }
    }
    Ok(())
}

impl Manifest {
    /// A part of several has its number, and belongs to the attempt that committed it.
    fn check_part(&self, number: u32, part: &Part) -> Result<()> {
        let own = part_prefix(self.version, number, self.write_id);
        let records = part.records.iter().map(|records| &records.path);
        for path in std::iter::once(&part.object.path).chain(records) {
            if !path.starts_with(&own) {
                let shown: String = path.chars().take(120).collect();
                return Err(untrusted(format!(
                    "part {number} is {shown:?}, which is not this attempt's part of that number [C100]"
                )));
            }
        }
        Ok(())
    }
}

/// What every record begins with; read first, so that a newer record is named as such.
#[derive(Deserialize)]
struct Preamble {
    format: u64,
    #[serde(default)]
    requires: Vec<String>,
}

pub(crate) fn parse_record<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T> {
    if bytes.len() as u64 > MAX_RECORD {
        return Err(Error::new(
            ErrorKind::Limit,
            format!("a {what} of {} bytes, more than {MAX_RECORD}", bytes.len()),
        ));
    }
    let malformed = |error: serde_json::Error| untrusted(format!("not a {what}: {error}"));
    let preamble: Preamble = serde_json::from_slice(bytes).map_err(malformed)?;
    if preamble.format != FORMAT {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "a {what} of format {}; this build reads {FORMAT}: update",
                preamble.format
            ),
        ));
    }
    for feature in &preamble.requires {
        if !KNOWN_FEATURES.contains(&feature.as_str()) {
            let shown: String = feature.chars().take(80).collect();
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the {what} requires {shown:?}, which this build does not know: update"),
            ));
        }
    }
    serde_json::from_slice(bytes).map_err(malformed)
}

pub(crate) fn to_record<T: Serialize>(record: &T) -> Result<Vec<u8>> {
    let bytes = serde_json::to_vec(record).map_err(|error| untrusted(error.to_string()))?;
    if bytes.len() as u64 > MAX_RECORD {
        return Err(Error::new(
            ErrorKind::Limit,
            format!(
                "the record has {} bytes, more than {MAX_RECORD}",
                bytes.len()
            ),
        ));
    }
    Ok(bytes)
}

pub(crate) fn untrusted(message: String) -> Error {
    Error::new(ErrorKind::Untrusted, message)
}
