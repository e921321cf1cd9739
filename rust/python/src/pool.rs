//! Thread pools, shared by calls that want the same number of threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

type Pools = HashMap<(u32, usize), Arc<ThreadPool>>;

/// Pools by process and number of threads. Threads do not survive a fork, so a child makes its own;
/// the parent's entry stays untouched in the child, since dropping it would wait for its threads.
static POOLS: Mutex<Option<Pools>> = Mutex::new(None);

/// The pool with so many threads; as many as there are processors where none are named.
pub(crate) fn pool(threads: Option<usize>) -> PyResult<Arc<ThreadPool>> {
    let threads = match threads {
        Some(0) => return Err(PyValueError::new_err("threads must be at least 1")),
        Some(n) => n.min(256),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let pools = pools.get_or_insert_default();
    let key = (std::process::id(), threads);
    if let Some(pool) = pools.get(&key) {
        return Ok(Arc::clone(pool));
    }
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("deltawire-{i}"))
        .build()
        .map_err(|e| PyRuntimeError::new_err(format!("no threads: {e}")))?;
    let pool = Arc::new(pool);
    pools.insert(key, Arc::clone(&pool));
    Ok(pool)
}
