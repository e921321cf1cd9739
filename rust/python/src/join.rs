//! Putting the deltas of several writers together.

use std::collections::BTreeMap;

use deltawire_format::join::{Joined, Part, Refused};
use deltawire_format::{Header, Tensor};
use deltawire_kernels::Digest;
use pyo3::prelude::*;

use crate::delta::Delta;
use crate::errors::{to_python, with_path};
use crate::sink::Records;

/// A delta, the numbers of the chunks to take from it (None: all), and its path for errors.
type Given = (Py<Delta>, Option<Vec<usize>>, String);

/// Writes the delta that consists of `parts`; without a sink, only checks that they fit together.
///
/// Returns its bytes (0 without a sink), its changes as the indexes count them, and elements and bytes of
/// its tensors.
#[pyfunction]
#[pyo3(signature = (sink, parts, *, run, version, base_version, base_state, result_state, meta))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of a private function"
)]
pub(crate) fn join(
    py: Python<'_>,
    sink: Option<Py<PyAny>>,
    parts: Vec<Given>,
    run: String,
    version: u64,
    base_version: Option<u64>,
    base_state: [u8; 16],
    result_state: [u8; 16],
    meta: BTreeMap<String, String>,
) -> PyResult<(u64, u64, u64, u64)> {
    let header = Header {
        run,
        version,
        base_version,
        base_state: Some(Digest::from_bytes(base_state)),
        meta,
        ..Header::default()
    };
    let opened: Vec<Part<'_, _>> = parts
        .iter()
        .map(|(delta, chunks, _)| Part {
            delta: &delta.get().delta,
            chunks: chunks.as_deref(),
        })
        .collect();
    let done = py.detach(|| {
        let state = Digest::from_bytes(result_state);
        let joined = Joined::new(&opened, header, Some(state))?;
        let changed = opened.iter().map(|part| part.delta.index.changed);
        let mut done = (0, changed.fold(0, u64::saturating_add), 0, 0);
        for tensor in joined.tensors() {
            done.2 = u64::saturating_add(done.2, Tensor::elements(tensor));
            done.3 = u64::saturating_add(done.3, tensor.bytes());
        }
        if let Some(sink) = sink {
            let (_, summary) = joined.write(Records::new(sink))?;
            (done.0, done.1) = (summary.bytes, summary.changed);
        }
        Ok(done)
    });
    done.map_err(|Refused { part, error }| {
        let raised = to_python(py, error);
        match part.and_then(|part| parts.get(part)) {
            Some((_, _, path)) => with_path(py, raised, path),
            None => raised,
        }
    })
}
