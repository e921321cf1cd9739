//! A Python object with `write` as a byte sink.

use std::io::{self, Write};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Forwards to `object.write(bytes)`, which may take less and return how much.
pub(crate) struct PySink {
    object: Py<PyAny>,
}

impl PySink {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self { object }
    }
}

impl Write for PySink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let taken = self
                .object
                .call_method1(py, "write", (PyBytes::new(py, bytes),))?;
            // Some writers return nothing and take everything.
            taken.extract::<Option<usize>>(py)
        })
        .map(|taken| taken.unwrap_or(bytes.len()).min(bytes.len()))
        .map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
