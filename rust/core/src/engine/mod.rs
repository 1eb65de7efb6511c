//! Pure models of what inference engines keep of the prompts they have read.
//!
//! A model knows tokens and order of use, never time or memory: the stand-in engine puts the clock to it.

pub mod blocks;
pub mod checkpoints;
pub mod parking;
pub mod simulate;
pub mod snapshot;
pub mod strata;
