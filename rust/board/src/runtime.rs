//! One small tokio runtime for the whole process.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, ErrorKind, Result};

static RUNTIME: Mutex<Option<(u32, Arc<Runtime>)>> = Mutex::new(None);

/// The runtime of this process. A forked child gets its own: the parent's threads do not exist there.
pub(crate) fn runtime() -> Result<Arc<Runtime>> {
    let mut slot = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((owner, runtime)) = slot.as_ref() {
        if *owner == process {
            return Ok(Arc::clone(runtime));
        }
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("deltawire-board")
        .enable_all()
        .build()
        .map_err(|error| {
            Error::new(
                ErrorKind::Store,
                format!("cannot start the I/O threads: {error}"),
            )
        })?;
    let runtime = Arc::new(runtime);
    if let Some(foreign) = slot.replace((process, Arc::clone(&runtime))) {
        // Dropping it would wait for threads that the fork did not copy.
        std::mem::forget(foreign);
    }
    Ok(runtime)
}

/// Runs `future` to its end on the calling thread. Not to be called from within a tokio task.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output> {
    Ok(runtime()?.block_on(future))
}
