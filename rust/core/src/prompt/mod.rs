//! Who lost the prefix: prompts as segments, the journal of what was sent before, and the verdict.
//!
//! [`cut`] makes ordered [`segment`]s of a body in any dialect, with a [`chain`] of digests over them. The [`journal`]
//! knows the prompts of every conversation and says where a new one leaves the line that it belongs to. The
//! [`verdict`] joins that with what the engine says it reused.

pub mod chain;
pub mod change;
pub mod cut;
pub mod diagnosis;
pub mod excerpt;
pub mod grain;
pub mod journal;
mod learnt;
pub mod raw;
pub mod rendering;
pub mod seen;
pub mod segment;
mod tree;
pub mod verdict;
