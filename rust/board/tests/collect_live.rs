//! Collection among publishers, readers and other collections, and what it costs on a long board.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use common::boards::*;
use common::*;
use deltawire_board::collect::{collect, Settings};
use deltawire_board::head::{head, Hint};
use deltawire_board::{anchor, chain, control, epoch, layout};
use deltawire_board::{ChainStart, Control, ErrorKind, Hex, Lease, Link, Result, Store};
use object_store::memory::InMemory;

/// Now, by the store's clock.
fn now(store: &Store) -> u64 {
    store.overwrite("control/clock", b"x").unwrap();
    store.modified_ms("control/clock").unwrap().unwrap()
}

/// Reads and checks all that lies between a version held and the head.
fn go_on(store: &Store, held: &ChainStart) -> Result<ChainStart> {
    let head = head(store, Some(held.version))?.unwrap();
    let mut held = held.clone();
    if head == held.version {
        return Ok(held);
    }
    for link in chain::read_chain(store, Some(held.clone()), held.version + 1, head)? {
        for object in link.manifest.delta_objects() {
            let expected = (object.bytes, object.blake3);
            let mut download = store.download(&object.path, Some(expected))?;
            while download.next()?.is_some() {}
        }
        held = (&link).into();
    }
    Ok(held)
}

/// A version that a new reader may start from: the boundary, all of whose anchor is read.
fn start_anew(store: &Store) -> Result<ChainStart> {
    let boundary = match Control::list(store)?.boundary() {
        Some(boundary) => boundary,
        None => control::first_version(store)?.unwrap(),
    };
    let link = chain::read_chain(store, None, boundary, boundary)?.remove(0);
    let files = match &link.manifest.anchor {
        Some(anchor) => anchor.objects().cloned().collect(),
        None => match deltawire_board::AnchorRecord::read(store, boundary)? {
            Some((record, _)) => record.anchor.objects().cloned().collect(),
            None => Vec::new(), // gone since; the read below says so
        },
    };
    if files.is_empty() {
        return Err(store.read_range("anchors/none", 0..1).unwrap_err());
    }
    for file in files {
        let mut download = store.download(&file.path, Some((file.bytes, file.blake3)))?;
        while download.next()?.is_some() {}
    }
    Ok((&link).into())
}

fn lease_now(store: &Store, id: &str, needs: u64) {
    let now = now(store);
    Lease::new(id.to_owned(), needs, now + 600_000, now)
        .write(store, id)
        .unwrap();
}

#[test]
fn publishers_readers_and_two_collectors_at_once() {
    const LAST: u64 = 240;
    let scratch = Scratch::new();
    for store in [scratch.store(), memory("collect-live")] {
        let stop = Arc::new(AtomicBool::new(false));
        let restarts = Arc::new(AtomicU64::new(0));
        let removed = Arc::new(AtomicU64::new(0));
        let begun = begin(&store, 0, 0);
        let mut threads = Vec::new();
        for keep in [2, 3] {
            let (store, stop, removed) = (store.clone(), stop.clone(), removed.clone());
            threads.push(std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let settings = Settings {
                        now_ms: now(&store),
                        safety_ms: 600_000,
                        sweep: keep == 3,
                        write_id: Hex([keep; 16]),
                        ..settings(u64::from(keep))
                    };
                    let done = collect(&store, &settings).unwrap().unwrap();
                    removed.fetch_add(done.range.1 - done.range.0, Ordering::SeqCst);
                }
            }));
        }
        // Without a lease a reader may be overtaken; it hears so, and starts anew.
        for pause in [0, 120] {
            let (store, stop, restarts) = (store.clone(), stop.clone(), restarts.clone());
            threads.push(std::thread::spawn(move || {
                let mut held: Option<ChainStart> = None;
                loop {
                    let last = stop.load(Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(pause));
                    let step = match &held {
                        Some(held) => go_on(&store, held),
                        None => start_anew(&store),
                    };
                    match step {
                        Ok(now) if last && held.is_some() => return assert_eq!(now.version, LAST),
                        Ok(now) => held = Some(now),
                        Err(error) => {
                            assert!(
                                matches!(error.kind, ErrorKind::NotFound | ErrorKind::BrokenChain),
                                "{error}"
                            );
                            restarts.fetch_add(1, Ordering::SeqCst);
                            held = None;
                        }
                    }
                }
            }));
        }
        // With a lease it is never overtaken, however slow.
        let leased = {
            let (store, stop) = (store.clone(), stop.clone());
            std::thread::spawn(move || loop {
                // Lease first, then see whether the boundary was drawn above meanwhile.
                let candidate = match start_anew(&store) {
                    Ok(candidate) => candidate,
                    Err(_) => continue,
                };
                lease_now(&store, "slow", candidate.version);
                let boundary = Control::list(&store).unwrap().boundary().unwrap_or(0);
                if boundary > candidate.version {
                    continue;
                }
                let mut held = candidate;
                while !stop.load(Ordering::SeqCst) {
                    std::thread::sleep(std::time::Duration::from_millis(40));
                    held = go_on(&store, &held).unwrap();
                    lease_now(&store, "slow", held.version);
                }
                return;
            })
        };
        let mut start = begun;
        for version in 1..=LAST {
            std::thread::sleep(std::time::Duration::from_millis(3));
            start = add(&store, &start, 0, None);
            if version.is_multiple_of(7) {
                add_anchor(&store, version);
            }
        }
        stop.store(true, Ordering::SeqCst);
        for thread in threads.into_iter().chain([leased]) {
            thread.join().unwrap();
        }
        check_invariants(&store, LAST, &[]);
        assert!(removed.load(Ordering::SeqCst) >= 100, "{removed:?}");
        deltawire_board::lease::remove(&store, "slow").unwrap();
        let now_ms = now(&store) + 1;
        collect(
            &store,
            &Settings {
                now_ms,
                ..settings(2)
            },
        )
        .unwrap();
        check_invariants(&store, LAST, &[]);
        assert_eq!(versions(&store), (238..=LAST).collect());
        assert!(restarts.load(Ordering::SeqCst) > 0);
    }
}

#[test]
fn two_collectors_that_want_different_things() {
    for round in 0..30 {
        let inner = Arc::new(InMemory::new());
        let (store, _) = tapped(&inner);
        grow(&store, 0, 40, 3, 0);
        let barrier = Arc::new(Barrier::new(2));
        let threads: Vec<_> = [1, 5 + round % 20]
            .into_iter()
            .map(|keep| {
                let (store, barrier) = (tapped(&inner).0, barrier.clone());
                std::thread::spawn(move || {
                    barrier.wait();
                    collect(&store, &settings(keep)).unwrap().unwrap()
                })
            })
            .collect();
        let done: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(done[0].boundary.1, 39);
        check_invariants(&store, 40, &[]);
        collect(&store, &settings(1)).unwrap();
        assert_eq!(versions(&store), (39..=40).collect());
        assert_eq!(Control::list(&store).unwrap().markers, [39]);
    }
}

#[test]
fn an_anchor_on_its_way_to_a_version_that_goes() {
    let (store, _) = tapped(&Arc::new(InMemory::new()));
    grow(&store, 0, 20, 5, 0);
    let day = Settings {
        now_ms: now(&store),
        safety_ms: 86_400_000,
        ..settings(1)
    };
    let upload = upload_anchor(&store, 7, 9);
    collect(&store, &day).unwrap();
    // Its claim is young and stays, so that what comes later is found, too.
    let claims = Control::list(&store).unwrap().claims;
    assert!(claims.iter().any(|claim| claim.directory() == upload.path));
    let mut late = store.upload("anchors/7/late.safetensors").unwrap();
    late.write(b"late").unwrap();
    late.finish().unwrap();
    let done = collect(
        &store,
        &Settings {
            now_ms: day.now_ms + 90_000_000,
            ..day
        },
    )
    .unwrap();
    assert_eq!(done.unwrap().freed.objects, 1);
    assert!(!contents(&store)
        .keys()
        .any(|path| path.contains("anchors/7")));
    assert!(Control::list(&store)
        .unwrap()
        .claims
        .iter()
        .all(|claim| claim.version >= 20));
}

/// Ten thousand versions: what polls, openings and collections ask of the store.
#[test]
fn costs_follow_the_work_and_not_the_board() {
    const LAST: u64 = 9_999;
    let inner = Arc::new(InMemory::new());
    let (store, tap) = tapped(&inner);
    for id in 0..40 {
        epoch::acquire(&store, Hex([id; 16]), 0).unwrap();
    }
    let end = grow(&store, 0, LAST, 50, 40);
    Hint {
        version: LAST,
        anchor: Some(9_950),
    }
    .write(&store);

    took(&tap);
    let lists = tap.lists.load(Ordering::SeqCst);
    assert_eq!(head(&store, Some(LAST)).unwrap(), Some(LAST));
    assert!(took(&tap) <= 2, "a poll");
    assert_eq!(head(&store, Some(LAST - 1)).unwrap(), Some(LAST));
    assert!(took(&tap) <= 4, "a poll that finds a version");
    assert_eq!(head(&store, None).unwrap(), Some(LAST));
    assert!(took(&tap) <= 3, "a reader's first look, with a hint");
    store.delete("latest.json").unwrap();
    took(&tap);
    assert_eq!(head(&store, None).unwrap(), Some(LAST));
    let logarithmic = 2 * u64::from(LAST.ilog2()) + 5;
    assert!(took(&tap) <= logarithmic, "a reader's first look, without");
    assert_eq!(tap.lists.load(Ordering::SeqCst), lists, "no listing");
    let mine = epoch::acquire(&store, Hex([0xaa; 16]), 0).unwrap();
    assert_eq!(
        took(&tap),
        4,
        "a publisher that opens: one short listing, one create, and another with its read-back that \
         shows that the store does not replace"
    );

    // A collection of nearly everything, then ones with little to do.
    let done = collect(&store, &settings(1000)).unwrap().unwrap();
    assert_eq!(done.range, (0, 9_000));
    let anchors = 9_000 / 50;
    // For each version its record, its directory and its delta; for each anchor its own, hashes of blocks too.
    let cost = took(&tap);
    let wanted = 3 * 9_000 + anchors * 6 + 2 * 9_000 / 256 + 39 + 60;
    assert!(cost <= wanted, "{cost} > {wanted}");
    check_invariants(&store, LAST, &[]);
    took(&tap);
    let done = collect(&store, &settings(1000)).unwrap().unwrap();
    assert_eq!(done.range, (9_000, 9_000));
    let cost = took(&tap);
    assert!(cost <= 12, "{cost} operations with nothing to do");
    let done = collect(&store, &settings(950)).unwrap().unwrap();
    assert_eq!(done.range, (9_000, 9_050));
    let cost = took(&tap);
    assert!(cost <= 3 * 50 + 30, "{cost} operations for 50 versions");
    let old = Settings {
        older_than_ms: 1,
        ..settings(900)
    };
    assert_eq!(
        collect(&store, &old).unwrap().unwrap().range,
        (9_050, 9_100)
    );
    let cost = took(&tap);
    assert!(cost <= 3 * 50 + 45, "{cost} operations with an age");

    // Readers and publishers find their way without version 0 and without a hint.
    store.delete("latest.json").unwrap();
    took(&tap);
    let lists = tap.lists.load(Ordering::SeqCst);
    assert_eq!(head(&store, None).unwrap(), Some(LAST));
    assert!(took(&tap) <= logarithmic + 3);
    assert_eq!(tap.lists.load(Ordering::SeqCst), lists + 1);
    assert_eq!(Control::list(&store).unwrap().epochs, [40, mine]);
    took(&tap);
    let claim = anchor::claim_directory(&store, LAST, mine, Hex([1; 16]), 0).unwrap();
    assert_eq!((claim, took(&tap)), ("anchors/9999".to_owned(), 1));
    add(&store, &end, mine, None);
    let cost = took(&tap);
    assert!(cost <= 6, "{cost} operations for an upload and a commit");
    assert_eq!(
        Link::read(&store, LAST + 1)
            .unwrap()
            .unwrap()
            .manifest
            .epoch,
        mine
    );
    assert!(store.exists(&layout::collected(9_100)).unwrap());
}

/// Operations since the last call; with `--nocapture` they are shown.
fn took(tap: &common::tap::TapStore) -> u64 {
    let count = tap.take();
    println!("{count} operations");
    count
}
