//! What vLLM 0.32 puts on the wire for a streamed chat completion, each event one chunk of the chunked coding.

use crate::mark::{self, Mark};

pub(crate) const MODEL: &str = "rig";
pub(crate) const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
    vary: Origin\r\ntransfer-encoding: chunked\r\n\r\n";
/// The last event and the end of the chunked coding, which uvicorn writes apart.
pub(crate) const DONE: &[u8] = b"e\r\ndata: [DONE]\n\n\r\n";
pub(crate) const END: &[u8] = b"0\r\n\r\n";

/// What all chunks of one answer have in common.
pub(crate) struct Voice {
    /// Becomes the digits of the id.
    pub(crate) id: u64,
    /// Unix time in seconds.
    pub(crate) created: u64,
}

impl Voice {
    fn event(&self, tail: &str) -> Vec<u8> {
        let Self { id, created } = self;
        let head = format!(
            r#"data: {{"id":"chatcmpl-{id:016x}","object":"chat.completion.chunk","created":{created},"model":"{MODEL}","choices":"#
        );
        format!("{:x}\r\n{head}{tail}\n\n\r\n", head.len() + tail.len() + 2).into_bytes()
    }

    /// The chunk before the first token.
    pub(crate) fn role(&self) -> Vec<u8> {
        self.event(
            r#"[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}"#,
        )
    }

    /// A token's chunk; `text` needs no JSON escapes.
    pub(crate) fn content(&self, text: &str) -> Vec<u8> {
        self.event(&format!(
            r#"[{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":null,"token_ids":null}}]}}"#
        ))
    }

    /// A token's chunk whose text is a mark alone.
    pub(crate) fn marked(&self) -> MarkedChunk {
        let zero = Mark { t_ns: 0, seq: 0 }.bytes();
        let bytes = self.content(&String::from_utf8_lossy(&zero));
        let at = bytes.windows(mark::LEN).position(|window| window == zero).unwrap_or_default();
        MarkedChunk { bytes, at }
    }

    pub(crate) fn finish(&self) -> Vec<u8> {
        self.event(
            r#"[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}]}"#,
        )
    }

    /// The chunk without choices that `stream_options.include_usage` asks for.
    pub(crate) fn usage(&self, prompt: u64, completion: u32) -> Vec<u8> {
        self.event(&format!(r#"[],{},"system_fingerprint":"vllm-0.32.0-0264508f"}}"#, usage(prompt, completion)))
    }

    /// The whole answer to a request that does not stream.
    pub(crate) fn whole(&self, text: &str, prompt: u64, completion: u32) -> String {
        let Self { id, created } = self;
        format!(
            concat!(
                r#"{{"id":"chatcmpl-{id:016x}","object":"chat.completion","created":{created},"model":"{model}","choices":[{{"index":0,"#,
                r#""message":{{"role":"assistant","content":"{text}","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"#,
                r#""logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-0264508f",{usage}}}"#
            ),
            id = id,
            created = created,
            model = MODEL,
            text = text,
            usage = usage(prompt, completion),
        )
    }
}

fn usage(prompt: u64, completion: u32) -> String {
    let total = prompt + u64::from(completion);
    format!(
        r#""usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion},"prompt_tokens_details":{{"cached_tokens":0,"created_cache_tokens":{prompt}}},"completion_tokens_details":{{"reasoning_tokens":0}}}}"#
    )
}

/// A content chunk of constant length, restamped for each event.
pub(crate) struct MarkedChunk {
    bytes: Vec<u8>,
    at: usize,
}

impl MarkedChunk {
    /// The chunk with `mark` in it.
    pub(crate) fn stamped(&mut self, mark: Mark) -> &[u8] {
        if let Some(text) = self.bytes.get_mut(self.at..).and_then(|rest| rest.first_chunk_mut()) {
            mark.write(text);
        }
        &self.bytes
    }
}

/// A JSON answer of a known length.
pub(crate) fn json(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nserver: uvicorn\r\ncontent-length: {length}\r\ncontent-type: application/json\r\nvary: Origin\r\n\r\n{body}")
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOICE: Voice = Voice { id: 0xb268_274b_65f2_de60, created: 1_796_008_542 };

    /// Chunks of a real answer of vLLM 0.32.0, but for the model's name and with it the chunk sizes.
    #[test]
    fn chunks_are_those_of_vllm() {
        let cases: [(Vec<u8>, &str); 4] = [
            (
                VOICE.role(),
                "100\r\ndata: {\"id\":\"chatcmpl-b268274b65f2de60\",\"object\":\"chat.completion.chunk\",\"created\":1796008542,\"model\":\"rig\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null,\"prompt_text\":null}\n\n\r\n",
            ),
            (
                VOICE.content(" there"),
                "d9\r\ndata: {\"id\":\"chatcmpl-b268274b65f2de60\",\"object\":\"chat.completion.chunk\",\"created\":1796008542,\"model\":\"rig\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" there\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n\r\n",
            ),
            (
                VOICE.finish(),
                "dc\r\ndata: {\"id\":\"chatcmpl-b268274b65f2de60\",\"object\":\"chat.completion.chunk\",\"created\":1796008542,\"model\":\"rig\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null}]}\n\n\r\n",
            ),
            (
                VOICE.usage(34, 11),
                "166\r\ndata: {\"id\":\"chatcmpl-b268274b65f2de60\",\"object\":\"chat.completion.chunk\",\"created\":1796008542,\"model\":\"rig\",\"choices\":[],\"usage\":{\"prompt_tokens\":34,\"total_tokens\":45,\"completion_tokens\":11,\"prompt_tokens_details\":{\"cached_tokens\":0,\"created_cache_tokens\":34},\"completion_tokens_details\":{\"reasoning_tokens\":0}},\"system_fingerprint\":\"vllm-0.32.0-0264508f\"}\n\n\r\n",
            ),
        ];
        for (made, real) in cases {
            assert_eq!(String::from_utf8(made).unwrap(), real);
        }
    }

    #[test]
    fn restamping_changes_the_mark_alone() {
        let mut chunk = VOICE.marked();
        let mark = Mark { t_ns: 123_456_789, seq: 42 };
        let stamped = String::from_utf8(chunk.stamped(mark).to_vec()).unwrap();
        let text = String::from_utf8(mark.bytes().to_vec()).unwrap();
        assert_eq!(stamped.into_bytes(), VOICE.content(&text));
    }
}
