//! What the fuzz targets do. `rust/core/tests/fuzz_targets.rs` runs the same functions over the same seeds as a plain
//! test, so that they work where cargo-fuzz does not.

pub mod seeds;
#[path = "../../core/tests/support/mod.rs"]
pub mod support;
pub mod targets;
