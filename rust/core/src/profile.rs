//! What an operator set and what the engine is known to take: the input of every decision in core.

/// The engine behind the sidecar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// Strata.
    Strata,
    /// SGLang.
    Sglang,
    /// llama.cpp's server.
    LlamaCpp,
    /// Any OpenAI-compatible server: only fields of OpenAI's own API are sent.
    OpenAi,
    /// Not known yet (the engine was never reached): treated as vLLM, which ignores what it does not know.
    #[default]
    Unknown,
}

impl Engine {
    /// Its name, as settings and records spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Strata => "strata",
            Self::Sglang => "sglang",
            Self::LlamaCpp => "llamacpp",
            Self::OpenAi => "openai",
            Self::Unknown => "unknown",
        }
    }
}

/// How `/v1/messages` reaches the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessagesMode {
    /// Translated into `/v1/chat/completions`.
    #[default]
    Translate,
    /// Passed to the engine's own `/v1/messages`.
    Native,
}

/// Where a late `role:"system"` message goes (rule 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateSystem {
    /// Stays a system message in its place: the engine's template prints it there.
    System,
    /// Wrapped, at the end of the tool message that it follows; a wrapped user message where it follows none.
    #[default]
    Tool,
    /// Wrapped, as a user message.
    User,
    /// Role and place as sent.
    Off,
}

/// How `input_tokens` is told to Anthropic clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageMode {
    /// Cached tokens are taken out of `input_tokens`.
    #[default]
    Net,
    /// `input_tokens` is the engine's `prompt_tokens`; cache fields are sent too.
    Raw,
}

/// What stands at the head of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TemplateOrder {
    /// Tools, then the system text.
    #[default]
    ToolsFirst,
    /// The system text, then tools.
    SystemFirst,
}

/// Which model name goes upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelMap {
    /// A name that the engine does not serve goes to its only model.
    #[default]
    Auto,
    /// `pattern=model` globs (`*` and `?`), the first match wins.
    Globs(Vec<(String, String)>),
    /// Names pass as they are.
    Off,
}

/// Settings and knowledge, one immutable snapshot for each exchange.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Profile {
    /// The engine's kind.
    pub engine: Engine,
    /// How `/v1/messages` travels.
    pub messages: MessagesMode,
    /// Rule 1 on or off.
    pub billing_header: bool,
    /// Rule 2, `auto` already resolved.
    pub late_system: LateSystem,
    /// Usage as told to Anthropic clients.
    pub usage: UsageMode,
    /// Model names.
    pub model_map: ModelMap,
    /// The models that the engine serves; empty until it was asked.
    pub models: Vec<String>,
    /// Whether the engine takes `stream_options`; false once it refused them.
    pub stream_options: bool,
    /// The values of `reasoning_effort` that the engine refused: templates know different ones.
    pub refused_efforts: Vec<&'static str>,
    /// What the engine's template prints first, `auto` already resolved.
    pub template_order: TemplateOrder,
    /// Tokens of a block of the engine's prefix cache, where it told; else it is learnt from what it reuses.
    pub block_tokens: Option<u64>,
    /// Whether what the engine does not report is read from its log, a moment after the answer.
    pub engine_log: bool,
    /// Whether the upstream is Anthropic itself: nothing is normalised then.
    pub anthropic_upstream: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            engine: Engine::default(),
            messages: MessagesMode::default(),
            billing_header: true,
            late_system: LateSystem::default(),
            usage: UsageMode::default(),
            model_map: ModelMap::default(),
            models: Vec::new(),
            stream_options: true,
            refused_efforts: Vec::new(),
            template_order: TemplateOrder::default(),
            block_tokens: None,
            engine_log: false,
            anthropic_upstream: false,
        }
    }
}

/// What Foreword puts into a request by itself and an engine may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// `stream_options`
    StreamOptions,
    /// `reasoning_effort` with this value.
    Effort(&'static str),
}

impl Profile {
    /// Remembers that the engine refused what was added: it is left out from now on.
    pub fn leave_out(&mut self, refused: Added) {
        match refused {
            Added::StreamOptions => self.stream_options = false,
            Added::Effort(value) if !self.refused_efforts.contains(&value) => self.refused_efforts.push(value),
            Added::Effort(_) => {}
        }
    }

    /// Forgets what was refused: another engine, or another model's template, may take it.
    pub fn forget_refusals(&mut self) {
        self.stream_options = true;
        self.refused_efforts.clear();
    }

    /// The name that goes upstream for the `requested` one; `None` where it passes as it is.
    pub fn upstream_model(&self, requested: &str) -> Option<&str> {
        match &self.model_map {
            ModelMap::Off => None,
            ModelMap::Auto => match self.models.as_slice() {
                [only] if only != requested => Some(only),
                _ => None,
            },
            ModelMap::Globs(globs) => {
                let (_, model) = globs.iter().find(|(pattern, _)| glob(pattern.as_bytes(), requested.as_bytes()))?;
                (model != requested).then_some(model)
            }
        }
    }
    /// The names of the map that stand for themselves only, each with its model: what an operator calls an alias.
    pub fn aliases(&self) -> Vec<(String, String)> {
        let ModelMap::Globs(globs) = &self.model_map else { return Vec::new() };
        globs.iter().filter(|(name, model)| !name.contains(['*', '?']) && name != model).cloned().collect()
    }
}

/// Whether `text` matches `pattern`, where `*` stands for any bytes and `?` for one.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(map: ModelMap, models: &[&str]) -> Profile {
        Profile { model_map: map, models: models.iter().map(ToString::to_string).collect(), ..Profile::default() }
    }

    #[test]
    fn auto_maps_only_where_there_is_one_model() {
        assert_eq!(profile(ModelMap::Auto, &["a"]).upstream_model("x"), Some("a"));
        assert_eq!(profile(ModelMap::Auto, &["a"]).upstream_model("a"), None);
        assert_eq!(profile(ModelMap::Auto, &["a", "b"]).upstream_model("x"), None);
        assert_eq!(profile(ModelMap::Auto, &[]).upstream_model("x"), None);
        assert_eq!(profile(ModelMap::Off, &["a"]).upstream_model("x"), None);
    }

    #[test]
    fn globs_take_the_first_match() {
        let map = ModelMap::Globs(vec![("claude-*-haiku*".into(), "small".into()), ("claude-*".into(), "big".into())]);
        let profile = profile(map, &[]);
        assert_eq!(profile.upstream_model("claude-3-haiku-1"), Some("small"));
        assert_eq!(profile.upstream_model("claude-opus-5-5"), Some("big"));
        assert_eq!(profile.upstream_model("big"), None);
        assert!(glob(b"a?c*", b"abcd") && !glob(b"a?c", b"ac") && glob(b"*", b"") && glob(b"*b*", b"abc"));
    }
}
