//! Asks the engine whether its template printed an earlier part anew, where a loss may be either's: after the client
//! has its answer, one question at a time, and seldom.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreword_core::prompt::rendering;
use http_body_util::{BodyExt, Limited};
use hyper::Method;
use hyper::header::{HeaderMap, HeaderValue, USER_AGENT};

use crate::outbox::locked;
use crate::upstream::{Call, Upstream};

/// Rendering a long conversation costs the engine's front end a good part of a second.
const PAUSE: Duration = Duration::from_secs(10);

/// How long an engine may take to answer both questions.
const PATIENCE: Duration = Duration::from_secs(20);

/// The largest list of tokens that is read, in bytes.
const TOKENS: usize = 64 * 1024 * 1024;

/// A request whose rendering is in doubt, kept until its usage is known.
#[derive(Debug)]
pub(crate) struct Doubt {
    /// Headers that the engine was sent.
    pub(crate) headers: HeaderMap,
    /// The chat body that the engine was sent.
    pub(crate) body: Vec<Bytes>,
    /// Messages of it that were sent before.
    pub(crate) earlier: usize,
}

/// When the engine was asked last.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    last: Mutex<Option<Instant>>,
}

impl Questions {
    /// Whether a question may be asked now; if so, the next one has to wait.
    pub(crate) fn may_ask(&self) -> bool {
        let mut last = locked(&self.last);
        let due = last.is_none_or(|last| last.elapsed() >= PAUSE);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// Whether the template printed the earlier part anew; `None` where the engine does not tell.
pub(crate) async fn printed_anew(upstream: &Upstream, doubt: Doubt) -> Option<bool> {
    let Doubt { headers, body, earlier } = doubt;
    let asking = async {
        let body = body.concat();
        let [all, part] = tokio::task::spawn_blocking(move || rendering::questions(&body, earlier)).await.ok()??;
        let all = ask(upstream, &headers, all).await?;
        let part = ask(upstream, &headers, part).await?;
        tokio::task::spawn_blocking(move || rendering::printed_anew(&all, &part)).await.ok()?
    };
    tokio::time::timeout(PATIENCE, asking).await.ok()?
}

async fn ask(upstream: &Upstream, headers: &HeaderMap, question: Vec<u8>) -> Option<Bytes> {
    let mut headers = headers.clone();
    // The question is Foreword's own.
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("foreword/", env!("CARGO_PKG_VERSION"))));
    let call =
        Call { method: Method::POST, target: "/tokenize".to_owned(), headers, body: vec![Bytes::from(question)] };
    let mut answer = upstream.send(&call).await.ok()?;
    let body = Limited::new(&mut answer.body, TOKENS).collect().await.ok()?.to_bytes();
    answer.body.give_back();
    answer.head.status.is_success().then_some(body)
}
