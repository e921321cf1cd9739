//! A version exists exactly when its manifest does, whatever goes wrong on the way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::{Arc, Barrier};

use common::*;
use deltawire_board::commit::{commit, discard};
use deltawire_board::head::{head, Hint};
use deltawire_board::{anchor, chain, epoch, layout};
use deltawire_board::{
    AnchorRecord, Created, ErrorKind, Hex, Link, Manifest, SkipRecord, Store, VersionRef,
};

#[test]
fn versions_are_committed_and_found_on_every_store() {
    let scratch = Scratch::new();
    for store in [scratch.store(), memory("commit-basic"), faulty().0] {
        assert_eq!(head(&store, None).unwrap(), None);
        let epoch = epoch::acquire(&store, Hex([9; 16]), 0).unwrap();
        let end = fill(&store, 0, 5, epoch);
        assert_eq!(head(&store, None).unwrap(), Some(5));
        let links = chain::read_chain(&store, None, 0, 5).unwrap();
        assert_eq!(links.len(), 6);
        assert_eq!(links[5].digest, end.digest);
        assert_eq!(Hint::read(&store).unwrap().version, 5);
        assert_eq!(Link::read(&store, 6).unwrap(), None);
    }
}

#[test]
fn a_lost_reply_after_success_is_recognised() {
    for fault in [Fault::LoseReply, Fault::CollideWithItself] {
        let (store, faults) = faulty();
        let start = fill(&store, 0, 0, 0);
        faults.faults.lock().unwrap().push(fault);
        let manifest = next(&start, 0, 3);
        let digest = commit(&store, &manifest).unwrap();
        assert_eq!(Link::read(&store, 1).unwrap().unwrap().digest, digest);

        faults.faults.lock().unwrap().push(fault);
        assert_eq!(
            store.create("control/x", b"mine").unwrap(),
            Created::Recovered
        );
        assert_eq!(
            store.create("control/x", b"abc").unwrap(),
            Created::Taken(None)
        );
        assert_eq!(
            store.create("control/x", b"longer than that").unwrap(),
            Created::Taken(Some(b"mine".to_vec()))
        );
    }
}

#[test]
fn a_failed_create_leaves_the_head_and_keeps_objects_that_may_yet_be_named() {
    let (store, faults) = faulty();
    let start = fill(&store, 0, 0, 0);
    let manifest = next(&start, 0, 3);
    let path = manifest.objects[0].object.path.clone();
    let mut upload = store.upload(&path).unwrap();
    upload.write(b"delta").unwrap();
    upload.finish().unwrap();
    faults.faults.lock().unwrap().push(Fault::Fail);
    assert_eq!(
        commit(&store, &manifest).unwrap_err().kind,
        ErrorKind::Store
    );
    assert_eq!(head(&store, None).unwrap(), Some(0));
    // The create may still be under way on such a store, so the object must stay.
    assert!(!discard(&store, 1, manifest.write_id, std::slice::from_ref(&path)).unwrap());
    assert!(store.exists(&path).unwrap());

    commit(&store, &manifest).unwrap();
    assert!(discard(&store, 1, manifest.write_id, std::slice::from_ref(&path)).unwrap());
    assert!(store.exists(&path).unwrap());

    // Another writer's manifest is there: ours can never land, its objects may go.
    assert!(!discard(&store, 1, Hex([8; 16]), std::slice::from_ref(&path)).unwrap());
    assert!(!store.exists(&path).unwrap());
}

#[test]
fn of_many_racing_writers_exactly_one_wins() {
    let scratch = Scratch::new();
    for store in [scratch.store(), memory("commit-race")] {
        let mut start = fill(&store, 0, 0, 0);
        for _ in 0..10 {
            let barrier = Arc::new(Barrier::new(6));
            let threads: Vec<_> = (1..=6_u8)
                .map(|writer| {
                    let (store, barrier) = (store.clone(), Arc::clone(&barrier));
                    let start = start.clone();
                    std::thread::spawn(move || {
                        let manifest = next(&start, 0, writer);
                        barrier.wait();
                        commit(&store, &manifest).map(|digest| (writer, digest))
                    })
                })
                .collect();
            let outcomes: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            let won: Vec<_> = outcomes.iter().filter_map(|o| o.as_ref().ok()).collect();
            assert_eq!(won.len(), 1);
            for lost in outcomes.iter().filter_map(|o| o.as_ref().err()) {
                assert_eq!(lost.kind, ErrorKind::Conflict);
                assert_eq!(lost.version, Some(start.version + 1));
            }
            let link = Link::read(&store, start.version + 1).unwrap().unwrap();
            assert_eq!(link.manifest.write_id, Hex([won[0].0; 16]));
            assert_eq!(link.digest, won[0].1);
            start = (&link).into();
        }
        assert_eq!(head(&store, None).unwrap(), Some(10));
        chain::read_chain(&store, None, 0, 10).unwrap();
    }
    // Losers leave nothing behind, staging files included.
    let manifests = files_below(&scratch.board().join("manifests"));
    assert_eq!(manifests.len(), 11, "{manifests:?}");
}

#[test]
fn a_board_begins_once() {
    let scratch = Scratch::new();
    for store in [scratch.store(), memory("commit-first")] {
        let barrier = Arc::new(Barrier::new(6));
        let threads: Vec<_> = (0..6_u64)
            .map(|writer| {
                let (store, barrier) = (store.clone(), Arc::clone(&barrier));
                std::thread::spawn(move || {
                    let manifest = first(&store, 10 * writer, 0);
                    barrier.wait();
                    commit(&store, &manifest).map(|_| manifest.version)
                })
            })
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let won: Vec<_> = outcomes.iter().filter_map(|o| o.as_ref().ok()).collect();
        assert_eq!(won.len(), 1);
        for lost in outcomes.iter().filter_map(|o| o.as_ref().err()) {
            assert_eq!(lost.kind, ErrorKind::Conflict);
        }
        assert_eq!(head(&store, None).unwrap(), Some(*won[0]));
        assert_eq!(store.list(layout::MANIFESTS).unwrap().len(), 1);
    }
    // A writer that crashed between the claim and the manifest leaves the number to the next.
    let store = memory("commit-first-crash");
    let manifest = first(&store, 4, 0);
    store
        .create(
            layout::FIRST,
            b"{\"version\":4,\"write_id\":\"00000000000000000000000000000000\",\"time_ms\":0}",
        )
        .unwrap();
    let error = commit(&store, &first(&store, 0, 0)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert!(error.message.contains("version 4"), "{error}");
    commit(&store, &manifest).unwrap();
}

#[test]
fn the_later_publisher_fences_the_earlier() {
    let store = memory("commit-fence");
    let old = epoch::acquire(&store, Hex([1; 16]), 0).unwrap();
    let start = fill(&store, 0, 0, old);
    let new = epoch::acquire(&store, Hex([2; 16]), 0).unwrap();
    assert!(new > old);
    let error = commit(&store, &next(&start, old, 3)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert!(error.message.contains("another publisher"), "{error}");
    assert_eq!(head(&store, None).unwrap(), Some(0));
    commit(&store, &next(&start, new, 4)).unwrap();
}

#[test]
fn epochs_taken_at_once_differ() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let threads: Vec<_> = (0..8_u8)
        .map(|writer| {
            let store = store.clone();
            std::thread::spawn(move || epoch::acquire(&store, Hex([writer; 16]), 0).unwrap())
        })
        .collect();
    let mut epochs: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    epochs.sort_unstable();
    assert_eq!(epochs, (1..=8).collect::<Vec<_>>());
}

#[test]
fn a_manifest_that_readers_would_refuse_is_not_committed() {
    let store = memory("commit-refuse");
    let start = fill(&store, 3, 3, 5);
    let kind = |manifest| commit(&store, &manifest).unwrap_err().kind;

    let mut wrong_digest = next(&start, 5, 1);
    wrong_digest.parent.as_mut().unwrap().digest = Hex([0; 32]);
    assert_eq!(kind(wrong_digest), ErrorKind::BrokenChain);

    let mut wrong_base = next(&start, 5, 1);
    wrong_base.base_state = Some(state(99));
    assert_eq!(kind(wrong_base), ErrorKind::BrokenChain);

    // Its parent says that this writer is fenced.
    assert_eq!(kind(next(&start, 4, 1)), ErrorKind::Conflict);

    let mut other_run = next(&start, 5, 1);
    other_run.run = "other".into();
    assert_eq!(kind(other_run), ErrorKind::BrokenChain);

    let mut gap = start;
    gap.version = 7;
    assert_eq!(kind(next(&gap, 5, 1)), ErrorKind::WrongVersion);

    // A second beginning.
    assert_eq!(kind(first(&store, 9, 5)), ErrorKind::Conflict);
    assert_eq!(head(&store, None).unwrap(), Some(3));
}

#[test]
fn anchor_directories_have_one_writer_each() {
    let store = memory("commit-claims");
    let claim = |id| anchor::claim_directory(&store, 4, 1, Hex([id; 16]), 0).unwrap();
    assert_eq!(claim(1), "anchors/4");
    assert_eq!(claim(2), "anchors/4-2");
    assert_eq!(claim(3), "anchors/4-3");
}

#[test]
fn an_anchor_record_is_committed_once() {
    let store = memory("commit-record");
    let end = fill(&store, 0, 2, 0);
    let record = AnchorRecord {
        format: 1,
        requires: Vec::new(),
        version: 2,
        manifest: end.digest,
        result_state: end.state,
        anchor: first(&store, 2, 0).anchor.unwrap(),
        epoch: 0,
        write_id: Hex([1; 16]),
        time_ms: 0,
        signature: None,
    };
    let digest = record.commit(&store).unwrap();
    let (found, found_digest) = AnchorRecord::read(&store, 2).unwrap().unwrap();
    assert_eq!((&found, found_digest), (&record, digest));
    let mut again = record;
    again.write_id = Hex([2; 16]);
    assert_eq!(again.commit(&store).unwrap_err().kind, ErrorKind::Conflict);
    // It is no manifest: the head does not move, also when found by listing.
    store.delete(&layout::manifest(0)).unwrap();
    store.overwrite(layout::LATEST, b"{}").unwrap();
    assert_eq!(head(&store, None).unwrap(), Some(2));
}

#[test]
fn a_skip_record_is_committed_once_and_checked() {
    let store = memory("commit-skip");
    let end = fill(&store, 0, 3, 0);
    let base = Link::read(&store, 1).unwrap().unwrap();
    let write_id = Hex([1; 16]);
    let record = SkipRecord {
        format: 1,
        requires: Vec::new(),
        version: 3,
        manifest: end.digest,
        base: VersionRef {
            version: 1,
            digest: base.digest,
        },
        base_state: base.manifest.result_state,
        result_state: end.state,
        objects: next(&end, 0, 1).objects,
        changed: 7,
        write_id,
        time_ms: 0,
        signature: None,
    };
    let read = |pairs: &[(u64, u64)]| SkipRecord::read(&store, pairs).unwrap();
    assert_eq!(read(&[(3, 1)]), [None]);
    record.commit(&store, None).unwrap();
    let found = read(&[(3, 0), (3, 1), (2, 0)]);
    assert!(found[0].is_none() && found[2].is_none());
    let bytes = found[1].clone().unwrap();
    assert_eq!(SkipRecord::parse(&bytes, 3, 1).unwrap(), record);
    let again = SkipRecord {
        write_id: Hex([2; 16]),
        ..record.clone()
    };
    let error = again.commit(&store, None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert_eq!(
        error.path.as_deref(),
        Some(layout::skip_record(3, 1).as_str())
    );
    for (version, base) in [(3, 0), (2, 1)] {
        let error = SkipRecord::parse(&bytes, version, base).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Untrusted);
    }
    let backwards = |version, base| SkipRecord {
        version,
        base: VersionRef {
            version: base,
            ..record.base
        },
        ..record.clone()
    };
    for (version, base) in [(3, 3), (1, 2), (u64::MAX, 1)] {
        assert!(backwards(version, base).commit(&store, None).is_err());
    }
    let empty = SkipRecord {
        objects: Vec::new(),
        ..record
    };
    assert!(empty.commit(&store, None).is_err());
}

#[test]
fn names_of_skip_records() {
    let name = layout::skip_record(9, 3);
    assert_eq!(name, "objects/9/from-3.json");
    let parse = |name: &str| layout::parse_skip_name(name);
    assert_eq!(parse("from-3.json"), Some(3));
    assert_eq!(parse("from-0.json"), Some(0));
    let write_id = Hex([1; 16]);
    let [object, hashes] = layout::skip_upload(9, 3, write_id);
    for other in [
        object.rsplit('/').next().unwrap(),
        hashes.rsplit('/').next().unwrap(),
        "from-.json",
        "from-03.json",
        "from-+3.json",
        "from-3.json.tmp",
        "from-3",
        "0-1.dw",
    ] {
        assert_eq!(parse(other), None, "{other}");
    }
}

#[test]
fn spans_in_a_manifest_are_bounded() {
    let store = memory("commit-spans");
    let end = fill(&store, 0, 3, 0);
    let with = |skips| Manifest {
        skips,
        ..next(&end, 0, 1)
    };
    assert!(with(vec![2, 4]).to_bytes().is_ok());
    for bad in [vec![1], vec![0], vec![5], (2..19).collect()] {
        assert!(with(bad).to_bytes().is_err());
    }
}

#[test]
fn opening_says_what_is_wrong() {
    let scratch = Scratch::new();
    let missing = scratch.0.join("nothing");
    let error = Store::open(missing.to_str().unwrap(), false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Store);
    let file = scratch.0.join("file");
    std::fs::write(&file, b"").unwrap();
    assert!(Store::open(file.to_str().unwrap(), false)
        .unwrap_err()
        .message
        .contains("file"));
    assert!(Store::open(file.to_str().unwrap(), true).is_err());
    assert!(Store::open("memory://never-made", false).is_err());
    let url = format!("file://{}/a/b", scratch.0.display());
    assert!(Store::open(&url, true).unwrap().root().unwrap().is_dir());
}
