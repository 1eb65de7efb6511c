//! JSON as records and reports are written: one object, member by member.

use std::time::Duration;

use foreword_core::json::write_str;

/// An object under construction.
#[derive(Default)]
pub(crate) struct Object {
    members: Vec<u8>,
}

impl Object {
    /// A member whose value is JSON already.
    pub(crate) fn raw(&mut self, key: &str, value: impl AsRef<str>) {
        if !self.members.is_empty() {
            self.members.push(b',');
        }
        write_str(key, &mut self.members);
        self.members.push(b':');
        self.members.extend_from_slice(value.as_ref().as_bytes());
    }

    pub(crate) fn text(&mut self, key: &str, value: Option<&str>) {
        self.raw(key, value.map_or_else(|| "null".into(), literal));
    }

    pub(crate) fn count(&mut self, key: &str, value: Option<u64>) {
        self.raw(key, value.map_or_else(|| "null".into(), |value| value.to_string()));
    }

    pub(crate) fn seconds(&mut self, key: &str, value: Option<Duration>) {
        self.raw(key, value.map_or_else(|| "null".into(), |value| format!("{:.6}", value.as_secs_f64())));
    }

    pub(crate) fn texts<'a>(&mut self, key: &str, values: impl Iterator<Item = &'a str>) {
        self.raw(key, list(values.map(literal)));
    }

    pub(crate) fn end(self) -> String {
        format!("{{{}}}", String::from_utf8_lossy(&self.members))
    }
}

/// An array of values that are JSON already.
pub(crate) fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(","))
}

fn literal(text: &str) -> String {
    let mut quoted = Vec::new();
    write_str(text, &mut quoted);
    String::from_utf8_lossy(&quoted).into_owned()
}
