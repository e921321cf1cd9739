//! The commit: one create-only manifest makes a version exist.

use serde::{Deserialize, Serialize};

use crate::chain::{check_link, ChainStart, Link};
use crate::epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::head::{head, Hint};
use crate::hex::{Blake3, WriteId};
use crate::layout;
use crate::manifest::{to_record, untrusted, Manifest, MAX_RECORD};
use crate::sign::{Signed, SigningKey};
use crate::store::{Created, Store};

/// Commits `manifest`, whose objects are all durable, and returns the BLAKE3 of its bytes.
///
/// Checked first: no later publisher has opened the board; the manifest follows its parent as a
/// reader will demand it; the first version of a board has no parent.
///
/// # Errors
/// [`ErrorKind::Conflict`] if this writer is fenced or another committed this version;
/// [`ErrorKind::BrokenChain`] if it does not follow its parent; [`ErrorKind::WrongVersion`];
/// [`ErrorKind::Store`], after which [`discard`] knows what may be removed.
pub fn commit(store: &Store, manifest: &Manifest) -> Result<Blake3> {
    commit_signed(store, manifest, None)
}

/// As [`commit`], signed by `key` if there is one.
///
/// # Errors
/// As [`commit`].
pub fn commit_signed(
    store: &Store,
    manifest: &Manifest,
    key: Option<&SigningKey>,
) -> Result<Blake3> {
    let mut bytes = manifest.to_bytes()?;
    if let Some(key) = key {
        bytes = key.sign_record(Signed::Manifest, &bytes)?;
    }
    let version = manifest.version;
    epoch::check_current(store, manifest.epoch)?;
    match manifest.parent {
        Some(parent) => {
            let link = Link::read(store, parent.version)?.ok_or_else(|| {
                Error::new(ErrorKind::WrongVersion, "its parent does not exist").version(version)
            })?;
            check_link(&ChainStart::from(&link), manifest)?;
        }
        None => {
            if let Some(head) = head(store, None)? {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("the board already has versions up to {head}; publish after that one"),
                )
                .at(store.url())
                .version(version));
            }
            claim_first(store, manifest)?;
        }
    }
    match store.create(&layout::manifest(version), &bytes)? {
        Created::Now | Created::Recovered => {}
        Created::Taken(other) => return Err(taken(version, other)),
    }
    let anchor = if manifest.anchor.is_some() {
        Some(version)
    } else {
        manifest.last_anchor.map(|anchor| anchor.version)
    };
    Hint { version, anchor }.write(store);
    Ok(Blake3::of(&bytes))
}

/// The number of a board's first version.
#[derive(Serialize, Deserialize)]
struct First {
    version: u64,
    write_id: WriteId,
    time_ms: u64,
}

/// Makes sure that no other number than this version's begins the board: of two publishers that find
/// it empty, both could otherwise commit a first version.
fn claim_first(store: &Store, manifest: &Manifest) -> Result<()> {
    let claim = to_record(&First {
        version: manifest.version,
        write_id: manifest.write_id,
        time_ms: manifest.time_ms,
    })?;
    let found = match store.create(layout::FIRST, &claim)? {
        Created::Now | Created::Recovered => return Ok(()),
        // Read anew: the bytes at hand may have been cut off.
        Created::Taken(_) => store.read(layout::FIRST, MAX_RECORD)?.unwrap_or_default(),
    };
    match serde_json::from_slice::<First>(&found) {
        Ok(first) if first.version == manifest.version => Ok(()),
        Ok(first) => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "another publisher began this board with version {}; publish that number",
                first.version
            ),
        )
        .at(layout::FIRST)
        .version(manifest.version)),
        Err(error) => {
            Err(untrusted(format!("not the number of a first version: {error}")).at(layout::FIRST))
        }
    }
}

fn taken(version: u64, other: Option<Vec<u8>>) -> Error {
    let by = other
        .and_then(|bytes| Manifest::parse(&bytes, version).ok())
        .map_or_else(String::new, |manifest| {
            format!(
                " (epoch {}, write id {})",
                manifest.epoch, manifest.write_id
            )
        });
    Error::new(
        ErrorKind::Conflict,
        format!(
            "another publisher committed this version first{by}; nothing of this one was \
             published. Pull that version, then publish the next one"
        ),
    )
    .at(layout::manifest(version))
    .version(version)
}

/// Removes the objects of an attempt that was not committed, if that is certain.
///
/// After a failed or interrupted commit the manifest is read back: if it is this attempt's own the
/// objects stay, for the version exists; if it is not there, but the store may still let the create
/// land, they stay as well, as orphans. Returns whether the version turned out to be committed.
///
/// # Errors
/// [`ErrorKind::Store`] if the manifest cannot be read; then nothing was removed.
pub fn discard(store: &Store, version: u64, write_id: WriteId, objects: &[String]) -> Result<bool> {
    match Link::read(store, version) {
        Ok(Some(link)) if link.manifest.write_id == write_id => return Ok(true),
        Ok(None) if !store.settles() => return Ok(false),
        Ok(_) => {}
        // Some other writer's unreadable manifest; ours would parse.
        Err(error) if error.kind != ErrorKind::Store => {}
        Err(error) => return Err(error),
    }
    for path in objects {
        store.delete(path)?;
    }
    Ok(false)
}
