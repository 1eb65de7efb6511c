//! As much of HTTP/1.1 as two programs of one house need: heads, body framing, an address.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    str::FromStr,
    time::Duration,
};

use crate::Failure;

/// The peer did not speak HTTP/1.1 as it must.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed HTTP: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for io::Error {
    fn from(error: Malformed) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// No head of an honest peer is longer.
const MAX_HEAD: usize = 64 * 1024;

/// Start line and header fields of a request or a response.
#[derive(Debug)]
pub(crate) struct Head(String);

impl Head {
    /// Reads the head that `input` starts with and the length of it; `None` while it is incomplete.
    pub(crate) fn parse(input: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let Some(end) = input.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if input.len() > MAX_HEAD { Err(Malformed("head too long")) } else { Ok(None) };
        };
        let (head, _) = input.split_at(end);
        let text = std::str::from_utf8(head).map_err(|_| Malformed("head is not text"))?;
        Ok(Some((Self(text.to_owned()), end + 4)))
    }

    /// The words of the start line.
    pub(crate) fn start(&self) -> impl Iterator<Item = &str> {
        self.0.split("\r\n").next().unwrap_or_default().split(' ')
    }

    /// The value of a header field; `name` in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.0.split("\r\n").skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The status of a response.
    pub(crate) fn status(&self) -> Option<u16> {
        self.start().nth(1)?.parse().ok()
    }

    /// How the body is framed; `without` is what no framing header means (nothing in a request, all to the end of file
    /// in a response).
    pub(crate) fn framing(&self, without: Framing) -> Result<Framing, Malformed> {
        if self.field("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            return Ok(Framing::Size { value: 0, digits: 0 });
        }
        match self.field("content-length") {
            None => Ok(without),
            Some(length) => length.parse().map(Framing::Length).map_err(|_| Malformed("content-length")),
        }
    }
}

/// Takes a body out of its framing, however the bytes are cut. Made by [`Head::framing`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// So many bytes to come.
    Length(u64),
    /// All bytes to the end of file.
    ToEnd,
    /// In the hexadecimal digits of a chunk's size line.
    Size { value: u64, digits: u8 },
    /// In the rest of a size line.
    SizeRest { value: u64 },
    /// So many bytes of the chunk to come.
    Chunk(u64),
    /// In the line end after a chunk's bytes.
    ChunkEnd,
    /// In the trailer section; whether the line so far is empty.
    Trailer { empty: bool },
    /// Nothing to come.
    Done,
}

impl Framing {
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done | Self::Length(0))
    }

    /// Takes bytes off the wire and hands the body's among them to `sink`. Returns how many were taken: less than all
    /// only when the body is done.
    pub(crate) fn take(&mut self, wire: &[u8], mut sink: impl FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut rest = wire;
        while let Some((&byte, after)) = rest.split_first() {
            match self {
                Self::Done | Self::Length(0) => break,
                Self::ToEnd => {
                    sink(rest);
                    rest = &[];
                }
                Self::Length(left) | Self::Chunk(left) => {
                    let (body, later) = rest.split_at(usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len()));
                    sink(body);
                    *left -= body.len() as u64;
                    rest = later;
                    if *self == Self::Chunk(0) {
                        *self = Self::ChunkEnd;
                    }
                }
                Self::Size { value, digits } => {
                    *self = match (byte as char).to_digit(16) {
                        Some(digit) if *digits < 15 => {
                            Self::Size { value: *value * 16 + u64::from(digit), digits: *digits + 1 }
                        }
                        Some(_) => return Err(Malformed("chunk size too big")),
                        None if *digits == 0 => return Err(Malformed("chunk size missing")),
                        None => Self::SizeRest { value: *value },
                    };
                    if matches!(self, Self::Size { .. }) {
                        rest = after;
                    }
                }
                Self::SizeRest { value } => {
                    if byte == b'\n' {
                        *self = if *value == 0 { Self::Trailer { empty: true } } else { Self::Chunk(*value) };
                    }
                    rest = after;
                }
                Self::ChunkEnd => {
                    match byte {
                        b'\r' => {}
                        b'\n' => *self = Self::Size { value: 0, digits: 0 },
                        _ => return Err(Malformed("chunk longer than its size")),
                    }
                    rest = after;
                }
                Self::Trailer { empty } => {
                    *self = match byte {
                        b'\n' if *empty => Self::Done,
                        b'\n' => Self::Trailer { empty: true },
                        b'\r' => Self::Trailer { empty: *empty },
                        _ => Self::Trailer { empty: false },
                    };
                    rest = after;
                }
            }
        }
        Ok(wire.len() - rest.len())
    }
}

/// `http://HOST:PORT/PATH`, with the host's first address looked up.
#[derive(Clone, Debug)]
pub(crate) struct Url {
    pub(crate) text: String,
    pub(crate) authority: String,
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("http://").ok_or("only http:// addresses")?;
        let slash = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        let with_port = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
        let address = with_port.to_socket_addrs().map_err(|error| format!("{authority}: {error}"))?.next();
        Ok(Self {
            text: text.to_owned(),
            authority: authority.to_owned(),
            address: address.ok_or("no address")?,
            path: if path.is_empty() { "/".to_owned() } else { path.to_owned() },
        })
    }
}

impl Url {
    /// Whether this is an Anthropic Messages endpoint; else it is chat.
    pub(crate) fn is_messages(&self) -> bool {
        self.path.ends_with("/messages")
    }

    /// Posts nothing to `path` of this server and returns the body of its 200.
    pub(crate) fn post(&self, path: &str) -> Result<String, Failure> {
        let mut socket = TcpStream::connect(self.address)?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        let authority = &self.authority;
        write!(socket, "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer)?;
        let (head, length) = Head::parse(&answer)?.ok_or(Malformed("cut in the head"))?;
        let body = String::from_utf8_lossy(answer.get(length..).unwrap_or_default()).into_owned();
        if head.status() == Some(200) { Ok(body) } else { Err(format!("http://{authority}{path}: {body}").into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: &[u8] = b"4\r\nabcd\r\n1a;ext=1\r\nefghijklmnopqrstuvwxyz0123\r\n0\r\nx-trailer: 1\r\n\r\nNEXT";

    fn decode(mut framing: Framing, wire: &[u8], step: usize) -> Result<(Vec<u8>, usize, bool), Malformed> {
        let (mut body, mut taken) = (Vec::new(), 0);
        for piece in wire.chunks(step) {
            let n = framing.take(piece, |bytes| body.extend_from_slice(bytes))?;
            taken += n;
            if n < piece.len() {
                break;
            }
        }
        Ok((body, taken, framing.is_done()))
    }

    #[test]
    fn chunked_body_is_the_same_for_any_cut() {
        for step in 1..=CHUNKED.len() {
            let (body, taken, done) = decode(Framing::Size { value: 0, digits: 0 }, CHUNKED, step).unwrap();
            assert_eq!(body, b"abcdefghijklmnopqrstuvwxyz0123", "cut every {step}");
            assert_eq!((taken, done), (CHUNKED.len() - 4, true), "cut every {step}");
        }
    }

    #[test]
    fn length_stops_before_the_next_message() {
        for step in 1..8 {
            assert_eq!(decode(Framing::Length(3), b"abcNEXT", step).unwrap(), (b"abc".to_vec(), 3, true));
        }
        assert!(!decode(Framing::Length(9), b"abc", 1).unwrap().2);
        assert!(Framing::Length(0).is_done());
    }

    #[test]
    fn wrong_chunks_are_refused() {
        for wrong in [&b"\r\n"[..], b"2\r\nabc", b"x", b"1111111111111111\r\n"] {
            assert!(decode(Framing::Size { value: 0, digits: 0 }, wrong, 1).is_err());
        }
    }

    #[test]
    fn head_gives_fields_and_framing() {
        let wire = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b:c \r\n\r\nhello";
        let (head, length) = Head::parse(wire).unwrap().unwrap();
        assert_eq!(&wire[length..], b"hello");
        assert_eq!((head.status(), head.field("x-a")), (Some(200), Some("b:c")));
        assert_eq!(head.framing(Framing::ToEnd), Ok(Framing::Length(5)));
        assert!(Head::parse(&wire[..length - 1]).unwrap().is_none());
        let (bare, _) = Head::parse(b"HTTP/1.1 200 OK\r\n\r\n").unwrap().unwrap();
        assert_eq!(bare.framing(Framing::ToEnd), Ok(Framing::ToEnd));
    }

    #[test]
    fn url_parts() {
        let url: Url = "http://127.0.0.1:8400/v1/messages".parse().unwrap();
        assert_eq!((url.address.port(), url.path.as_str(), url.is_messages()), (8400, "/v1/messages", true));
        assert_eq!("http://127.0.0.1".parse::<Url>().unwrap().path, "/");
        assert!("https://127.0.0.1".parse::<Url>().is_err());
    }
}
