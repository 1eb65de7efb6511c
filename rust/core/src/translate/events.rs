//! The two forms of an Anthropic message: a stream of events, and one JSON object. Both are written block by block.

use super::literal::write_str;
use crate::json::write_u64;

/// Thinking blocks need a signature. No engine of ours has one to give, and none checks it: a constant.
const SIGNATURE: &str = "Zm9yZXdvcmQ=";

/// A content block as it opens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Block<'b> {
    Thinking,
    Text,
    ToolUse { id: &'b str, name: &'b str },
}

/// Writes content blocks, one after the other. Of each: `open`, then any of `append` and `input`, then `close`.
pub(crate) trait Form {
    /// Whether tool input may be appended piece by piece. If not, it comes whole, as an object.
    const STREAMS_INPUT: bool;

    fn open(&mut self, block: Block<'_>, out: &mut Vec<u8>);

    /// Appends to the open block's text (or, if streamed, its input): a clean literal, never empty.
    fn append(&mut self, literal: &[u8], out: &mut Vec<u8>);

    /// Gives the open block's whole input: a JSON object.
    fn input(&mut self, object: &[u8], out: &mut Vec<u8>);

    fn close(&mut self, out: &mut Vec<u8>);
}

/// A stream of events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Index of the open block, or of the next one.
    index: u64,
    thinking: bool,
    /// A delta event of the open block up to its text.
    head: Vec<u8>,
}

impl Form for Events {
    const STREAMS_INPUT: bool = true;

    fn open(&mut self, block: Block<'_>, out: &mut Vec<u8>) {
        push(out, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
        write_u64(self.index, out);
        push(out, ",\"content_block\":");
        let delta = match block {
            Block::Thinking => {
                push(out, r#"{"type":"thinking","thinking":"","signature":""}"#);
                r#"{"type":"thinking_delta","thinking":""#
            }
            Block::Text => {
                push(out, r#"{"type":"text","text":""}"#);
                r#"{"type":"text_delta","text":""#
            }
            Block::ToolUse { id, name } => {
                write_tool_use(id, name, out);
                push(out, "{}}");
                r#"{"type":"input_json_delta","partial_json":""#
            }
        };
        push(out, "}\n\n");
        self.thinking = matches!(block, Block::Thinking);
        self.head.clear();
        push_delta_head(self.index, &mut self.head);
        push(&mut self.head, delta);
    }

    fn append(&mut self, literal: &[u8], out: &mut Vec<u8>) {
        out.reserve(self.head.len() + literal.len() + 5);
        out.extend_from_slice(&self.head);
        out.extend_from_slice(literal);
        push(out, "\"}}\n\n");
    }

    fn input(&mut self, object: &[u8], out: &mut Vec<u8>) {
        push_delta_head(self.index, out);
        push(out, r#"{"type":"input_json_delta","partial_json":"#);
        write_str(&String::from_utf8_lossy(object), out);
        push(out, "}}\n\n");
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.thinking {
            push_delta_head(self.index, out);
            push(out, "{\"type\":\"signature_delta\",\"signature\":\"");
            push(out, SIGNATURE);
            push(out, "\"}}\n\n");
        }
        push(out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":");
        write_u64(self.index, out);
        push(out, "}\n\n");
        self.index += 1;
    }
}

fn push_delta_head(index: u64, out: &mut Vec<u8>) {
    push(out, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
    write_u64(index, out);
    push(out, ",\"delta\":");
}

/// The items of a message's `content`, separated by commas.
#[derive(Debug, Default)]
pub(crate) struct Items {
    any: bool,
    /// What closes the open block.
    tail: &'static str,
}

impl Form for Items {
    const STREAMS_INPUT: bool = false;

    fn open(&mut self, block: Block<'_>, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.any, true) {
            out.push(b',');
        }
        self.tail = match block {
            Block::Thinking => {
                push(out, r#"{"type":"thinking","thinking":""#);
                "\",\"signature\":\"Zm9yZXdvcmQ=\"}"
            }
            Block::Text => {
                push(out, r#"{"type":"text","text":""#);
                "\"}"
            }
            Block::ToolUse { id, name } => {
                write_tool_use(id, name, out);
                "}"
            }
        };
    }

    fn append(&mut self, literal: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(literal);
    }

    fn input(&mut self, object: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(object);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        push(out, self.tail);
    }
}

/// A `tool_use` block up to its input.
fn write_tool_use(id: &str, name: &str, out: &mut Vec<u8>) {
    push(out, r#"{"type":"tool_use","id":"#);
    write_str(id, out);
    push(out, r#","name":"#);
    write_str(name, out);
    push(out, r#","input":"#);
}

fn push(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: &mut impl Form) -> String {
        let mut out = Vec::new();
        form.open(Block::Thinking, &mut out);
        form.append(b"a\\n", &mut out);
        form.close(&mut out);
        form.open(Block::ToolUse { id: "c", name: "n\"" }, &mut out);
        form.input(br#"{"k":"v"}"#, &mut out);
        form.close(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn events_name_their_type_on_both_lines() {
        let text = written(&mut Events::default());
        for event in text.split_terminator("\n\n") {
            let (name, data) = event.split_once("\ndata: ").unwrap();
            let data: serde_json::Value = serde_json::from_str(data).unwrap();
            assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"].as_str().unwrap());
        }
        assert!(text.contains(r#""partial_json":"{\"k\":\"v\"}""#), "{text}");
    }

    #[test]
    fn items_make_up_a_list() {
        let list: serde_json::Value = serde_json::from_str(&format!("[{}]", written(&mut Items::default()))).unwrap();
        assert_eq!(list[0], serde_json::json!({"type": "thinking", "thinking": "a\n", "signature": SIGNATURE}));
        assert_eq!(list[1]["input"]["k"], "v");
    }
}
