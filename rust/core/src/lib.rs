//! The pure half of Foreword: bytes in, bytes out.
//!
//! Nothing here does I/O, starts a thread or knows Python. Data flows one way:
//! [`json`] finds the spans of a body, [`normalize`] decides what must change,
//! [`translate`] turns a request of one dialect into another, and [`answer`]
//! turns what the engine sends back into what the client reads. [`http1`] is how both travel. [`prompt`]
//! knows what was sent before, and says who lost the prefix.

pub mod answer;
pub mod encoding;
pub mod engine;
pub mod error;
pub mod http1;
pub mod json;
pub mod normalize;
pub mod profile;
pub mod prompt;
mod relay;
pub mod request;
pub mod sse;
pub mod translate;
pub mod usage;
pub mod wire;
