//! Rust errors as the Python classes of `deltawire.errors`, by kind.

use deltawire_format::{Error, Kind};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Name of the Python class for a kind.
fn class_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Corrupt => "CorruptDelta",
        Kind::Unsupported => "UnsupportedDelta",
        Kind::Limit => "LimitExceeded",
        Kind::WrongBase => "WrongBase",
        Kind::Layout => "LayoutMismatch",
        Kind::Store => "StoreError",
        Kind::Torn => "TargetTorn",
    }
}

/// A Python exception that travelled through the core as an I/O error.
fn carried(py: Python<'_>, error: &Error) -> Option<PyErr> {
    let inner = error.source.as_ref()?.get_ref()?;
    Some(inner.downcast_ref::<PyErr>()?.clone_ref(py))
}

/// The exception for an error.
///
/// What a sink or a progress callback raised comes out as it was, except that an `OSError` becomes
/// the cause of a `StoreError`.
pub(crate) fn to_python(py: Python<'_>, error: Error) -> PyErr {
    let cause = carried(py, &error);
    if let Some(cause) = &cause {
        if error.kind == Kind::Store && !cause.is_instance_of::<PyOSError>(py) {
            return cause.clone_ref(py);
        }
    }
    let build = || -> PyResult<PyErr> {
        let place = PyDict::new(py);
        place.set_item("tensor", error.tensor)?;
        place.set_item("offset", error.offset)?;
        let class = py
            .import("deltawire.errors")?
            .getattr(class_of(error.kind))?;
        let built = PyErr::from_value(class.call((error.message,), Some(&place))?);
        if let Some(cause) = cause {
            built.set_cause(py, Some(cause));
        }
        Ok(built)
    };
    build().unwrap_or_else(|failure| failure)
}

/// The error with the path of what it is about.
pub(crate) fn with_path(py: Python<'_>, error: PyErr, path: &str) -> PyErr {
    // What a sink raised may have no such field; then the error itself is what matters.
    let _ = error.value(py).setattr("path", path);
    error
}

/// A Python exception on its way through the core.
pub(crate) fn from_python(error: PyErr) -> Error {
    Error::from(std::io::Error::other(error))
}

/// Calls a progress callback with dense bytes done, and lets Ctrl-C in.
pub(crate) fn report(progress: Option<&Py<PyAny>>, bytes: u64) -> Result<(), Error> {
    Python::attach(|py| {
        py.check_signals()?;
        if let Some(callback) = progress {
            callback.call1(py, (bytes,))?;
        }
        Ok(())
    })
    .map_err(from_python)
}
