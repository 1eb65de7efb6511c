//! All token arithmetic, in one place.

use crate::json::{Value, write_u64};
use crate::profile::UsageMode;

/// Usage as the engine reported it. Absent is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineUsage {
    /// Tokens of the prompt, cached ones included.
    pub prompt: Option<u64>,
    /// Tokens generated.
    pub completion: Option<u64>,
    /// Prompt tokens taken from the prefix cache.
    pub cached: Option<u64>,
    /// Prompt tokens newly written to the prefix cache.
    pub created: Option<u64>,
    /// Generated tokens that were reasoning.
    pub reasoning: Option<u64>,
}

impl EngineUsage {
    /// Takes over what a `usage` object of chat, completions or responses reports. The last report of a field
    /// stands: continuous usage grows, and its details may come with the last one only. Within one report the largest
    /// number under any name of a field counts: gateways write several names, and zeros under those that they do not use.
    pub fn note_openai(&mut self, usage: Value<'_>) {
        let mut told = Self::default();
        for (name, value) in usage.members() {
            match name.raw() {
                b"prompt_tokens" | b"input_tokens" => note(&mut told.prompt, value),
                b"completion_tokens" | b"output_tokens" => note(&mut told.completion, value),
                b"prompt_tokens_details" | b"input_tokens_details" => told.note_prompt_details(value),
                b"completion_tokens_details" | b"output_tokens_details" => {
                    value.get("reasoning_tokens").into_iter().for_each(|tokens| note(&mut told.reasoning, tokens));
                }
                // The names of DeepSeek, of Moonshot, and of proxies in front of Anthropic.
                b"prompt_cache_hit_tokens" | b"cached_tokens" | b"cache_read_input_tokens" => {
                    note(&mut told.cached, value);
                }
                b"cache_creation_input_tokens" => note(&mut told.created, value),
                b"reasoning_tokens" => note(&mut told.reasoning, value),
                _ => {}
            }
        }
        self.replace(&told);
    }

    /// Takes over every field that `told` has.
    fn replace(&mut self, told: &Self) {
        self.prompt = told.prompt.or(self.prompt);
        self.completion = told.completion.or(self.completion);
        self.cached = told.cached.or(self.cached);
        self.created = told.created.or(self.created);
        self.reasoning = told.reasoning.or(self.reasoning);
    }

    fn note_prompt_details(&mut self, details: Value<'_>) {
        for (name, value) in details.members() {
            match name.raw() {
                b"cached_tokens" => note(&mut self.cached, value),
                // vLLM's name in chat and in responses, and LiteLLM's.
                b"created_cache_tokens" | b"cache_write_tokens" | b"cache_creation_tokens" => {
                    note(&mut self.created, value);
                }
                _ => {}
            }
        }
    }

    /// Takes what the `timings` object of llama.cpp and Strata knows and no `usage` said:
    /// `cache_n` reused, `prompt_n` newly read, `predicted_n` generated.
    pub fn note_timings(&mut self, timings: Value<'_>) {
        let count = |name| timings.get(name).and_then(Value::as_u64);
        let cached = count("cache_n");
        self.cached = self.cached.or(cached);
        self.prompt = self.prompt.or_else(|| Some(count("prompt_n")?.saturating_add(cached?)));
        self.completion = self.completion.or_else(|| count("predicted_n"));
    }

    /// Takes over a `usage` object of the engine's own Messages answer, where `input_tokens` leaves cached tokens out.
    pub fn note_messages(&mut self, usage: Value<'_>) {
        let (mut told, mut net) = (Self::default(), None);
        for (name, value) in usage.members() {
            match name.raw() {
                b"input_tokens" => note(&mut net, value),
                b"output_tokens" => note(&mut told.completion, value),
                b"cache_read_input_tokens" => note(&mut told.cached, value),
                b"cache_creation_input_tokens" => note(&mut told.created, value),
                _ => {}
            }
        }
        self.replace(&told);
        if let Some(net) = net {
            let cached = self.cached.unwrap_or(0).saturating_add(self.created.unwrap_or(0));
            self.prompt = Some(net.saturating_add(cached));
        }
    }

    /// The figures for an Anthropic client.
    pub fn client(&self, mode: UsageMode) -> ClientUsage {
        let cache_read = self.cached.unwrap_or(0);
        let cache_creation = self.created.unwrap_or(0);
        let prompt = self.prompt.unwrap_or(0);
        let input = match mode {
            UsageMode::Net => prompt.saturating_sub(cache_read).saturating_sub(cache_creation),
            UsageMode::Raw => prompt,
        };
        ClientUsage { input, cache_creation, cache_read, output: self.completion.unwrap_or(0) }
    }
}

/// Keeps a whole number, if it is larger; null, text and negative numbers say nothing. Some languages write every number with a
/// fraction: `12.0` is twelve.
fn note(field: &mut Option<u64>, value: Value<'_>) {
    let whole = || value.as_number().filter(|number| number.fract() == 0.0 && (0.0..9e15).contains(number));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range, as was just seen")]
    let count = value.as_u64().or_else(|| whole().map(|number| number as u64));
    *field = count.max(*field);
}

/// Usage as an Anthropic client reads it: four integers, always all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientUsage {
    /// `input_tokens`
    pub input: u64,
    /// `cache_creation_input_tokens`
    pub cache_creation: u64,
    /// `cache_read_input_tokens`
    pub cache_read: u64,
    /// `output_tokens`
    pub output: u64,
}

impl ClientUsage {
    /// The members of the `usage` object.
    pub fn members(&self) -> [(&'static str, u64); 4] {
        [
            ("input_tokens", self.input),
            ("cache_creation_input_tokens", self.cache_creation),
            ("cache_read_input_tokens", self.cache_read),
            ("output_tokens", self.output),
        ]
    }

    /// Appends the JSON object.
    pub fn write(&self, out: &mut Vec<u8>) {
        for (place, (name, tokens)) in self.members().into_iter().enumerate() {
            out.extend_from_slice(if place == 0 { b"{\"" } else { b",\"" });
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            write_u64(tokens, out);
        }
        out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Tape;
    use proptest::prelude::*;

    fn openai(text: &str) -> EngineUsage {
        let mut usage = EngineUsage::default();
        usage.note_openai(Tape::new().scan(text.as_bytes()).unwrap());
        usage
    }

    #[test]
    fn absent_is_not_zero() {
        for text in [
            r#"{"prompt_tokens":12,"completion_tokens":2,"prompt_tokens_details":null}"#,
            r#"{"prompt_tokens":12,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":null}}"#,
        ] {
            let usage = openai(text);
            assert_eq!(usage, EngineUsage { prompt: Some(12), completion: Some(2), ..EngineUsage::default() });
            assert_eq!(usage.client(UsageMode::Net), ClientUsage { input: 12, output: 2, ..ClientUsage::default() });
        }
    }

    #[test]
    fn every_engine_has_its_own_names() {
        let vllm =
            openai(r#"{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":60,"created_cache_tokens":30}}"#);
        assert_eq!(
            vllm.client(UsageMode::Net),
            ClientUsage { input: 10, cache_creation: 30, cache_read: 60, output: 0 }
        );
        assert_eq!(
            vllm.client(UsageMode::Raw),
            ClientUsage { input: 100, cache_creation: 30, cache_read: 60, output: 0 }
        );
        assert_eq!(openai(r#"{"prompt_tokens":9,"prompt_cache_hit_tokens":4}"#).cached, Some(4));
        let responses = openai(
            r#"{"input_tokens":26,"input_tokens_details":{"cached_tokens":3},"output_tokens":8,"output_tokens_details":{"reasoning_tokens":7}}"#,
        );
        assert_eq!(
            (responses.prompt, responses.cached, responses.completion, responses.reasoning),
            (Some(26), Some(3), Some(8), Some(7))
        );
        let mut strata = openai(r#"{"prompt_tokens":70}"#);
        strata
            .note_timings(Tape::new().scan(br#"{"cache_n":64,"prompt_n":6,"predicted_n":5,"prompt_ms":1.5}"#).unwrap());
        assert_eq!((strata.prompt, strata.cached, strata.completion), (Some(70), Some(64), Some(5)));
        let mut native = EngineUsage::default();
        native.note_messages(
            Tape::new().scan(br#"{"input_tokens":23,"output_tokens":2,"cache_read_input_tokens":256}"#).unwrap(),
        );
        assert_eq!((native.prompt, native.cached, native.created), (Some(279), Some(256), None));
    }

    proptest! {
        #[test]
        fn the_parts_make_up_the_prompt(prompt: u64, cached: Option<u64>, created: Option<u64>) {
            let usage = EngineUsage { prompt: Some(prompt), cached, created, ..EngineUsage::default() };
            let net = usage.client(UsageMode::Net);
            let parts = u128::from(net.input) + u128::from(net.cache_read) + u128::from(net.cache_creation);
            let cache = u128::from(cached.unwrap_or(0)) + u128::from(created.unwrap_or(0));
            prop_assert_eq!(parts, u128::from(prompt).max(cache));
        }
    }
}
