//! `BoardStore` and `BoardUpload`: the board crate's verbs, one to one.
//!
//! Records cross as their JSON bytes, digests as hexadecimal text.

use std::sync::{Arc, Mutex, PoisonError};

use deltawire_board::commit::{commit_signed, discard};
use deltawire_board::head::{head, Hint};
use deltawire_board::location::without_secrets;
use deltawire_board::{anchor, chain, epoch, layout};
use deltawire_board::{
    AnchorRecord, Blake3, ChainStart, Error, ErrorKind, Link, Manifest, ObjectRef, SkipRecord,
    State, Store, StoreOptions, Upload, WriteId,
};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::faults::FaultPlan;
use crate::options::GivenOptions;
use crate::trust::SigningKey;

/// Most bytes that cross to Python at once.
const PIECE: usize = 8 << 20;

/// A record's bytes and their BLAKE3.
type Record<'py> = (Bound<'py, PyBytes>, String);
/// Version, manifest digest, state digest, epoch and run that a chain must continue.
type Start = (u64, String, String, u64, Option<String>);

/// Adds the classes of this file to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BoardStore>()?;
    module.add_class::<BoardUpload>()
}

/// The exception for `error`, with its object named below the board's URL.
pub(crate) fn to_python(py: Python<'_>, url: &str, error: Error) -> PyErr {
    let class = match error.kind {
        ErrorKind::Conflict => "VersionConflict",
        ErrorKind::Untrusted => "UntrustedDelta",
        ErrorKind::Unsupported => "UnsupportedDelta",
        ErrorKind::Limit => "LimitExceeded",
        ErrorKind::BrokenChain => "BrokenChain",
        ErrorKind::WrongVersion => "WrongVersion",
        ErrorKind::KeyFile => "KeyFileError",
        _ => "StoreError",
    };
    let path = match error.path {
        Some(path) if path != url => Some(format!("{}/{path}", url.trim_end_matches('/'))),
        _ => (!url.is_empty()).then(|| url.to_owned()),
    };
    let build = || -> PyResult<PyErr> {
        let place = PyDict::new(py);
        place.set_item("path", path)?;
        place.set_item("version", error.version)?;
        let class = py.import("deltawire.errors")?.getattr(class)?;
        Ok(PyErr::from_value(
            class.call((error.message,), Some(&place))?,
        ))
    };
    build().unwrap_or_else(|failure| failure)
}

/// Runs `work` without the GIL.
fn detached<T: Send>(
    py: Python<'_>,
    url: &str,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    py.detach(work).map_err(|error| to_python(py, url, error))
}

/// The board's storage and protocol.
#[pyclass(frozen, module = "deltawire._native")]
pub(crate) struct BoardStore {
    store: Store,
}

impl BoardStore {
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Store) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        detached(py, self.store.url(), || work(&self.store))
    }
}

#[pymethods]
impl BoardStore {
    #[new]
    #[pyo3(signature = (url, create, options=None, faults=None))]
    fn new(
        py: Python<'_>,
        url: &str,
        create: bool,
        options: Option<GivenOptions>,
        faults: Option<&Bound<'_, FaultPlan>>,
    ) -> PyResult<Self> {
        let options = options.map(StoreOptions::from).unwrap_or_default();
        let shown = without_secrets(url);
        let mut store = detached(py, &shown, || Store::open_with(url, create, options))?;
        if let Some(faults) = faults {
            store = store.with_faults(Arc::clone(&faults.get().plan));
        }
        Ok(Self { store })
    }

    #[getter]
    fn url(&self) -> &str {
        self.store.url()
    }

    /// Whether objects can be listed; those of a web server cannot.
    #[getter]
    fn lists(&self) -> bool {
        self.store.lists()
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        limit: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.run(py, |store| store.read(path, limit))?;
        Ok(found.map(|bytes| PyBytes::new(py, &bytes)))
    }

    fn read_range<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        start: u64,
        end: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.run(py, |store| store.read_range(path, start..end))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Many ranges at once, each start and end; near ones share a request.
    fn read_ranges<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        ranges: Vec<(u64, u64)>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let ranges: Vec<_> = ranges.into_iter().map(|(start, end)| start..end).collect();
        let found = self.run(py, |store| store.read_ranges(path, &ranges))?;
        // Each is dropped as soon as Python has it.
        let given = found.into_iter().map(|bytes| PyBytes::new(py, &bytes));
        Ok(given.collect())
    }

    fn delete(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        self.run(py, |store| store.delete(path))
    }

    fn list_all(&self, py: Python<'_>, directory: &str) -> PyResult<Vec<(String, u64)>> {
        self.run(py, |store| store.list_all(directory))
    }

    /// Streams an object into `sink.write`, if given, checking length and BLAKE3.
    #[pyo3(signature = (path, length, blake3, sink=None))]
    fn fetch(
        &self,
        py: Python<'_>,
        path: &str,
        length: u64,
        blake3: &str,
        sink: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let mut download = self.run(py, |store| {
            store.download(path, Some((length, Blake3::parse(blake3)?)))
        })?;
        while let Some(block) = self.run(py, |_| download.next())? {
            let Some(sink) = sink else { continue };
            // A memory store hands out whole objects at once.
            for piece in block.chunks(PIECE) {
                let written = sink.call_method1("write", (PyBytes::new(py, piece),))?;
                if written
                    .extract::<usize>()
                    .is_ok_and(|count| count != piece.len())
                {
                    return Err(pyo3::exceptions::PyOSError::new_err(
                        "the sink's write() took only a part of the bytes; give a buffered file",
                    ));
                }
            }
        }
        Ok(())
    }

    #[pyo3(signature = (path, block_bytes=None))]
    fn upload(
        &self,
        py: Python<'_>,
        path: &str,
        block_bytes: Option<usize>,
    ) -> PyResult<BoardUpload> {
        let mut upload = self.run(py, |store| store.upload(path))?;
        if let Some(size) = block_bytes {
            upload = upload.hashing_blocks(size);
        }
        Ok(BoardUpload {
            url: self.store.url().to_owned(),
            slot: Mutex::new(Some(upload)),
        })
    }

    /// The path of a delta object.
    #[staticmethod]
    fn object_path(py: Python<'_>, version: u64, part: u32, write_id: &str) -> PyResult<String> {
        let write_id = WriteId::parse(write_id).map_err(|error| to_python(py, "", error))?;
        Ok(layout::object(version, part, write_id))
    }

    /// The path of the hashes of a delta's records.
    #[staticmethod]
    fn records_path(py: Python<'_>, version: u64, part: u32, write_id: &str) -> PyResult<String> {
        let write_id = WriteId::parse(write_id).map_err(|error| to_python(py, "", error))?;
        Ok(layout::records(version, part, write_id))
    }

    /// The paths of one upload of one of several parts: the delta, and the hashes of its records.
    #[staticmethod]
    fn part_paths(
        py: Python<'_>,
        version: u64,
        part: u32,
        write_id: &str,
        upload: &str,
    ) -> PyResult<[String; 2]> {
        let parse = |text| WriteId::parse(text).map_err(|error| to_python(py, "", error));
        Ok(layout::part_upload(
            version,
            part,
            parse(write_id)?,
            parse(upload)?,
        ))
    }

    /// The path of the hashes of the blocks of a file of an anchor.
    #[staticmethod]
    fn blocks_path(directory: &str, number: usize) -> String {
        layout::anchor_blocks(directory, number)
    }

    #[pyo3(signature = (known=None))]
    fn head(&self, py: Python<'_>, known: Option<u64>) -> PyResult<Option<u64>> {
        self.run(py, |store| head(store, known))
    }

    /// Version and anchor that `latest.json` names, unverified.
    fn hint(&self, py: Python<'_>) -> Option<(u64, Option<u64>)> {
        let hint = py.detach(|| Hint::read(&self.store))?;
        Some((hint.version, hint.anchor))
    }

    fn write_hint(&self, py: Python<'_>, version: u64, anchor: Option<u64>) {
        py.detach(|| Hint { version, anchor }.write(&self.store));
    }

    fn has_version(&self, py: Python<'_>, version: u64) -> PyResult<bool> {
        self.run(py, |store| store.exists(&layout::manifest(version)))
    }

    fn manifest<'py>(&self, py: Python<'py>, version: u64) -> PyResult<Option<Record<'py>>> {
        let link = self.run(py, |store| Link::read(store, version))?;
        Ok(link.map(|link| (PyBytes::new(py, &link.bytes), link.digest.to_string())))
    }

    #[pyo3(signature = (first, last, start=None))]
    fn chain<'py>(
        &self,
        py: Python<'py>,
        first: u64,
        last: u64,
        start: Option<Start>,
    ) -> PyResult<Vec<Record<'py>>> {
        let links = self.run(py, |store| {
            let start = match start {
                Some((version, digest, state, epoch, run)) => Some(ChainStart {
                    version,
                    digest: Blake3::parse(&digest)?,
                    state: State::parse(&state)?,
                    epoch,
                    run,
                }),
                None => None,
            };
            chain::read_chain(store, start, first, last)
        })?;
        Ok(links
            .into_iter()
            .map(|link| (PyBytes::new(py, &link.bytes), link.digest.to_string()))
            .collect())
    }

    /// Commits a manifest given as JSON with any order of keys; returns its digest.
    #[pyo3(signature = (version, manifest, key=None))]
    fn commit(
        &self,
        py: Python<'_>,
        version: u64,
        manifest: &[u8],
        key: Option<&Bound<'_, SigningKey>>,
    ) -> PyResult<String> {
        let key = key.map(|key| &key.get().key);
        let digest = self.run(py, |store| {
            commit_signed(store, &Manifest::parse(manifest, version)?, key)
        })?;
        Ok(digest.to_string())
    }

    fn discard(
        &self,
        py: Python<'_>,
        version: u64,
        write_id: &str,
        objects: Vec<String>,
    ) -> PyResult<bool> {
        self.run(py, |store| {
            discard(store, version, WriteId::parse(write_id)?, &objects)
        })
    }

    fn acquire_epoch(&self, py: Python<'_>, write_id: &str, time_ms: u64) -> PyResult<u64> {
        self.run(py, |store| {
            epoch::acquire(store, WriteId::parse(write_id)?, time_ms)
        })
    }

    fn check_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.run(py, |store| epoch::check_current(store, epoch))
    }

    fn claim_anchor(
        &self,
        py: Python<'_>,
        version: u64,
        epoch: u64,
        write_id: &str,
        time_ms: u64,
    ) -> PyResult<String> {
        self.run(py, |store| {
            anchor::claim_directory(store, version, epoch, WriteId::parse(write_id)?, time_ms)
        })
    }

    fn anchor_record<'py>(&self, py: Python<'py>, version: u64) -> PyResult<Option<Record<'py>>> {
        let found = self.run(py, |store| AnchorRecord::read_bytes(store, version))?;
        Ok(found.map(|bytes| (PyBytes::new(py, &bytes), Blake3::of(&bytes).to_string())))
    }

    /// The paths of a delta over several versions, and of the hashes of its records.
    #[staticmethod]
    fn skip_paths(
        py: Python<'_>,
        version: u64,
        base: u64,
        write_id: &str,
    ) -> PyResult<[String; 2]> {
        let write_id = WriteId::parse(write_id).map_err(|error| to_python(py, "", error))?;
        Ok(layout::skip_upload(version, base, write_id))
    }

    /// Bytes and digest of the skip records of pairs of version and base, where there are such.
    fn skip_records<'py>(
        &self,
        py: Python<'py>,
        pairs: Vec<(u64, u64)>,
    ) -> PyResult<Vec<Option<Record<'py>>>> {
        let found = self.run(py, |store| SkipRecord::read(store, &pairs))?;
        Ok(found
            .into_iter()
            .map(|bytes| {
                bytes.map(|bytes| (PyBytes::new(py, &bytes), Blake3::of(&bytes).to_string()))
            })
            .collect())
    }

    #[pyo3(signature = (version, base, record, key=None))]
    fn commit_skip(
        &self,
        py: Python<'_>,
        version: u64,
        base: u64,
        record: &[u8],
        key: Option<&Bound<'_, SigningKey>>,
    ) -> PyResult<String> {
        let key = key.map(|key| &key.get().key);
        let digest = self.run(py, |store| {
            SkipRecord::parse(record, version, base)?.commit(store, key)
        })?;
        Ok(digest.to_string())
    }

    #[pyo3(signature = (version, record, key=None))]
    fn commit_anchor(
        &self,
        py: Python<'_>,
        version: u64,
        record: &[u8],
        key: Option<&Bound<'_, SigningKey>>,
    ) -> PyResult<String> {
        let key = key.map(|key| &key.get().key);
        let digest = self.run(py, |store| {
            AnchorRecord::parse(record, version)?.commit_signed(store, key)
        })?;
        Ok(digest.to_string())
    }
}

/// An object being written; a binary sink.
#[pyclass(frozen, module = "deltawire._native")]
struct BoardUpload {
    url: String,
    slot: Mutex<Option<Upload>>,
}

impl BoardUpload {
    fn write_slice(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        detached(py, &self.url, || {
            let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
            slot.as_mut()
                .map_or_else(|| Err(Upload::closed()), |upload| upload.write(data))
        })
    }

    fn finished(&self, py: Python<'_>) -> PyResult<(ObjectRef, Vec<u8>)> {
        detached(py, &self.url, || {
            let upload = self
                .slot
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            upload.ok_or_else(Upload::closed)?.finish_with_blocks()
        })
    }
}

#[pymethods]
impl BoardUpload {
    /// Appends bytes; any contiguous buffer.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        if let Ok(data) = data.cast::<PyBytes>() {
            let data = data.as_bytes();
            self.write_slice(py, data)?;
            return Ok(data.len());
        }
        // Others may change the buffer while the GIL is released.
        let data = PyBuffer::<u8>::get(data)?.to_vec(py)?;
        self.write_slice(py, &data)?;
        Ok(data.len())
    }

    /// Makes the object durable and visible; returns path, length and BLAKE3.
    fn finish(&self, py: Python<'_>) -> PyResult<(String, u64, String)> {
        let (object, _) = self.finished(py)?;
        Ok((object.path, object.bytes, object.blake3.to_string()))
    }

    /// As `finish`, with the BLAKE3 of each block, 32 bytes each, if the upload was told their size.
    fn finish_with_blocks<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(String, u64, String, Bound<'py, PyBytes>)> {
        let (object, hashes) = self.finished(py)?;
        let hashes = PyBytes::new(py, &hashes);
        Ok((object.path, object.bytes, object.blake3.to_string(), hashes))
    }

    /// Gives up; nothing becomes visible. May be called at any time, also after `finish`.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| {
            if let Some(mut upload) = self
                .slot
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
            {
                upload.abort();
            }
        });
    }
}
