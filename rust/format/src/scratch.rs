//! Memory that is used again and again, by whoever needs it next.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

/// Memory of one tile that is worth keeping.
pub(crate) const KEPT_BYTES: usize = 2 << 20;

/// Lends values of any type, and takes them back for the next one.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Mutex<Vec<Box<dyn Any + Send>>>,
}

/// Memory that may be worth keeping.
pub(crate) trait Reusable: Default + Send + 'static {
    /// Whether it is small enough to be kept.
    fn keep(&self) -> bool;
}

impl Pool {
    /// Runs `work` with a value that was used before, or a new one.
    pub(crate) fn with<T: Reusable, R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.take::<T>();
        let result = work(&mut value);
        if value.keep() {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.push(value);
        }
        result
    }

    fn take<T: Reusable>(&self) -> Box<T> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.iter().rposition(|value| value.is::<T>());
        at.and_then(|at| free.swap_remove(at).downcast().ok())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Reusable for Vec<u8> {
        fn keep(&self) -> bool {
            self.capacity() < 100
        }
    }

    #[test]
    fn memory_comes_back_unless_it_is_large() {
        let pool = Pool::default();
        let first = pool.with(|v: &mut Vec<u8>| {
            v.push(1);
            v.as_ptr() as usize
        });
        pool.with(|v: &mut Vec<u8>| {
            assert_eq!((v.as_ptr() as usize, v.len()), (first, 1));
            // One that is needed at the same time is another one.
            pool.with(|w: &mut Vec<u8>| assert!(w.is_empty()));
            v.reserve(1000);
        });
        pool.with(|v: &mut Vec<u8>| assert!(v.is_empty()));
    }
}
