//! Codecs: how the changes of one tile become bytes.
//!
//! A chunk names one position codec and one value codec, each with a stage behind it. The writer
//! takes what is smallest under its profile; the reader takes whatever the chunk names.

pub mod geometric;
pub mod grouped;
pub mod positions;
pub mod ranks;
pub mod rice;
pub mod stage;
pub mod values;

pub use positions::PositionCodec;
pub use ranks::Partition;
pub use stage::Stage;
pub use values::{ValueCodec, Values};
