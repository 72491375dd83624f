//! Batches: see `tests/targets/batch_admission.rs`, which stable builds run too.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/common/model.rs"]
#[allow(dead_code)]
mod model;

#[path = "../../tests/targets/batch_admission.rs"]
mod target;

fuzz_target!(|data: &[u8]| target::run(data));
