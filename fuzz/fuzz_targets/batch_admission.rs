//! Batches: see `proto/tests/targets/batch_admission.rs`, which stable builds run too.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../proto/tests/common/model.rs"]
#[allow(dead_code)]
mod model;

#[path = "../../proto/tests/targets/batch_admission.rs"]
mod target;

fuzz_target!(|data: &[u8]| target::run(data));
