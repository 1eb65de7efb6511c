//! Borrowed views of what the dialects say: one pass over an object's members, nothing decoded, nothing copied.

pub(crate) mod chat;
pub(crate) mod messages;
