//! The AdamW boundary test over arrays of any length.

use deltawire_kernels::boundary::{changes, Found, Step};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rayon::prelude::*;

use crate::buffer::Floats;
use crate::pool::pool;

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 20;

/// Positions (int64), kinds, values before and other values (uint16).
type Columns<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// One column of all chunks, `WIDTH` bytes for each element that was found.
fn column<'py, T: Copy, const WIDTH: usize>(
    py: Python<'py>,
    found: &[Found],
    values: impl Fn(&Found) -> &[T],
    bytes: impl Fn(u64, T) -> [u8; WIDTH],
) -> PyResult<Bound<'py, PyBytes>> {
    let count: usize = found.iter().map(|part| part.positions.len()).sum();
    PyBytes::new_with(py, WIDTH * count, |out| {
        let mut slots = out.chunks_exact_mut(WIDTH);
        for (part, start) in found.iter().zip((0u64..).step_by(CHUNK)) {
            for (&value, slot) in values(part).iter().zip(&mut slots) {
                slot.copy_from_slice(&bytes(start, value));
            }
        }
        Ok(())
    })
}

/// What may have changed in a step that left `w`, `m` and `v`; `None` where `decay` is not positive and
/// finite.
#[pyfunction]
#[pyo3(signature = (
    w, m, v, *, decay, alpha, root, eps, divide_first, contracted, margin, threads=None
))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of a private function"
)]
pub(crate) fn boundary<'py>(
    py: Python<'py>,
    w: &Bound<'py, PyAny>,
    m: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    decay: f32,
    alpha: f32,
    root: f32,
    eps: f32,
    divide_first: bool,
    contracted: bool,
    margin: u32,
    threads: Option<usize>,
) -> PyResult<Option<Columns<'py>>> {
    let step = Step {
        decay,
        alpha,
        root,
        eps,
        divide_first,
        contracted,
        margin,
    };
    let held = [Floats::new(w)?, Floats::new(m)?, Floats::new(v)?];
    let [w, m, v] = held.each_ref().map(Floats::slice);
    if w.len() != m.len() || w.len() != v.len() {
        let lengths = (w.len(), m.len(), v.len());
        let message = format!("w, m and v differ in length: {lengths:?}");
        return Err(PyValueError::new_err(message));
    }
    let pool = pool(threads)?;
    let found: Option<Vec<Found>> = py.detach(|| {
        // Asked even where there are no elements.
        changes(&step, &[], &[], &[], 0, &mut Found::default())?;
        pool.install(|| {
            let moments = m.par_chunks(CHUNK).zip(v.par_chunks(CHUNK));
            let parts = w.par_chunks(CHUNK).zip(moments);
            let found = parts.map(|(w, (m, v))| {
                let mut found = Found::default();
                changes(&step, w, m, v, 0, &mut found).map(|()| found)
            });
            found.collect()
        })
    });
    let Some(found) = found else { return Ok(None) };
    let position = |start: u64, at: u32| (start + u64::from(at)).to_le_bytes();
    Ok(Some((
        column(py, &found, |part| &part.positions, position)?,
        column(py, &found, |part| &part.kinds, |_, kind| [kind])?,
        column(
            py,
            &found,
            |part| &part.old,
            |_, old: u16| old.to_le_bytes(),
        )?,
        column(
            py,
            &found,
            |part| &part.other,
            |_, other: u16| other.to_le_bytes(),
        )?,
    )))
}
