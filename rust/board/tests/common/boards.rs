//! Boards with anchors and leases for the tests of collection, and what must hold of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use deltawire_board::collect::Settings;
use deltawire_board::commit::commit;
use deltawire_board::head::head;
use deltawire_board::{
    anchor, control, layout, AnchorFile, AnchorFiles, AnchorRecord, Blocks, ChainStart, Control,
    Hex, Lease, Link, Store, VersionRef,
};
use object_store::memory::InMemory;

use super::tap::{TapStore, NEVER};
use super::{after, next};

/// Far behind every date that a store gives, so that everything is old enough.
pub const LATER: u64 = 4_000_000_000_000;

pub fn settings(keep: u64) -> Settings {
    Settings {
        keep,
        older_than_ms: 0,
        safety_ms: 0,
        grace_ms: 0,
        sweep: false,
        dry_run: false,
        now_ms: LATER,
        write_id: Hex([0xc0; 16]),
    }
}

pub fn tapped(inner: &Arc<InMemory>) -> (Store, TapStore) {
    tapped_until(inner, NEVER, false)
}

pub fn tapped_until(inner: &Arc<InMemory>, crash_at: u64, crash_after: bool) -> (Store, TapStore) {
    let tap = TapStore::over(Arc::clone(inner), crash_at, crash_after);
    let store = Store::over(Arc::new(tap.clone()), "run", "tapped").unwrap();
    (store, tap)
}

/// Claims a directory and uploads an anchor of a version into it.
pub fn upload_anchor(store: &Store, version: u64, write_id: u8) -> AnchorFiles {
    let directory = anchor::claim_directory(store, version, 1, Hex([write_id; 16]), 0).unwrap();
    let mut files = Vec::new();
    for name in ["config.json", "model.safetensors"] {
        let mut upload = store.upload(&format!("{directory}/{name}")).unwrap();
        upload
            .write(format!("{name} of {version}").as_bytes())
            .unwrap();
        files.push(AnchorFile {
            object: upload.finish().unwrap(),
            blocks: None,
        });
    }
    let object = {
        let mut upload = store
            .upload(&format!("{directory}/block-hashes/1"))
            .unwrap();
        upload.write(&[7; 32]).unwrap();
        upload.finish().unwrap()
    };
    files[1].blocks = Some(Blocks {
        object,
        block_bytes: 4096,
    });
    AnchorFiles {
        path: directory,
        files,
    }
}

/// The first version, an anchor.
pub fn begin(store: &Store, version: u64, epoch: u64) -> ChainStart {
    let start = ChainStart {
        version: version.wrapping_sub(1),
        digest: deltawire_board::Blake3::of(b""),
        state: super::state(0),
        epoch,
        run: None,
    };
    let mut manifest = next(
        &ChainStart {
            version: version.max(1) - 1,
            ..start
        },
        epoch,
        1,
    );
    manifest.version = version;
    manifest.parent = None;
    manifest.base_state = None;
    manifest.result_state = super::state(version);
    manifest.objects.clear();
    manifest.anchor = Some(upload_anchor(store, version, 1));
    after(&manifest, commit(store, &manifest).unwrap())
}

/// The next version, a delta that is there.
pub fn add(
    store: &Store,
    start: &ChainStart,
    epoch: u64,
    last_anchor: Option<VersionRef>,
) -> ChainStart {
    let mut manifest = next(start, epoch, 7);
    manifest.last_anchor = last_anchor;
    let mut upload = store.upload(&manifest.objects[0].object.path).unwrap();
    upload.write(b"delta").unwrap();
    manifest.objects[0].object = upload.finish().unwrap();
    after(&manifest, commit(store, &manifest).unwrap())
}

/// Adds an anchor to a version that exists.
pub fn add_anchor(store: &Store, version: u64) -> VersionRef {
    let link = Link::read(store, version).unwrap().unwrap();
    let anchor = upload_anchor(store, version, 3);
    let record = AnchorRecord {
        format: 1,
        requires: Vec::new(),
        version,
        manifest: link.digest,
        result_state: link.manifest.result_state,
        anchor,
        epoch: link.manifest.epoch,
        write_id: Hex([3; 16]),
        time_ms: 0,
        signature: None,
    };
    let digest = record.commit(store).unwrap();
    VersionRef { version, digest }
}

/// Versions `first..=last`; every `every`-th version from the first on has an anchor.
pub fn grow(store: &Store, first: u64, last: u64, every: u64, epoch: u64) -> ChainStart {
    let mut start = begin(store, first, epoch);
    for version in first + 1..=last {
        start = add(store, &start, epoch, None);
        if (version - first).is_multiple_of(every) {
            add_anchor(store, version);
        }
    }
    start
}

pub fn lease(store: &Store, id: &str, needs: u64, expires_ms: u64) {
    Lease::new(format!("reader {id}"), needs, expires_ms, 0)
        .write(store, id)
        .unwrap();
}

/// Paths and lengths of all objects of a board.
pub fn contents(store: &Store) -> BTreeMap<String, u64> {
    store.list_all("").unwrap().into_iter().collect()
}

/// Versions whose manifests exist.
pub fn versions(store: &Store) -> BTreeSet<u64> {
    store
        .list("manifests")
        .unwrap()
        .iter()
        .filter_map(|(name, _)| layout::parse_manifest_name(name))
        .collect()
}

/// What must hold at every moment, whoever crashed where.
pub fn check_invariants(store: &Store, wanted_head: u64, needed: &[u64]) {
    let all = contents(store);
    let versions = versions(store);
    let oldest = *versions.first().unwrap();
    assert_eq!(*versions.last().unwrap(), wanted_head);
    assert_eq!(
        versions.len() as u64,
        wanted_head - oldest + 1,
        "a gap: {versions:?}"
    );
    assert_eq!(head(store, None).unwrap(), Some(wanted_head));
    let boundary = Control::list(store)
        .unwrap()
        .boundary()
        .or_else(|| control::first_version(store).unwrap())
        .unwrap();
    assert!(oldest <= boundary && boundary <= wanted_head);
    for needs in needed {
        assert!(versions.contains(needs), "{needs} is leased");
    }
    let mut anchored = false;
    let mut before: Option<ChainStart> = None;
    for version in &versions {
        let link = Link::read(store, *version).unwrap().unwrap();
        if let Some(before) = &before {
            deltawire_board::chain::check_link(before, &link.manifest).unwrap();
        }
        let record = AnchorRecord::read(store, *version).unwrap();
        let anchor = link.manifest.anchor.as_ref();
        let added = record.as_ref().map(|(record, _)| &record.anchor);
        let files = [anchor, added]
            .into_iter()
            .flatten()
            .flat_map(AnchorFiles::objects);
        for object in link.manifest.delta_objects().chain(files) {
            assert_eq!(
                all.get(&object.path),
                Some(&object.bytes),
                "{}",
                object.path
            );
        }
        if *version >= boundary {
            anchored |= anchor.is_some() || added.is_some();
            assert!(
                anchored,
                "nobody new can read {version}, boundary {boundary}"
            );
        }
        before = Some((&link).into());
    }
}
