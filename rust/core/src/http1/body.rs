//! Bodies, decoded where they lie.

use super::Malformed;

/// Bytes of extensions that one chunk may have, and of trailers: nobody reads them. A stream has chunks without number,
/// and each may have its few.
const UNREAD: u16 = 16 * 1024;

/// The reader of an answer's body: takes its bytes in any pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    at: At,
    /// Bytes of this chunk's extensions, or of trailers, that may still come.
    unread: u16,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// So many bytes of a body whose length was stated.
    Stated(u64),
    /// Bytes until the connection closes.
    UntilClose,
    /// A chunk's size, of which this was read.
    Size {
        size: u64,
        digits: u8,
    },
    /// What stands behind a chunk's size.
    Extension {
        size: u64,
    },
    /// The end of that line.
    SizeLf {
        size: u64,
    },
    /// So many bytes of a chunk.
    Data(u64),
    DataCr,
    DataLf,
    /// The beginning of a line behind the last chunk.
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Over,
    /// What came is no chunk: nothing behind it means anything.
    Malformed,
}

/// What a piece of a body came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes of content, which now stand at the beginning of the piece.
    pub content: usize,
    /// Bytes of the piece that belong to the body: all of them, unless the body is over.
    pub used: usize,
}

impl Body {
    /// A body of `length` bytes.
    pub const fn of_length(length: u64) -> Self {
        Self::new(if length == 0 { At::Over } else { At::Stated(length) })
    }

    /// A chunked body.
    pub const fn chunked() -> Self {
        Self::new(At::Size { size: 0, digits: 0 })
    }

    /// A body that ends with its connection.
    pub const fn until_close() -> Self {
        Self::new(At::UntilClose)
    }

    const fn new(at: At) -> Self {
        Self { at, unread: UNREAD }
    }

    /// Whether it ends otherwise than with its connection.
    pub fn has_an_end(&self) -> bool {
        self.at != At::UntilClose
    }

    /// Whether all of it was read.
    pub fn is_over(&self) -> bool {
        self.at == At::Over
    }

    /// Bytes that are still to come, where that was stated.
    pub fn stated(&self) -> Option<u64> {
        match self.at {
            At::Stated(left) => Some(left),
            At::Over => Some(0),
            _ => None,
        }
    }

    /// Reads the next `piece` of the body: its content is moved to the piece's beginning. What stands before a fault is
    /// content all the same, however it was cut: the fault is told by [`Body::check`] then.
    ///
    /// # Errors
    /// [`Malformed::Chunk`] where there is no content before it.
    pub fn decode(&mut self, piece: &mut [u8]) -> Result<Decoded, Malformed> {
        let (mut read, mut written) = (0, 0);
        while let Some(&byte) = piece.get(read) {
            self.at = match self.at {
                At::Over => break,
                At::Malformed if written > 0 => break,
                At::Malformed => return Err(Malformed::Chunk),
                At::UntilClose => return Ok(Decoded { content: piece.len(), used: piece.len() }),
                At::Stated(left) => {
                    let count = take(piece, &mut read, &mut written, left);
                    if count == left { At::Over } else { At::Stated(left - count) }
                }
                At::Data(left) => {
                    let count = take(piece, &mut read, &mut written, left);
                    if count == left { At::DataCr } else { At::Data(left - count) }
                }
                between => match self.between(between, byte) {
                    Ok(next) => {
                        read += 1;
                        next
                    }
                    Err(_) => At::Malformed,
                },
            };
        }
        Ok(Decoded { content: written, used: read })
    }

    /// Whether all that was read is sound.
    ///
    /// # Errors
    /// [`Malformed::Chunk`].
    pub fn check(&self) -> Result<(), Malformed> {
        if self.at == At::Malformed { Err(Malformed::Chunk) } else { Ok(()) }
    }

    /// The connection closed.
    ///
    /// # Errors
    /// [`Malformed::Cut`] if more should have come.
    pub fn close(&mut self) -> Result<(), Malformed> {
        self.check()?;
        match self.at {
            At::UntilClose | At::Over => {
                self.at = At::Over;
                Ok(())
            }
            _ => Err(Malformed::Cut),
        }
    }

    /// What comes behind `byte`, which is none of the content's (RFC 9112, 7.1).
    fn between(&mut self, at: At, byte: u8) -> Result<At, Malformed> {
        Ok(match (at, byte) {
            (At::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') if digits < 16 => {
                let digit = (byte as char).to_digit(16).unwrap_or_default();
                At::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
            }
            (At::Size { size, digits: 1.. } | At::Extension { size }, b'\r') => At::SizeLf { size },
            // A bare line feed in an extension is how one side's chunk becomes two of the other's.
            (At::Size { size, digits: 1.. }, b';' | b' ' | b'\t') | (At::Extension { size }, _) if byte != b'\n' => {
                self.unread(At::Extension { size })?
            }
            (At::SizeLf { size: 0 } | At::TrailerLf, b'\n') => At::TrailerStart,
            (At::SizeLf { size }, b'\n') => At::Data(size),
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => {
                self.unread = UNREAD;
                At::Size { size: 0, digits: 0 }
            }
            (At::TrailerStart, b'\r') => At::EndLf,
            (At::Trailer, b'\r') => At::TrailerLf,
            (At::TrailerStart | At::Trailer, _) if byte != b'\n' => self.unread(At::Trailer)?,
            (At::EndLf, b'\n') => At::Over,
            _ => return Err(Malformed::Chunk),
        })
    }

    fn unread(&mut self, at: At) -> Result<At, Malformed> {
        self.unread = self.unread.checked_sub(1).ok_or(Malformed::Chunk)?;
        Ok(at)
    }
}

/// Moves at most `left` bytes of content from `read` to `written`; how many they were.
fn take(piece: &mut [u8], read: &mut usize, written: &mut usize, left: u64) -> u64 {
    let count = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len() - *read);
    piece.copy_within(*read..*read + count, *written);
    *read += count;
    *written += count;
    count as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The content of `bytes`, cut behind each of `cuts`, and what is left behind the body.
    fn read(mut body: Body, bytes: &[u8], cuts: &[usize]) -> Result<(Vec<u8>, usize, bool), Malformed> {
        let (mut content, mut from) = (Vec::new(), 0);
        for &cut in cuts.iter().chain([&bytes.len()]) {
            let mut piece = bytes[from..cut].to_vec();
            let decoded = body.decode(&mut piece)?;
            content.extend_from_slice(&piece[..decoded.content]);
            from += decoded.used;
            if decoded.used < piece.len() {
                break;
            }
        }
        body.check()?;
        Ok((content, bytes.len() - from, body.is_over()))
    }

    fn whole(bytes: &str) -> Result<(String, usize, bool), Malformed> {
        let (content, left, over) = read(Body::chunked(), bytes.as_bytes(), &[])?;
        Ok((String::from_utf8(content).unwrap(), left, over))
    }

    #[test]
    fn chunks_are_put_together() {
        assert_eq!(whole("3\r\nabc\r\n00A\r\n0123456789\r\n0\r\n\r\nrest"), Ok(("abc0123456789".into(), 4, true)));
        assert_eq!(whole("1;a=\"b;c\"\r\nx\r\n0 ;z\r\nname: value\r\nother:\r\n\r\n"), Ok(("x".into(), 0, true)));
        assert_eq!(whole("5\r\nab"), Ok(("ab".into(), 0, false)));
        assert_eq!(whole("0\r\n\r\n"), Ok((String::new(), 0, true)));
    }

    #[test]
    fn a_long_stream_may_have_an_extension_a_chunk() {
        let count = usize::from(UNREAD);
        let stream = format!("{}0\r\n\r\n", "1 ;a=b\r\nx\r\n".repeat(count));
        assert_eq!(whole(&stream), Ok(("x".repeat(count), 0, true)));
    }

    #[test]
    fn what_is_no_chunk_is_told() {
        let long = format!("1;{}\r\nx", "e".repeat(usize::from(UNREAD)));
        let trailers = format!("0\r\n{}\r\n", "a: b\r\n".repeat(usize::from(UNREAD) / 4 + 1));
        let bad = [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "1\nx",
            "1\r\nxy",
            "1\r\nx\n",
            "1\r\rx",
            "1;a\nx\r\n",
            "0\r\n\n",
            "0\r\na\n",
            "0\r\n\rx",
            "00000000000000001\r\nx",
            "0x1\r\nx",
            &long,
            &trailers,
        ];
        for bytes in bad {
            assert_eq!(whole(bytes), Err(Malformed::Chunk), "{bytes:.40}");
        }
    }

    #[test]
    fn what_stands_before_a_fault_is_content() {
        for cut in 0..9 {
            let mut body = Body::chunked();
            let mut content = Vec::new();
            let bytes = b"2\r\nab\r\nx\r\n";
            for piece in [&bytes[..cut], &bytes[cut..]] {
                let mut piece = piece.to_vec();
                if let Ok(decoded) = body.decode(&mut piece) {
                    content.extend_from_slice(&piece[..decoded.content]);
                }
            }
            assert_eq!(
                (&content[..], body.check(), body.close()),
                (&b"ab"[..], Err(Malformed::Chunk), Err(Malformed::Chunk))
            );
        }
    }

    #[test]
    fn a_stated_length_ends_where_it_says() {
        assert_eq!(read(Body::of_length(3), b"abcd", &[1]), Ok((b"abc".to_vec(), 1, true)));
        assert_eq!(read(Body::of_length(0), b"x", &[]), Ok((vec![], 1, true)));
        assert_eq!(read(Body::until_close(), b"abcd", &[2]), Ok((b"abcd".to_vec(), 0, false)));
        assert_eq!(Body::of_length(9).stated(), Some(9));
        assert_eq!(Body::chunked().stated(), None);
    }

    #[test]
    fn a_close_is_an_end_only_where_nothing_is_missing() {
        assert_eq!(Body::until_close().close(), Ok(()));
        assert_eq!(Body::of_length(0).close(), Ok(()));
        assert_eq!(Body::of_length(1).close(), Err(Malformed::Cut));
        assert_eq!(Body::chunked().close(), Err(Malformed::Cut));
    }

    proptest! {
        #[test]
        fn any_cut_reads_the_same(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            extension in "(;[a-z=]{0,6})?",
            trailer in "(x: [a-z]{0,6}\r\n){0,2}",
            mut cuts in prop::collection::vec(0_usize..400, 0..12),
        ) {
            let mut bytes = Vec::new();
            for chunk in &chunks {
                bytes.extend_from_slice(format!("{:x}{extension}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(format!("0{extension}\r\n{trailer}\r\n").as_bytes());
            let length = bytes.len();
            bytes.extend_from_slice(b"HTTP/1.1");
            for cut in &mut cuts {
                *cut %= length;
            }
            cuts.sort_unstable();
            prop_assert_eq!(read(Body::chunked(), &bytes, &cuts), Ok((chunks.concat(), 8, true)));
        }

        #[test]
        fn any_bytes_are_read_or_told(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..200) {
            let cut = cut.min(bytes.len());
            prop_assert_eq!(read(Body::chunked(), &bytes, &[cut]), read(Body::chunked(), &bytes, &[]));
        }
    }
}
