//! JSON as spans: a strict scanner, string literals, and edits that leave every other byte alone.

mod edit;
mod marks;
mod scan;
mod text;

pub use edit::{Edits, Rope};
pub use scan::{Items, Kind, MAX_DEPTH, Members, Scanned, Scanning, SyntaxError, Tape, Value, is_literal};
pub use text::{Chars, Text, write_str, write_u64};
