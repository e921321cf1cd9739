//! Signed commits, and readers that believe certain keys.

#![allow(clippy::unwrap_used)]

mod common;

use common::{first, memory, next};
use deltawire_board::commit::commit_signed;
use deltawire_board::trust::KeyStatement;
use deltawire_board::{
    layout, ChainStart, ErrorKind, Keyring, Link, Manifest, PublicKey, SigningKey, Store,
    TrustedKey,
};

fn key(name: &str, seed: u8) -> SigningKey {
    SigningKey::from_seed(name, &[seed; 32]).unwrap()
}

fn ring(keys: &[PublicKey]) -> Keyring {
    let keys = keys.iter().cloned().map(TrustedKey::new).collect();
    Keyring::new(keys, None, true).unwrap()
}

fn publish(store: &Store, version: u64, by: &SigningKey) -> Vec<u8> {
    let manifest: Manifest = match version.checked_sub(1) {
        None => first(store, 0, 0),
        Some(parent) => {
            let parent = Link::read(store, parent).unwrap().unwrap();
            next(&ChainStart::from(&parent), 0, version as u8)
        }
    };
    let digest = commit_signed(store, &manifest, Some(by)).unwrap();
    let link = Link::read(store, version).unwrap().unwrap();
    assert_eq!(link.digest, digest);
    link.bytes
}

#[test]
fn signed_and_believed() {
    let store = memory("trust-signed");
    let (one, two) = (key("one", 1), key("two", 2));
    let records: Vec<_> = (0..3)
        .map(|version| publish(&store, version, &one))
        .collect();
    let mut trusted = ring(&[one.public()]);
    for (version, record) in (0..).zip(&records) {
        assert_eq!(
            trusted.check_manifest(&store, version, record).unwrap(),
            "one"
        );
    }
    let error = ring(&[two.public()])
        .check_manifest(&store, 1, &records[1])
        .unwrap_err();
    assert_eq!((error.kind, error.version), (ErrorKind::Untrusted, Some(1)));
    assert_eq!(error.path, Some(layout::manifest(1)));
    assert!(
        error.message.contains("\"one\"") && error.message.contains("two"),
        "{error}"
    );
    let error = trusted.check_manifest(&store, 2, &records[1]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Untrusted);
    let of_another = ring(&[key("one", 3).public()])
        .check_manifest(&store, 0, &records[0])
        .unwrap_err();
    assert!(
        of_another.message.contains("not that of key"),
        "{of_another}"
    );
}

#[test]
fn introduced_keys_end_their_introducers() {
    let store = memory("trust-introduced");
    let (one, two) = (key("one", 1), key("two", 2));
    let run = Manifest::parse(&publish(&store, 0, &one), 0).unwrap().run;
    let statement = KeyStatement {
        format: 1,
        requires: Vec::new(),
        run,
        key: "two".to_owned(),
        ed25519: two.public().bytes(),
        from: 1,
        time_ms: 0,
    };
    statement.commit(&store, &one).unwrap();
    // A repeated commit of the very same statement is its own success.
    assert!(statement.commit(&store, &two).is_err());
    let later = publish(&store, 1, &two);
    let old = publish(&store, 2, &one);
    let mut trusted = ring(&[one.public()]);
    assert!(trusted.check_manifest(&store, 2, &old).is_ok());
    assert_eq!(trusted.check_manifest(&store, 1, &later).unwrap(), "two");
    let error = trusted.check_manifest(&store, 2, &old).unwrap_err();
    assert!(error.message.contains("up to version 0 only"), "{error}");
    // What was learned is of use to a reader that still believes who taught it.
    let learned = trusted.keys()[1].clone();
    let mut again = ring(&[one.public()]);
    again.remember(learned.clone());
    assert!(again.check_manifest(&store, 2, &old).is_err());
    let mut stranger = ring(&[key("three", 3).public()]);
    stranger.remember(learned);
    assert_eq!(stranger.keys().len(), 1);
}

#[test]
fn keyrings_that_make_no_sense() {
    assert!(Keyring::new(Vec::new(), None, true).is_err());
    let entries = [key("a", 1), key("a", 2)].map(|key| TrustedKey::new(key.public()));
    let error = Keyring::new(entries.to_vec(), None, true).unwrap_err();
    assert_eq!(error.kind, ErrorKind::KeyFile);
}
