//! Request bodies in a content encoding, decoded within a bound.

use std::io::{self, Read};

use bytes::Bytes;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::FrameDecoderError;

use crate::error::{Fault, Kind, Source};

/// At most so many codings one over another: more is an attack, not a need.
const MAX_CODINGS: usize = 4;

/// The zstd window, in bytes, that every decoder should take (RFC 8878, 3.1.1.1.2). A decoder holds a window back, so
/// beyond this it is bounded by the limit.
const MIN_WINDOW: u64 = 8 << 20;

/// Decodes `body`, whose `content-encoding` header reads `content_encoding` (codings in the order in which they were
/// put on). gzip, deflate, zstd and identity are known; `limit` is the most bytes that any step may give.
///
/// # Errors
/// 415 for another coding, 413 beyond the limit, 400 where the data is broken.
pub fn decode(content_encoding: &str, body: Bytes, limit: usize) -> Result<Bytes, Fault> {
    let codings: Vec<_> = content_encoding.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
    if codings.len() > MAX_CODINGS {
        return Err(fault(Kind::Invalid, 400, "The request body has too many content encodings."));
    }
    codings.iter().rev().try_fold(body, |body, coding| match coding.as_str() {
        "" | "identity" => within(body, limit),
        "gzip" | "x-gzip" => read(MultiGzDecoder::new(&*body), limit),
        "deflate" => deflate(&body, limit),
        "zstd" => zstd(&body, limit),
        _ => Err(fault(
            Kind::Invalid,
            415,
            "The content encoding of the request body is not supported; use gzip, deflate, zstd or none.",
        )),
    })
}

fn within(body: Bytes, limit: usize) -> Result<Bytes, Fault> {
    if body.len() > limit { Err(too_large(limit)) } else { Ok(body) }
}

/// HTTP's deflate is zlib; some clients send the bare stream all the same.
fn deflate(body: &[u8], limit: usize) -> Result<Bytes, Fault> {
    match read(ZlibDecoder::new(body), limit) {
        Err(fault) if fault.status == 400 => read(DeflateDecoder::new(body), limit),
        other => other,
    }
}

/// The frames of a zstd body, one after the other.
fn zstd(body: &[u8], limit: usize) -> Result<Bytes, Fault> {
    let window = (limit as u64).max(MIN_WINDOW);
    let mut rest = body;
    let mut plain = Vec::new();
    loop {
        let mut decoder =
            StreamingDecoder::new_with_max_window_size(&mut rest, window).map_err(|error| match error {
                FrameDecoderError::WindowSizeTooBig { .. } => too_large(limit),
                _ => broken(),
            })?;
        fill(&mut decoder, &mut plain, limit)?;
        if rest.is_empty() {
            return Ok(plain.into());
        }
    }
}

fn read(mut decoder: impl Read, limit: usize) -> Result<Bytes, Fault> {
    let mut plain = Vec::new();
    fill(&mut decoder, &mut plain, limit)?;
    Ok(plain.into())
}

/// Reads to the end of `decoder`. One byte more than allowed is asked for, to tell the limit from the end.
fn fill(decoder: &mut impl Read, plain: &mut Vec<u8>, limit: usize) -> Result<(), Fault> {
    let left = (limit - plain.len()) as u64;
    decoder.take(left.saturating_add(1)).read_to_end(plain).map_err(|_: io::Error| broken())?;
    if plain.len() > limit { Err(too_large(limit)) } else { Ok(()) }
}

fn too_large(limit: usize) -> Fault {
    fault(Kind::TooLarge, 413, format!("The request body is larger than {limit} bytes when decoded."))
}

fn broken() -> Fault {
    fault(Kind::Invalid, 400, "The request body does not decode by its content encoding.")
}

fn fault(kind: Kind, status: u16, message: impl Into<String>) -> Fault {
    Fault::new(kind, Source::Client, status, message)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// `plain` in `coding`.
    fn encode(coding: &str, plain: &[u8]) -> Vec<u8> {
        match coding {
            "gzip" | "x-gzip" => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            "deflate" => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            "raw" => {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            "zstd" => compress_to_vec(plain, CompressionLevel::Fastest),
            _ => plain.to_vec(),
        }
    }

    fn status(coding: &str, body: &[u8], limit: usize) -> u16 {
        decode(coding, Bytes::copy_from_slice(body), limit).map_or_else(|fault| fault.status, |_| 200)
    }

    #[test]
    fn every_coding_is_undone() {
        for coding in ["gzip", "x-gzip", "deflate", "zstd", "identity", "", "GZip"] {
            let body = encode(&coding.to_lowercase(), b"{\"a\":1}");
            assert_eq!(decode(coding, body.into(), 100).unwrap(), "{\"a\":1}", "{coding}");
        }
        assert_eq!(decode("zstd", encode("zstd", b"").into(), 0).unwrap(), "");
        assert_eq!(decode("deflate", encode("raw", b"bare").into(), 100).unwrap(), "bare");
    }

    #[test]
    fn lists_are_undone_from_the_last() {
        let body = encode("zstd", &encode("gzip", b"x"));
        assert_eq!(decode("gzip, identity , zstd", body.clone().into(), 100).unwrap(), "x");
        assert_eq!(status("zstd, gzip", &body, 100), 400);
        assert_eq!(status("gzip,gzip,gzip,gzip,gzip", &body, 100), 400);
    }

    #[test]
    fn members_and_frames_are_joined() {
        for coding in ["gzip", "zstd"] {
            let body = [encode(coding, b"ab"), encode(coding, b"cd")].concat();
            assert_eq!(decode(coding, body.into(), 4).unwrap(), "abcd");
        }
    }

    #[test]
    fn the_limit_is_exact() {
        let plain = vec![b' '; 1_000_000];
        for coding in ["gzip", "deflate", "zstd", "identity"] {
            let body = encode(coding, &plain);
            assert_eq!(status(coding, &body, plain.len()), 200, "{coding}");
            assert_eq!(status(coding, &body, plain.len() - 1), 413, "{coding}");
        }
        let twice = [encode("zstd", &plain), encode("zstd", b"x")].concat();
        assert_eq!(status("zstd", &twice, plain.len()), 413);
    }

    #[test]
    fn what_is_broken_or_unknown_is_told() {
        for coding in ["gzip", "deflate", "zstd"] {
            assert_eq!(status(coding, b"{\"a\":1}", 100), 400, "{coding}");
            assert_eq!(status(coding, b"", 100), 400, "{coding}");
            let body = encode(coding, &b"0123456789".repeat(50));
            assert_eq!(status(coding, &body[..body.len() / 2], 1000), 400, "{coding}");
        }
        assert_eq!(status("br", b"x", 100), 415);
    }

    proptest! {
        #[test]
        fn any_body_comes_back(plain in prop::collection::vec(any::<u8>(), 0..3000), noise in prop::collection::vec(any::<u8>(), 0..80)) {
            for coding in ["gzip", "deflate", "zstd"] {
                let body = encode(coding, &plain);
                prop_assert_eq!(decode(coding, body.into(), 3000).unwrap(), plain.clone());
                let _ = decode(coding, noise.clone().into(), 3000);
            }
        }
    }
}
