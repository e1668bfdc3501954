//! The C API: `extern "C"` functions over the engine. The header is made from this module and from nothing else.

pub mod version;
