//! Collection: what goes, what stays, and what a crash at any operation leaves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::boards::*;
use common::tap::NEVER;
use common::*;
use deltawire_board::collect::{collect, Settings};
use deltawire_board::commit::commit;
use deltawire_board::head::{head, Hint};
use deltawire_board::retention::Limit;
use deltawire_board::{control, epoch, layout, lease as leases};
use deltawire_board::{Control, ErrorKind, Hex, Link, Store};
use object_store::memory::InMemory;

fn memory_board() -> (Store, Arc<InMemory>) {
    let inner = Arc::new(InMemory::new());
    (tapped(&inner).0, inner)
}

#[test]
fn old_versions_go_up_to_an_anchor() {
    let scratch = Scratch::new();
    for store in [scratch.store(), memory("collect-basic"), memory_board().0] {
        let writer = epoch::acquire(&store, Hex([9; 16]), 0).unwrap();
        grow(&store, 3, 20, 5, writer); // anchors at 3, 8, 13, 18
        let done = collect(&store, &settings(4)).unwrap().unwrap();
        assert_eq!(done.head, 20);
        assert_eq!(done.boundary, (3, 13));
        assert_eq!(done.range, (3, 13));
        assert_eq!(done.limit, Limit::Anchor);
        assert_eq!((done.freed.objects, done.anchors), (9 + 6, 2));
        assert_eq!(versions(&store), (13..=20).collect());
        check_invariants(&store, 20, &[]);
        let again = collect(&store, &settings(4)).unwrap().unwrap();
        assert_eq!((again.boundary, again.range), ((13, 13), (13, 13)));
        assert_eq!(again.freed.objects, 0);
        // What is left of control/ follows what is left of the board.
        let control = Control::list(&store).unwrap();
        assert_eq!(control.markers, [13]);
        assert_eq!(control.claims.len(), 2);
        assert_eq!(control.epochs, [writer]);
    }
    // No empty directories of versions that are gone.
    let objects = std::fs::read_dir(scratch.board().join("objects")).unwrap();
    assert_eq!(objects.count(), 8);
}

#[test]
fn an_empty_board_and_a_young_one() {
    let (store, _) = memory_board();
    assert_eq!(collect(&store, &settings(1)).unwrap(), None);
    assert!(contents(&store).is_empty());
    grow(&store, 0, 0, 5, 0);
    let before = contents(&store);
    let done = collect(&store, &settings(0)).unwrap().unwrap();
    assert_eq!((done.boundary, done.range), ((0, 0), (0, 0)));
    assert_eq!(contents(&store), before);
}

#[test]
fn the_last_anchor_stays() {
    let (store, _) = memory_board();
    grow(&store, 0, 50, 1000, 0);
    let done = collect(&store, &settings(1)).unwrap().unwrap();
    assert_eq!((done.range, done.limit), ((0, 0), Limit::Anchor));
    check_invariants(&store, 50, &[]);
    // An anchor whose files are not all there is none.
    add_anchor(&store, 30);
    store.delete("anchors/30/model.safetensors").unwrap();
    let done = collect(&store, &settings(1)).unwrap().unwrap();
    assert_eq!(done.range, (0, 0));
    // Nor is one of which there are only files, or whose record is altered.
    upload_anchor(&store, 20, 5);
    upload_anchor(&store, 25, 5);
    store
        .overwrite(&layout::anchor_record(25), b"{\"format\":1}")
        .unwrap();
    assert_eq!(
        collect(&store, &settings(1)).unwrap().unwrap().range,
        (0, 0)
    );
    add_anchor(&store, 10);
    assert_eq!(
        collect(&store, &settings(1)).unwrap().unwrap().range,
        (0, 10)
    );
}

#[test]
fn the_newest_version_itself_may_be_the_boundary() {
    let (store, _) = memory_board();
    let start = grow(&store, 0, 10, 5, 0);
    collect(&store, &settings(1)).unwrap();
    assert_eq!(versions(&store), BTreeSet::from([10]));
    check_invariants(&store, 10, &[]);
    // And publishing goes on from it.
    add(&store, &start, 0, None);
    check_invariants(&store, 11, &[]);
}

#[test]
fn numbers_are_not_used_again_after_everything_old_is_gone() {
    let (store, inner) = memory_board();
    let one = epoch::acquire(&store, Hex([1; 16]), 0).unwrap();
    let start = grow(&store, 0, 10, 5, one);
    collect(&store, &settings(1)).unwrap();
    store.delete("latest.json").unwrap();
    // A new process knows nothing, and finds head and epoch.
    let (store, _) = tapped(&inner);
    assert_eq!(head(&store, None).unwrap(), Some(10));
    assert_eq!(head(&store, Some(4)).unwrap(), Some(10));
    let two = epoch::acquire(&store, Hex([2; 16]), 0).unwrap();
    assert_eq!(two, one + 1);
    for version in [0, 4] {
        let refused = commit(&store, &first(&store, version, two)).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Conflict);
    }
    let mut late = next(&start, two, 9);
    late.version = 5;
    late.parent = Some(deltawire_board::VersionRef {
        version: 4,
        digest: start.digest,
    });
    assert_eq!(
        commit(&store, &late).unwrap_err().kind,
        ErrorKind::WrongVersion
    );
    assert_eq!(add(&store, &start, two, None).version, 11);
    assert_eq!(versions(&store), BTreeSet::from([10, 11]));
}

#[test]
fn a_publisher_that_stood_still_before_its_create_does_not_bring_a_number_back() {
    // Stopped after looking at the parent, while versions went on and were collected: what it
    // creates then is taken back. The parent's manifest is hidden from it at the last moment.
    let (store, tap) = tapped(&Arc::new(InMemory::new()));
    let start = begin(&store, 0, 0);
    let stale = next(&start, 0, 0x55);
    let mut end = add(&store, &start, 0, None);
    for _ in 0..8 {
        end = add(&store, &end, 0, None);
    }
    add_anchor(&store, 8);
    let parent = store.read(&layout::manifest(0), 1 << 20).unwrap().unwrap();
    collect(&store, &settings(1)).unwrap();
    assert_eq!(versions(&store), (8..=9).collect());
    // The look at the parent succeeds, as it did before the pause ...
    store.overwrite(&layout::manifest(0), &parent).unwrap();
    tap.hide(&format!("run/{}", layout::manifest(0)), 1);
    let refused = commit(&store, &stale).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Conflict, "{refused}");
    store.delete(&layout::manifest(0)).unwrap();
    assert_eq!(versions(&store), (8..=9).collect());
    check_invariants(&store, 9, &[]);
    assert_eq!(Link::read(&store, 1).unwrap(), None);
}

#[test]
fn leases_protect_until_they_end() {
    let (store, _) = memory_board();
    grow(&store, 0, 40, 4, 0);
    let now = store.modified_ms(&layout::manifest(0)).unwrap().unwrap() + 1000;
    let at = |now_ms: u64, grace_ms: u64| Settings {
        now_ms,
        grace_ms,
        ..settings(1)
    };
    lease(&store, "slow", 13, now + 1000);
    lease(&store, "ended", 2, now - 1000);
    let done = collect(&store, &at(now, 0)).unwrap().unwrap();
    assert_eq!((done.leases, done.expired), (1, 1));
    assert_eq!((done.boundary, done.limit), ((0, 12), Limit::Lease));
    check_invariants(&store, 40, &[13]);
    // Ended, but within the grace for clocks that disagree; then not.
    let done = collect(&store, &at(now + 1500, 1000)).unwrap().unwrap();
    assert_eq!(done.range, (12, 12));
    assert_eq!(leases::list(&store).unwrap().len(), 1);
    let done = collect(&store, &at(now + 2500, 1000)).unwrap().unwrap();
    assert_eq!(
        (done.range, done.expired, done.limit),
        ((12, 40), 1, Limit::Keep)
    );
    assert!(leases::list(&store).unwrap().is_empty());
}

#[test]
fn a_lease_without_end_ends_with_the_stores_date() {
    let (store, _) = memory_board();
    grow(&store, 0, 8, 4, 0);
    lease(&store, "broken-clock", 0, u64::MAX);
    let written = store
        .modified_ms("readers/broken-clock.json")
        .unwrap()
        .unwrap();
    let mut settings = settings(1);
    settings.now_ms = written + leases::MAX_LEASE_MS - 1;
    assert_eq!(
        collect(&store, &settings).unwrap().unwrap().limit,
        Limit::Lease
    );
    settings.now_ms += 1;
    assert_eq!(collect(&store, &settings).unwrap().unwrap().boundary.1, 8);
}

#[test]
fn what_cannot_be_understood_stops_collection_before_it_begins() {
    let (store, _) = memory_board();
    grow(&store, 0, 8, 4, 0);
    for (content, kind) in [
        (&b"{\"format\":2}"[..], ErrorKind::Unsupported),
        (b"hello", ErrorKind::Untrusted),
        (b"{\"format\":1,\"name\":3}", ErrorKind::Untrusted),
    ] {
        store.overwrite("readers/x.json", content).unwrap();
        let before = contents(&store);
        let error = collect(&store, &settings(1)).unwrap_err();
        assert_eq!(
            (error.kind, error.path.as_deref()),
            (kind, Some("readers/x.json"))
        );
        assert_eq!(contents(&store), before);
    }
    store.delete("readers/x.json").unwrap();
    store.overwrite("readers/no lease.json", b"hello").unwrap();
    store.overwrite("readers/notes.txt", b"hello").unwrap();
    collect(&store, &settings(1)).unwrap();
}

#[test]
fn versions_that_are_too_young_stay() {
    let (store, _) = memory_board();
    grow(&store, 0, 12, 2, 0);
    let dates: Vec<u64> = (0..=12)
        .map(|v| store.modified_ms(&layout::manifest(v)).unwrap().unwrap())
        .collect();
    let old = Settings {
        older_than_ms: 60_000,
        now_ms: dates[12] + 30_000,
        ..settings(1)
    };
    let done = collect(&store, &old).unwrap().unwrap();
    assert_eq!((done.boundary, done.limit), ((0, 0), Limit::Age));
    let done = collect(
        &store,
        &Settings {
            now_ms: dates[12] + 70_000,
            ..old
        },
    )
    .unwrap()
    .unwrap();
    assert_eq!((done.boundary, done.limit), ((0, 12), Limit::Keep));
}

#[test]
fn a_dry_run_says_the_same_and_changes_nothing() {
    let (store, _) = memory_board();
    for write_id in 1..4 {
        epoch::acquire(&store, Hex([write_id; 16]), 0).unwrap();
    }
    grow(&store, 0, 20, 5, 3);
    lease(&store, "ended", 2, 1);
    upload_anchor(&store, 3, 9);
    let before = contents(&store);
    let dry = Settings {
        dry_run: true,
        sweep: true,
        ..settings(3)
    };
    let said = collect(&store, &dry).unwrap().unwrap();
    assert_eq!(contents(&store), before);
    let did = collect(
        &store,
        &Settings {
            dry_run: false,
            ..dry
        },
    )
    .unwrap()
    .unwrap();
    assert_eq!(
        (said.boundary, said.range, said.freed),
        (did.boundary, did.range, did.freed)
    );
    assert_eq!(
        (said.epochs, said.expired, said.anchors),
        (did.epochs, did.expired, did.anchors)
    );
    assert_eq!((did.epochs, did.expired), (2, 1));
    assert_ne!(contents(&store), before);
}

#[test]
fn leftovers_of_attempts_go_when_they_are_old() {
    let scratch = Scratch::new();
    for store in [scratch.store(), memory("collect-sweep")] {
        let start = grow(&store, 0, 10, 5, 0);
        let put = |path: &str| {
            let mut upload = store.upload(path).unwrap();
            upload.write(b"leftover").unwrap();
            upload.finish().unwrap();
        };
        let dead = layout::object(7, 0, Hex([0xdd; 16]));
        let maybe = layout::object(11, 0, Hex([0xdd; 16]));
        put(&dead);
        put(&maybe);
        let partial = upload_anchor(&store, 8, 9).path; // never recorded
        let second = upload_anchor(&store, 5, 9).path; // 5 has another
        let coming = upload_anchor(&store, 11, 9).path; // above the head
        let young = Settings {
            sweep: true,
            safety_ms: 3_600_000,
            now_ms: store.modified_ms(&dead).unwrap().unwrap() + 60_000,
            ..settings(100)
        };
        let before = contents(&store);
        collect(&store, &young).unwrap();
        assert_eq!(contents(&store), before);
        let old = Settings {
            now_ms: young.now_ms + 3_600_000,
            ..young
        };
        let done = collect(&store, &old).unwrap().unwrap();
        assert_eq!(done.swept.freed.objects, 7);
        let left = contents(&store);
        assert!(!left.contains_key(&dead) && left.contains_key(&maybe));
        assert!(!left
            .keys()
            .any(|path| path.starts_with(&format!("{partial}/"))));
        assert!(!left
            .keys()
            .any(|path| path.starts_with(&format!("{second}/"))));
        assert!(left
            .keys()
            .any(|path| path.starts_with(&format!("{coming}/"))));
        check_invariants(&store, 10, &[]);
        // The directory is never written by another attempt [C5].
        assert_ne!(upload_anchor(&store, 8, 4).path, partial);

        // Late writers of versions that were collected.
        collect(&store, &settings(1)).unwrap();
        put(&layout::object(2, 0, Hex([0xdd; 16])));
        put("anchors/3-2/model.safetensors");
        store.overwrite(&layout::anchor_record(3), b"x").unwrap();
        store.overwrite(&layout::manifest(4), b"x").unwrap();
        let done = collect(
            &store,
            &Settings {
                sweep: true,
                ..settings(1)
            },
        )
        .unwrap()
        .unwrap();
        assert_eq!((done.swept.freed.objects, done.swept.records), (2, 2));
        check_invariants(&store, 10, &[]);
        add(&store, &start, 0, None);
    }
}

#[test]
fn old_epochs_go_and_fencing_stays() {
    let (store, _) = memory_board();
    let mut epochs: Vec<u64> = (1..=4)
        .map(|id| epoch::acquire(&store, Hex([id; 16]), 0).unwrap())
        .collect();
    let start = grow(&store, 0, 10, 5, epochs[3]);
    epochs.push(epoch::acquire(&store, Hex([5; 16]), 0).unwrap());
    collect(&store, &settings(1)).unwrap();
    assert_eq!(Control::list(&store).unwrap().epochs, epochs[3..]);
    // Of the publisher before the head's nothing is left, but its commits are refused.
    let mut stale = next(&start, epochs[1], 9);
    let refused = commit(&store, &stale).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Conflict, "{refused}");
    stale.epoch = epochs[3];
    assert_eq!(
        commit(&store, &stale).unwrap_err().kind,
        ErrorKind::Conflict
    );
    add(&store, &start, epochs[4], None);
    assert_eq!(
        epoch::acquire(&store, Hex([8; 16]), 0).unwrap(),
        epochs[4] + 1
    );
}

#[test]
fn the_hint_names_an_anchor_that_is_there() {
    let (store, _) = memory_board();
    let start = grow(&store, 0, 20, 5, 0);
    Hint {
        version: 20,
        anchor: Some(0),
    }
    .write(&store);
    collect(&store, &settings(3)).unwrap();
    assert_eq!(
        Hint::read(&store),
        Some(Hint {
            version: 20,
            anchor: Some(15)
        })
    );
    add(&store, &start, 0, None);
}

/// Crashes a collection at every operation, before and after its effect.
fn crash_everywhere(settings: Settings, build: impl Fn(&Store), head: u64, needed: &[u64]) {
    let origin = Arc::new(InMemory::new());
    build(&tapped(&origin).0);
    let whole = Arc::new(origin.fork());
    let (store, tap) = tapped(&whole);
    collect(&store, &settings).unwrap();
    let operations = tap.count();
    let wanted: BTreeSet<String> = contents(&tapped(&whole).0).into_keys().collect();
    check_invariants(&tapped(&whole).0, head, needed);
    println!("{operations} operations");
    assert!(operations > 30);
    for crash_after in [false, true] {
        for crash_at in 0..operations {
            let inner = Arc::new(origin.fork());
            let (store, tap) = tapped_until(&inner, crash_at, crash_after);
            // Deletions run side by side, so that now and then the last operations are others.
            let crashed = collect(&store, &settings);
            assert!(crashed.is_err() || tap.count() >= operations - 2);
            let (store, _) = tapped(&inner);
            check_invariants(&store, head, needed);
            collect(&store, &settings).unwrap();
            check_invariants(&store, head, needed);
            let found: BTreeSet<String> = contents(&store).into_keys().collect();
            assert_eq!(found, wanted, "crash at {crash_at} of {operations}");
        }
    }
    assert_eq!(tapped_until(&origin, NEVER, false).1.count(), 0);
}

#[test]
fn a_crash_at_any_operation_is_finished_by_the_next_collection() {
    let build = |store: &Store| {
        for id in 1..=3 {
            epoch::acquire(store, Hex([id; 16]), 0).unwrap();
        }
        grow(store, 2, 16, 4, 3); // anchors at 2, 6, 10, 14
        upload_anchor(store, 7, 9);
        lease(store, "ended", 3, 5);
    };
    crash_everywhere(settings(3), build, 16, &[]);
}

#[test]
fn a_crash_at_any_operation_with_a_lease_and_a_sweep() {
    let build = |store: &Store| {
        grow(store, 0, 12, 4, 0);
        lease(store, "slow", 9, u64::MAX);
        let mut upload = store
            .upload(&layout::object(10, 0, Hex([0xdd; 16])))
            .unwrap();
        upload.write(b"leftover").unwrap();
        upload.finish().unwrap();
    };
    let probe = memory_board().0;
    lease(&probe, "x", 0, 0);
    let settings = Settings {
        sweep: true,
        now_ms: probe.modified_ms("readers/x.json").unwrap().unwrap() + 3_600_000,
        ..settings(1)
    };
    crash_everywhere(settings, build, 12, &[9]);
}

#[test]
fn a_lease_that_came_late_stops_the_removal_but_not_the_boundary() {
    let (store, _) = memory_board();
    grow(&store, 0, 20, 5, 0);
    // As after a crash right behind the boundary's creation, with a lease written since.
    control::mark(&store, 0, Hex([1; 16]), 0).unwrap();
    control::mark(&store, 15, Hex([1; 16]), 0).unwrap();
    lease(&store, "late", 7, u64::MAX);
    let now_ms = store.modified_ms("readers/late.json").unwrap().unwrap();
    let settings = Settings {
        now_ms,
        ..settings(1)
    };
    let done = collect(&store, &settings).unwrap().unwrap();
    assert_eq!((done.boundary, done.range), ((15, 15), (0, 7)));
    assert_eq!(versions(&store), (7..=20).collect());
    assert_eq!(Control::list(&store).unwrap().markers, [7, 15]);
    check_invariants(&store, 20, &[7]);
    leases::remove(&store, "late").unwrap();
    let done = collect(&store, &settings).unwrap().unwrap();
    assert_eq!((done.boundary, done.range), ((15, 20), (7, 20)));
    check_invariants(&store, 20, &[]);
}

#[test]
fn a_lease_written_between_the_plan_and_the_boundary_is_respected() {
    let (store, tap) = tapped(&Arc::new(InMemory::new()));
    grow(&store, 0, 20, 5, 0);
    lease(&store, "model", 7, u64::MAX);
    let bytes = store.read("readers/model.json", 4096).unwrap().unwrap();
    let now_ms = store.modified_ms("readers/model.json").unwrap().unwrap();
    leases::remove(&store, "model").unwrap();
    *tap.planted.lock().unwrap() = Some((
        format!("run/{}", layout::collected(20)).into(),
        "run/readers/late.json".into(),
        bytes,
    ));
    let done = collect(
        &store,
        &Settings {
            now_ms,
            ..settings(1)
        },
    );
    let done = done.unwrap().unwrap();
    assert_eq!((done.boundary, done.range), ((0, 20), (0, 7)));
    assert_eq!(done.leases, 1);
    check_invariants(&store, 20, &[7]);
}
