//! All token arithmetic, in one place.

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
