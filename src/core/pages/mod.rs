//! Pages of a region: their states, and the bits that say what must still reach the home.

pub mod bitmap;
pub mod diff;
pub mod state;
pub mod table;

pub use bitmap::Bitmap;
pub use state::{Event, State};
pub use table::PageTable;
