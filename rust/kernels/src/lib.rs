//! The inner loops of deltawire over dense tensor memory.
//!
//! - [`block`], [`matrix`], [`target`]: tensors, or shards of them, as byte matrices, read ([`Matrix`]) or
//!   changed in place ([`Target`])
//! - [`scan`]: which elements of two matrices differ
//! - [`compare`]: the same, digesting one of them in the same pass
//! - [`classes`]: elements by exponent, ranks within a class, and back
//! - [`digest`]: the additive state digest, whole and incremental
//! - [`boundary`]: which elements an optimizer's step may have changed, without a copy from before it
//! - [`ordered`]: ordered-integer space, in which neighbouring floats differ by one
//!
//! This is the only crate of the core with `unsafe`; every use states why it holds. Each
//! vectorised loop has a scalar twin that the tests compare it with, and is chosen when the
//! program runs, by what the processor offers.

pub mod block;
pub mod boundary;
pub mod classes;
pub mod compare;
pub mod digest;
mod features;
pub mod matrix;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
pub mod ordered;
pub mod scan;
pub mod target;
pub mod word;

pub use block::Block;
pub use digest::{Digest, MixKey};
pub use matrix::Matrix;
pub use target::{Target, TileMut, Tiles};
pub use word::Word;
