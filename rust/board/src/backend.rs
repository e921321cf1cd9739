//! What lies beneath a board's storage operations.

use std::sync::Arc;

use object_store::ObjectStore;

use crate::error::Result;
use crate::faults::{FaultPlan, FaultyStore};
use crate::remote::RemoteClient;

/// An object store.
#[derive(Debug, Clone)]
pub(crate) enum Backend {
    /// Of this machine: a directory, or memory.
    Near(Arc<dyn ObjectStore>),
    /// Reached by network.
    Remote(Arc<RemoteClient>),
    /// One of these, with faults before it.
    Faulty(Box<Backend>, Arc<FaultPlan>),
}

impl Backend {
    /// The store, connected.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Store`] for a client that cannot be made.
    pub(crate) fn client(&self) -> Result<Arc<dyn ObjectStore>> {
        Ok(match self {
            Self::Near(store) => Arc::clone(store),
            Self::Remote(client) => client.get()?,
            Self::Faulty(backend, plan) => {
                Arc::new(FaultyStore::new(backend.client()?, Arc::clone(plan)))
            }
        })
    }

    /// Whether it is reached by network.
    pub(crate) fn is_remote(&self) -> bool {
        match self {
            Self::Near(_) => false,
            Self::Remote(_) => true,
            Self::Faulty(backend, _) => backend.is_remote(),
        }
    }
}
