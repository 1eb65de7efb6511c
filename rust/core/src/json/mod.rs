//! JSON as spans: a strict scanner, the values that it found, string literals, and edits that leave every other byte
//! alone.

mod edit;
mod marks;
mod scan;
mod text;
mod value;

pub use edit::{Edits, Rope};
pub use scan::{Kind, MAX_DEPTH, Scanned, Scanning, SyntaxError, Tape, is_literal};
pub use text::{Chars, Text, write_str, write_u64};
pub use value::{Items, Members, Value};
