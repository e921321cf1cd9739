//! A Python object with `write` as a byte sink, and hashes of the records that go there.

use std::io::{self, BufWriter, Write};

use deltawire_board::Blake3;
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

/// BLAKE3 of some bytes, 32 bytes.
#[pyfunction]
pub(crate) fn blake3<'py>(py: Python<'py>, data: &[u8]) -> Bound<'py, PyBytes> {
    let hash = py.detach(|| Blake3::of(data));
    PyBytes::new(py, &hash.0)
}

/// Bytes collected before the sink is called.
const BUFFER: usize = 1 << 20;

/// A buffered sink that notes the BLAKE3 of every record, which come one a call.
pub(crate) struct Records {
    sink: BufWriter<PySink>,
    /// 32 bytes a record.
    hashes: Vec<u8>,
}

impl Records {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self {
            sink: BufWriter::with_capacity(BUFFER, PySink::new(object)),
            hashes: Vec::new(),
        }
    }

    /// The hashes of all records.
    pub(crate) fn into_hashes(self) -> Vec<u8> {
        self.hashes
    }

    /// Drops what was not written yet.
    pub(crate) fn abandon(self) {
        drop(self.sink.into_parts());
    }
}

impl Write for Records {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.sink.write_all(record)?;
        self.hashes.extend_from_slice(&Blake3::of(record).0);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
