//! Borrowed views of the dialects' answers: one pass over an object's members, nothing decoded, nothing copied.

pub(crate) mod chat;
