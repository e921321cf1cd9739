//! Leases and collection: the board crate's verbs as functions of a `BoardStore`.

use deltawire_board::collect::{collect_trusting, Collected, Settings};
use deltawire_board::{lease, Control, Lease, WriteId};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::board::BoardStore;
use crate::trust::Keyring;

/// Id, name, version, target, oldest version needed, end and time of writing in milliseconds.
type LeaseRow = (String, String, Option<u64>, Option<u64>, u64, u64, u64);

/// Adds the functions of this file to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(board_collect, module)?)?;
    module.add_function(wrap_pyfunction!(board_control, module)?)?;
    module.add_function(wrap_pyfunction!(board_leases, module)?)?;
    module.add_function(wrap_pyfunction!(write_lease, module)?)?;
    module.add_function(wrap_pyfunction!(remove_lease, module)?)
}

/// Collects; returns a dictionary of figures, or `None` for an empty board. With a keyring, only its keys
/// are believed.
#[pyfunction]
#[pyo3(signature = (board, *, keep, older_than_ms, safety_ms, grace_ms, sweep, dry_run, now_ms, write_id, trust=None))]
#[allow(clippy::too_many_arguments)]
fn board_collect<'py>(
    py: Python<'py>,
    board: &BoardStore,
    keep: u64,
    older_than_ms: u64,
    safety_ms: u64,
    grace_ms: u64,
    sweep: bool,
    dry_run: bool,
    now_ms: u64,
    write_id: &str,
    trust: Option<&Keyring>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let done = board.run(py, |store| {
        let settings = Settings {
            keep,
            older_than_ms,
            safety_ms,
            grace_ms,
            sweep,
            dry_run,
            now_ms,
            write_id: WriteId::parse(write_id)?,
        };
        match trust {
            // On a copy: a collection takes long, and others check signatures meanwhile.
            Some(trust) => collect_trusting(store, &settings, Some(&mut trust.copy())),
            None => collect_trusting(store, &settings, None),
        }
    })?;
    done.map(|done| figures(py, &done)).transpose()
}

fn figures<'py>(py: Python<'py>, done: &Collected) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let rows = [
        ("head", done.head),
        ("old_boundary", done.boundary.0),
        ("boundary", done.boundary.1),
        ("first", done.range.0),
        ("until", done.range.1),
        ("objects", done.freed.objects),
        ("bytes", done.freed.bytes),
        ("anchors", done.anchors),
        ("epochs", done.epochs),
        ("leases", done.leases),
        ("expired", done.expired),
        ("leftovers", done.swept.freed.objects + done.swept.records),
        ("leftover_bytes", done.swept.freed.bytes),
    ];
    for (name, value) in rows {
        dict.set_item(name, value)?;
    }
    dict.set_item("limit", done.limit.as_str())?;
    Ok(dict)
}

/// The boundary, the versions of all claims on anchors (ascending), and the number of epochs.
#[pyfunction]
fn board_control(py: Python<'_>, board: &BoardStore) -> PyResult<(Option<u64>, Vec<u64>, usize)> {
    let control = board.run(py, Control::list)?;
    let mut claims: Vec<u64> = control.claims.iter().map(|claim| claim.version).collect();
    claims.dedup();
    Ok((control.boundary(), claims, control.epochs.len()))
}

/// All leases, expired ones included.
#[pyfunction]
fn board_leases(py: Python<'_>, board: &BoardStore) -> PyResult<Vec<LeaseRow>> {
    let leases = board.run(py, lease::list)?;
    let row = |held: lease::HeldLease| {
        let ends = held.ends_ms();
        let lease = held.lease;
        (
            held.id,
            lease.name,
            lease.version,
            lease.target,
            lease.needs,
            ends,
            lease.time_ms,
        )
    };
    Ok(leases.into_iter().map(row).collect())
}

/// Writes a lease, replacing the one before.
#[pyfunction]
#[pyo3(signature = (board, id, name, *, version, target, needs, expires_ms, time_ms))]
#[allow(clippy::too_many_arguments)]
fn write_lease(
    py: Python<'_>,
    board: &BoardStore,
    id: &str,
    name: String,
    version: Option<u64>,
    target: Option<u64>,
    needs: u64,
    expires_ms: u64,
    time_ms: u64,
) -> PyResult<()> {
    let lease = Lease {
        version,
        target,
        ..Lease::new(name, needs, expires_ms, time_ms)
    };
    board.run(py, |store| lease.write(store, id))
}

/// Removes a lease.
#[pyfunction]
fn remove_lease(py: Python<'_>, board: &BoardStore, id: &str) -> PyResult<()> {
    board.run(py, |store| lease::remove(store, id))
}
