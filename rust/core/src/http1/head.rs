//! Heads: ours as bytes, the engine's from bytes, and what the latter says of its body.

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::{Body, Malformed};

/// The longest head that is read, in bytes, interim answers before it included.
pub const HEAD_BYTES: usize = 64 * 1024;

/// The most headers of an answer.
const HEADERS: usize = 128;

/// The head of an answer.
#[derive(Debug)]
pub struct AnswerHead {
    /// Its status.
    pub status: StatusCode,
    /// Its headers, in the order in which they came.
    pub headers: HeaderMap,
    /// Whether the connection can be used again once the body has been read.
    pub keeps: bool,
}

/// The head of a request of `length` body bytes. `target` is a path and query, `host` the authority; `headers` hold
/// neither `host` nor anything that says how long the body is.
pub fn write_head(method: &Method, target: &str, host: &str, headers: &HeaderMap, length: usize) -> Vec<u8> {
    let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>();
    let mut head = Vec::with_capacity(target.len() + host.len() + fields + 80);
    for part in [method.as_str(), " ", target, " HTTP/1.1\r\nhost: ", host, "\r\n"] {
        head.extend_from_slice(part.as_bytes());
    }
    for (name, value) in headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    // RFC 9110, 8.6: a method that means a body says even that there is none.
    if length > 0 || matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        head.extend_from_slice(format!("content-length: {length}\r\n").as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Reads the head of the answer to a request of `method` from the beginning of `bytes`. The head, the reader of its body,
/// and how many bytes the head is long; `None` while it is not whole. Interim answers (1xx) are passed over.
///
/// # Errors
/// [`Malformed::Head`].
pub fn read_head(bytes: &[u8], method: &Method) -> Result<Option<(AnswerHead, Body, usize)>, Malformed> {
    let mut from = 0;
    loop {
        let mut fields = [httparse::EMPTY_HEADER; HEADERS];
        let mut parsed = httparse::Response::new(&mut fields);
        let rest = bytes.get(from..).unwrap_or_default();
        let length = match parsed.parse(rest) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES => return Ok(None),
            Ok(httparse::Status::Partial) => return Err(Malformed::Head("it is too long")),
            Err(error) => return Err(Malformed::Head(told(error))),
        };
        let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(Malformed::Head("its status is none"))?;
        from += length;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Malformed::Head("it changes to a protocol that nobody asked for"));
        }
        if status.is_informational() {
            continue;
        }
        let mut headers = HeaderMap::with_capacity(parsed.headers.len());
        for field in parsed.headers.iter() {
            let name = HeaderName::from_bytes(field.name.as_bytes());
            let value = HeaderValue::from_bytes(field.value);
            let (Ok(name), Ok(value)) = (name, value) else {
                return Err(Malformed::Head("it has a header that is none"));
            };
            headers.append(name, value);
        }
        let body = body_of(method, status, &headers)?;
        let keeps = body.has_an_end() && keeps(parsed.version == Some(1), &headers);
        return Ok(Some((AnswerHead { status, headers, keeps }, body, from)));
    }
}

/// How long the body is (RFC 9112, 6.3).
fn body_of(method: &Method, status: StatusCode, headers: &HeaderMap) -> Result<Body, Malformed> {
    let bare = *method == Method::HEAD || *method == Method::CONNECT && status.is_success();
    if bare || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok(Body::of_length(0));
    }
    // A list may have empty members (RFC 9110, 5.6.1), and before RFC 7230 `identity` was a coding.
    let mut codings = tokens(headers, &TRANSFER_ENCODING).filter(|coding| !matches!(&**coding, "" | "identity"));
    match (codings.next().as_deref(), codings.next()) {
        (None, _) => (),
        (Some("chunked"), None) => return Ok(Body::chunked()),
        // No other is decoded, and `te` names none: its bytes are not the content.
        _ => return Err(Malformed::Head("it has a transfer coding that nobody asked for")),
    }
    let mut lengths = tokens(headers, &CONTENT_LENGTH);
    let Some(first) = lengths.next() else { return Ok(Body::until_close()) };
    // A sign is no digit, whatever a parser of numbers takes.
    let length = first.bytes().all(|byte| byte.is_ascii_digit()).then(|| first.parse().ok()).flatten();
    match length {
        Some(length) if lengths.all(|other| other == first) => Ok(Body::of_length(length)),
        _ => Err(Malformed::Head("its length is none")),
    }
}

/// Whether the connection stays open behind the answer (RFC 9112, 9.3).
fn keeps(current: bool, headers: &HeaderMap) -> bool {
    let said = |option: &str| tokens(headers, &CONNECTION).any(|token| token == option);
    !said("close") && (current || said("keep-alive"))
}

/// The members of a header that is a list, in lower case. A value that is no text has none.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = String> + use<'a> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|token| token.trim().to_ascii_lowercase())
}

fn told(error: httparse::Error) -> &'static str {
    match error {
        httparse::Error::TooManyHeaders => "it has too many headers",
        httparse::Error::Status => "its status is none",
        httparse::Error::Version => "it begins otherwise",
        _ => "it has a header that is none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::Decoded;

    fn read(text: &str) -> Result<Option<(AnswerHead, Body, usize)>, Malformed> {
        read_head(text.as_bytes(), &Method::POST)
    }

    /// What the body behind `head` is made of, and whether the connection is kept.
    fn body(head: &str) -> (Body, bool) {
        let (head, body, _) = read(&format!("{head}\r\n\r\n")).unwrap().unwrap();
        (body, head.keeps)
    }

    #[test]
    fn a_request_says_where_it_goes_and_how_long_it_is() {
        let mut headers = HeaderMap::new();
        headers.append("accept", HeaderValue::from_static("a"));
        headers.append("accept", HeaderValue::from_static("b"));
        let head = |method: Method, length| {
            String::from_utf8(write_head(&method, "/v1/x?y", "h:1", &headers, length)).unwrap()
        };
        let common = " /v1/x?y HTTP/1.1\r\nhost: h:1\r\naccept: a\r\naccept: b\r\n";
        assert_eq!(head(Method::POST, 12), format!("POST{common}content-length: 12\r\n\r\n"));
        assert_eq!(head(Method::POST, 0), format!("POST{common}content-length: 0\r\n\r\n"));
        assert_eq!(head(Method::GET, 0), format!("GET{common}\r\n"));
        assert_eq!(head(Method::DELETE, 2), format!("DELETE{common}content-length: 2\r\n\r\n"));
    }

    #[test]
    fn a_head_is_read_when_it_is_whole() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-A: \x7e\r\nx-a:  2 \r\n\r\nhi";
        for cut in 0..text.len() - 2 {
            assert!(read(&text[..cut]).unwrap().is_none(), "{cut}");
        }
        let (head, body, length) = read(text).unwrap().unwrap();
        assert_eq!((head.status.as_u16(), head.keeps, length), (200, true, text.len() - 2));
        assert_eq!(head.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["~", "2"]);
        assert_eq!(body, Body::of_length(2));
    }

    #[test]
    fn interim_answers_are_passed_over() {
        let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n";
        assert!(read(early).unwrap().is_none());
        let (head, _, length) = read(&format!("{early}HTTP/1.1 404 No\r\n\r\n")).unwrap().unwrap();
        assert_eq!((head.status.as_u16(), length), (404, early.len() + 19));
        assert!(head.headers.is_empty());
        assert!(read("HTTP/1.1 101 Switching Protocols\r\n\r\n").is_err());
    }

    #[test]
    fn the_length_of_a_body_is_as_the_rfc_says() {
        assert_eq!(body("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"), (Body::chunked(), true));
        assert_eq!(
            body("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked ,\r\nTransfer-Encoding:"),
            (Body::chunked(), true)
        );
        let both = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked";
        assert_eq!(body(both), (Body::chunked(), true));
        let identity = "HTTP/1.1 200 OK\r\ntransfer-encoding: identity";
        assert_eq!(body(&format!("{identity}\r\ncontent-length: 3")), (Body::of_length(3), true));
        assert_eq!(body(identity), (Body::until_close(), false));
        for coding in ["gzip", "gzip, chunked", "chunked, gzip", "chunked, chunked"] {
            assert!(read(&format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\n")).is_err(), "{coding}");
        }
        assert_eq!(body("HTTP/1.1 200 OK"), (Body::until_close(), false));
        assert_eq!(body("HTTP/1.1 200 OK\r\ncontent-length: 3, 3"), (Body::of_length(3), true));
        assert_eq!(body("HTTP/1.1 204 None\r\ncontent-length: 3"), (Body::of_length(0), true));
        for bad in ["3, 4", "-3", "+3", "3x", "", "99999999999999999999"] {
            assert!(read(&format!("HTTP/1.1 200 OK\r\ncontent-length: {bad}\r\n\r\n")).is_err(), "{bad:?}");
        }
        let head = read_head(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", &Method::HEAD).unwrap().unwrap();
        assert_eq!(head.1, Body::of_length(0));
    }

    #[test]
    fn a_connection_is_kept_as_its_version_says() {
        assert!(body("HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: x, keep-alive").1);
        assert!(!body("HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: Close").1);
        assert!(!body("HTTP/1.0 200 OK\r\ncontent-length: 1").1);
        assert!(body("HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: keep-alive").1);
    }

    #[test]
    fn what_is_no_head_is_told_at_once() {
        for bad in
            ["SSH-2.0-OpenSSH\r\n", "<html>", "HTTP/2 200\r\n", "HTTP/1.1 20x\r\n", "HTTP/1.1 200 OK\r\na b: c\r\n"]
        {
            assert!(matches!(read(bad), Err(Malformed::Head(_))), "{bad:?}");
        }
        let long = format!("HTTP/1.1 200 OK\r\na: {}", "x".repeat(HEAD_BYTES));
        assert_eq!(read(&long).unwrap_err(), Malformed::Head("it is too long"));
        let early = "HTTP/1.1 102 Processing\r\n\r\n".repeat(HEAD_BYTES / 27 + 1);
        assert_eq!(read(&early).unwrap_err(), Malformed::Head("it is too long"));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(HEADERS + 1));
        assert_eq!(read(&many).unwrap_err(), Malformed::Head("it has too many headers"));
    }

    #[test]
    fn a_body_follows_its_head() {
        let mut text = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n".to_vec();
        let (_, mut body, length) = read_head(&text, &Method::GET).unwrap().unwrap();
        let Decoded { content, .. } = body.decode(&mut text[length..]).unwrap();
        assert_eq!(&text[length..length + content], b"hi");
        assert!(body.is_over());
    }
}
