//! `count_tokens`: the engine's count in Anthropic's form.

use crate::json::{Kind, Tape, Value};

/// The body for `tokens` tokens. Clients take exactly this member.
pub(crate) fn answer(tokens: u64) -> Vec<u8> {
    format!(r#"{{"input_tokens":{tokens}}}"#).into_bytes()
}

/// The count in an engine's answer: `/tokenize` of vLLM and SGLang (`count`), a Messages endpoint's own
/// (`input_tokens`), or llama.cpp's list of `tokens`. `None` where there is none.
pub(crate) fn tokens(body: &[u8]) -> Option<u64> {
    let mut tape = Tape::new();
    let root = tape.scan(body).ok()?;
    let number = |name| root.get(name).and_then(Value::as_u64);
    let listed = || {
        let tokens = root.get("tokens").filter(|tokens| tokens.kind() == Kind::Array)?;
        u64::try_from(tokens.items().count()).ok()
    };
    number("input_tokens").or_else(|| number("count")).or_else(listed)
}

/// Whether an engine's refusal means that it cannot count, rather than that the request is wrong.
pub(crate) fn cannot_count(status: u16, body: &[u8]) -> bool {
    let mut tape = Tape::new();
    let told = tape.scan(body).ok().filter(|root| root.kind() == Kind::Object);
    match status {
        // A path that is not there; but an unknown model is told to the client.
        404 => told.is_none_or(|root| root.get("detail").is_some() || !String::from_utf8_lossy(body).contains("model")),
        405 | 500..=599 => true,
        _ => told.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_counts_in_its_own_way() {
        assert_eq!(tokens(br#"{"count":35,"max_model_len":65536,"tokens":[1,2]}"#), Some(35));
        assert_eq!(tokens(br#"{"input_tokens":20,"context_management":{"original_input_tokens":20}}"#), Some(20));
        assert_eq!(tokens(br#"{"tokens":[1,2,3]}"#), Some(3));
        assert_eq!(tokens(b"<html>"), None);
        assert_eq!(tokens(b"{}"), None);
    }

    #[test]
    fn a_wrong_request_is_not_estimated() {
        let unknown = br#"{"error":{"message":"The model `nope` does not exist.","type":"NotFoundError","param":"model","code":404}}"#;
        assert!(!cannot_count(404, unknown));
        assert!(cannot_count(404, br#"{"detail":"Not Found"}"#));
        assert!(cannot_count(404, b"<html>"));
        assert!(cannot_count(405, b""));
        assert!(cannot_count(501, b"{}"));
        assert!(!cannot_count(400, br#"{"error":{"message":"bad template"}}"#));
        assert!(!cannot_count(401, br#"{"error":"Unauthorized"}"#));
    }
}
