//! Tool call ids between an engine, which may use any text, and Anthropic clients, which take `^[a-zA-Z0-9_-]+$`.
//!
//! An id of that alphabet passes as it is. Any other (Kimi's `functions.now:0`) travels escaped behind a marker
//! and comes back to the engine as the engine wrote it: its template may count on the form. Such ids are also
//! unique only within one message, so the escaped form carries a salt of the exchange: an agent that meets one
//! id twice in a conversation takes the second call for the first.

use std::borrow::Cow;

use super::ids;
use crate::request::Ids;

/// Opens an escaped id. Ids of Anthropic's own begin `toolu_01`.
const MARKER: &str = "toolu_x";
/// Alphanumerics between the marker and the underscore before the escaped id.
const SALT: usize = 8;

/// The client's form of an engine's id. [`to_engine`] undoes it.
pub(crate) fn to_client(id: &str, ids: Ids) -> Cow<'_, str> {
    if !id.is_empty() && !id.starts_with(MARKER) && id.bytes().all(is_plain) {
        return Cow::Borrowed(id);
    }
    let mut escaped = format!("{MARKER}{}_", ids::salt(ids));
    for byte in id.bytes() {
        // The underscore is the escape sign, so it is escaped itself.
        if is_plain(byte) && byte != b'_' {
            escaped.push(char::from(byte));
        } else {
            escaped.push('_');
            escaped.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
        }
    }
    Cow::Owned(escaped)
}

/// The engine's own form of an id that a client sends back. `None` for what [`to_client`] did not make: it passes as it is.
pub(crate) fn to_engine(id: &[u8]) -> Option<String> {
    let (salt, escaped) = id.strip_prefix(MARKER.as_bytes())?.split_at_checked(SALT)?;
    if !salt.iter().all(u8::is_ascii_alphanumeric) {
        return None;
    }
    let escaped = escaped.strip_prefix(b"_")?;
    let mut plain = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter().copied();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'_' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            other => other,
        });
    }
    String::from_utf8(plain).ok()
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDS: Ids = Ids { seed: 42 };

    #[test]
    fn plain_ids_pass() {
        for id in ["call_a", "chatcmpl-tool-9f", "toolu_01AbC", "0"] {
            assert_eq!(to_client(id, IDS), id);
            assert_eq!(to_engine(id.as_bytes()), None);
        }
    }

    #[test]
    fn message_scoped_ids_become_unique() {
        let first = to_client("functions.now:0", IDS);
        assert!(first.starts_with("toolu_x") && first.ends_with("_functions_2enow_3a0"), "{first}");
        let second = to_client("functions.now:0", Ids { seed: 43 });
        assert_ne!(first, second);
        for id in [&first, &second] {
            assert_eq!(to_engine(id.as_bytes()).as_deref(), Some("functions.now:0"));
        }
    }

    #[test]
    fn what_only_looks_escaped_stays() {
        for id in ["toolu_x", "toolu_xAAAA_b", "toolu_x01234567_a_zz", "toolu_x01234567_a_f", "toolu_x01234567_a_ff"] {
            assert_eq!(to_engine(id.as_bytes()), None, "{id}");
        }
    }

    proptest! {
        #[test]
        fn every_id_comes_back(id in prop_oneof![".*", "toolu_x[a-z0-9_]{0,20}", "[a-z_-]{1,9}"]) {
            let client = to_client(&id, IDS);
            prop_assert!(!client.is_empty() && client.bytes().all(is_plain));
            let engine = to_engine(client.as_bytes());
            prop_assert_eq!(engine.as_deref().unwrap_or(&client), id.as_str());
        }
    }
}
