//! Results as JSON or as lines for people. Times are in seconds; what was not measured is null.

use std::fmt::Write;

use crate::clock;

/// A value of a report.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Absent,
    Integer(u64),
    Number(f64),
    Text(String),
    Object(Vec<(&'static str, Value)>),
}

impl Value {
    /// `None` as null.
    pub(crate) fn maybe<T>(value: Option<T>, some: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Absent, some)
    }

    pub(crate) fn print(&self, json: bool) {
        let mut text = String::new();
        if json {
            self.write_json(&mut text);
            text.push('\n');
        } else {
            self.write_lines(&mut text, "");
        }
        print!("{text}");
    }

    fn write_json(&self, out: &mut String) {
        match self {
            Self::Integer(value) => out.push_str(&value.to_string()),
            Self::Number(value) if value.is_finite() => out.push_str(&value.to_string()),
            Self::Absent | Self::Number(_) => out.push_str("null"),
            Self::Text(text) => write_json_text(text, out),
            Self::Object(members) => {
                out.push('{');
                for (n, (name, value)) in members.iter().enumerate() {
                    out.push_str(if n == 0 { "" } else { "," });
                    write_json_text(name, out);
                    out.push(':');
                    value.write_json(out);
                }
                out.push('}');
            }
        }
    }

    fn write_lines(&self, out: &mut String, name: &str) {
        match self {
            Self::Object(members) => {
                for (member, value) in members {
                    let separator = if name.is_empty() { "" } else { "." };
                    value.write_lines(out, &format!("{name}{separator}{member}"));
                }
            }
            Self::Text(text) => line(out, name, text),
            Self::Number(value) => line(out, name, &format!("{value:.6}")),
            Self::Absent => line(out, name, "-"),
            Self::Integer(value) => line(out, name, &value.to_string()),
        }
    }
}

fn line(out: &mut String, name: &str, value: &str) {
    let _ = writeln!(out, "{name:24} {value}");
}

fn write_json_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Times in nanoseconds, for percentiles.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<u64>);

impl Times {
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    pub(crate) fn add(&mut self, ns: u64) {
        self.0.push(ns);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The percentiles that `wanted` names (as shares of 1) and the maximum, in seconds; null without any time.
    pub(crate) fn percentiles(mut self, wanted: &[(&'static str, f64)]) -> Value {
        self.0.sort_unstable();
        let Some(max) = self.0.last() else { return Value::Absent };
        let mut members: Vec<_> =
            wanted.iter().map(|&(name, share)| (name, Value::Number(clock::seconds(rank(&self.0, share))))).collect();
        members.push(("max", Value::Number(clock::seconds(*max))));
        Value::Object(members)
    }
}

/// The smallest of the sorted values that at least `share` of all do not exceed.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
fn rank(sorted: &[u64], share: f64) -> u64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!((rank(&hundred, 0.5), rank(&hundred, 0.99), rank(&hundred, 0.999)), (50, 99, 100));
        assert_eq!(rank(&[7], 0.5), 7);
        assert!(matches!(Times::default().percentiles(&[]), Value::Absent));
    }

    #[test]
    fn json_is_escaped_and_absent_is_null() {
        let value = Value::Object(vec![
            ("a", Value::Text("x\"\\\n".into())),
            ("b", Value::Object(vec![("c", Value::Integer(1)), ("d", Value::Absent)])),
            ("e", Value::Number(0.25)),
            ("f", Value::Number(f64::NAN)),
        ]);
        let mut text = String::new();
        value.write_json(&mut text);
        assert_eq!(text, r#"{"a":"x\"\\\u000a","b":{"c":1,"d":null},"e":0.25,"f":null}"#);
    }
}
