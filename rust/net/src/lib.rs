//! Foreword's network half: one upstream engine, many exchanges, one completion port.
//!
//! Everything runs on one thread of its own with a tokio runtime that never meets the GIL. Python opens an
//! exchange ([`Gateway::open`]), waits on the port's file descriptor, and takes what is ready ([`Port::drain`]).

pub mod capture;
pub mod clickhouse;
pub mod digest;
mod ending;
mod excerpts;
pub mod exchange;
pub mod export;
pub mod gateway;
pub mod gathering;
mod headers;
mod json;
pub mod ledger;
pub mod lull;
pub mod notices;
pub mod outbox;
mod pipeline;
mod prefixes;
mod queue;
pub mod record;
mod rendering;
mod silence;
pub mod stats;
mod stop;
mod target;
mod told;
pub mod upstream;
pub mod who;

pub use exchange::{Head, Opening};
pub use gateway::{Config, Gateway};
pub use outbox::{Port, Ready};
