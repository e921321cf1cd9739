//! Elements as unsigned words of 1, 2, 4 or 8 bytes.

use std::fmt::Debug;

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
    /// In ordered-integer space: itself where the sign bit is clear, else all other bits flipped.
    #[must_use]
    fn ordered(self) -> Self;
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
    /// Writes the little-endian bytes to the front of `bytes`.
    ///
    /// # Panics
    /// Where `bytes` is shorter than `WIDTH`.
    fn write(self, bytes: &mut [u8]);
    /// Loads an element from anywhere.
    ///
    /// # Safety
    /// `ptr` is valid for reads of `WIDTH` bytes.
    unsafe fn load(ptr: *const u8) -> Self;
    /// Stores an element anywhere.
    ///
    /// # Safety
    /// `ptr` is valid for writes of `WIDTH` bytes.
    unsafe fn store(self, ptr: *mut u8);
}

macro_rules! word {
    ($unsigned:ty, $signed:ty) => {
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
            fn ordered(self) -> Self {
                // Without a branch, as signs are random, and in the element's own width, for vectors.
                let negative = (self as $signed >> (<$unsigned>::BITS - 1)) as $unsigned;
                self ^ (negative & !Self::SIGN)
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
            fn write(self, bytes: &mut [u8]) {
                bytes[..size_of::<$unsigned>()].copy_from_slice(&self.to_le_bytes());
            }
            #[inline(always)]
            unsafe fn load(ptr: *const u8) -> Self {
                // SAFETY: valid by contract; unaligned is fine.
                <$unsigned>::from_le(unsafe { ptr.cast::<$unsigned>().read_unaligned() })
            }
            #[inline(always)]
            unsafe fn store(self, ptr: *mut u8) {
                // SAFETY: valid by contract; unaligned is fine.
                unsafe { ptr.cast::<$unsigned>().write_unaligned(self.to_le()) }
            }
        }
    };
}

word!(u8, i8);
word!(u16, i16);
word!(u32, i32);
word!(u64, i64);
