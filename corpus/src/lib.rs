//! What every crate with envelope types is held to: for tests and fuzzers, never for the product.
//!
//! * [`Corpus`]: bytes of each version of each type, checked in and never rewritten. A type without
//!   an entry, bytes that changed without a new version, and old bytes that suddenly mean something
//!   else fail a test.
//! * [`compat`]: what a reader of one version does with the bytes of another.
//! * [`target`]: what the fuzzers do with their input, and what has to hold.
//! * [`mutate`]: the same without a fuzzer: damaged copies of good inputs, the same ones each time.
//! * [`memory`]: what a decoder allocates.
//!
//! What this crate must not know: any one type.

pub mod compat;
mod declared;
mod file;
mod hex;
pub mod memory;
mod messages;
pub mod mutate;
mod store;
pub mod target;

pub use store::{Corpus, UPDATE};
