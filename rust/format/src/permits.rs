//! Bounds how many dense tiles are worked on at once, whatever the number of threads.

use std::sync::{Condvar, Mutex, PoisonError};

/// Changes of a tile from which on its lists are large.
const DENSE: usize = 1 << 17;
/// Dense tiles at once. Each takes some 20 MiB while it is coded.
const AT_ONCE: usize = 4;

/// Permits for dense tiles. A holder never waits for anything, so nobody waits for long.
#[derive(Debug)]
pub(crate) struct Permits {
    free: Mutex<usize>,
    returned: Condvar,
}

/// Given back when dropped.
pub(crate) struct Permit<'a>(Option<&'a Permits>);

impl Permits {
    pub(crate) fn new() -> Self {
        Self {
            free: Mutex::new(AT_ONCE),
            returned: Condvar::new(),
        }
    }

    /// Waits for a permit if a tile has that many changes.
    pub(crate) fn enter(&self, changes: usize) -> Permit<'_> {
        if changes < DENSE {
            return Permit(None);
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self
                .returned
                .wait(free)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Permit(Some(self))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(permits) = self.0 {
            *permits.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            permits.returned.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_more_than_some_at_once() {
        let permits = Permits::new();
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _permit = permits.enter(DENSE);
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!((1..=AT_ONCE).contains(&most.into_inner()));
        // Sparse tiles never wait.
        let held: Vec<_> = (0..AT_ONCE).map(|_| permits.enter(DENSE)).collect();
        drop(permits.enter(DENSE - 1));
        drop(held);
    }
}
