//! Partitions as tuples of numbers and bytes.

use deltawire_format::codec::Partition;
use deltawire_kernels::Word;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// Highest exponent, classes of each group, group of each row (uint8), counts and ranks (uint32), steps.
pub(crate) type Parts = (
    u16,
    usize,
    PyBackedBytes,
    PyBackedBytes,
    PyBackedBytes,
    PyBackedBytes,
);
/// The same on the way to Python.
pub(crate) type PartsOut<'py> = (
    u16,
    usize,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

fn words<W: Word>(bytes: &[u8], what: &str) -> PyResult<Vec<W>> {
    if !bytes.len().is_multiple_of(W::WIDTH) {
        let message = format!("{what} are not whole numbers of {} bytes", W::WIDTH);
        return Err(PyValueError::new_err(message));
    }
    Ok(bytes.chunks_exact(W::WIDTH).map(W::read).collect())
}

fn bytes<'py, W: Word>(py: Python<'py>, words: &[W]) -> Bound<'py, PyBytes> {
    let mut out = Vec::with_capacity(words.len() * W::WIDTH);
    words.iter().for_each(|w| w.append(&mut out));
    PyBytes::new(py, &out)
}

/// A partition from its parts, not yet checked.
pub(crate) fn from_parts<W: Word>(parts: &Parts) -> PyResult<Partition<W>> {
    let (top, classes, rows, counts, ranks, steps) = parts;
    Ok(Partition {
        top: *top,
        classes: *classes,
        rows: rows.to_vec(),
        counts: words(counts, "counts")?,
        ranks: words(ranks, "ranks")?,
        steps: words(steps, "steps")?,
    })
}

/// The parts of a partition.
pub(crate) fn to_parts<'py, W: Word>(py: Python<'py>, p: &Partition<W>) -> PartsOut<'py> {
    (
        p.top,
        p.classes,
        PyBytes::new(py, &p.rows),
        bytes(py, &p.counts),
        bytes(py, &p.ranks),
        bytes(py, &p.steps),
    )
}
