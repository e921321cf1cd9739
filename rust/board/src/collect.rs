//! Collection: old versions go, oldest first, after the boundary was drawn.
//!
//! At every moment the versions whose manifests exist have no gaps, all that an existing record lists
//! exists, and from the boundary on every version can be read by anyone. Work is in chunks; a crash
//! leaves markers that say where the next collection goes on.

use std::collections::BTreeSet;

use crate::boundary::{find_anchor, Judge};
use crate::chain::Link;
use crate::control::{first_version, mark, Control};
use crate::error::Result;
use crate::head::Hint;
use crate::hex::WriteId;
use crate::housekeeping::Freed;
use crate::layout::{self, MANIFESTS, OBJECTS};
use crate::lease::{self, HeldLease};
use crate::retention::{Limit, View};
use crate::store::Store;
use crate::sweep::{sweep, Swept};
use crate::trust::Keyring;

/// Versions between two markers: what a collection after a crash does again at most.
const CHUNK: u64 = 256;

/// What to keep, and the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Newest versions that stay; at least one does.
    pub keep: u64,
    /// Versions that the store has had for less than this stay, milliseconds.
    pub older_than_ms: u64,
    /// Leftovers of attempts younger than this stay, by the store's clock, milliseconds.
    pub safety_ms: u64,
    /// For how long an expired lease is still respected, milliseconds.
    pub grace_ms: u64,
    /// Whether to look for leftovers of attempts everywhere, for which the whole board is listed.
    pub sweep: bool,
    /// Whether only to say what would be done.
    pub dry_run: bool,
    /// Wall time, milliseconds since 1970.
    pub now_ms: u64,
    /// Random name of this collection.
    pub write_id: WriteId,
}

/// What a collection did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collected {
    /// Newest version.
    pub head: u64,
    /// Boundary before and after; the oldest version that can be relied on.
    pub boundary: (u64, u64),
    /// Versions removed: from the first up to the second, exclusive.
    pub range: (u64, u64),
    /// Why not more.
    pub limit: Limit,
    /// Objects and anchor files removed with them.
    pub freed: Freed,
    /// Anchor directories among them.
    pub anchors: u64,
    /// Epochs removed.
    pub epochs: u64,
    /// Leases that are respected.
    pub leases: u64,
    /// Expired leases removed.
    pub expired: u64,
    /// Leftovers removed by the sweep.
    pub swept: Swept,
}

/// Removes what the settings, leases and anchors allow; `None` for an empty board.
///
/// Any number of collections, publishers and readers may be at work at the same time. After an
/// error, or a crash, the same call finishes what was begun.
///
/// # Errors
/// [`ErrorKind::Untrusted`](crate::ErrorKind::Untrusted) or
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a lease or record that cannot be
/// understood, before anything was removed; [`ErrorKind::Store`](crate::ErrorKind::Store).
pub fn collect(store: &Store, settings: &Settings) -> Result<Option<Collected>> {
    collect_trusting(store, settings, None)
}

/// As [`collect`]. With trusted keys the head, and the version from which readers can go on, must be
/// signed by them: forged versions push nothing out, and no forged anchor is depended on.
///
/// # Errors
/// As [`collect`]; [`ErrorKind::Untrusted`](crate::ErrorKind::Untrusted) also for a head that no
/// trusted key signed, and for a marker of a version that is no boundary.
pub fn collect_trusting(
    store: &Store,
    settings: &Settings,
    ring: Option<&mut Keyring>,
) -> Result<Option<Collected>> {
    store.check_lists()?;
    let Some(mut judge) = Judge::find(store, ring)? else {
        return Ok(None);
    };
    let head = judge.head.manifest.version;
    let control = Control::list(store)?;
    let (floor, boundary) = bounds(store, &control, head)?;
    let leases = lease::list(store)?;
    let mut view = View {
        head,
        floor,
        boundary,
        young: oldest_young(store, settings, boundary, head)?,
        needs: needs(&leases, settings),
    };
    let (ceiling, _) = view.ceiling(settings.keep);
    let anchor = judge.newest_anchor(&control, boundary, ceiling)?;
    let mut plan = view.plan(settings.keep, anchor);
    let relied_on = plan.until > floor || (settings.sweep && boundary > floor);
    if plan.boundary == boundary && relied_on && !judge.confirm(boundary)? {
        plan.until = floor;
    }
    if !settings.dry_run && plan.boundary > boundary {
        if control.markers.is_empty() {
            mark(store, floor, settings.write_id, settings.now_ms)?;
        }
        mark(store, plan.boundary, settings.write_id, settings.now_ms)?;
        // A reader checks the boundary after it has written its first lease, so one that was not
        // seen until now starts from the boundary or above, or is respected from here on.
        view.needs = needs(&lease::list(store)?, settings);
        plan.until = view.until(plan.boundary);
    }
    let mut done = Collected {
        head,
        boundary: (boundary, plan.boundary),
        range: (floor, plan.until),
        limit: plan.limit,
        freed: Freed::default(),
        anchors: 0,
        epochs: 0,
        leases: view.needs.len() as u64,
        expired: 0,
        swept: Swept::default(),
    };
    remove_versions(store, settings, &control, &mut done)?;
    done.epochs = remove_epochs(store, settings, &control, &judge.head)?;
    done.expired = remove_expired(store, settings, &leases)?;
    if !settings.dry_run && done.boundary.1 > boundary.min(floor) {
        refresh_hint(store, head, plan.boundary);
    }
    if settings.sweep {
        done.swept = sweep(store, settings, plan.until)?;
    }
    Ok(Some(done))
}

/// The floor and the boundary.
fn bounds(store: &Store, control: &Control, head: u64) -> Result<(u64, u64)> {
    let floor = match control.floor() {
        Some(floor) => floor,
        None => match first_version(store)? {
            Some(first) => first,
            // Not written by a publisher of this crate.
            None => store
                .list(MANIFESTS)?
                .iter()
                .filter_map(|(name, _)| layout::parse_manifest_name(name))
                .min()
                .unwrap_or(head),
        },
    };
    // Whoever wrote that marker, or a version below it after it was collected: versions go in ascending
    // order, or readers that begin with the oldest would take what is left there for the board.
    let mut floor = floor.min(head);
    while floor > 0 && store.exists(&layout::manifest(floor - 1))? {
        floor -= 1;
    }
    Ok((floor, control.boundary().unwrap_or(floor).min(head)))
}

fn needs(leases: &[HeldLease], settings: &Settings) -> Vec<u64> {
    leases
        .iter()
        .filter(|lease| lease.is_active(settings.now_ms, settings.grace_ms))
        .map(|lease| lease.lease.needs)
        .collect()
}

/// The oldest version that is too young to go, by bisection of the store's dates.
fn oldest_young(store: &Store, settings: &Settings, low: u64, head: u64) -> Result<Option<u64>> {
    if settings.older_than_ms == 0 {
        return Ok(None);
    }
    let latest = settings.now_ms.saturating_sub(settings.older_than_ms);
    let (mut low, mut high) = (low, head.saturating_add(1));
    while low < high {
        let middle = low + (high - low) / 2;
        // One that is gone is old.
        match store.modified_ms(&layout::manifest(middle))? {
            Some(modified) if modified > latest => high = middle,
            _ => low = middle + 1,
        }
    }
    Ok((low <= head).then_some(low))
}

/// Removes the versions of the range, oldest first, chunk by chunk.
///
/// In a chunk first the records go, then what they list: a record that exists never lists what
/// does not. A claim goes last, when no attempt can be at work on its directory any more.
fn remove_versions(
    store: &Store,
    settings: &Settings,
    control: &Control,
    done: &mut Collected,
) -> Result<()> {
    let (floor, until) = done.range;
    let claims: Vec<_> = control
        .claims
        .iter()
        .filter(|claim| claim.version < until)
        .collect();
    let claimed: BTreeSet<u64> = claims.iter().map(|claim| claim.version).collect();
    let mut begin = floor;
    while begin < until {
        let end = begin.saturating_add(CHUNK).min(until);
        if !settings.dry_run {
            for version in begin..end {
                if claimed.contains(&version) {
                    store.delete(&layout::anchor_record(version))?;
                }
                store.delete(&layout::manifest(version))?;
            }
            store.sync_removals(MANIFESTS)?;
        }
        let objects: Vec<_> = (begin..end)
            .map(|version| format!("{OBJECTS}/{version}"))
            .collect();
        done.freed += store.empty_directories(&objects, settings.dry_run)?;
        let anchors: Vec<_> = claims
            .iter()
            .filter(|claim| (begin..end).contains(&claim.version))
            .map(|claim| claim.directory())
            .collect();
        done.freed += store.empty_directories(&anchors, settings.dry_run)?;
        done.anchors += anchors.len() as u64;
        if !settings.dry_run {
            raise_floor(store, settings, control, begin, end)?;
        }
        begin = end;
    }
    remove_claims(store, settings, control, floor, done)?;
    if !settings.dry_run {
        let old = settings.now_ms.saturating_sub(settings.safety_ms);
        for claim in claims.iter().filter(|claim| claim.modified_ms <= old) {
            store.delete(&claim.path())?;
        }
    }
    Ok(())
}

/// Marks `end` as the new floor, and removes the markers below it.
fn raise_floor(
    store: &Store,
    settings: &Settings,
    control: &Control,
    begin: u64,
    end: u64,
) -> Result<()> {
    mark(store, end, settings.write_id, settings.now_ms)?;
    let own = [control.floor().unwrap_or(begin), begin];
    let below: BTreeSet<u64> = control.markers.iter().copied().chain(own).collect();
    for version in below.range(..end) {
        store.delete(&layout::collected(*version))?;
    }
    Ok(())
}

/// Empties anchor directories below the floor: of attempts that were at work when their version went.
fn remove_claims(
    store: &Store,
    settings: &Settings,
    control: &Control,
    floor: u64,
    done: &mut Collected,
) -> Result<()> {
    let late: Vec<_> = control
        .claims
        .iter()
        .filter(|claim| claim.version < floor)
        .collect();
    for claim in &late {
        if !settings.dry_run {
            store.delete(&layout::anchor_record(claim.version))?;
        }
    }
    let directories: Vec<_> = late.iter().map(|claim| claim.directory()).collect();
    done.freed += store.empty_directories(&directories, settings.dry_run)?;
    Ok(())
}

/// Removes the epochs below the head's, in ascending order; returns their number.
///
/// A publisher of such an epoch is refused for its parent's [C18], so that nobody asks for them.
fn remove_epochs(
    store: &Store,
    settings: &Settings,
    control: &Control,
    head: &Link,
) -> Result<u64> {
    let mut removed = 0;
    for epoch in control
        .epochs
        .iter()
        .filter(|epoch| **epoch < head.manifest.epoch)
    {
        if !settings.dry_run {
            store.delete(&layout::epoch(*epoch))?;
        }
        removed += 1;
    }
    Ok(removed)
}

/// Removes leases that ended long ago; an ended lease is never renewed, so that nobody needs them.
fn remove_expired(store: &Store, settings: &Settings, leases: &[HeldLease]) -> Result<u64> {
    let grace = settings.grace_ms.saturating_add(settings.safety_ms);
    let mut removed = 0;
    for held in leases
        .iter()
        .filter(|held| !held.is_active(settings.now_ms, grace))
    {
        if !settings.dry_run {
            lease::remove(store, &held.id)?;
        }
        removed += 1;
    }
    Ok(removed)
}

/// A hint at an anchor that is gone makes new readers list.
fn refresh_hint(store: &Store, head: u64, boundary: u64) {
    let hint = Hint::read(store);
    let anchor = hint.and_then(|hint| hint.anchor);
    if anchor.is_some_and(|anchor| anchor >= boundary) {
        return;
    }
    let has_anchor = matches!(find_anchor(store, boundary), Ok(Some(_)));
    if has_anchor {
        let version = hint.map_or(head, |hint| hint.version.max(head));
        Hint {
            version,
            anchor: Some(boundary),
        }
        .write(store);
    }
}
