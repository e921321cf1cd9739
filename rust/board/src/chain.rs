//! Reading manifests and checking that they link up, before anything acts on them.

use futures::{StreamExt, TryStreamExt};

use crate::error::{Error, ErrorKind, Result};
use crate::hex::{Blake3, State};
use crate::layout;
use crate::manifest::{Manifest, MAX_RECORD};
use crate::runtime::block_on;
use crate::store::Store;

/// Manifests on their way at once.
const IN_FLIGHT: usize = 8;

/// A manifest and the digest of the bytes that it was read from.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The manifest.
    pub manifest: Manifest,
    /// BLAKE3 of its bytes.
    pub digest: Blake3,
    /// The bytes themselves, so that others can read what is not in [`Manifest`].
    pub bytes: Vec<u8>,
}

/// What a reader already holds, and a chain must continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainStart {
    /// Version that the reader holds.
    pub version: u64,
    /// BLAKE3 of that version's manifest.
    pub digest: Blake3,
    /// State of that version.
    pub state: State,
    /// Epoch of that version's writer, 0 if not known.
    pub epoch: u64,
    /// Its run, if known.
    pub run: Option<String>,
}

impl From<&Link> for ChainStart {
    fn from(link: &Link) -> Self {
        Self {
            version: link.manifest.version,
            digest: link.digest,
            state: link.manifest.result_state,
            epoch: link.manifest.epoch,
            run: Some(link.manifest.run.clone()),
        }
    }
}

impl Link {
    /// Reads the manifest of `version`; `None` if the version does not exist.
    ///
    /// # Errors
    /// Those of [`Manifest::parse`], and [`ErrorKind::Store`].
    pub fn read(store: &Store, version: u64) -> Result<Option<Self>> {
        let path = layout::manifest(version);
        match store.read(&path, MAX_RECORD)? {
            Some(bytes) => Self::parse(bytes, version)
                .map(Some)
                .map_err(|error| error.at(path)),
            None => Ok(None),
        }
    }

    fn parse(bytes: Vec<u8>, version: u64) -> Result<Self> {
        let manifest = Manifest::parse(&bytes, version).map_err(|error| error.version(version))?;
        Ok(Self {
            manifest,
            digest: Blake3::of(&bytes),
            bytes,
        })
    }
}

/// Parses the manifests of versions `first`, `first + 1`, ... and checks every link.
///
/// Checked are, for each against the one before: parent version and digest; base state against
/// result state; an epoch that does not fall; one run. With `start` the first is checked against it, and
/// `first` must be `start.version + 1`; without, the first is taken as it is.
///
/// # Errors
/// [`ErrorKind::BrokenChain`] naming the version and the reason; those of [`Manifest::parse`].
pub fn validate_chain(
    start: Option<ChainStart>,
    first: u64,
    manifests: Vec<Vec<u8>>,
) -> Result<Vec<Link>> {
    let mut links = Vec::with_capacity(manifests.len());
    let mut before = start;
    for (version, bytes) in (first..).zip(manifests) {
        let link =
            Link::parse(bytes, version).map_err(|error| error.at(layout::manifest(version)))?;
        if let Some(before) = &before {
            check_link(before, &link.manifest)?;
        }
        before = Some(ChainStart::from(&link));
        links.push(link);
    }
    Ok(links)
}

/// Checks that `manifest` follows `parent`.
///
/// # Errors
/// [`ErrorKind::BrokenChain`].
pub fn check_link(parent: &ChainStart, manifest: &Manifest) -> Result<()> {
    let broken = |reason: String| {
        Error::new(ErrorKind::BrokenChain, reason)
            .at(layout::manifest(manifest.version))
            .version(manifest.version)
    };
    let Some(named) = manifest.parent else {
        return Err(broken(format!(
            "it names no parent, but follows version {}",
            parent.version
        )));
    };
    if named.version != parent.version {
        return Err(broken(format!(
            "its parent is version {}, not {}",
            named.version, parent.version
        )));
    }
    if named.digest != parent.digest {
        return Err(broken(format!(
            "its parent's digest is {}, but the manifest of version {} has {}: the board was \
             replaced or altered; start anew from an anchor of a board that you trust",
            named.digest, parent.version, parent.digest
        )));
    }
    if let Some(base) = manifest.base_state {
        if base != parent.state {
            return Err(broken(format!(
                "its base state is {base}, but version {} ends in {}",
                parent.version, parent.state
            )));
        }
    }
    if manifest.epoch < parent.epoch {
        return Err(broken(format!(
            "its writer's epoch {} is lower than its parent's {}: a fenced publisher wrote it",
            manifest.epoch, parent.epoch
        )));
    }
    if let Some(run) = parent.run.as_ref().filter(|run| **run != manifest.run) {
        return Err(broken(format!(
            "it is of run {:?}, but its parent of {run:?}; a board is of one run",
            manifest.run
        )));
    }
    Ok(())
}

/// Reads and validates the manifests of versions `first` to `last`.
///
/// # Errors
/// Those of [`validate_chain`]; [`ErrorKind::BrokenChain`] for a version that is not there;
/// [`ErrorKind::Store`].
pub fn read_chain(
    store: &Store,
    start: Option<ChainStart>,
    first: u64,
    last: u64,
) -> Result<Vec<Link>> {
    let manifests = block_on(
        futures::stream::iter(first..=last)
            .map(|version| read_manifest(store, version))
            .buffered(IN_FLIGHT)
            .try_collect::<Vec<_>>(),
    )??;
    validate_chain(start, first, manifests)
}

async fn read_manifest(store: &Store, version: u64) -> Result<Vec<u8>> {
    let path = layout::manifest(version);
    match store.read_soon(&path, MAX_RECORD).await {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(Error::new(
            ErrorKind::BrokenChain,
            "its manifest is not there: not committed yet, or collected",
        )
        .at(path)
        .version(version)),
        Err(error) => Err(error.version(version)),
    }
}
