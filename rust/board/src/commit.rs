//! The commit: one create-only manifest makes a version exist.

use crate::chain::{check_link, ChainStart, Link};
use crate::control::{claim_first, Control};
use crate::epoch;
use crate::error::{Error, ErrorKind, Result};
use crate::head::{head, Hint};
use crate::hex::{Blake3, WriteId};
use crate::layout;
use crate::manifest::Manifest;
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
            if link.manifest.epoch > manifest.epoch {
                return Err(epoch::fenced(store, link.manifest.epoch, manifest.epoch));
            }
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
            claim_first(store, version, manifest.write_id, manifest.time_ms)?;
        }
    }
    match store.create(&layout::manifest(version), &bytes)? {
        Created::Now | Created::Recovered => {}
        Created::Taken(other) => return Err(taken(version, other)),
    }
    check_not_collected(store, manifest)?;
    let anchor = if manifest.anchor.is_some() {
        Some(version)
    } else {
        manifest.last_anchor.map(|anchor| anchor.version)
    };
    Hint { version, anchor }.write(store);
    Ok(Blake3::of(&bytes))
}

/// Makes sure that collection has not passed a version that was just created.
///
/// A publisher that stood still between looking at the parent and creating the manifest may find
/// the number free because the version of that number was collected. Versions go oldest first, so
/// the parent is gone then, and the boundary is above.
fn check_not_collected(store: &Store, manifest: &Manifest) -> Result<()> {
    if let Some(parent) = manifest.parent {
        if store.exists(&layout::manifest(parent.version))? {
            return Ok(());
        }
    }
    match Control::list(store)?.boundary() {
        Some(boundary) if boundary > manifest.version => {
            store.delete(&layout::manifest(manifest.version))?;
            Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "a version of this number was committed, and collected since: versions \
                     below {boundary} are gone. Publish after the head"
                ),
            )
            .at(layout::manifest(manifest.version))
            .version(manifest.version))
        }
        _ => Ok(()),
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
