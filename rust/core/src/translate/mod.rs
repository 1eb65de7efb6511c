//! Between Anthropic Messages and chat completions, both ways.

mod arguments;
mod blocks;
pub(crate) mod count;
pub(crate) mod error;
mod events;
mod frame;
pub(crate) mod ids;
mod literal;
pub(crate) mod models;
mod overflow;
mod payload;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod stream;
pub(crate) mod tool_id;
mod turn;

pub(crate) use literal::write_str;
