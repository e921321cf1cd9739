//! Whom a reader believes: a keyring, and keys that a trusted key has introduced.

use serde::{Deserialize, Serialize};

use crate::anchor::AnchorRecord;
use crate::error::{Error, ErrorKind, Result};
use crate::hex::Hex;
use crate::layout;
use crate::manifest::{parse_record, to_record, untrusted, Manifest, MAX_RECORD};
use crate::sign::{split, PublicKey, Signature, Signed, SigningKey};
use crate::skip::SkipRecord;
use crate::store::{Created, Store};

/// Introductions that may stand between a key of the keyring and the one that signed.
const MAX_STEPS: usize = 16;

/// A key that a reader believes, and for which versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    /// The key.
    pub key: PublicKey,
    /// First version that it may sign.
    pub first: u64,
    /// Last version that it may sign; `None`: no end.
    pub last: Option<u64>,
    /// It may sign nothing any more, whatever else is said.
    pub revoked: bool,
    /// The key that introduced it; `None`: it stands in the keyring.
    pub by: Option<String>,
}

impl TrustedKey {
    /// A key for all versions.
    #[must_use]
    pub fn new(key: PublicKey) -> Self {
        Self {
            key,
            first: 0,
            last: None,
            revoked: false,
            by: None,
        }
    }

    fn check(&self, version: u64) -> Result<()> {
        let name = self.key.name();
        if self.revoked {
            return Err(untrusted(format!(
                "it is signed by key {name:?}, which the keyring says is revoked; ask the publisher \
                 for a version signed by another key"
            )));
        }
        if version < self.first {
            return Err(untrusted(format!(
                "it is signed by key {name:?}, which is trusted from version {} on only",
                self.first
            )));
        }
        if let Some(last) = self.last.filter(|last| *last < version) {
            return Err(untrusted(format!(
                "it is signed by key {name:?}, which is trusted up to version {last} only; if the \
                 publisher still uses it, correct the keyring"
            )));
        }
        Ok(())
    }
}

/// The introduction of a new key by one that is trusted already: `control/key-<name>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatement {
    /// Format of the record, as in the manifest.
    pub format: u64,
    /// Features that a reader must know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Name of the run.
    pub run: String,
    /// Name of the new key.
    pub key: String,
    /// The new key.
    pub ed25519: Hex<32>,
    /// First version that the new key signs; the signer of this signs none from there on.
    pub from: u64,
    /// Wall time, milliseconds since 1970.
    pub time_ms: u64,
}

impl KeyStatement {
    /// Stores the statement, signed by `key`.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if a key of this name was introduced already; [`ErrorKind::KeyFile`] for a
    /// name or key that is none, or that introduces itself; [`ErrorKind::Store`].
    pub fn commit(&self, store: &Store, key: &SigningKey) -> Result<()> {
        PublicKey::new(&self.key, self.ed25519)?;
        if self.key == key.name() {
            return Err(Error::new(
                ErrorKind::KeyFile,
                format!(
                    "the new key is called {:?} like the old one; names are not used twice",
                    self.key
                ),
            ));
        }
        let bytes = key.sign_record(Signed::Key, &to_record(self)?)?;
        let path = layout::key_statement(&self.key);
        match store.create(&path, &bytes)? {
            Created::Now | Created::Recovered => Ok(()),
            Created::Taken(_) => Err(Error::new(
                ErrorKind::Conflict,
                "a key of this name was introduced already; names are not used twice",
            )
            .at(path)),
        }
    }
}

/// The keys that a reader believes.
#[derive(Debug, Clone)]
pub struct Keyring {
    keys: Vec<TrustedKey>,
    run: Option<String>,
    introductions: bool,
}

impl Keyring {
    /// A keyring.
    ///
    /// # Arguments
    /// * `run`: the only run whose versions are believed; `None`: any.
    /// * `introductions`: whether keys that trusted keys introduce on the board are trusted too.
    ///
    /// # Errors
    /// [`ErrorKind::KeyFile`] for no key at all, and for two different entries under one name.
    pub fn new(keys: Vec<TrustedKey>, run: Option<String>, introductions: bool) -> Result<Self> {
        let bad = |message: String| Error::new(ErrorKind::KeyFile, message);
        if keys.is_empty() {
            return Err(bad(
                "a keyring without keys would refuse everything".to_owned()
            ));
        }
        let mut ring = Self {
            keys: Vec::new(),
            run,
            introductions,
        };
        for key in keys {
            match ring.position(key.key.name()) {
                Some(place) if ring.keys[place] == key => {}
                Some(_) => {
                    return Err(bad(format!(
                    "two entries for a key called {:?}; keep one, and give a new key a new name",
                    key.key.name()
                )))
                }
                None => ring.keys.push(key),
            }
        }
        Ok(ring)
    }

    /// All keys that are trusted now, introduced ones included.
    #[must_use]
    pub fn keys(&self) -> &[TrustedKey] {
        &self.keys
    }

    /// Takes up a key that was introduced earlier, as the reader remembers it. Ignored unless the key
    /// that introduced it is still trusted, and if the keyring has an entry of its own.
    pub fn remember(&mut self, key: TrustedKey) {
        let Some(by) = key.by.as_deref().and_then(|by| self.position(by)) else {
            return;
        };
        if self.introductions
            && self.position(key.key.name()).is_none()
            && key.first > 0
            && self.keys[by].check(key.first - 1).is_ok()
        {
            self.take_up(key, by);
        }
    }

    /// Checks that the manifest of `version`, given as stored, is signed by a key trusted for it.
    /// Returns the name of the key.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`] naming key, version and path; those of [`Manifest::parse`];
    /// [`ErrorKind::Store`] if an introduction cannot be read.
    pub fn check_manifest(&mut self, store: &Store, version: u64, record: &[u8]) -> Result<String> {
        let place = |error: Error| error.at(layout::manifest(version)).version(version);
        let run = Manifest::parse(record, version).map_err(place)?.run;
        if let Some(wanted) = self.run.as_ref().filter(|wanted| **wanted != run) {
            return Err(place(untrusted(format!(
                "it is of run {run:?}, but only {wanted:?} is trusted; check the board's address"
            ))));
        }
        let (signature, payload) = self.signature(record).map_err(place)?;
        let key = self
            .find(store, &signature.key, &run, 0)
            .map_err(|error| match error.path {
                Some(_) => error.version(version),
                None => place(error),
            })?;
        let key = &self.keys[key];
        key.check(version)
            .and_then(|()| {
                key.key
                    .verify(Signed::Manifest, &payload, signature.ed25519)
            })
            .map_err(place)?;
        Ok(signature.key)
    }

    /// As [`Keyring::check_manifest`] for an anchor record, wanted in order to reach version `goal` of
    /// `run`. Its key must be trusted up to there, for one that ended before could have been stolen
    /// since; unless the record is `vouched` for: its digest stands in a manifest that was checked.
    ///
    /// # Errors
    /// As [`Keyring::check_manifest`].
    pub fn check_anchor(
        &mut self,
        store: &Store,
        version: u64,
        goal: u64,
        run: &str,
        vouched: bool,
        record: &[u8],
    ) -> Result<String> {
        let place = |error: Error| error.at(layout::anchor_record(version)).version(version);
        AnchorRecord::parse(record, version).map_err(place)?;
        let needed = if vouched { version } else { goal.max(version) };
        self.check_added(store, needed, run, Signed::Anchor, record)
            .map_err(place)
    }

    /// As [`Keyring::check_anchor`] for the record of a delta from version `base` to `version`.
    ///
    /// # Errors
    /// As [`Keyring::check_manifest`].
    pub fn check_skip(
        &mut self,
        store: &Store,
        version: u64,
        base: u64,
        goal: u64,
        run: &str,
        record: &[u8],
    ) -> Result<String> {
        let place = |error: Error| {
            error
                .at(layout::skip_record(version, base))
                .version(version)
        };
        SkipRecord::parse(record, version, base).map_err(place)?;
        self.check_added(store, goal.max(version), run, Signed::Skip, record)
            .map_err(place)
    }

    /// Checks a record that may be added to a version at any time, also by a later key.
    fn check_added(
        &mut self,
        store: &Store,
        needed: u64,
        run: &str,
        kind: Signed,
        record: &[u8],
    ) -> Result<String> {
        let (signature, payload) = self.signature(record)?;
        let key = self.find(store, &signature.key, run, 0)?;
        let key = &self.keys[key];
        key.check(needed.max(key.first))?;
        key.key.verify(kind, &payload, signature.ed25519)?;
        Ok(signature.key)
    }

    fn signature(&self, record: &[u8]) -> Result<(Signature, Vec<u8>)> {
        split(record)?.ok_or_else(|| {
            untrusted(format!(
                "it is not signed, and only what these keys sign is trusted: {}; do not use it, or \
                 have the publisher sign with one of them",
                self.names()
            ))
        })
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.keys.iter().map(|key| key.key.name()).collect();
        names.join(", ")
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.keys.iter().position(|key| key.key.name() == name)
    }

    /// The place of a key, looked for on the board if it is new.
    fn find(&mut self, store: &Store, name: &str, run: &str, step: usize) -> Result<usize> {
        if let Some(found) = self.position(name) {
            return Ok(found);
        }
        let unknown = |why: &str, ring: &Self| {
            untrusted(format!(
                "it is signed by key {name:?}, which is not trusted{why}; trusted are: {}. Add the \
                 key to the keyring if its owner confirms the fingerprint",
                ring.names()
            ))
        };
        if !self.introductions {
            return Err(unknown("", self));
        }
        if step >= MAX_STEPS {
            return Err(unknown(", and too many introductions lead to it", self));
        }
        let path = layout::key_statement(name);
        let Some(record) = store.read(&path, MAX_RECORD)? else {
            return Err(unknown(" and was introduced by no key that is", self));
        };
        self.introduced(store, &record, name, run, step)
            .map_err(|error| {
                if error.path.is_none() {
                    error.at(&path)
                } else {
                    error
                }
            })
    }

    fn introduced(
        &mut self,
        store: &Store,
        record: &[u8],
        name: &str,
        run: &str,
        step: usize,
    ) -> Result<usize> {
        let statement: KeyStatement = parse_record(record, "key statement")?;
        if statement.key != name || statement.run != run {
            return Err(untrusted(format!(
                "it introduces key {:?} of run {:?}, where {name:?} of {run:?} was looked for",
                statement.key, statement.run
            )));
        }
        let new =
            PublicKey::new(name, statement.ed25519).map_err(|error| untrusted(error.message))?;
        let (signature, payload) = self.signature(record)?;
        let by = self.find(store, &signature.key, run, step + 1)?;
        let Some(before) = statement
            .from
            .checked_sub(1)
            .filter(|_| statement.from <= layout::MAX_VERSION)
        else {
            return Err(untrusted(format!(
                "it introduces key {name:?} from an impossible version on"
            )));
        };
        let signer = &self.keys[by];
        signer.check(before)?;
        signer
            .key
            .verify(Signed::Key, &payload, signature.ed25519)?;
        let new = TrustedKey {
            first: statement.from,
            by: Some(signature.key),
            ..TrustedKey::new(new)
        };
        Ok(self.take_up(new, by))
    }

    /// Adds an introduced key, and ends the one that introduced it.
    fn take_up(&mut self, key: TrustedKey, by: usize) -> usize {
        let end = key.first.saturating_sub(1);
        let signer = &mut self.keys[by];
        signer.last = Some(signer.last.map_or(end, |last| last.min(end)));
        self.keys.push(key);
        self.keys.len() - 1
    }
}
