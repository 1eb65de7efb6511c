//! The fast way through a stream.
//!
//! An engine's chunks differ in one string: the id, the model and all else around the piece of text stay the same
//! to the byte from chunk to chunk. So the bytes before and after the piece are remembered from a chunk that was read
//! in full; the next chunk that has the same, and a sound literal between them, is the same chunk with another piece.

use crate::json::is_literal;
use crate::wire::chat::{Piece, PieceOf};

/// After so many chunks in a row that no frame fitted, an engine is taken for one that changes them each time.
const PATIENCE: u32 = 16;

/// The bytes around the piece of the last chunk that had nothing but one.
#[derive(Debug, Default)]
pub(super) struct Frame {
    head: Vec<u8>,
    tail: Vec<u8>,
    of: Option<PieceOf>,
    misses: u32,
}

impl Frame {
    /// The piece in `data`, if the rest of it is the frame.
    pub(super) fn piece<'d>(&mut self, data: &'d [u8]) -> Option<(PieceOf, &'d [u8])> {
        let of = self.of?;
        let piece = data.strip_prefix(&*self.head)?.strip_suffix(&*self.tail)?;
        // An empty piece may give way to another member of the chunk.
        if piece.is_empty() || !is_literal(piece) {
            return None;
        }
        self.misses = 0;
        Some((of, piece))
    }

    /// Remembers the frame of a chunk that was read in full, if it had nothing but a piece.
    pub(super) fn learn(&mut self, data: &[u8], piece: Option<Piece<'_>>) {
        if self.misses >= PATIENCE {
            return;
        }
        self.misses += 1;
        let Some(Piece { of, at, .. }) = piece else { return };
        self.head.clear();
        self.head.extend_from_slice(&data[..at.start]);
        self.tail.clear();
        self.tail.extend_from_slice(&data[at.end..]);
        self.of = Some(of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Tape;
    use crate::wire::chat::Chunk;

    fn frame(data: &str) -> Frame {
        let mut tape = Tape::new();
        let mut frame = Frame::default();
        frame.learn(data.as_bytes(), Chunk::read(tape.scan(data.as_bytes()).unwrap()).only_piece());
        frame
    }

    fn chunk(delta: &str) -> String {
        format!(r#"{{"id":"1","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#)
    }

    #[test]
    fn another_piece_in_the_same_frame_is_found() {
        let mut text = frame(&chunk(r#"{"content":"a"}"#));
        let next = chunk(r#"{"content":"b\n\"é"}"#);
        assert_eq!(text.piece(next.as_bytes()), Some((PieceOf::Text, "b\\n\\\"é".as_bytes())));
        let mut thinking = frame(&chunk(r#"{"reasoning":"a"}"#));
        assert_eq!(thinking.piece(chunk(r#"{"reasoning":"b"}"#).as_bytes()), Some((PieceOf::Thinking, &b"b"[..])));
        let call = |arguments| {
            chunk(&format!(
                r#"{{"content":null,"tool_calls":[{{"index":2,"function":{{"arguments":"{arguments}"}}}}]}}"#
            ))
        };
        let mut arguments = frame(&call("{"));
        assert_eq!(arguments.piece(call("}").as_bytes()), Some((PieceOf::Arguments(2), &b"}"[..])));
    }

    #[test]
    fn whatever_else_is_different_does_not_fit() {
        let mut text = frame(&chunk(r#"{"content":"a"}"#));
        for other in [
            r#"{"content":""}"#,
            r#"{"content":"a","content":"b"}"#,
            r#"{"content":"a\"}"#,
            r#"{"content":"a\x"}"#,
            "{\"content\":\"a\nb\"}",
            r#"{"reasoning":"a"}"#,
        ] {
            assert_eq!(text.piece(chunk(other).as_bytes()), None, "{other}");
        }
        assert_eq!(text.piece(chunk(r#"{"content":"a"}"#).replace("null", "\"stop\"").as_bytes()), None);
    }

    #[test]
    fn only_a_chunk_with_one_piece_makes_a_frame() {
        for data in [
            chunk("{}"),
            chunk(r#"{"content":""}"#),
            chunk(r#"{"content":[]}"#),
            chunk(r#"{"content":"a","reasoning":"b"}"#),
            chunk(r#"{"content":"a","refusal":"b"}"#),
            chunk(r#"{"content":"a","tool_calls":[{"index":0}]}"#),
            chunk(r#"{"tool_calls":[{"index":0,"id":"x","function":{"arguments":"a"}}]}"#),
            chunk(r#"{"tool_calls":[{"index":0,"function":{"name":"x","arguments":"a"}}]}"#),
            chunk(r#"{"tool_calls":[{"function":{"arguments":"a"}}]}"#),
            chunk(r#"{"content":"a"}"#).replace("null", "\"stop\""),
            chunk(r#"{"content":"a"}"#).replace("\"id\":\"1\"", "\"usage\":{}"),
            chunk(r#"{"content":"a"}"#).replace("\"index\":0", "\"index\":1"),
        ] {
            assert!(frame(&data).of.is_none(), "{data}");
        }
    }
}
