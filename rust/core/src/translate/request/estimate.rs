//! How many tokens a request holds, where no engine can say.

use crate::json::{Kind, Text, Value};

/// Bytes that stand for one token. English prose has four or more a token, code about three and a half.
const BYTES_A_TOKEN: u64 = 3;

/// Tokens of an image: Anthropic's own figure for one of about a megapixel.
const IMAGE_TOKENS: u64 = 1_600;

/// An estimate of the tokens in `system`, `tools` and `messages`: a third of the bytes of all their keys, strings and
/// numbers, decoded, and 1,600 for each image or document that is not text; rounded up, never 0. Keys stand for what the
/// chat template adds. Cache markers and signatures, which no engine sees, do not count.
///
/// It is meant to be too high rather than too low: a client that compacts too late fails, one that compacts early does not.
pub(crate) fn tokens(root: Value<'_>) -> u64 {
    let mut bytes = 0;
    let mut images = 0;
    for field in ["system", "tools", "messages"] {
        if let Some(value) = root.get(field) {
            add(value, &mut bytes, &mut images);
        }
    }
    (bytes.div_ceil(BYTES_A_TOKEN) + images * IMAGE_TOKENS).max(1)
}

fn add(value: Value<'_>, bytes: &mut u64, images: &mut u64) {
    match value.kind() {
        Kind::Array => value.items().for_each(|item| add(item, bytes, images)),
        Kind::Object if is_encoded(value) => *images += 1,
        Kind::Object => {
            for (key, member) in value.members() {
                if !(key.is("cache_control") || key.is("signature")) {
                    *bytes += key.raw().len() as u64;
                    add(member, bytes, images);
                }
            }
        }
        _ => *bytes += value.as_text().map_or(value.raw().len(), Text::decoded_len) as u64,
    }
}

/// Whether an object is the source of an image or document in base64.
fn is_encoded(object: Value<'_>) -> bool {
    crate::normalize::is_type(object, "base64") && object.get("data").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Tape;

    fn count(body: &str) -> u64 {
        tokens(Tape::new().scan(body.as_bytes()).unwrap())
    }

    #[test]
    fn counts_text_and_keys_but_no_markers() {
        assert_eq!(count("{}"), 1);
        assert_eq!(count(r#"{"model":"long name","system":"abcd"}"#), 2);
        // role + user + content + é: 4 + 4 + 7 + 2 bytes.
        assert_eq!(count(r#"{"messages":[{"role":"user","content":"\u00e9"}]}"#), 6);
        let plain = count(r#"{"system":[{"type":"text","text":"abc"}]}"#);
        assert_eq!(count(r#"{"system":[{"type":"text","text":"abc","cache_control":{"type":"ephemeral"}}]}"#), plain);
    }

    #[test]
    fn an_image_counts_by_the_piece() {
        let image = |data: &str| {
            format!(r#"{{"messages":[{{"source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}]}}"#)
        };
        assert_eq!(count(&image("AAAA")), count(&image(&"A".repeat(10_000))));
        assert_eq!(count(&image("AAAA")), 1_602);
    }
}
