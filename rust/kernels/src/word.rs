//! Elements as unsigned words of 1, 2, 4 or 8 bytes.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};

mod sealed {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// An element's bits. Implemented for `u8`, `u16`, `u32` and `u64`.
pub trait Word: sealed::Sealed + Copy + Default + Eq + Ord + Debug + Send + Sync + 'static {
    /// Width in bytes.
    const WIDTH: usize;
    /// The most significant bit.
    const SIGN: Self;

    /// From the low bits of `value`.
    fn from_u64(value: u64) -> Self;
    /// Zero-extended.
    fn to_u64(self) -> u64;
    /// Sign-extended.
    fn to_i64(self) -> i64;
    /// Addition modulo 2^bits.
    fn wrapping_add(self, other: Self) -> Self;
    /// Subtraction modulo 2^bits.
    fn wrapping_sub(self, other: Self) -> Self;
    /// The first element of `bytes`, little-endian.
    ///
    /// # Panics
    /// Where `bytes` is shorter than `WIDTH`.
    fn read(bytes: &[u8]) -> Self;
    /// Appends the little-endian bytes.
    fn append(self, out: &mut Vec<u8>);
    /// Loads an element that other threads may be storing to.
    ///
    /// # Safety
    /// `ptr` is valid for reads of `WIDTH` bytes, and all concurrent accesses to them are atomic.
    unsafe fn load_relaxed(ptr: *mut u8) -> Self;
    /// Stores an element that other threads may be loading.
    ///
    /// # Safety
    /// `ptr` is valid for writes of `WIDTH` bytes, and all concurrent accesses to them are atomic.
    unsafe fn store_relaxed(self, ptr: *mut u8);
}

macro_rules! word {
    ($unsigned:ty, $signed:ty, $atomic:ty) => {
        impl Word for $unsigned {
            const WIDTH: usize = size_of::<$unsigned>();
            const SIGN: Self = 1 << (<$unsigned>::BITS - 1);

            #[inline(always)]
            fn from_u64(value: u64) -> Self {
                value as $unsigned
            }
            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as $signed as i64
            }
            #[inline(always)]
            fn wrapping_add(self, other: Self) -> Self {
                <$unsigned>::wrapping_add(self, other)
            }
            #[inline(always)]
            fn wrapping_sub(self, other: Self) -> Self {
                <$unsigned>::wrapping_sub(self, other)
            }
            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$unsigned>()];
                raw.copy_from_slice(&bytes[..size_of::<$unsigned>()]);
                <$unsigned>::from_le_bytes(raw)
            }
            #[inline(always)]
            fn append(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            #[inline(always)]
            unsafe fn load_relaxed(ptr: *mut u8) -> Self {
                if (ptr as usize) % align_of::<$atomic>() == 0 {
                    // SAFETY: aligned here; valid and only accessed atomically by contract.
                    let atomic = unsafe { <$atomic>::from_ptr(ptr.cast()) };
                    return <$unsigned>::from_le(atomic.load(Ordering::Relaxed));
                }
                let mut raw = [0; size_of::<$unsigned>()];
                for (i, byte) in raw.iter_mut().enumerate() {
                    // SAFETY: within the WIDTH valid bytes; a byte is always aligned.
                    *byte = unsafe { AtomicU8::from_ptr(ptr.add(i)) }.load(Ordering::Relaxed);
                }
                <$unsigned>::from_le_bytes(raw)
            }
            #[inline(always)]
            unsafe fn store_relaxed(self, ptr: *mut u8) {
                if (ptr as usize) % align_of::<$atomic>() == 0 {
                    // SAFETY: aligned here; valid and only accessed atomically by contract.
                    let atomic = unsafe { <$atomic>::from_ptr(ptr.cast()) };
                    atomic.store(self.to_le(), Ordering::Relaxed);
                    return;
                }
                for (i, byte) in self.to_le_bytes().into_iter().enumerate() {
                    // SAFETY: within the WIDTH valid bytes; a byte is always aligned.
                    unsafe { AtomicU8::from_ptr(ptr.add(i)) }.store(byte, Ordering::Relaxed);
                }
            }
        }
    };
}

word!(u8, i8, AtomicU8);
word!(u16, i16, AtomicU16);
word!(u32, i32, AtomicU32);
word!(u64, i64, AtomicU64);
