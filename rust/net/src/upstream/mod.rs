//! The way to the engine: connections, their pool, and the one retry.
//!
//! Engines close idle connections after five seconds (vLLM: `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`), so ours go sooner.
//! A request on a reused connection that fails before any byte of an answer is sent once more, on a fresh one.
//! Nothing else is ever sent twice.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use foreword_core::http1;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method};

use self::address::Address;
use self::connection::Connection;
use self::pool::Pool;

mod address;
mod answer;
mod connection;
mod pool;

pub use self::answer::{Answer, AnswerBody, Broken};

/// Why no answer came.
#[derive(Debug)]
pub enum Failure {
    /// No connection could be made.
    Connect(io::Error),
    /// Connecting took too long.
    ConnectTimeout,
    /// The connection broke before an answer's head was read.
    Broken(Broken),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "{error}"),
            Self::ConnectTimeout => write!(f, "no connection in time"),
            Self::Broken(broken) => write!(f, "{broken}"),
        }
    }
}

/// A request for the engine. Cheap to clone: its body is shared.
#[derive(Clone, Debug)]
pub struct Call {
    /// HTTP method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// Headers but for `host` and the body's length.
    pub headers: HeaderMap,
    /// The body in pieces.
    pub body: Vec<Bytes>,
}

/// One fixed upstream with its pool.
pub struct Upstream {
    address: Address,
    connect_within: Duration,
    pool: Pool,
}

impl Upstream {
    /// An upstream at `url`: `http://host:port[/prefix]`, `https://...` or `unix:/path`.
    ///
    /// # Errors
    /// One sentence that says what is wrong with the URL.
    pub fn new(url: &str, connect_within: Duration) -> Result<Self, String> {
        Ok(Self { address: Address::new(url)?, connect_within, pool: Pool::default() })
    }

    /// The engine's host name, without a port.
    pub fn host(&self) -> &str {
        self.address.host()
    }

    /// Sends one request and waits for the head of its answer.
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    /// [`Failure`] when there is no answer. A request whose reused connection broke before any byte of an answer
    /// has been sent a second time by then.
    pub async fn send(&self, call: &Call) -> Result<Answer, Failure> {
        let mut retried = false;
        if let Some(reused) = self.pool.take() {
            match self.send_on(reused, call).await {
                Ok(answer) => return Ok(answer),
                Err((_, true)) => retried = true,
                Err((broken, false)) => return Err(Failure::Broken(broken)),
            }
        }
        let fresh = self.connect().await?;
        match self.send_on(fresh, call).await {
            Ok(answer) => Ok(Answer { retried, ..answer }),
            Err((broken, _)) => Err(Failure::Broken(broken)),
        }
    }

    async fn send_on(&self, mut connection: Connection, call: &Call) -> Result<Answer, (Broken, bool)> {
        // The target was made of an HTTP request line or of our own constants; anything else is the root.
        let target = format!("{}{}", self.address.prefix, call.target);
        let target = target.parse().ok().filter(|target: &PathAndQuery| target.as_str().starts_with('/'));
        let target = target.as_ref().map_or("/", PathAndQuery::as_str);
        let length = call.body.iter().map(Bytes::len).sum();
        let head = http1::write_head(&call.method, target, &self.address.authority, &call.headers, length);
        connection.begin([Bytes::from(head)].into_iter().chain(call.body.iter().cloned()));
        Answer::head(connection, self.pool.clone(), &call.method).await
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let stream = tokio::time::timeout(self.connect_within, self.address.dial()).await;
        let stream = stream.map_err(|_| Failure::ConnectTimeout)?.map_err(Failure::Connect)?;
        Ok(Connection::new(stream))
    }
}

#[cfg(test)]
mod tests;
