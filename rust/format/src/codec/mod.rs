//! Codecs: how the changes of one tile become bytes.
//!
//! A chunk names one position codec and one value codec, each with a stage behind it. The writer
//! takes what is smallest under its profile; the reader takes whatever the chunk names.

pub mod classes;
pub mod geometric;
pub mod law;
mod parameters;
pub mod positions;
pub mod rice;
pub mod stage;
pub mod tables;
pub mod values;

pub use classes::Partition;
pub use positions::PositionCodec;
pub use stage::Stage;
pub use values::{ValueCodec, Values};
