//! Finding the newest version, without a listing except where a board's start is gone.

use serde::{Deserialize, Serialize};

use crate::control::Control;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, LATEST, MANIFESTS, MAX_VERSION};
use crate::store::Store;

/// `latest.json`. Wrong, missing or malicious content costs time, never correctness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hint {
    /// Newest version that its writer knew.
    pub version: u64,
    /// Newest anchor that its writer knew.
    #[serde(default)]
    pub anchor: Option<u64>,
}

const MAX_HINT: u64 = 4096;

impl Hint {
    /// Reads the hint; anything that is not one counts as none.
    #[must_use]
    pub fn read(store: &Store) -> Option<Self> {
        let bytes = store.read(LATEST, MAX_HINT).ok()??;
        serde_json::from_slice(&bytes).ok()
    }

    /// Replaces the hint if that is easily done; a failure is of no consequence.
    pub fn write(self, store: &Store) {
        if let Ok(bytes) = serde_json::to_vec(&self) {
            drop(store.overwrite(LATEST, &bytes));
        }
    }
}

/// The newest committed version, or `None` for an empty board.
///
/// `known` is a version that the caller has seen committed; then this usually costs one small
/// request (is there a next one?) and a second to see that `known` was not collected.
///
/// # Errors
/// [`crate::ErrorKind::Store`].
pub fn head(store: &Store, known: Option<u64>) -> Result<Option<u64>> {
    let hint = || Hint::read(store).map(|hint| hint.version);
    let starts: [&dyn Fn() -> Option<u64>; 3] = [&|| known, &hint, &|| Some(0)];
    for start in starts {
        if let Some(start) = start() {
            if let Some(head) = climb(store, start)? {
                return Ok(Some(head));
            }
        }
    }
    if !store.lists() {
        return Err(Error::new(
            ErrorKind::Store,
            "no version found: neither latest.json nor version 0 leads to one, and a web server cannot \
             be listed; check the URL, or have latest.json served beside manifests/",
        )
        .at(store.url()));
    }
    // Version 0 was collected or never was. The boundary is a version that was there when it was
    // drawn, and costs one short listing.
    if let Some(boundary) = Control::list(store)?.boundary() {
        if let Some(head) = climb(store, boundary)? {
            return Ok(Some(head));
        }
    }
    // Nothing says where the versions are.
    let mut start = newest_listed(store)?;
    while let Some(version) = start {
        if let Some(head) = climb(store, version)? {
            return Ok(Some(head));
        }
        // Collected since it was listed, so there are newer ones.
        start = newest_listed(store)?.filter(|newer| *newer != version);
    }
    Ok(None)
}

/// The head reached from `start`, or `None` if `start` does not exist (any more).
///
/// Versions from the oldest retained to the head have no gaps, so from an existing version existence
/// is monotone: up to the head there are manifests, beyond it none.
fn climb(store: &Store, start: u64) -> Result<Option<u64>> {
    let there = |version: u64| -> Result<bool> {
        Ok(version <= MAX_VERSION && store.exists(&layout::manifest(version))?)
    };
    let mut found = start;
    let mut step = 1;
    let mut missing = loop {
        let next = found.saturating_add(step);
        if !there(next)? {
            break next;
        }
        found = next;
        step = step.saturating_mul(2);
    };
    while missing - found > 1 {
        let middle = found + (missing - found) / 2;
        if there(middle)? {
            found = middle;
        } else {
            missing = middle;
        }
    }
    // If collection overtook the search, what looked like the end was the missing beginning.
    Ok(there(found)?.then_some(found))
}

fn newest_listed(store: &Store) -> Result<Option<u64>> {
    Ok(store
        .list(MANIFESTS)?
        .iter()
        .filter_map(|(name, _)| layout::parse_manifest_name(name))
        .max())
}
