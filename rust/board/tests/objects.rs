//! Uploads are whole or invisible; reads show every altered byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::atomic::Ordering;

use common::*;
use deltawire_board::{Blake3, ErrorKind, ObjectRef, Store};

const MIB: usize = 1 << 20;

fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

fn put(store: &Store, path: &str, data: &[u8], piece: usize) -> ObjectRef {
    let mut upload = store.upload(path).unwrap();
    for piece in data.chunks(piece) {
        upload.write(piece).unwrap();
    }
    upload.finish().unwrap()
}

fn fetch(store: &Store, object: &ObjectRef) -> deltawire_board::Result<Vec<u8>> {
    let mut download = store.download(&object.path, Some((object.bytes, object.blake3)))?;
    let mut all = Vec::new();
    while let Some(block) = download.next()? {
        all.extend_from_slice(&block);
    }
    Ok(all)
}

#[test]
fn objects_of_all_sizes_round_trip() {
    let scratch = Scratch::new();
    for store in [scratch.store(), memory("objects-sizes")] {
        let part = 8 * MIB;
        for length in [0, 1, MIB, part - 1, part, part + 1, 5 * part + 17] {
            let data = bytes(length);
            let object = put(
                &store,
                &format!("objects/1/{length}.dw"),
                &data,
                3 * MIB + 1,
            );
            assert_eq!(object.bytes, length as u64);
            assert_eq!(object.blake3, Blake3::of(&data));
            assert!(fetch(&store, &object).unwrap() == data, "{length}");
        }
        let data = bytes(MIB);
        let object = put(&store, "objects/1/ranged.dw", &data, MIB);
        assert_eq!(
            store.read_range(&object.path, 10..20).unwrap(),
            &data[10..20]
        );
        assert_eq!(store.read_range(&object.path, 5..5).unwrap(), b"");
        for range in [0..MIB as u64 + 1, 10..u64::MAX, u64::MAX - 1..u64::MAX] {
            assert!(store.read_range(&object.path, range).is_err());
        }
        assert_eq!(
            store.read_range("objects/none", 0..1).unwrap_err().kind,
            ErrorKind::NotFound
        );
    }
}

#[test]
fn a_torn_upload_is_not_visible() {
    let scratch = Scratch::new();
    for store in [scratch.store(), memory("objects-torn")] {
        for length in [100, 20 * MIB] {
            let mut upload = store.upload("objects/1/0-a.dw").unwrap();
            upload.write(&bytes(length)).unwrap();
            assert!(!store.exists("objects/1/0-a.dw").unwrap());
            assert!(store.list_all("objects").unwrap().is_empty());
            drop(upload);
            assert!(store.list_all("objects").unwrap().is_empty());
        }
    }
    assert!(files_below(&scratch.board()).is_empty());
}

#[test]
fn a_part_that_fails_fails_the_upload() {
    let (store, faults) = faulty();
    let mut upload = store.upload("objects/1/0-a.dw").unwrap();
    upload.write(&bytes(9 * MIB)).unwrap();
    faults.fail_parts.store(1, Ordering::SeqCst);
    let failed = (0..10).any(|_| upload.write(&bytes(9 * MIB)).is_err());
    assert!(failed);
    assert_eq!(upload.write(b"more").unwrap_err().kind, ErrorKind::Store);
    assert!(upload.finish().is_err());
    assert!(store.list_all("objects").unwrap().is_empty());

    // Also if only the last part fails.
    faults.fail_parts.store(0, Ordering::SeqCst);
    let mut upload = store.upload("objects/1/0-b.dw").unwrap();
    upload.write(&bytes(9 * MIB)).unwrap();
    faults.fail_parts.store(1, Ordering::SeqCst);
    assert!(upload.finish().is_err());
    assert!(store.list_all("objects").unwrap().is_empty());
}

#[test]
fn a_lost_reply_to_a_small_upload_is_recognised() {
    let (store, faults) = faulty();
    faults.faults.lock().unwrap().push(Fault::CollideWithItself);
    let object = put(&store, "objects/1/0-a.dw", b"delta", 5);
    assert_eq!(fetch(&store, &object).unwrap(), b"delta");
    // Foreign bytes under the same name are not taken for ours.
    let mut upload = store.upload("objects/1/0-a.dw").unwrap();
    upload.write(b"other").unwrap();
    assert_eq!(upload.finish().unwrap_err().kind, ErrorKind::Untrusted);
    assert_eq!(fetch(&store, &object).unwrap(), b"delta");
}

#[test]
fn altered_objects_are_refused() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let data = bytes(2 * MIB + 5);
    let object = put(&store, "objects/1/0-a.dw", &data, MIB);
    let path = scratch.board().join(&object.path);
    for place in [0, MIB - 1, MIB, 2 * MIB + 4] {
        let mut altered = data.clone();
        altered[place] ^= 1;
        std::fs::write(&path, &altered).unwrap();
        let error = fetch(&store, &object).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Untrusted, "{place}");
        assert_eq!(error.path.as_deref(), Some("objects/1/0-a.dw"));
    }
    let mut longer = data.clone();
    longer.push(0);
    for other in [&data[..data.len() - 1], &longer[..], b""] {
        std::fs::write(&path, other).unwrap();
        assert_eq!(
            fetch(&store, &object).unwrap_err().kind,
            ErrorKind::Untrusted
        );
    }
    // It shrinks, or grows, while it is read.
    for other in [&data[..MIB], &longer[..]] {
        std::fs::write(&path, &data).unwrap();
        let mut download = store
            .download(&object.path, Some((object.bytes, object.blake3)))
            .unwrap();
        download.next().unwrap();
        std::fs::write(&path, other).unwrap();
        let outcome = loop {
            match download.next() {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error.kind),
            }
        };
        assert_eq!(outcome, Some(ErrorKind::Untrusted));
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(
        fetch(&store, &object).unwrap_err().kind,
        ErrorKind::NotFound
    );
}

#[test]
fn many_ranges_come_back_in_order() {
    let scratch = Scratch::new();
    let (faulty, faults) = faulty();
    for store in [scratch.store(), memory("objects-ranges"), faulty] {
        let data = bytes(4 * MIB);
        let object = put(&store, "objects/1/0-a.dw", &data, MIB);
        let ranges = [
            3 * MIB as u64..3 * MIB as u64 + 7,
            10..20,
            0..0,
            15..5000,
            10..20,
            1..4 * MIB as u64,
        ];
        let before = faults.gets.load(Ordering::SeqCst);
        let found = store.read_ranges(&object.path, &ranges[..5]).unwrap();
        for (bytes, range) in found.iter().zip(&ranges) {
            assert!(bytes == &data[range.start as usize..range.end as usize]);
        }
        let asked = faults.gets.load(Ordering::SeqCst) - before;
        assert!(asked == 0 || asked == 2, "{asked}");
        assert!(store.read_ranges(&object.path, &ranges).unwrap()[5] == data[1..]);
        let beyond = store.read_ranges(&object.path, &[0..5, 10..4 * MIB as u64 + 1]);
        assert_eq!(beyond.unwrap_err().kind, ErrorKind::Untrusted);
    }
}
