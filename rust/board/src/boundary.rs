//! Which versions may be the boundary: those with a whole anchor that readers accept.
//!
//! Markers and anchor records are objects that anyone who may write can create. Before anything is
//! removed on their word, the anchor that readers would then depend on is looked at.

use std::collections::BTreeSet;

use crate::anchor::{AnchorFiles, AnchorRecord};
use crate::chain::Link;
use crate::control::Control;
use crate::error::{Error, ErrorKind, Result};
use crate::head::head;
use crate::hex::Blake3;
use crate::housekeeping::Dated;
use crate::layout;
use crate::manifest::untrusted;
use crate::store::Store;
use crate::trust::Keyring;

/// Collections that may overtake the search for the head.
const MAX_TRIES: u32 = 8;

/// Judges anchors as a reader that wants the head.
pub(crate) struct Judge<'a> {
    store: &'a Store,
    ring: Option<&'a mut Keyring>,
    /// The newest version.
    pub(crate) head: Link,
}

impl<'a> Judge<'a> {
    /// Finds the head; `None` for an empty board. With trusted keys, one of them must have signed it.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`] for a head that is no manifest, or that no trusted key signed;
    /// [`ErrorKind::Unsupported`]; [`ErrorKind::Store`].
    pub(crate) fn find(
        store: &'a Store,
        mut ring: Option<&'a mut Keyring>,
    ) -> Result<Option<Self>> {
        for _ in 0..MAX_TRIES {
            let Some(version) = head(store, None)? else {
                return Ok(None);
            };
            // Gone already if others published and collected meanwhile.
            let Some(head) = Link::read(store, version)? else {
                continue;
            };
            if let Some(ring) = ring.as_deref_mut() {
                ring.check_manifest(store, version, &head.bytes)?;
            }
            return Ok(Some(Self { store, ring, head }));
        }
        Err(Error::new(
            ErrorKind::Store,
            "the newest version was collected whenever it was looked for; try again",
        )
        .at(store.url()))
    }

    /// The newest version above `boundary`, and not above `ceiling`, that may be the next boundary.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a record of a newer format; [`ErrorKind::Store`].
    pub(crate) fn newest_anchor(
        &mut self,
        control: &Control,
        boundary: u64,
        ceiling: u64,
    ) -> Result<Option<u64>> {
        if ceiling <= boundary {
            return Ok(None);
        }
        let mut candidates: BTreeSet<u64> =
            control.claims.iter().map(|claim| claim.version).collect();
        candidates.insert(ceiling);
        if let Some(last) = Link::read(self.store, ceiling)?.and_then(|l| l.manifest.last_anchor) {
            candidates.insert(last.version);
        }
        for version in candidates.range(boundary + 1..=ceiling).rev() {
            if self.has_whole_anchor(*version)? {
                return Ok(Some(*version));
            }
        }
        Ok(None)
    }

    /// Makes sure that a boundary which was found on the board is one; `false` if another collection
    /// has gone beyond it meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`] for a marker of a version without such an anchor;
    /// [`ErrorKind::Unsupported`]; [`ErrorKind::Store`].
    pub(crate) fn confirm(&mut self, boundary: u64) -> Result<bool> {
        if self.has_whole_anchor(boundary)? {
            return Ok(true);
        }
        if Control::list(self.store)?
            .boundary()
            .is_some_and(|now| now > boundary)
        {
            return Ok(false);
        }
        let mut reason = "names a version without a whole anchor".to_owned();
        if self.ring.is_some() {
            reason += " that a trusted key signed";
        }
        Err(untrusted(format!(
            "{reason}, from which nobody could read on; nothing was removed. Remove this marker if no \
             collection wrote it, and find out who can write to the board"
        ))
        .at(layout::collected(boundary))
        .version(boundary))
    }

    fn has_whole_anchor(&mut self, version: u64) -> Result<bool> {
        match self.anchor(version) {
            Ok(Some(anchor)) => self.is_whole(&anchor),
            Ok(None) => Ok(false),
            // An altered record is no anchor, nor is one that readers refuse.
            Err(error) if matches!(error.kind, ErrorKind::Untrusted | ErrorKind::Limit) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn anchor(&mut self, version: u64) -> Result<Option<AnchorFiles>> {
        let Some(link) = Link::read(self.store, version)? else {
            return Ok(None);
        };
        if let Some(ring) = self.ring.as_deref_mut() {
            ring.check_manifest(self.store, version, &link.bytes)?;
            if link.manifest.anchor.is_none() {
                if let Some(record) = AnchorRecord::read_bytes(self.store, version)? {
                    let digest = Blake3::of(&record);
                    let named = self.head.manifest.last_anchor;
                    let vouched = named.is_some_and(|a| a.version == version && a.digest == digest);
                    let goal = self.head.manifest.version;
                    let run = &link.manifest.run;
                    ring.check_anchor(self.store, version, goal, run, vouched, &record)?;
                }
            }
        }
        anchor_of(self.store, link)
    }

    fn is_whole(&self, anchor: &AnchorFiles) -> Result<bool> {
        let stored: BTreeSet<(String, u64)> = self
            .store
            .list_below(&anchor.path)?
            .into_iter()
            .map(|Dated { path, bytes, .. }| (path, bytes))
            .collect();
        Ok(anchor
            .objects()
            .all(|object| stored.contains(&(object.path.clone(), object.bytes))))
    }
}

/// The anchor of a version, committed with it or added later; signatures are not looked at.
///
/// # Errors
/// As [`Link::read`] and [`AnchorRecord::read`].
pub(crate) fn find_anchor(store: &Store, version: u64) -> Result<Option<AnchorFiles>> {
    match Link::read(store, version)? {
        Some(link) => anchor_of(store, link),
        None => Ok(None),
    }
}

fn anchor_of(store: &Store, link: Link) -> Result<Option<AnchorFiles>> {
    if link.manifest.anchor.is_some() {
        return Ok(link.manifest.anchor);
    }
    let Some((record, _)) = AnchorRecord::read(store, link.manifest.version)? else {
        return Ok(None);
    };
    let own = record.manifest == link.digest && record.result_state == link.manifest.result_state;
    Ok(own.then_some(record.anchor))
}
