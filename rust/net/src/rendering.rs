//! Asks the engine whether its template printed an earlier part anew, where a loss may be either's: after the client
//! has its answer, one question at a time, and seldom.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreword_core::prompt::rendering;
use http::header::USER_AGENT;
use http::{HeaderMap, HeaderValue, Method};

use crate::outbox::locked;
use crate::upstream::{Call, Upstream};

/// Rendering a long conversation costs the engine's front end a good part of a second.
const PAUSE: Duration = Duration::from_secs(10);

/// How long an engine may take to answer both questions.
const PATIENCE: Duration = Duration::from_secs(20);

/// Requests that are kept at a time for a question that may never be asked: prompts are long.
const KEPT: usize = 4;

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
    /// Its place among those that are kept.
    pub(crate) place: Place,
}

/// A place among the requests that are kept; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When the engine was asked last, and how many requests are kept to ask about.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    last: Mutex<Option<Instant>>,
    kept: Arc<AtomicUsize>,
}

impl Questions {
    /// A place for one more request, if there is one.
    pub(crate) fn place(&self) -> Option<Place> {
        let free = |kept: usize| (kept < KEPT).then_some(kept + 1);
        self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok()?;
        Some(Place(Arc::clone(&self.kept)))
    }

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
    let Doubt { headers, body, earlier, place: _place } = doubt;
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
    let body = answer.body.collect(TOKENS).await.ok()?;
    answer.body.give_back();
    answer.head.status.is_success().then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_are_kept_and_questions_are_seldom() {
        let questions = Questions::default();
        let places: Vec<_> = (0..KEPT).map(|_| questions.place().unwrap()).collect();
        assert!(questions.place().is_none());
        drop(places);
        assert!(questions.place().is_some());
        assert!(questions.may_ask());
        assert!(!questions.may_ask());
    }
}
