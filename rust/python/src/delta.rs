//! `Delta`: a delta read by range; what it would do to a target, and doing it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use deltawire_format::apply::{commit, plan_with, Held, Replaced, KEEP};
use deltawire_format::damage::damaged;
use deltawire_format::{Header, ReadAt, Tensor};
use deltawire_kernels::{Matrix, Target};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use rayon::prelude::*;

use crate::buffer::{matrices, ByteMatrix};
use crate::errors::{report, to_python, with_path};
use crate::pool::pool;
use crate::push::{codec_name, limits, Chunk};
use crate::writer::bytes16;

/// Tensor index, tile, and row, column, rows and columns of its box.
type TileRow = (u32, u32, u64, u64, u64, u64);
/// Tensor index, tile, and the bytes of a shard that holds it.
type ReplacedRow<'py> = (u32, u32, Bound<'py, PyAny>);

/// Tensor index, tile, changes, bytes, codecs and result digest of one chunk.
type ChunkRow = (u32, u32, u32, usize, String, Option<u64>);

/// Where a delta lies.
pub(crate) enum Source {
    /// Bytes of a file: which, from where on, and how many.
    File(Arc<File>, u64, u64),
    Bytes(PyBackedBytes),
}

impl ReadAt for Source {
    fn size(&self) -> u64 {
        match self {
            Self::File(_, _, size) => *size,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(file, start, _) => file.read_exact_at(out, start.saturating_add(offset)),
            Self::Bytes(bytes) => ReadAt::read_at(&bytes[..], offset, out),
        }
    }
}

#[pyclass(frozen, module = "deltawire._native")]
pub(crate) struct Delta {
    pub(crate) delta: deltawire_format::Delta<Source>,
    tensors: Arc<Vec<Tensor>>,
}

#[pyclass(frozen, module = "deltawire._native")]
pub(crate) struct Plan {
    plan: deltawire_format::Plan,
}

#[pymethods]
impl Plan {
    #[getter]
    fn skipped(&self) -> u64 {
        self.plan.skipped
    }

    #[getter]
    fn changed(&self) -> u64 {
        self.plan.changed
    }

    /// State before (None where the delta does not name it) and after, where every tile was checked.
    #[getter]
    fn states(&self) -> Option<(Option<[u8; 16]>, [u8; 16])> {
        self.plan
            .proof
            .map(|p| (bytes16(p.base_state), p.result_state.to_bytes()))
    }

    /// Sums of the digests before and after of what the target holds, where every tile of it was checked.
    #[getter]
    fn sums(&self) -> Option<([u8; 16], [u8; 16])> {
        self.plan.sums.map(|[a, b]| (a.to_bytes(), b.to_bytes()))
    }
}

/// The header as a dictionary.
pub(crate) fn describe<'py>(py: Python<'py>, header: &Header) -> PyResult<Bound<'py, PyDict>> {
    let info = PyDict::new(py);
    info.set_item("format", format!("{}.{}", header.format.0, header.format.1))?;
    info.set_item("run", &header.run)?;
    info.set_item("version", header.version)?;
    info.set_item("base_version", header.base_version)?;
    info.set_item("profile", &header.profile)?;
    info.set_item("meta", header.meta.clone())?;
    let state = bytes16(header.base_state).map(|b| PyBytes::new(py, &b));
    info.set_item("base_state", state)?;
    let tensors: Vec<_> = header
        .tensors
        .iter()
        .map(|t| {
            (
                t.name.clone(),
                t.dtype.clone(),
                t.shape.clone(),
                t.tile,
                t.elements(),
                t.bytes(),
            )
        })
        .collect();
    info.set_item("tensors", tensors)?;
    Ok(info)
}

impl Delta {
    fn open(py: Python<'_>, source: Source, given: Option<(u64, u64, u64)>) -> PyResult<Self> {
        let delta = py
            .detach(|| deltawire_format::Delta::open(source, limits(given)))
            .map_err(|e| to_python(py, e))?;
        let tensors = Arc::new(delta.header.tensors.clone());
        Ok(Self { delta, tensors })
    }
}

#[pymethods]
impl Delta {
    /// Opens a file; raises OSError as `open` does.
    #[staticmethod]
    #[pyo3(signature = (path, limits=None))]
    fn from_path(
        py: Python<'_>,
        path: std::path::PathBuf,
        limits: Option<(u64, u64, u64)>,
    ) -> PyResult<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        Self::open(py, Source::File(Arc::new(file), 0, size), limits)
    }

    /// Opens deltas that lie in one file: where each begins, its bytes, and its path for errors.
    #[staticmethod]
    fn slices(
        py: Python<'_>,
        path: std::path::PathBuf,
        places: Vec<(u64, u64, String)>,
    ) -> PyResult<Vec<Self>> {
        let file = Arc::new(File::open(path)?);
        let opened = places.into_iter().map(|(start, size, path)| {
            Self::open(py, Source::File(Arc::clone(&file), start, size), None)
                .map_err(|error| with_path(py, error, &path))
        });
        opened.collect()
    }

    #[staticmethod]
    #[pyo3(signature = (data, limits=None))]
    fn from_bytes(
        py: Python<'_>,
        data: PyBackedBytes,
        limits: Option<(u64, u64, u64)>,
    ) -> PyResult<Self> {
        Self::open(py, Source::Bytes(data), limits)
    }

    /// Header and index as a dictionary; reads no chunk.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let delta = &self.delta;
        let info = describe(py, &delta.header)?;
        let state = |d| bytes16(d).map(|b| PyBytes::new(py, &b));
        info.set_item("bytes", delta.bytes)?;
        info.set_item("header_bytes", delta.header_bytes)?;
        let end = delta
            .index
            .chunks
            .last()
            .map_or(delta.header_bytes, |c| c.offset + u64::from(c.length));
        info.set_item("index_bytes", delta.bytes - end)?;
        info.set_item("chunks", delta.index.chunks.len())?;
        info.set_item("changed", delta.index.changed)?;
        info.set_item(
            "base_state",
            state(delta.index.base_state.or(delta.header.base_state)),
        )?;
        info.set_item("result_state", state(delta.index.result_state))?;
        info.set_item("digests", delta.index.digests.clone())?;
        let starts: Vec<u64> = self.tensors.iter().map(|t| t.start().lanes[0]).collect();
        info.set_item("starts", starts)?;
        let tiles: Vec<u32> = self.tensors.iter().map(Tensor::tiles).collect();
        info.set_item("tiles", tiles)?;
        Ok(info)
    }

    /// Per chunk (tensor index, tile, changes, bytes, codecs, result digest); reads and checks all of them.
    fn chunk_table(&self, py: Python<'_>) -> PyResult<Vec<ChunkRow>> {
        py.detach(|| {
            (0..self.delta.index.chunks.len())
                .into_par_iter()
                .map(|i| {
                    let chunk = self.delta.chunk(i)?;
                    let h = chunk.header;
                    let codecs = codec_name(&chunk);
                    Ok((h.tensor, h.tile, h.changes, chunk.len(), codecs, h.result))
                })
                .collect::<deltawire_format::Result<_>>()
        })
        .map_err(|e| to_python(py, e))
    }

    fn __len__(&self) -> usize {
        self.delta.index.chunks.len()
    }

    /// One chunk, read and checked.
    fn chunk(&self, py: Python<'_>, i: usize) -> PyResult<Chunk> {
        let chunk = py
            .detach(|| self.delta.chunk(i))
            .map_err(|e| to_python(py, e))?;
        Ok(Chunk {
            chunk,
            tensors: Arc::clone(&self.tensors),
        })
    }

    /// Number, offset and length of each chunk that these byte matrices need, one a table entry.
    fn needed(&self, target: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<(usize, u64, u32)>> {
        if target.len() != self.tensors.len() {
            return Err(PyValueError::new_err("one array a table entry is needed"));
        }
        let held = matrices(&target)?;
        let views: Vec<Matrix<'_>> = held.iter().map(|m| m.matrix()).collect();
        let places = self.delta.index.chunks.iter().enumerate();
        Ok(places
            .filter(|(_, place)| {
                let t = place.tensor as usize;
                self.tensors[t].holds(&views[t], place.tile)
            })
            .map(|(i, place)| (i, place.offset, place.length))
            .collect())
    }

    /// The tiles of byte matrices, one a table entry, that hold neither base nor result.
    #[pyo3(signature = (target, threads=None))]
    fn damaged(
        &self,
        py: Python<'_>,
        target: Vec<Bound<'_, PyAny>>,
        threads: Option<usize>,
    ) -> PyResult<Vec<TileRow>> {
        let held = matrices(&target)?;
        let views: Vec<Matrix<'_>> = held.iter().map(|m| m.matrix()).collect();
        let pool = pool(threads)?;
        let found = py
            .detach(|| damaged(&self.delta, &views, &pool))
            .map_err(|e| to_python(py, e))?;
        let row = |d: &deltawire_format::damage::Damaged| {
            let b = d.place;
            (d.tensor, d.tile, b.row, b.col, b.rows, b.cols)
        };
        Ok(found.iter().map(row).collect())
    }

    /// Checks all of the delta against byte matrices, one a table entry, without writing.
    ///
    /// `aliases` names for each entry the earlier one whose memory it is, if any. `replaced` holds tiles
    /// that are looked at instead of the target's. A target is `trusted` to hold the base where somebody
    /// vouches for that.
    #[pyo3(signature = (target, aliases, full, threads=None, progress=None, replaced=None, trusted=false))]
    #[allow(clippy::too_many_arguments)]
    fn plan(
        &self,
        py: Python<'_>,
        target: Vec<Bound<'_, PyAny>>,
        aliases: Vec<Option<usize>>,
        full: bool,
        threads: Option<usize>,
        progress: Option<Py<PyAny>>,
        replaced: Option<Vec<ReplacedRow<'_>>>,
        trusted: bool,
    ) -> PyResult<Plan> {
        let held = matrices(&target)?;
        let views: Vec<Matrix<'_>> = held.iter().map(|m| m.matrix()).collect();
        let replaced = replaced.unwrap_or_default();
        let tiles: Vec<((u32, u32), ByteMatrix)> = replaced
            .iter()
            .map(|(t, tile, data)| Ok(((*t, *tile), ByteMatrix::new(data)?)))
            .collect::<PyResult<_>>()?;
        let replaced: Replaced<'_> = tiles.iter().map(|(at, m)| (*at, m.matrix())).collect();
        let held = Held {
            target: &views,
            aliases: &aliases,
            replaced: &replaced,
            trusted,
        };
        let pool = pool(threads)?;
        let plan = py
            .detach(|| {
                plan_with(&self.delta, held, full, KEEP, &pool, |bytes| {
                    report(progress.as_ref(), bytes)
                })
            })
            .map_err(|e| to_python(py, e))?;
        Ok(Plan { plan })
    }

    /// Carries out a plan and returns how many elements were written.
    #[pyo3(signature = (plan, target, threads=None))]
    fn commit(
        &self,
        py: Python<'_>,
        plan: &Plan,
        target: Vec<Bound<'_, PyAny>>,
        threads: Option<usize>,
    ) -> PyResult<u64> {
        if target.len() != self.tensors.len() {
            return Err(PyValueError::new_err("one array a table entry is needed"));
        }
        let mut held = matrices(&target)?;
        let targets: Vec<Target<'_>> = held
            .iter_mut()
            .map(|m| m.target())
            .collect::<PyResult<_>>()?;
        let pool = pool(threads)?;
        py.detach(|| commit(&self.delta, &plan.plan, targets, &pool))
            .map_err(|e| to_python(py, e))
    }
}
