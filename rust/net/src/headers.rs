//! Which headers cross the sidecar, and which belong to one side.

use bytes::Bytes;
use foreword_core::request::Route;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::exchange::Opening;

/// What of the client's headers goes to the engine.
pub(crate) fn upstream_headers(opening: &Opening, translated: bool) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(opening.headers.len() + 2);
    let decoded = opening.route != Route::Other;
    let named = opening.header("connection").unwrap_or_default().to_ascii_lowercase();
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
    let named = sent.get("connection").and_then(|value| value.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
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

/// Whether a header belongs to one connection (RFC 9110, 7.6.1) and never crosses; `named` is the value of that
/// connection's `connection` header, in lower case.
fn hop_by_hop(name: &str, named: &str) -> bool {
    named.split(',').any(|own| own.trim() == name)
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
