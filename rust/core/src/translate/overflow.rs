//! The two messages about a full context, in the words that clients act on.
//!
//! Claude Code compacts on the first and asks again with fewer output tokens on the second; other agents match
//! parts of both. Engines word them in many ways, so the numbers are found by the words around them.

use crate::error::Kind;

/// What an engine says of an overflow apart from its message.
#[derive(Debug, Default)]
pub(crate) struct Hint {
    /// The error's type or code names the condition.
    pub(crate) named: bool,
    /// llama.cpp's `n_prompt_tokens`.
    pub(crate) prompt: Option<u64>,
    /// llama.cpp's `n_ctx`.
    pub(crate) context: Option<u64>,
}

/// What a number counts.
#[derive(Clone, Copy)]
enum Counts {
    Prompt,
    Output,
    Context,
}

/// Words right before and right after a number, in lower case, and what they make of it.
const PLACES: &[(Counts, &str, &str)] = &[
    // vLLM
    (Counts::Context, "maximum context length is ", ""),
    (Counts::Context, "context length is only ", ""),
    (Counts::Context, "max_model_len=", ""),
    (Counts::Context, "maximum model length of ", ""),
    (Counts::Context, "max_model_len (", ")"),
    (Counts::Prompt, "", " input tokens"),
    (Counts::Prompt, "", " in the messages"),
    (Counts::Prompt, "requested ", " tokens in the messages"),
    (Counts::Prompt, "prompt (length ", ")"),
    (Counts::Prompt, "prompt length of ", ""),
    (Counts::Output, "", " in the completion"),
    (Counts::Output, "", " output tokens"),
    (Counts::Output, "is too large: ", ""),
    (Counts::Output, "max_tokens=", ""),
    (Counts::Output, "max_completion_tokens=", ""),
    // SGLang
    (Counts::Context, "context length (", " tokens"),
    (Counts::Context, "context length of ", ""),
    (Counts::Context, "maximum allowed length (", ""),
    (Counts::Prompt, "the input (", " tokens"),
    (Counts::Prompt, "input length (", ""),
    (Counts::Prompt, "", " tokens from the input"),
    (Counts::Output, "", " tokens for the completion"),
    // llama.cpp
    (Counts::Context, "context size (", ""),
    (Counts::Prompt, "request (", " tokens"),
    // Strata, and servers that only add up
    (Counts::Context, "context of ", ""),
    (Counts::Context, "context window of ", ""),
    (Counts::Context, "context window is ", ""),
    (Counts::Context, "context (", ")"),
    (Counts::Context, "max_context ", ""),
    (Counts::Context, "max_context=", ""),
    (Counts::Context, "limit of ", " tokens"),
    (Counts::Prompt, "prompt (", ""),
    (Counts::Prompt, "prompt of ", ""),
    (Counts::Prompt, "prompt ", " tokens"),
    (Counts::Prompt, "prompt ", " + "),
    (Counts::Prompt, "", " prompt tokens"),
    (Counts::Prompt, "resulted in ", " tokens"),
    (Counts::Output, "max_tokens (", ")"),
    (Counts::Output, "max_tokens ", ""),
    // OpenAI of old, OpenRouter, Moonshot, xAI
    (Counts::Prompt, "", " in your prompt"),
    (Counts::Output, "", " for the completion"),
    (Counts::Prompt, "", " of text input"),
    (Counts::Output, "", " in the output"),
    (Counts::Context, "token limit: ", ""),
    (Counts::Prompt, "(requested: ", ")"),
    (Counts::Context, "maximum prompt length is ", ""),
    (Counts::Prompt, "request contains ", " tokens"),
    // Servers in Google's words
    (Counts::Prompt, "input token count (", ")"),
    (Counts::Context, "maximum number of tokens allowed (", ")"),
];

/// Phrases that name the thing that is full, and phrases that say that it is.
const THINGS: &[&str] = &[
    "context length",
    "context size",
    "context window",
    "context limit",
    "the context",
    "model's context",
    "max_model_len",
    "model length",
    "maximum allowed length",
    "maximum number of tokens",
    "model token limit",
    "maximum prompt length",
    "tokens in request",
    "kv size",
    "kv cache",
];
const VERBS: &[&str] = &[
    "exceed",
    "too long",
    "too large",
    "too big",
    "longer than",
    "more than",
    "but the request contains",
    "larger than",
    "greater than",
    "does not fit",
    "maximum context length is",
    "context length is only",
    "over the context",
    "overflow",
    "no smaller than",
];
/// Phrases that name the condition by themselves.
const PHRASES: &[&str] = &["prompt is too long", "input is too long", "reduce the length of the messages"];

/// The kind and the client's wording of an overflow, if `message` tells of one.
pub(crate) fn told(message: &str, hint: &Hint) -> Option<(Kind, String)> {
    let lower = message.to_ascii_lowercase();
    // Already in Anthropic's words: clients match them to the letter.
    if message.contains("prompt is too long:") {
        return Some((Kind::PromptTooLong, message.to_owned()));
    }
    if message.contains("input length and `max_tokens` exceed context limit:") {
        return Some((Kind::OutputTooLong, message.to_owned()));
    }
    let says = |phrases: &[&str]| phrases.iter().any(|phrase| lower.contains(phrase));
    let is_told = hint.named || says(PHRASES) || (says(THINGS) && says(VERBS));
    if !is_told {
        return None;
    }
    let found = Numbers::find(&lower);
    let prompt = hint.prompt.or(found.prompt);
    let context = hint.context.or(found.context);
    Some(match (prompt, found.output, context) {
        (Some(prompt), _, Some(context)) if prompt >= context => {
            (Kind::PromptTooLong, format!("prompt is too long: {prompt} tokens > {context} maximum"))
        }
        (Some(prompt), Some(output), Some(context)) => (Kind::OutputTooLong, output_too_long(prompt, output, context)),
        // The wanted output alone is over the limit (vLLM looks at it before it counts the prompt). A shorter prompt
        // would not help, fewer output tokens do. The prompt's length is not known, but it has at least one token.
        (None, Some(output), Some(context)) if output >= context => {
            (Kind::OutputTooLong, output_too_long(1, output, context))
        }
        _ => (Kind::PromptTooLong, format!("prompt is too long: {message}")),
    })
}

fn output_too_long(prompt: u64, output: u64, context: u64) -> String {
    format!(
        "input length and `max_tokens` exceed context limit: {prompt} + {output} > {context}, decrease input length or `max_tokens` and try again"
    )
}

#[derive(Debug, Default)]
struct Numbers {
    prompt: Option<u64>,
    output: Option<u64>,
    context: Option<u64>,
}

impl Numbers {
    /// Finds the numbers of a message by the words around each; of several in one role the first.
    fn find(lower: &str) -> Self {
        let mut numbers = Self::default();
        let mut at = 0;
        while let Some(start) = lower[at..].find(|character: char| character.is_ascii_digit()).map(|found| at + found) {
            let rest = &lower[start..];
            let len = grouped(rest);
            let (before, after) = (&lower[..start], &rest[len..]);
            at = start + len;
            let Ok(number) = rest[..len].replace(',', "").parse() else { continue };
            for (counts, prefix, suffix) in PLACES {
                if before.ends_with(prefix) && after.starts_with(suffix) {
                    let field = match counts {
                        Counts::Prompt => &mut numbers.prompt,
                        Counts::Output => &mut numbers.output,
                        Counts::Context => &mut numbers.context,
                    };
                    *field = field.or(Some(number));
                    break;
                }
            }
        }
        numbers
    }
}

/// How many bytes the number at the head of `text` takes, with commas between groups of three digits.
fn grouped(text: &str) -> usize {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut len = digits(text);
    while len > 0 && text[len..].strip_prefix(',').is_some_and(|group| digits(group) == 3) {
        len += 4;
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &str) -> Option<String> {
        told(message, &Hint::default()).map(|(_, message)| message)
    }

    fn prompt(prompt: u64, context: u64) -> String {
        format!("prompt is too long: {prompt} tokens > {context} maximum")
    }

    #[test]
    fn prompts_that_are_too_long() {
        for message in [
            // vLLM, from 0.6 to 0.32
            "This model's maximum context length is 65536 tokens. However, your prompt contains at least 65537 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=65537)",
            "This model's maximum context length is 65536 tokens. However, you requested 65537 tokens in the messages, Please reduce the length of the messages.",
            "This model's maximum context length is 65536 tokens. However, your request has 65537 input tokens. Please reduce the length of the input messages.",
            "The decoder prompt (length 65537) is longer than the maximum model length of 65536. Make sure that `max_model_len` is no smaller than the number of text tokens.",
            "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 65536 tokens and your request has 65537 input tokens (32000 > 65536 - 65537).",
            "This model's maximum context length is 65536 tokens. However, you requested 97537 tokens (65537 in the messages, 32000 in the completion).",
            "You passed 65537 input tokens and requested 32000 output tokens. However, the model's context length is only 65536 tokens, resulting in a maximum input length of 33536 tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=65537)",
            "This model's maximum context length is 65,536 tokens. However, your request has 65,537 input tokens.",
            "The input token count (65537) exceeds the maximum number of tokens allowed (65536).",
            // SGLang
            "The input (65537 tokens) is longer than the model's context length (65536 tokens).",
            "Input length (65537 tokens) exceeds the maximum allowed length (65536 tokens). Use a shorter input or enable --allow-auto-truncate.",
            // Moonshot, xAI
            "Invalid request: Your request exceeded model token limit: 65536 (requested: 65537)",
            "This model's maximum prompt length is 65536 but the request contains 65537 tokens.",
            // llama.cpp
            "request (65537 tokens) exceeds the available context size (65536 tokens), try increasing it",
        ] {
            assert_eq!(said(message), Some(prompt(65537, 65536)), "{message}");
        }
        let hint = Hint { named: true, prompt: Some(9500), context: Some(8192) };
        assert_eq!(told("try increasing it", &hint).unwrap().1, "prompt is too long: 9500 tokens > 8192 maximum");
    }

    #[test]
    fn outputs_that_do_not_fit() {
        for message in [
            "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 32768 tokens and your request has 21000 input tokens (32000 > 32768 - 21000). (parameter=max_tokens, value=32000)",
            "This model's maximum context length is 32768 tokens. However, you requested 53000 tokens (21000 in the messages, 32000 in the completion). Please reduce the length of the messages or completion.",
            "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of 53000 tokens: 21000 tokens from the input messages and 32000 tokens for the completion.",
            "This model's maximum context length is 32768 tokens. However, you requested 32000 output tokens and your prompt contains at least 21000 input tokens, for a total of at least 53000 tokens.",
            "prompt (21000) + max_tokens (32000) exceeds the context (32768)",
            "You passed 21000 input tokens and requested 32000 output tokens. However, the model's context length is only 32768 tokens, resulting in a maximum input length of 768 tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=21000)",
            // OpenAI of old, OpenRouter
            "This model's maximum context length is 32768 tokens, however you requested 53000 tokens (21000 in your prompt; 32000 for the completion). Please reduce your prompt; or completion length.",
            "This endpoint's maximum context length is 32768 tokens. However, you requested about 53000 tokens (21000 of text input, 32000 in the output). Please reduce the length of either one.",
        ] {
            assert_eq!(said(message), Some(output_too_long(21000, 32000, 32768)), "{message}");
        }
        let message = "max_tokens=100000 cannot be greater than max_model_len=65536. Please request fewer output tokens. (parameter=max_tokens, value=100000)";
        assert_eq!(said(message), Some(output_too_long(1, 100_000, 65536)));
        let message = message.replace("max_tokens=", "max_completion_tokens=");
        assert_eq!(said(&message), Some(output_too_long(1, 100_000, 65536)));
    }

    #[test]
    fn without_numbers_none_are_invented() {
        for message in [
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            "This model's maximum context length is 100 tokens.",
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            "input is larger than the max context size. skipped",
            "tokens in request more than max tokens allowed",
            "Input is too long for requested model.",
            "Please reduce the length of the messages or completion.",
        ] {
            assert_eq!(said(message), Some(format!("prompt is too long: {message}")));
        }
        assert_eq!(said("Prompt is too long").as_deref(), Some("prompt is too long: Prompt is too long"));
    }

    #[test]
    fn the_first_party_words_pass_to_the_letter() {
        for message in [
            "prompt is too long: 210000 tokens > 200000 maximum",
            "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000, decrease input length or `max_tokens` and try again",
        ] {
            assert_eq!(said(message).as_deref(), Some(message));
        }
    }

    #[test]
    fn other_refusals_are_not_overflows() {
        for message in [
            "The model `nope` does not exist. Valid aliases: tiny.",
            "temperature must be non-negative, got -1.0.",
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
            "tiny is not a multimodal model",
            "Rate limit of 100 requests exceeded",
            "stop has more than 4 tokens",
        ] {
            assert_eq!(said(message), None, "{message}");
        }
    }
}
