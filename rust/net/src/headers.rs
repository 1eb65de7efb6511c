//! Which headers cross the sidecar, and which belong to one side.

use bytes::Bytes;
use foreword_core::request::Route;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::exchange::Opening;

/// What of the client's headers goes to the engine.
pub(crate) fn upstream_headers(opening: &Opening, translated: bool) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(opening.headers.len() + 2);
    let decoded = opening.route != Route::Other;
    let named = options(opening.headers.iter().map(|(name, value)| (name.as_ref(), value.as_ref())));
    for (name, value) in &opening.headers {
        let Ok(text) = std::str::from_utf8(name) else { continue };
        let ours =
            matches!(text, "host" | "content-length" | "accept-encoding" | "expect" | "authorization" | "x-api-key");
        let decoded = decoded && text == "content-encoding";
        let foreign = translated && (text.starts_with("anthropic-") || text == "content-type" || text == "accept");
        if ours || decoded || foreign || hop_by_hop(text, &named) {
            continue;
        }
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    // Compressed answers could not be read, and nothing is gained by compressing for a neighbour.
    headers.insert("accept-encoding", HeaderValue::from_static("identity"));
    if translated {
        headers.insert("content-type", HeaderValue::from_static("application/json"));
    }
    if let Some(Ok(value)) = opening.authorization.as_ref().map(|value| HeaderValue::from_bytes(value)) {
        headers.insert("authorization", value);
    }
    headers
}

/// What of the engine's headers goes to the client.
pub(crate) fn relayed_headers(sent: &HeaderMap) -> Vec<(Bytes, Bytes)> {
    let named = options(sent.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())));
    let kept = sent.iter().filter(|(name, _)| !hop_by_hop(name.as_str(), &named) && !made_here(name.as_str()));
    kept.map(|(name, value)| {
        (Bytes::copy_from_slice(name.as_str().as_bytes()), Bytes::copy_from_slice(value.as_bytes()))
    })
    .collect()
}

/// Headers that the sidecar and its server make themselves.
fn made_here(name: &str) -> bool {
    matches!(name, "date" | "server" | "request-id" | "x-foreword")
}

/// Adds a header of Foreword's own.
pub(crate) fn put(headers: &mut Vec<(Bytes, Bytes)>, name: &'static str, value: &str) {
    headers.push((Bytes::from_static(name.as_bytes()), Bytes::copy_from_slice(value.as_bytes())));
}

/// The media type of an answer, without parameters, in lower case.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// What all `connection` headers among `headers` (names in lower case) name, in lower case.
fn options<'h>(headers: impl Iterator<Item = (&'h [u8], &'h [u8])>) -> Vec<String> {
    let lines = headers.filter(|(name, _)| *name == b"connection");
    let values = lines.filter_map(|(_, value)| std::str::from_utf8(value).ok());
    values.flat_map(|value| value.split(',')).map(|option| option.trim().to_ascii_lowercase()).collect()
}

/// Whether a header belongs to one connection (RFC 9110, 7.6.1) and never crosses; `named` are the [`options`] of that
/// connection.
fn hop_by_hop(name: &str, named: &[String]) -> bool {
    named.iter().any(|own| own == name)
        || matches!(
            name,
            "connection"
                | "keep-alive"
                | "proxy-authenticate"
                | "proxy-authorization"
                | "proxy-connection"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(headers: &[(&str, &str)]) -> Opening {
        let owned = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        Opening {
            route: Route::Chat,
            own: false,
            method: "POST".into(),
            target: "/v1/chat/completions".into(),
            headers: headers.iter().map(|(name, value)| (owned(name), owned(value))).collect(),
            body: Bytes::new().into(),
            request_id: "req_1".into(),
            authorization: None,
        }
    }

    const SENT: [(&str, &str); 6] = [
        ("connection", "Keep-Alive, X-First"),
        ("x-first", "1"),
        ("x-kept", "2"),
        ("connection", "x-second"),
        ("x-second", "3"),
        ("x-third", "4"),
    ];

    #[test]
    fn every_connection_header_of_a_client_names_what_stays_behind() {
        let headers = upstream_headers(&opening(&SENT), false);
        let crossed: Vec<_> = headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with("x-")).collect();
        assert_eq!(crossed, ["x-kept", "x-third"]);
        assert!(!headers.contains_key("connection"));
    }

    #[test]
    fn every_connection_header_of_an_engine_names_what_stays_behind() {
        let mut sent = HeaderMap::new();
        for (name, value) in SENT {
            sent.append(name, HeaderValue::from_static(value));
        }
        let mut crossed: Vec<_> = relayed_headers(&sent).into_iter().map(|(name, _)| name).collect();
        crossed.sort();
        assert_eq!(crossed, ["x-kept", "x-third"]);
    }
}
