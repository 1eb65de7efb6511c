//! What can go wrong with an exchange: kind, source, whether a retry may help, and what to do about it.

/// Who is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The request itself.
    Client,
    /// Foreword: a limit or a setting of its own.
    Sidecar,
    /// The engine, or the way to it.
    Engine,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request cannot be understood or is refused.
    Invalid,
    /// The prompt alone exceeds the context window.
    PromptTooLong,
    /// Prompt and wanted output together exceed the context window.
    OutputTooLong,
    /// No or wrong credentials.
    Unauthorized,
    /// Credentials are known but not enough.
    Forbidden,
    /// No such path or model.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// The body is larger than allowed.
    TooLarge,
    /// The body came too slowly, or the engine took too long.
    Timeout,
    /// Too many requests.
    RateLimited,
    /// The engine has no capacity.
    Overloaded,
    /// No connection to the engine.
    Unreachable,
    /// The engine's answer broke off or could not be read.
    BrokenAnswer,
    /// Any other failure of the engine.
    Engine,
    /// A bug in Foreword.
    Internal,
}

/// The dialect that an error is told in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Anthropic Messages: `{"type":"error","error":{"type","message"},"request_id"}`.
    Messages,
    /// OpenAI: `{"error":{"message","type","param","code"}}`.
    OpenAi,
}

/// One failure, ready to be told to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub kind: Kind,
    /// Who is at fault.
    pub source: Source,
    /// HTTP status for the client when no byte has been sent yet.
    pub status: u16,
    /// One sentence for the client: what happened and what to do. Never the request's text.
    pub message: String,
    /// Seconds for `retry-after`, where a retry may help and a delay is known.
    pub retry_after: Option<String>,
}
