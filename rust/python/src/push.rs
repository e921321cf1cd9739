//! `PushReader` and `Chunk`: a delta as its bytes arrive.

use std::sync::Arc;

use deltawire_format::apply::apply_chunk;
use deltawire_format::{flat_positions, with_word};
use deltawire_format::{Limits, Tensor};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

use crate::buffer::ByteMatrix;
use crate::delta::describe;
use crate::errors::to_python;
use crate::partition::{to_parts, PartsOut};

/// Header, index and chunk limits in bytes and tensors.
pub(crate) fn limits(given: Option<(u64, u64, u64)>) -> Limits {
    given.map_or_else(
        Limits::default,
        |(max_header_bytes, max_tensors, max_chunk_bytes)| Limits {
            max_header_bytes,
            max_tensors,
            max_chunk_bytes,
        },
    )
}

#[pyclass(frozen, module = "deltawire._native")]
pub(crate) struct Chunk {
    pub(crate) chunk: deltawire_format::Chunk,
    pub(crate) tensors: Arc<Vec<Tensor>>,
}

#[pymethods]
impl Chunk {
    #[getter]
    fn tensor(&self) -> &str {
        &self.chunk.tensor(&self.tensors).name
    }

    #[getter]
    fn tile(&self) -> u32 {
        self.chunk.header.tile
    }

    /// Rows from and to, columns from and to, in elements.
    #[getter]
    fn bounds(&self, py: Python<'_>) -> PyResult<[u64; 4]> {
        let b = self
            .chunk
            .tile_box(&self.tensors)
            .map_err(|e| to_python(py, e))?;
        Ok([b.row, b.row + b.rows, b.col, b.col + b.cols])
    }

    #[getter]
    fn changes(&self) -> u32 {
        self.chunk.header.changes
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.chunk.len()
    }

    #[getter]
    fn offset(&self) -> u64 {
        self.chunk.offset
    }

    /// As `inspect` shows it, `positions+values`.
    #[getter]
    fn codec(&self) -> String {
        codec_name(&self.chunk)
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> u8 {
        self.chunk.tensor(&self.tensors).width
    }

    /// Lane 0 of the tile's digest after the chunk, where the chunk says it.
    #[getter]
    fn result(&self) -> Option<u64> {
        self.chunk.header.result
    }

    /// The changes by class as parts; None where the chunk has them otherwise.
    fn partition<'py>(&self, py: Python<'py>) -> PyResult<Option<PartsOut<'py>>> {
        let width = self.chunk.tensor(&self.tensors).width;
        with_word!(width, W => {
            let partition = self.chunk.partition::<W>(&self.tensors);
            let partition = partition.map_err(|e| to_python(py, e))?;
            Ok(partition.map(|p| to_parts(py, &p)))
        })
    }

    /// int64 positions in the flat tensor, as bytes; `base` is the tensor's byte matrix.
    #[pyo3(signature = (base=None))]
    fn positions<'py>(
        &self,
        py: Python<'py>,
        base: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let held = base.map(ByteMatrix::new).transpose()?;
        let matrix = held.as_ref().map(ByteMatrix::matrix);
        let positions = py
            .detach(|| flat_positions(&self.chunk, &self.tensors, matrix.as_ref()))
            .map_err(|e| to_python(py, e))?;
        let bytes: Vec<u8> = positions.into_iter().flat_map(i64::to_le_bytes).collect();
        Ok(PyBytes::new(py, &bytes))
    }

    /// Changes a byte matrix in place; false where it had the result.
    fn apply(&self, py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<bool> {
        let mut held = ByteMatrix::new(target)?;
        let target = held.target()?;
        py.detach(|| apply_chunk(&self.chunk, &self.tensors, target))
            .map_err(|e| to_python(py, e))
    }
}

/// Codecs of a chunk with `/lz4` behind those that are staged.
pub(crate) fn codec_name(chunk: &deltawire_format::Chunk) -> String {
    use deltawire_format::codec::{PositionCodec, Stage};
    if chunk.header.positions.0 == PositionCodec::Classes {
        return PositionCodec::Classes.name().into();
    }
    let stage = |s| if s == Stage::Lz4 { "/lz4" } else { "" };
    let (p, v) = (chunk.header.positions, chunk.header.values);
    format!("{}{}+{}{}", p.0.name(), stage(p.1), v.0.name(), stage(v.1))
}

#[pyclass(module = "deltawire._native")]
pub(crate) struct PushReader {
    reader: deltawire_format::PushReader,
    tensors: Option<Arc<Vec<Tensor>>>,
}

#[pymethods]
impl PushReader {
    #[new]
    #[pyo3(signature = (limits=None))]
    fn new(limits: Option<(u64, u64, u64)>) -> Self {
        let limits = self::limits(limits);
        Self {
            reader: deltawire_format::PushReader::new(limits),
            tensors: None,
        }
    }

    fn feed(&mut self, py: Python<'_>, data: PyBackedBytes) -> PyResult<Vec<Chunk>> {
        let reader = &mut self.reader;
        let chunks = py
            .detach(|| reader.feed(&data))
            .map_err(|e| to_python(py, e))?;
        if self.tensors.is_none() {
            self.tensors = self.reader.header().map(|h| Arc::new(h.tensors.clone()));
        }
        let tensors = self.tensors.clone().unwrap_or_default();
        Ok(chunks
            .into_iter()
            .map(|chunk| Chunk {
                chunk,
                tensors: Arc::clone(&tensors),
            })
            .collect())
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.reader.finish().map_err(|e| to_python(py, e))
    }

    /// What the header says, once it has arrived.
    fn header<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let header = self
            .reader
            .header()
            .ok_or_else(|| PyValueError::new_err("the header has not arrived yet"))?;
        let info = describe(py, header)?;
        info.set_item("header_bytes", self.reader.header_bytes())?;
        Ok(info)
    }
}
