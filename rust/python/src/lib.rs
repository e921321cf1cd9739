//! The extension module `deltawire._native`: conversion and error mapping only.
//!
//! Verbs of the format crate, one file each: [`writer`], [`delta`] (by range), [`push`] (front to
//! back), [`compose`], [`mod@join`], [`state`] digests and [`detected`] changes; the kernels' [`mod@boundary`] test;
//! the board crate's in [`board`] and [`collect`], keys in [`trust`], tests' [`faults`]. Long work runs without
//! the GIL.

mod board;
mod boundary;
mod buffer;
mod collect;
mod compose;
mod delta;
mod detected;
mod errors;
mod faults;
mod join;
mod options;
mod partition;
mod pool;
mod push;
mod sink;
mod state;
mod trust;
mod writer;

use std::collections::BTreeSet;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // The crates share some names: a set, in the order of the alphabet.
    let format_kinds = deltawire_format::Kind::ALL.map(|kind| kind.name());
    let board_kinds = deltawire_board::ErrorKind::ALL.map(|kind| kind.as_str());
    let kinds: BTreeSet<&str> = format_kinds.into_iter().chain(board_kinds).collect();
    module.add("ERROR_KINDS", kinds.into_iter().collect::<Vec<_>>())?;
    let dtypes: Vec<(&str, u8)> = deltawire_format::dtype::DTYPES.to_vec();
    module.add("DTYPES", dtypes)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DEBUG_BUILD", cfg!(debug_assertions))?;
    module.add_class::<writer::Writer>()?;
    module.add_class::<delta::Delta>()?;
    module.add_class::<delta::Plan>()?;
    module.add_class::<push::Chunk>()?;
    module.add_class::<push::PushReader>()?;
    module.add_function(wrap_pyfunction!(sink::blake3, module)?)?;
    module.add_function(wrap_pyfunction!(compose::compose, module)?)?;
    module.add_function(wrap_pyfunction!(join::join, module)?)?;
    module.add_function(wrap_pyfunction!(boundary::boundary, module)?)?;
    module.add_function(wrap_pyfunction!(state::tensor_digests, module)?)?;
    module.add_function(wrap_pyfunction!(detected::tile_shape, module)?)?;
    module.add_function(wrap_pyfunction!(detected::differing, module)?)?;
    module.add_class::<detected::Findings>()?;
    module.add_class::<faults::FaultPlan>()?;
    trust::register(module)?;
    board::register(module)?;
    collect::register(module)
}
