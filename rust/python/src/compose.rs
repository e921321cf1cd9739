//! Folding deltas into one.

use deltawire_format::{Delta as Opened, Profile};
use deltawire_kernels::Matrix;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::matrices;
use crate::delta::{Delta, Source};
use crate::errors::{report, to_python};
use crate::pool::pool;
use crate::sink::Records;
use crate::writer::{summary_tuple, SummaryTuple};

/// Writes the delta that does what `deltas` do one after the other; `base` holds a matrix a table entry.
#[pyfunction]
#[pyo3(signature = (sink, deltas, base, profile, threads=None, progress=None))]
pub(crate) fn compose(
    py: Python<'_>,
    sink: Py<PyAny>,
    deltas: Vec<Py<Delta>>,
    base: Option<Vec<Bound<'_, PyAny>>>,
    profile: &str,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<SummaryTuple> {
    let profile = Profile::from_name(profile).map_err(|e| PyValueError::new_err(e.message))?;
    let held = base.map(|base| matrices(&base)).transpose()?;
    let views: Option<Vec<Matrix<'_>>> = held
        .as_ref()
        .map(|held| held.iter().map(|m| m.matrix()).collect());
    let pool = pool(threads)?;
    let sink = Records::new(sink);
    let deltas: Vec<&Opened<Source>> = deltas.iter().map(|d| &d.get().delta).collect();
    let done = py.detach(|| {
        let report = |bytes| report(progress.as_ref(), bytes);
        deltawire_format::compose::compose(&deltas, views.as_deref(), profile, sink, &pool, report)
    });
    done.map(|done| summary_tuple(py, done))
        .map_err(|e| to_python(py, e))
}
