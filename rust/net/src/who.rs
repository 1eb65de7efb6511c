//! Which client a request comes from, and which of its sessions.
//!
//! By what agents send of themselves (measured on real clients): none can be told by its `User-Agent` alone, for
//! qwen-code calls itself claude-cli where it speaks Messages.

use crate::exchange::Opening;

/// A client, as far as it says who it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// One of a fixed list, so that labels stay few.
    pub name: &'static str,
    /// As it says itself; at most 24 plain characters.
    pub version: Option<String>,
    /// The session that its headers name.
    pub session: Option<String>,
    /// The sub-agent within it.
    pub agent: Option<String>,
}

/// Names in `User-Agent` by which a client is told, and what it is called.
const AGENTS: [(&str, &str); 8] = [
    ("opencode/", "opencode"),
    ("QwenCode/", "qwen-code"),
    ("codex", "codex"),
    ("reasonix", "reasonix"),
    ("Anthropic/", "anthropic-sdk"),
    ("AsyncAnthropic/", "anthropic-sdk"),
    ("OpenAI/", "openai-sdk"),
    ("AsyncOpenAI/", "openai-sdk"),
];

/// Headers that name a session.
const SESSIONS: [&str; 4] = ["x-claude-code-session-id", "session-id", "x-session-id", "x-session-affinity"];

/// Reads who sent a request from its headers.
pub fn client(opening: &Opening) -> Client {
    let agent = opening.header("user-agent").unwrap_or_default();
    let header = |name| opening.header(name).filter(|value| !value.is_empty()).map(shortened);
    let session = SESSIONS.iter().find_map(|name| header(name));
    let (name, said) = if opening.header("originator").is_some_and(|name| name.starts_with("codex")) {
        ("codex", agent.split_once('/').map(|(_, rest)| rest))
    } else if let Some(version) = agent.strip_prefix("claude-cli/") {
        let own = opening.header(SESSIONS[0]).is_some();
        (if own { "claude-code" } else { "qwen-code" }, Some(version))
    } else {
        let found = AGENTS.iter().find_map(|(mark, name)| {
            let rest =
                agent.get(..mark.len()).filter(|head| head.eq_ignore_ascii_case(mark)).and(agent.get(mark.len()..));
            let rest = rest?;
            Some((*name, ["JS ", "Python "].iter().find_map(|language| rest.strip_prefix(language)).unwrap_or(rest)))
        });
        found.map_or(("other", None), |(name, rest)| (name, Some(rest.trim_start_matches(['/', ' ']))))
    };
    Client { name, version: said.and_then(version), session, agent: header("x-claude-code-agent-id") }
}

/// The number at the head of what follows a client's name.
fn version(text: &str) -> Option<String> {
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_' | '+');
    let number: String = text.chars().take_while(|&character| plain(character)).take(24).collect();
    number.starts_with(|character: char| character.is_ascii_digit()).then_some(number)
}

fn shortened(value: &str) -> String {
    value.chars().take(256).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use foreword_core::request::Route;

    use super::*;

    fn of(headers: &[(&'static str, &'static str)]) -> Client {
        let header = |(name, value): &(&'static str, &'static str)| {
            (Bytes::from_static(name.as_bytes()), Bytes::from_static(value.as_bytes()))
        };
        client(&Opening {
            route: Route::Chat,
            own: false,
            method: "POST".into(),
            target: "/".into(),
            headers: headers.iter().map(header).collect(),
            body: Bytes::new().into(),
            request_id: String::new(),
            authorization: None,
        })
    }

    #[test]
    fn clients_are_told_by_what_they_send() {
        for (headers, name, version, session) in [
            (
                &[("user-agent", "claude-cli/2.1.332 (external, cli)"), ("x-claude-code-session-id", "s")][..],
                "claude-code",
                Some("2.1.332"),
                Some("s"),
            ),
            (&[("user-agent", "claude-cli/0.24.4 (external, cli)")], "qwen-code", Some("0.24.4"), None),
            (&[("user-agent", "QwenCode/0.24.4 (linux; x64)")], "qwen-code", Some("0.24.4"), None),
            (
                &[("user-agent", "codex_exec/0.171.0 (Debian)"), ("originator", "codex_exec"), ("session-id", "t")],
                "codex",
                Some("0.171.0"),
                Some("t"),
            ),
            (
                &[("user-agent", "opencode/1.18.33 ai-sdk"), ("x-session-id", "ses_1")],
                "opencode",
                Some("1.18.33"),
                Some("ses_1"),
            ),
            (&[("user-agent", "OpenAI/Python 2.0.0")], "openai-sdk", Some("2.0.0"), None),
            (&[("user-agent", "Anthropic/JS 0.81.0")], "anthropic-sdk", Some("0.81.0"), None),
            (&[("user-agent", "Go-http-client/1.1")], "other", None, None),
            (&[], "other", None, None),
        ] {
            let client = of(headers);
            assert_eq!((client.name, client.version.as_deref(), client.session.as_deref()), (name, version, session));
        }
    }
}
