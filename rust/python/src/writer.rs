//! `Writer`: a delta, front to back, into a Python sink.

use std::collections::BTreeMap;

use deltawire_format::detected::Proven;
use deltawire_format::writer::{Found, Pair, Partitioned, Summary};
use deltawire_format::{with_word, Header, Limits, Profile, Tensor, Tiling};
use deltawire_kernels::Digest;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::ByteMatrix;
use crate::detected::{self, after, held, Findings, Item, ToldOut};
use crate::errors::{report, to_python};
use crate::partition::{from_parts, to_parts, Parts, PartsOut};
use crate::pool::pool;
use crate::sink::Records;

/// Name, dtype, shape, and tile shape if not the default.
type TensorSpec = (String, String, Vec<u64>, Option<[u64; 2]>);
/// Index in the table, elements before, elements after.
type PairSpec<'py> = (u32, Bound<'py, PyAny>, Bound<'py, PyAny>);
/// A tile, its changes if there are any, digests before and after.
type ProvenSpec = (u32, Option<Parts>, [u8; 16], [u8; 16]);
/// Bytes, changed elements, chunks, base state, result state, BLAKE3 of each record.
pub(crate) type SummaryTuple = (
    u64,
    u64,
    u64,
    Option<[u8; 16]>,
    Option<[u8; 16]>,
    Py<PyBytes>,
);

type Inner = deltawire_format::Writer<Records>;

#[pyclass(module = "deltawire._native")]
pub(crate) struct Writer {
    /// Gone once finished or failed.
    inner: Option<Inner>,
}

fn gone() -> PyErr {
    PyValueError::new_err("the writer is finished, or failed before; start a new delta")
}

pub(crate) fn bytes16(digest: Option<Digest>) -> Option<[u8; 16]> {
    digest.map(Digest::to_bytes)
}

pub(crate) fn summary_tuple(
    py: Python<'_>,
    (records, summary): (Records, Summary),
) -> SummaryTuple {
    (
        summary.bytes,
        summary.changed,
        summary.chunks,
        bytes16(summary.base_state),
        bytes16(summary.result_state),
        PyBytes::new(py, &records.into_hashes()).unbind(),
    )
}

pub(crate) fn build_tensors(
    py: Python<'_>,
    specs: Vec<TensorSpec>,
    tiling: &Tiling,
) -> PyResult<Vec<Tensor>> {
    specs
        .into_iter()
        .map(|(name, dtype, shape, tile)| {
            let tile = tile.unwrap_or_else(|| {
                // The matrix' shape first; one row by one column suits any shape.
                let rows = match shape.as_slice() {
                    [] => 1,
                    [length] => *length,
                    [rows @ .., _] => rows.iter().fold(1, |a: u64, b| a.saturating_mul(*b)),
                };
                let cols = if shape.len() < 2 {
                    1
                } else {
                    shape[shape.len() - 1]
                };
                tiling.tile(&name, &dtype, rows, cols)
            });
            Tensor::new(name, dtype, shape, tile).map_err(|e| to_python(py, e))
        })
        .collect()
}

impl Writer {
    /// Runs `work` without the GIL; a failure ends the writer, since the sink's state is unknown.
    fn work<T: Send>(
        &mut self,
        py: Python<'_>,
        work: impl FnOnce(&mut Inner) -> deltawire_format::Result<T> + Send,
    ) -> PyResult<T> {
        let mut inner = self.inner.take().ok_or_else(gone)?;
        let (inner, result) = py.detach(move || {
            let result = work(&mut inner);
            (inner, result)
        });
        match result {
            Ok(value) => {
                self.inner = Some(inner);
                Ok(value)
            }
            Err(error) => {
                // What the buffer still holds is not pushed into a sink that is given up.
                inner.into_sink().abandon();
                Err(to_python(py, error))
            }
        }
    }
}

#[pymethods]
impl Writer {
    #[new]
    #[pyo3(signature = (sink, tensors, *, run, version, base_version, base_state, profile, meta,
                        threads, max_tile_elements, tile_ways, min_tile_elements))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of a private constructor"
    )]
    fn new(
        py: Python<'_>,
        sink: Py<PyAny>,
        tensors: Vec<TensorSpec>,
        run: String,
        version: u64,
        base_version: Option<u64>,
        base_state: Option<[u8; 16]>,
        profile: &str,
        meta: BTreeMap<String, String>,
        threads: Option<usize>,
        max_tile_elements: u64,
        tile_ways: u64,
        min_tile_elements: u64,
    ) -> PyResult<Self> {
        let profile = Profile::from_name(profile).map_err(|e| PyValueError::new_err(e.message))?;
        let tiling = Tiling {
            max_elements: max_tile_elements,
            ways: tile_ways,
            min_elements: min_tile_elements,
        };
        let header = Header {
            run,
            version,
            base_version,
            base_state: base_state.map(Digest::from_bytes),
            profile: profile.name().into(),
            meta,
            tensors: build_tensors(py, tensors, &tiling)?,
            ..Header::default()
        };
        let sink = Records::new(sink);
        let inner =
            deltawire_format::Writer::new(sink, header, profile, Limits::default(), pool(threads)?)
                .map_err(|e| to_python(py, e))?;
        Ok(Self { inner: Some(inner) })
    }

    /// Compares pairs of byte matrices and writes their changes.
    #[pyo3(signature = (pairs, progress=None))]
    fn add(
        &mut self,
        py: Python<'_>,
        pairs: Vec<PairSpec<'_>>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let held = pairs
            .iter()
            .map(|(t, base, new)| Ok((*t, ByteMatrix::new(base)?, ByteMatrix::new(new)?)))
            .collect::<PyResult<Vec<_>>>()?;
        let pairs: Vec<Pair<'_>> = held
            .iter()
            .map(|(tensor, base, new)| Pair {
                tensor: *tensor,
                base: base.matrix(),
                new: new.matrix(),
            })
            .collect();
        self.work(py, |w| {
            w.add(&pairs, |bytes| report(progress.as_ref(), bytes))
        })
    }

    /// Writes changes found elsewhere: int64 positions, values as bytes, the base if known.
    #[pyo3(signature = (tensor, positions, values, base=None))]
    fn add_found(
        &mut self,
        py: Python<'_>,
        tensor: u32,
        positions: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        base: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        // O(changes): copied, so that nothing can move under the threads.
        let positions = PyBuffer::<i64>::get(positions)?.to_vec(py)?;
        let values = PyBuffer::<u8>::get(values)?.to_vec(py)?;
        let base = base.map(ByteMatrix::new).transpose()?;
        let found = Found {
            tensor,
            positions: &positions,
            values: &values,
            base: base.as_ref().map(ByteMatrix::matrix),
        };
        self.work(py, |w| w.add_found(&found))
    }

    /// Begins a tensor of which changes are known.
    fn begin(&mut self, py: Python<'_>, tensor: u32, findings: &Findings) -> PyResult<()> {
        self.work(py, |w| w.begin(tensor, &findings.inner))
    }

    /// Writes the next tiles of the tensor that was begun: how each went, and its digests after.
    fn add_after(
        &mut self,
        py: Python<'_>,
        tensor: u32,
        findings: &Findings,
        items: Vec<Item<'_>>,
    ) -> PyResult<Vec<ToldOut>> {
        let held = held(&items)?;
        let items = after(tensor, &held);
        let told = self.work(py, |w| w.add_after(&findings.inner, &items))?;
        Ok(detected::told(py, told))
    }

    /// Writes the next tiles, proven elsewhere: tile, parts if it changed, digests before and after.
    fn add_proven(&mut self, py: Python<'_>, tensor: u32, items: Vec<ProvenSpec>) -> PyResult<()> {
        let inner = self.inner.as_ref().ok_or_else(gone)?;
        let width = inner.tensors().get(tensor as usize).map_or(1, |t| t.width);
        with_word!(width, W => {
            let partitions = items
                .iter()
                .map(|(_, parts, ..)| parts.as_ref().map(from_parts::<W>).transpose())
                .collect::<PyResult<Vec<_>>>()?;
            let proven: Vec<Proven<'_, W>> = items
                .iter()
                .zip(&partitions)
                .map(|((tile, _, before, after), partition)| Proven {
                    tile: *tile,
                    partition: partition.as_ref(),
                    digests: [Digest::from_bytes(*before), Digest::from_bytes(*after)],
                })
                .collect();
            self.work(py, |w| w.add_proven(tensor, &proven))
        })
    }

    /// Changes of one tile by class as parts (None: no change), and lane 0 of its digest after them.
    fn partition<'py>(
        &self,
        py: Python<'py>,
        tensor: u32,
        tile: u32,
        base: &Bound<'_, PyAny>,
        new: &Bound<'_, PyAny>,
    ) -> PyResult<(Option<PartsOut<'py>>, u64)> {
        let inner = self.inner.as_ref().ok_or_else(gone)?;
        let (base, new) = (ByteMatrix::new(base)?, ByteMatrix::new(new)?);
        let pair = Pair {
            tensor,
            base: base.matrix(),
            new: new.matrix(),
        };
        let width = inner.tensors().get(tensor as usize).map_or(1, |t| t.width);
        with_word!(width, W => {
            let found = py.detach(|| inner.partition::<W>(&pair, tile));
            let (found, [_, after]) = found.map_err(|e| to_python(py, e))?;
            let parts = found.map(|p| to_parts(py, &p));
            Ok((parts, after.lanes[0]))
        })
    }

    /// Tiles of a tensor that a matrix of it, or of a shard, holds.
    fn tiles(&self, tensor: usize, held: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let inner = self.inner.as_ref().ok_or_else(gone)?;
        let entry = inner.tensors().get(tensor);
        let entry = entry.ok_or_else(|| PyValueError::new_err("no such tensor"))?;
        let memory = ByteMatrix::new(held)?;
        let matrix = memory.matrix();
        Ok((0..entry.tiles())
            .filter(|&tile| entry.holds(&matrix, tile))
            .collect())
    }

    /// Writes partitions (tile, parts, lane 0 after) of a tensor with these digests.
    fn add_partitions(
        &mut self,
        py: Python<'_>,
        tensor: u32,
        base: [u8; 16],
        result: [u8; 16],
        items: Vec<(u32, Parts, u64)>,
    ) -> PyResult<()> {
        let digests = [Digest::from_bytes(base), Digest::from_bytes(result)];
        let inner = self.inner.as_ref().ok_or_else(gone)?;
        let width = inner.tensors().get(tensor as usize).map_or(1, |t| t.width);
        with_word!(width, W => {
            let partitions = items
                .iter()
                .map(|(_, parts, _)| from_parts::<W>(parts))
                .collect::<PyResult<Vec<_>>>()?;
            let partitions: Vec<Partitioned<'_, W>> = items
                .iter()
                .zip(&partitions)
                .map(|((tile, _, result), partition)| Partitioned {
                    tile: *tile,
                    partition,
                    result: *result,
                })
                .collect();
            self.work(py, |w| w.add_partitions(tensor, digests, &partitions))
        })
    }

    /// Writes index and trailer.
    fn finish(&mut self, py: Python<'_>) -> PyResult<SummaryTuple> {
        let inner = self.inner.take().ok_or_else(gone)?;
        let done = py
            .detach(move || inner.finish())
            .map_err(|e| to_python(py, e))?;
        Ok(summary_tuple(py, done))
    }

    /// Drops the delta: nothing more reaches the sink.
    fn abandon(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.into_sink().abandon();
        }
    }
}
