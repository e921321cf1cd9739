//! State digests.

use deltawire_format::{Tensor, Tiling};
use deltawire_kernels::Matrix;
use pyo3::prelude::*;

use crate::buffer::matrices;
use crate::errors::{report, to_python};
use crate::pool::pool;
use crate::writer::build_tensors;

/// Digests of tensors given as (name, dtype, shape) and byte matrices, 16 bytes each.
#[pyfunction]
#[pyo3(signature = (tensors, data, threads=None, progress=None))]
pub(crate) fn tensor_digests(
    py: Python<'_>,
    tensors: Vec<(String, String, Vec<u64>)>,
    data: Vec<Bound<'_, PyAny>>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<[u8; 16]>> {
    let specs = tensors
        .into_iter()
        .map(|(name, dtype, shape)| (name, dtype, shape, None));
    let tensors: Vec<Tensor> = build_tensors(py, specs.collect(), &Tiling::default())?;
    let held = matrices(&data)?;
    let views: Vec<Matrix<'_>> = held.iter().map(|m| m.matrix()).collect();
    let pool = pool(threads)?;
    let digests = py
        .detach(|| {
            deltawire_format::state::tensor_digests(&tensors, &views, &pool, |bytes| {
                report(progress.as_ref(), bytes)
            })
        })
        .map_err(|e| to_python(py, e))?;
    Ok(digests.into_iter().map(|d| d.to_bytes()).collect())
}
