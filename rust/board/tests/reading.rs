//! Readers find the head cheaply and trust nothing that does not link up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::atomic::Ordering;

use common::*;
use deltawire_board::chain::{read_chain, validate_chain};
use deltawire_board::head::{head, Hint};
use deltawire_board::layout::{self, part_upload};
use deltawire_board::manifest::MAX_PARTS;
use deltawire_board::{Blake3, ChainStart, ErrorKind, Hex, Link, Manifest, ObjectRef, Store};
use proptest::prelude::*;

fn raw(store: &Store, versions: std::ops::RangeInclusive<u64>) -> Vec<Vec<u8>> {
    versions
        .map(|v| Link::read(store, v).unwrap().unwrap().bytes)
        .collect()
}

#[test]
fn the_head_is_found_from_any_hint() {
    let store = memory("reading-hints");
    fill(&store, 0, 37, 0);
    for hint in [
        &b""[..],
        b"junk",
        b"[]",
        b"{}",
        b"{\"version\":-1}",
        b"{\"version\":1e300}",
        b"{\"version\":18446744073709551615}",
        b"{\"version\":9223372036854775807}",
        b"{\"version\":38}",
        b"{\"version\":0}",
        b"{\"version\":36,\"anchor\":99}",
        b"{\"version\":37,\"unknown\":[]}",
        &[b'7'; 10_000],
    ] {
        store.overwrite(layout::LATEST, hint).unwrap();
        assert_eq!(
            head(&store, None).unwrap(),
            Some(37),
            "{:?}",
            String::from_utf8_lossy(hint)
        );
    }
    store.delete(layout::LATEST).unwrap();
    assert_eq!(Hint::read(&store), None);
    assert_eq!(head(&store, None).unwrap(), Some(37));
    for known in [0, 1, 36, 37, 38, u64::MAX] {
        assert_eq!(head(&store, Some(known)).unwrap(), Some(37), "{known}");
    }
}

#[test]
fn a_board_whose_beginning_is_gone_is_found_by_listing() {
    let (store, faults) = faulty();
    fill(&store, 0, 20, 0);
    for version in 0..15 {
        store.delete(&layout::manifest(version)).unwrap();
    }
    store.delete(layout::LATEST).unwrap();
    faults.lists.store(0, Ordering::SeqCst);
    assert_eq!(head(&store, None).unwrap(), Some(20));
    // No marker says where it begins, so that the manifests themselves are listed.
    assert_eq!(faults.lists.load(Ordering::SeqCst), 2);
    faults.lists.store(0, Ordering::SeqCst);
    deltawire_board::control::mark(&store, 15, deltawire_board::Hex([1; 16]), 0).unwrap();
    assert_eq!(head(&store, None).unwrap(), Some(20));
    assert_eq!(faults.lists.load(Ordering::SeqCst), 1);
    // A reader that slept through the collection.
    assert_eq!(head(&store, Some(3)).unwrap(), Some(20));
}

#[test]
fn a_poll_never_lists_and_costs_two_small_requests() {
    let (store, faults) = faulty();
    fill(&store, 0, 1000, 0);
    faults.gets.store(0, Ordering::SeqCst);
    faults.lists.store(0, Ordering::SeqCst);
    for _ in 0..10 {
        assert_eq!(head(&store, Some(1000)).unwrap(), Some(1000));
    }
    assert_eq!(faults.gets.load(Ordering::SeqCst), 20);
    // Far behind: logarithmic, not one request a version.
    faults.gets.store(0, Ordering::SeqCst);
    assert_eq!(head(&store, Some(3)).unwrap(), Some(1000));
    assert!(faults.gets.load(Ordering::SeqCst) < 30);
    assert_eq!(faults.lists.load(Ordering::SeqCst), 0);
}

#[test]
fn broken_chains_are_named() {
    let store = memory("reading-chains");
    let end = fill(&store, 0, 6, 0);
    let start = ChainStart::from(&Link::read(&store, 2).unwrap().unwrap());
    let links = read_chain(&store, Some(start.clone()), 3, 6).unwrap();
    assert_eq!(links.last().unwrap().digest, end.digest);

    let broken = |start, first, manifests: Vec<Vec<u8>>, version| {
        let error = validate_chain(start, first, manifests).unwrap_err();
        assert_eq!(error.kind, ErrorKind::BrokenChain, "{error}");
        assert_eq!(error.version, Some(version), "{error}");
    };
    // Another history than the reader's.
    broken(
        Some(ChainStart {
            digest: Hex([0; 32]),
            ..start.clone()
        }),
        3,
        raw(&store, 3..=6),
        3,
    );
    broken(
        Some(ChainStart {
            state: state(77),
            ..start.clone()
        }),
        3,
        raw(&store, 3..=6),
        3,
    );
    broken(
        Some(ChainStart {
            epoch: 1,
            ..start.clone()
        }),
        3,
        raw(&store, 3..=6),
        3,
    );
    broken(Some(start.clone()), 4, raw(&store, 4..=6), 4);
    broken(
        Some(ChainStart {
            run: Some("other".into()),
            ..start.clone()
        }),
        3,
        raw(&store, 3..=6),
        3,
    );
    // A manifest in the middle with one character of no consequence changed.
    let mut manifests = raw(&store, 3..=6);
    let text = String::from_utf8(manifests[1].clone()).unwrap();
    manifests[1] = text.replace("1700000000000", "1700000000001").into_bytes();
    broken(Some(start.clone()), 3, manifests, 5);
    // A version in the middle is not there.
    store.delete(&layout::manifest(4)).unwrap();
    let error = read_chain(&store, Some(start.clone()), 3, 6).unwrap_err();
    assert_eq!(
        (error.kind, error.version),
        (ErrorKind::BrokenChain, Some(4))
    );
}

#[test]
fn manifests_in_each_others_place_are_refused() {
    let store = memory("reading-places");
    fill(&store, 0, 2, 0);
    let bytes = raw(&store, 1..=1).remove(0);
    store.overwrite(&layout::manifest(2), &bytes).unwrap();
    let error = Link::read(&store, 2).unwrap_err();
    assert_eq!((error.kind, error.version), (ErrorKind::Untrusted, Some(2)));
    store
        .overwrite(&layout::manifest(2), &vec![b' '; 9 << 20])
        .unwrap();
    assert_eq!(Link::read(&store, 2).unwrap_err().kind, ErrorKind::Limit);
    assert_eq!(
        read_chain(&store, None, 2, 2).unwrap_err().kind,
        ErrorKind::Limit
    );
}

#[test]
fn newer_records_are_refused_as_such_and_unknown_keys_ignored() {
    let store = memory("reading-newer");
    fill(&store, 0, 1, 0);
    let text = String::from_utf8(raw(&store, 1..=1).remove(0)).unwrap();
    let parse = |text: &str| Manifest::parse(text.as_bytes(), 1);
    let kind = |text: &str| parse(text).unwrap_err().kind;

    let unknown = text.replacen('{', "{\"later\":{\"x\":[1]},", 1);
    assert_eq!(parse(&unknown).unwrap(), parse(&text).unwrap());
    assert_eq!(
        kind(&text.replace("\"format\":1", "\"format\":2")),
        ErrorKind::Unsupported
    );
    let requires = text.replacen('{', "{\"requires\":[\"parts\"],", 1);
    assert_eq!(kind(&requires), ErrorKind::Unsupported);
    // Even if the rest of it has another shape.
    assert_eq!(
        kind("{\"format\":2,\"version\":\"one\"}"),
        ErrorKind::Unsupported
    );
    let twice = text.replacen('{', "{\"version\":1,", 1);
    assert_eq!(kind(&twice), ErrorKind::Untrusted);
    for bad in ["", "{", "null", "[]", "{}", "{\"format\":1}"] {
        assert_eq!(kind(bad), ErrorKind::Untrusted, "{bad:?}");
    }
}

#[test]
fn contradictory_manifests_are_refused() {
    let store = memory("reading-contradictory");
    let start = fill(&store, 0, 0, 0);
    let refused = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = next(&start, 0, 1);
        change(&mut manifest);
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let error = Manifest::parse(&bytes, manifest.version).unwrap_err();
        assert!(
            matches!(error.kind, ErrorKind::Untrusted | ErrorKind::Limit),
            "{error}"
        );
        assert!(manifest.to_bytes().is_err());
    };
    refused(&|m| m.objects.clear());
    refused(&|m| m.objects.push(m.objects[0].clone()));
    refused(&|m| m.base_state = None);
    refused(&|m| m.parent = None);
    refused(&|m| m.version = 5);
    refused(&|m| m.version = u64::MAX);
    refused(&|m| m.objects[0].object.path = "objects/../../etc/passwd".into());
    refused(&|m| m.objects[0].object.path = "manifests/00000000000000000000.json".into());
    refused(&|m| {
        m.last_anchor = Some(deltawire_board::VersionRef {
            version: 1,
            digest: Hex([0; 32]),
        })
    });
    refused(&|m| {
        m.meta.insert("key".into(), "x".repeat(300 << 10));
    });
    let anchored = |change: &dyn Fn(&mut deltawire_board::AnchorFiles)| {
        refused(&|m| {
            let mut anchor = first(&store, 0, 0).anchor.unwrap();
            change(&mut anchor);
            m.anchor = Some(anchor);
        });
    };
    anchored(&|a| a.files.clear());
    anchored(&|a| a.files.push(a.files[0].clone()));
    anchored(&|a| a.path = "objects/0".into());
    anchored(&|a| a.path = "anchors/0/deeper".into());
    anchored(&|a| a.files[0].object.path = "anchors/0/../../../home/x".into());
    anchored(&|a| a.files[0].object.path = "anchors/1/model.safetensors".into());
    let blocks = |a: &deltawire_board::AnchorFiles| deltawire_board::Blocks {
        object: ObjectRef {
            path: format!("{}/block-hashes/0", a.path),
            bytes: 32,
            blake3: Blake3::of(b"hashes"),
        },
        block_bytes: 1 << 20,
    };
    let mut whole = first(&store, 0, 0);
    let anchor = whole.anchor.as_mut().unwrap();
    anchor.files[0].blocks = Some(blocks(anchor));
    let bytes = whole.to_bytes().unwrap();
    assert_eq!(Manifest::parse(&bytes, 0).unwrap(), whole);
    let with_blocks = |change: &dyn Fn(&mut deltawire_board::Blocks)| {
        anchored(&|a| {
            let mut hashes = blocks(a);
            change(&mut hashes);
            a.files[0].blocks = Some(hashes);
        });
    };
    with_blocks(&|b| b.block_bytes = 1000);
    with_blocks(&|b| b.object.bytes = 31);
    with_blocks(&|b| b.object.bytes = 64);
    with_blocks(&|b| b.object.path = "anchors/1/block-hashes/0".into());
    with_blocks(&|b| b.object.path = "objects/0/hashes".into());
    anchored(&|a| {
        let mut hashes = blocks(a);
        hashes.object.path.clone_from(&a.files[0].object.path);
        a.files[0].blocks = Some(hashes);
    });
}

/// A manifest with parts as several writers upload them.
fn in_parts(mut manifest: Manifest, count: u32) -> Manifest {
    let one = manifest.objects[0].clone();
    let uploads = (0..count).map(|part| {
        let upload = Hex([part as u8; 16]);
        let [delta, records] = part_upload(manifest.version, part, manifest.write_id, upload);
        let mut own = one.clone();
        own.object.path = delta;
        own.records = (part % 2 == 0).then(|| ObjectRef {
            path: records,
            bytes: 64,
            ..one.object.clone()
        });
        own
    });
    manifest.objects = uploads.collect();
    manifest
}

#[test]
fn parts_are_in_order_and_of_the_attempt_that_commits_them() {
    let store = memory("reading-parts");
    let start = fill(&store, 0, 0, 0);
    let good = in_parts(next(&start, 0, 1), 3);
    let bytes = good.to_bytes().unwrap();
    let parsed = Manifest::parse(&bytes, good.version).unwrap();
    assert_eq!(parsed, good);
    assert_eq!(parsed.delta_objects().count(), 5);
    assert_eq!(parsed.delta_bytes(), 3 * good.objects[0].object.bytes);
    in_parts(next(&start, 0, 1), MAX_PARTS as u32)
        .to_bytes()
        .unwrap();

    let refused = |kind: ErrorKind, change: &dyn Fn(&mut Manifest)| {
        let mut manifest = good.clone();
        change(&mut manifest);
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let error = Manifest::parse(&bytes, manifest.version).unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(manifest.to_bytes().is_err());
    };
    let untrusted = |change: &dyn Fn(&mut Manifest)| refused(ErrorKind::Untrusted, change);
    untrusted(&|m| m.objects.swap(0, 1));
    untrusted(&|m| drop(m.objects.remove(0)));
    untrusted(&|m| m.objects.push(m.objects[2].clone()));
    untrusted(&|m| m.objects[1] = m.objects[0].clone());
    untrusted(&|m| m.write_id = Hex([9; 16]));
    untrusted(&|m| m.base_state = None);
    // The number begins alike, the version differs, or something follows that is no name.
    for (from, to) in [
        ("/1-", "/11-"),
        ("/1/", "/2/"),
        ("/1-", "/1-x-"),
        (".dw", "/../x.dw"),
    ] {
        untrusted(&|m| {
            let path = &mut m.objects[1].object.path;
            *path = path.replace(from, to);
        });
    }
    untrusted(&|m| {
        let path = m.objects[0].object.path.replace("/0-", "/1-");
        m.objects[0].records.as_mut().unwrap().path = path;
    });
    refused(ErrorKind::Limit, &|m| {
        *m = in_parts(m.clone(), MAX_PARTS as u32 + 1);
    });
}

fn a_manifest() -> impl Strategy<Value = Manifest> {
    (
        0..1_000_000_u64,
        any::<[u8; 16]>(),
        any::<[u8; 32]>(),
        proptest::collection::btree_map(".{0,12}", ".{0,40}", 0..6),
        ".{0,20}",
        any::<(u64, u64, u64)>(),
        0..5u32,
    )
        .prop_map(|(version, state, digest, meta, run, (a, b, c), parts)| {
            let start = ChainStart {
                version,
                digest: Hex(digest),
                state: Hex(state),
                epoch: 0,
                run: None,
            };
            let mut manifest = next(&start, b, 1);
            manifest.meta = meta;
            manifest.run = run;
            manifest.changed = a;
            manifest.time_ms = c;
            if parts > 1 {
                manifest = in_parts(manifest, parts);
            }
            manifest
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn manifests_round_trip_and_their_bytes_are_canonical(manifest in a_manifest()) {
        let bytes = manifest.to_bytes().unwrap();
        let parsed = Manifest::parse(&bytes, manifest.version).unwrap();
        prop_assert_eq!(&parsed, &manifest);
        prop_assert_eq!(parsed.to_bytes().unwrap(), bytes);
    }

    /// Any change of a byte in an earlier manifest breaks the chain or the parse.
    #[test]
    fn altered_manifests_never_pass(place in any::<prop::sample::Index>(), bit in 0..8_u32) {
        let store = memory("reading-altered");
        if head(&store, None).unwrap().is_none() {
            fill(&store, 0, 2, 0);
        }
        let mut manifests = raw(&store, 0..=2);
        let place = place.index(manifests[1].len());
        manifests[1][place] ^= 1 << bit;
        let error = validate_chain(None, 0, manifests).unwrap_err();
        prop_assert!(matches!(
            error.kind,
            ErrorKind::BrokenChain | ErrorKind::Untrusted | ErrorKind::Unsupported
        ));
    }

    #[test]
    fn arbitrary_bytes_are_no_manifest(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Manifest::parse(&bytes, 0).is_err());
        prop_assert!(Blake3::parse(&String::from_utf8_lossy(&bytes)).is_err());
    }
}
