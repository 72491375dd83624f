//! Frames: see `proto/tests/targets/frame.rs`, which stable builds run too.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../proto/tests/targets/frame.rs"]
mod target;

fuzz_target!(|data: &[u8]| target::run(data));
