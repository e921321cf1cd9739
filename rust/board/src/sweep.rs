//! Leftovers of attempts: what no record lists, and none will list.
//!
//! The board is listed whole. The delta of a version that exists can be listed by its manifest only,
//! which never changes; anchors, and deltas over several versions, can be added at any time, so for
//! one that nothing lists there is only its age.

use std::collections::{BTreeMap, BTreeSet};

use crate::boundary::find_anchor;
use crate::chain::Link;
use crate::collect::Settings;
use crate::control::Control;
use crate::error::{ErrorKind, Result};
use crate::head::head;
use crate::housekeeping::{Dated, Freed};
use crate::layout::{self, ANCHORS, CONTROL, MANIFESTS, OBJECTS, READERS};
use crate::manifest::objects_of;
use crate::skip::SkipRecord;
use crate::store::Store;

/// What a sweep removed, or would.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Deltas and files of anchors that nothing lists.
    pub freed: Freed,
    /// Records of versions that were collected.
    pub records: u64,
}

/// Removes leftovers older than the safety age; versions below `floor` are gone.
///
/// # Errors
/// [`ErrorKind::Store`].
pub(crate) fn sweep(store: &Store, settings: &Settings, floor: u64) -> Result<Swept> {
    let Some(head) = head(store, None)? else {
        return Ok(Swept::default());
    };
    let sweep = Sweep {
        store,
        dry_run: settings.dry_run,
        old: settings.now_ms.saturating_sub(settings.safety_ms),
        floor,
        head,
    };
    let mut swept = Swept::default();
    sweep.records(&mut swept)?;
    sweep.deltas(&mut swept)?;
    sweep.anchors(&mut swept)?;
    if !settings.dry_run {
        for directory in ["", MANIFESTS, CONTROL, READERS] {
            store.remove_staged_before(directory, sweep.old);
        }
    }
    Ok(swept)
}

struct Sweep<'a> {
    store: &'a Store,
    dry_run: bool,
    /// Only what is not younger is removed.
    old: u64,
    floor: u64,
    head: u64,
}

impl Sweep<'_> {
    /// Manifests and anchor records that a late writer left below the floor.
    fn records(&self, swept: &mut Swept) -> Result<()> {
        let mut late: Vec<(u64, String)> = Vec::new();
        for object in self.store.list_dated(MANIFESTS)? {
            let name = object.path.as_str();
            let record = name
                .strip_suffix(".anchor.json")
                .map(|v| format!("{v}.json"));
            let version = layout::parse_manifest_name(record.as_deref().unwrap_or(name));
            if let Some(version) = version.filter(|version| *version < self.floor) {
                late.push((version, format!("{MANIFESTS}/{name}")));
            }
        }
        late.sort();
        for (_, path) in late {
            self.delete(&path)?;
            swept.records += 1;
        }
        Ok(())
    }

    fn deltas(&self, swept: &mut Swept) -> Result<()> {
        let mut by_version: BTreeMap<u64, Vec<Dated>> = BTreeMap::new();
        for object in self.store.list_below(OBJECTS)? {
            let directory = object.path.split('/').nth(1).unwrap_or_default();
            if let Ok(version) = directory.parse() {
                by_version.entry(version).or_default().push(object);
            }
        }
        // Of those above the head anything may yet be committed.
        for (version, objects) in by_version.range(..=self.head) {
            if objects.iter().all(|object| object.modified_ms > self.old) {
                continue;
            }
            let mut listed: BTreeSet<String> = match self.manifest(*version)? {
                Seen::Whole(link) => {
                    let objects = link.manifest.delta_objects();
                    objects.map(|object| object.path.clone()).collect()
                }
                Seen::Collected => BTreeSet::new(),
                Seen::Unclear => continue,
            };
            if *version >= self.floor && !self.skips(*version, objects, &mut listed)? {
                continue;
            }
            for object in objects {
                if object.modified_ms <= self.old && !listed.contains(&object.path) {
                    self.remove(object, swept)?;
                }
            }
        }
        Ok(())
    }

    /// Adds what skip records list, and themselves; false if one cannot be read.
    fn skips(
        &self,
        version: u64,
        objects: &[Dated],
        listed: &mut BTreeSet<String>,
    ) -> Result<bool> {
        let names = objects.iter().filter_map(|o| o.path.rsplit('/').next());
        let bases = names.filter_map(layout::parse_skip_name);
        let pairs: Vec<(u64, u64)> = bases.map(|base| (version, base)).collect();
        let found = match SkipRecord::read(self.store, &pairs) {
            Ok(found) => found,
            Err(error) if error.kind == ErrorKind::Store => return Err(error),
            Err(_) => return Ok(false),
        };
        for (&(_, base), bytes) in pairs.iter().zip(found) {
            let Some(bytes) = bytes else { continue };
            let record = SkipRecord::parse(&bytes, version, base)?;
            listed.extend(objects_of(&record.objects).map(|item| item.path.clone()));
            listed.insert(layout::skip_record(version, base));
        }
        Ok(true)
    }

    fn anchors(&self, swept: &mut Swept) -> Result<()> {
        let mut by_directory: BTreeMap<String, Vec<Dated>> = BTreeMap::new();
        for object in self.store.list_below(ANCHORS)? {
            let mut parts = object.path.splitn(3, '/');
            if let (Some(anchors), Some(directory), Some(_)) =
                (parts.next(), parts.next(), parts.next())
            {
                let directory = format!("{anchors}/{directory}");
                by_directory.entry(directory).or_default().push(object);
            }
        }
        let claims: BTreeMap<String, u64> = Control::list(self.store)?
            .claims
            .into_iter()
            .map(|claim| (claim.directory(), claim.modified_ms))
            .collect();
        for (directory, files) in by_directory {
            let Some(version) = version_of(&directory) else {
                continue;
            };
            let claimed = claims.get(&directory).copied().unwrap_or(0);
            let newest = files.iter().map(|file| file.modified_ms).max();
            if version > self.head || newest.unwrap_or(0).max(claimed) > self.old {
                continue;
            }
            let listed = match self.manifest(version)? {
                Seen::Whole(_) => find_anchor(self.store, version)?.map(|anchor| anchor.path),
                Seen::Collected => None,
                Seen::Unclear => continue,
            };
            if listed.as_deref() != Some(directory.as_str()) {
                // The claim stays while the version does: nobody may write there again.
                for file in &files {
                    self.remove(file, swept)?;
                }
            }
        }
        Ok(())
    }

    fn manifest(&self, version: u64) -> Result<Seen> {
        if version < self.floor {
            return Ok(Seen::Collected);
        }
        match Link::read(self.store, version) {
            Ok(Some(link)) => Ok(Seen::Whole(Box::new(link))),
            // A version above the floor that is not there is another collection's, or a lost one.
            Ok(None) => Ok(Seen::Unclear),
            Err(error) if error.kind == ErrorKind::Store => Err(error),
            // A record of a newer deltawire lists what it lists.
            Err(_) => Ok(Seen::Unclear),
        }
    }

    fn remove(&self, object: &Dated, swept: &mut Swept) -> Result<()> {
        self.delete(&object.path)?;
        swept.freed += Freed {
            objects: 1,
            bytes: object.bytes,
        };
        Ok(())
    }

    fn delete(&self, path: &str) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        self.store.delete(path)
    }
}

enum Seen {
    Whole(Box<Link>),
    Collected,
    Unclear,
}

/// The version of an anchor directory, `anchors/<version>` or `anchors/<version>-<attempt>`.
fn version_of(directory: &str) -> Option<u64> {
    let name = directory.strip_prefix(ANCHORS)?.strip_prefix('/')?;
    name.split('-').next()?.parse().ok()
}
