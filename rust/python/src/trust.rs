//! `SigningKey` and `Keyring`: who signs, and whom a reader believes.
//!
//! Private keys never become Python objects: they are made from a buffer that is erased, or read and
//! written as files here.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use deltawire_board::trust::KeyStatement;
use deltawire_board::{keyfile, manifest, sign, trust, Error, Hex, PublicKey};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use zeroize::Zeroizing;

use crate::board::{to_python, BoardStore};

/// Name, key as hexadecimal text, first and last version, whether it is revoked.
type Entry = (String, String, u64, Option<u64>, bool);
/// Name, key as hexadecimal text, first version, and the key that introduced it.
type Introduced = (String, String, u64, String);

/// Adds the classes and functions of this file to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SigningKey>()?;
    module.add_class::<Keyring>()?;
    module.add_function(wrap_pyfunction!(load_keyring, module)?)?;
    module.add_function(wrap_pyfunction!(check_public_key, module)?)?;
    module.add_function(wrap_pyfunction!(save_public_key, module)?)?;
    module.add_function(wrap_pyfunction!(record_signer, module)?)
}

fn raise(py: Python<'_>, path: &Path, error: Error) -> PyErr {
    to_python(py, &path.to_string_lossy(), error)
}

fn public(name: &str, ed25519: &str) -> Result<PublicKey, Error> {
    PublicKey::new(name, Hex::parse(ed25519)?)
}

/// A private key. Cannot be pickled, and nothing of it can be read.
#[pyclass(frozen, module = "deltawire._native")]
pub(crate) struct SigningKey {
    pub(crate) key: sign::SigningKey,
}

#[pymethods]
impl SigningKey {
    /// The key of 32 random bytes; the buffer is erased.
    #[staticmethod]
    fn from_seed(py: Python<'_>, name: &str, seed: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(seed)?;
        if buffer.item_count() != 32 || buffer.readonly() {
            return Err(PyValueError::new_err(
                "a seed is a writable buffer of 32 bytes",
            ));
        }
        let mut bytes = Zeroizing::new([0; 32]);
        buffer.copy_to_slice(py, &mut bytes[..])?;
        buffer.copy_from_slice(py, &[0; 32])?;
        let key =
            sign::SigningKey::from_seed(name, &bytes).map_err(|error| to_python(py, "", error))?;
        Ok(Self { key })
    }

    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let key = py
            .detach(|| keyfile::load_signing_key(&path))
            .map_err(|error| raise(py, &path, error))?;
        Ok(Self { key })
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| keyfile::save_signing_key(&self.key, &path))
            .map_err(|error| raise(py, &path, error))
    }

    #[getter]
    fn name(&self) -> &str {
        self.key.name()
    }

    /// The public half, as hexadecimal text.
    #[getter]
    fn ed25519(&self) -> String {
        self.key.public().bytes().to_string()
    }

    /// Stores on a board that this key believes in a new one, from version `first` on.
    #[expect(
        clippy::too_many_arguments,
        reason = "one for each field of the record"
    )]
    fn introduce(
        &self,
        py: Python<'_>,
        store: &BoardStore,
        run: String,
        name: String,
        ed25519: &str,
        first: u64,
        time_ms: u64,
    ) -> PyResult<()> {
        store.run(py, |store| {
            KeyStatement {
                format: manifest::FORMAT,
                requires: Vec::new(),
                run,
                key: name,
                ed25519: Hex::parse(ed25519)?,
                from: first,
                time_ms,
            }
            .commit(store, &self.key)
        })
    }
}

/// The keys that a reader of one board believes.
#[pyclass(frozen, module = "deltawire._native")]
pub(crate) struct Keyring {
    ring: Mutex<trust::Keyring>,
}

impl Keyring {
    fn with<T>(&self, work: impl FnOnce(&mut trust::Keyring) -> T) -> T {
        work(&mut self.ring.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn copy(&self) -> trust::Keyring {
        self.with(|ring| ring.clone())
    }
}

#[pymethods]
impl Keyring {
    #[new]
    #[pyo3(signature = (keys, run, introductions))]
    fn new(
        py: Python<'_>,
        keys: Vec<Entry>,
        run: Option<String>,
        introductions: bool,
    ) -> PyResult<Self> {
        let build = || {
            let keys = keys
                .into_iter()
                .map(|(name, ed25519, first, last, revoked)| {
                    Ok(trust::TrustedKey {
                        first,
                        last,
                        revoked,
                        ..trust::TrustedKey::new(public(&name, &ed25519)?)
                    })
                })
                .collect::<Result<_, Error>>()?;
            trust::Keyring::new(keys, run, introductions)
        };
        let ring = build().map_err(|error| to_python(py, "", error))?;
        Ok(Self {
            ring: Mutex::new(ring),
        })
    }

    /// Checks a manifest's signature; returns the name of its key.
    fn check_manifest(
        &self,
        py: Python<'_>,
        store: &BoardStore,
        version: u64,
        record: &[u8],
    ) -> PyResult<String> {
        store.run(py, |store| {
            self.with(|ring| ring.check_manifest(store, version, record))
        })
    }

    /// Checks an anchor record's signature; returns the name of its key.
    #[expect(
        clippy::too_many_arguments,
        reason = "the context that the record is judged in"
    )]
    fn check_anchor(
        &self,
        py: Python<'_>,
        store: &BoardStore,
        version: u64,
        goal: u64,
        run: &str,
        vouched: bool,
        record: &[u8],
    ) -> PyResult<String> {
        store.run(py, |store| {
            self.with(|ring| ring.check_anchor(store, version, goal, run, vouched, record))
        })
    }

    /// Checks a skip record's signature; returns the name of its key.
    #[expect(
        clippy::too_many_arguments,
        reason = "the context that the record is judged in"
    )]
    fn check_skip(
        &self,
        py: Python<'_>,
        store: &BoardStore,
        version: u64,
        base: u64,
        goal: u64,
        run: &str,
        record: &[u8],
    ) -> PyResult<String> {
        store.run(py, |store| {
            self.with(|ring| ring.check_skip(store, version, base, goal, run, record))
        })
    }

    /// Keys that were introduced on the board.
    fn introduced(&self) -> Vec<Introduced> {
        self.with(|ring| {
            ring.keys()
                .iter()
                .filter_map(|key| {
                    let by = key.by.clone()?;
                    Some((
                        key.key.name().to_owned(),
                        key.key.bytes().to_string(),
                        key.first,
                        by,
                    ))
                })
                .collect()
        })
    }

    /// Takes up a key that was introduced earlier, unless who introduced it is not trusted any more.
    fn remember(
        &self,
        py: Python<'_>,
        name: &str,
        ed25519: &str,
        first: u64,
        by: String,
    ) -> PyResult<()> {
        let key = public(name, ed25519).map_err(|error| to_python(py, "", error))?;
        self.with(|ring| {
            ring.remember(trust::TrustedKey {
                first,
                by: Some(by),
                ..trust::TrustedKey::new(key)
            });
        });
        Ok(())
    }
}

/// The entries of a keyring file.
#[pyfunction]
fn load_keyring(py: Python<'_>, path: PathBuf) -> PyResult<Vec<Entry>> {
    let keys = py
        .detach(|| keyfile::load_keyring(&path))
        .map_err(|error| raise(py, &path, error))?;
    Ok(keys
        .into_iter()
        .map(|key| {
            (
                key.key.name().to_owned(),
                key.key.bytes().to_string(),
                key.first,
                key.last,
                key.revoked,
            )
        })
        .collect())
}

/// Checks a public key and its name; returns its fingerprint.
#[pyfunction]
fn check_public_key(py: Python<'_>, name: &str, ed25519: &str) -> PyResult<String> {
    let key = public(name, ed25519).map_err(|error| to_python(py, "", error))?;
    Ok(key.fingerprint().to_string())
}

/// Writes a public key to a new file.
#[pyfunction]
fn save_public_key(py: Python<'_>, name: &str, ed25519: &str, path: PathBuf) -> PyResult<()> {
    public(name, ed25519)
        .and_then(|key| keyfile::save_public_key(&key, &path))
        .map_err(|error| raise(py, &path, error))
}

/// Name of the key that a record says it is signed with; nothing is checked.
#[pyfunction]
fn record_signer(record: &[u8]) -> Option<String> {
    let (signature, _) = sign::split(record).ok()??;
    Some(signature.key)
}
