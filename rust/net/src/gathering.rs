//! Large bodies, put together beside the thread that receives them.
//!
//! A body of megabytes is fresh memory: to fill it takes longer than to receive it, most of it in page faults. The
//! thread that receives carries all running streams, so it only passes chunks on. A body that will be read is scanned
//! here as it comes: the next chunk takes longer than that, and the engine need not wait for it at the end.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use foreword_core::json::Scanning;
use foreword_core::request::Body;
use tokio::sync::watch;

use crate::outbox::locked;

/// How far the thread stands back behind running streams where cores are scarce.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// A request body: whole, or still being put together.
#[derive(Clone, Debug)]
pub struct Content {
    length: usize,
    whole: Whole,
}

#[derive(Clone, Debug)]
enum Whole {
    Here(Bytes),
    Coming(watch::Receiver<Option<Body>>),
}

impl Content {
    /// Its length in bytes, which is known at once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is no body.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The body, as soon as it is whole; `None` if whoever put it together is gone.
    pub async fn whole(&self) -> Option<Body> {
        match &self.whole {
            Whole::Here(bytes) => Some(bytes.clone().into()),
            Whole::Coming(coming) => coming.clone().wait_for(Option::is_some).await.ok()?.clone(),
        }
    }
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Self {
        Self { length: bytes.len(), whole: Whole::Here(bytes) }
    }
}

impl Default for Content {
    fn default() -> Self {
        Bytes::new().into()
    }
}

/// The thread that puts bodies together, from chunks of type `C`, in the order in which they come. It ends when this
/// and all its [`Gathering`]s are gone.
#[derive(Debug)]
pub struct Gatherer<C> {
    work: Sender<Work<C>>,
}

/// A body under collection.
#[derive(Debug)]
pub struct Gathering<C> {
    work: Sender<Work<C>>,
    /// Until its end.
    come: Option<Arc<Mutex<Come>>>,
    length: usize,
}

/// What has come of a body.
#[derive(Debug, Default)]
struct Come {
    bytes: BytesMut,
    /// Its scan, if there is to be one.
    scanning: Option<Scanning>,
}

impl Come {
    fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        if let Some(scanning) = &mut self.scanning {
            scanning.advance(&self.bytes);
        }
    }

    fn end(self) -> Body {
        let bytes = self.bytes.freeze();
        match self.scanning.map(|scanning| scanning.end(bytes.clone())) {
            Some(Ok(scanned)) => Body::Scanned(scanned),
            // What is wrong with it, its reader says.
            Some(Err(_)) | None => Body::Text(bytes),
        }
    }
}

enum Work<C> {
    Chunk(Arc<Mutex<Come>>, C),
    End(Arc<Mutex<Come>>, watch::Sender<Option<Body>>),
}

impl<C: AsRef<[u8]> + Send + 'static> Gatherer<C> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to spare.
    pub fn start() -> io::Result<Self> {
        let (work, coming) = channel();
        std::thread::Builder::new().name("foreword-body".into()).spawn(move || gather(&coming))?;
        Ok(Self { work })
    }

    /// Goes on with a body of which `begun` has come, in the room that `begun` has. It is scanned on the way if it is
    /// `json`, as far as is known before its end.
    pub fn go_on(&self, begun: BytesMut, json: bool) -> Gathering<C> {
        let length = begun.len();
        let come = Come { bytes: begun, scanning: json.then(Scanning::default) };
        Gathering { work: self.work.clone(), come: Some(Arc::new(Mutex::new(come))), length }
    }
}

impl<C> Gathering<C> {
    /// Appends one chunk, which is dropped on the gatherer's thread.
    pub fn push(&mut self, chunk: C)
    where
        C: AsRef<[u8]>,
    {
        self.length += chunk.as_ref().len();
        if let Some(come) = &self.come {
            // Without the thread the body never becomes whole, and that is told then.
            let _ = self.work.send(Work::Chunk(Arc::clone(come), chunk));
        }
    }

    /// The length so far in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing has come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Nothing more comes.
    #[must_use]
    pub fn end(mut self) -> Content {
        let (whole, coming) = watch::channel(None);
        self.finish(whole);
        Content { length: self.length, whole: Whole::Coming(coming) }
    }

    fn finish(&mut self, whole: watch::Sender<Option<Body>>) {
        if let Some(come) = self.come.take() {
            let _ = self.work.send(Work::End(come, whole));
        }
    }
}

impl<C> Drop for Gathering<C> {
    /// To free megabytes takes long, too: the thread does it where a body is given up.
    fn drop(&mut self) {
        self.finish(watch::Sender::new(None));
    }
}

fn gather<C: AsRef<[u8]>>(coming: &Receiver<Work<C>>) {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
    // Ends with the last sender.
    for work in coming {
        match work {
            Work::Chunk(come, chunk) => locked(&come).push(chunk.as_ref()),
            // Nobody waits for a body that was given up.
            Work::End(come, whole) if whole.is_closed() => drop(come),
            Work::End(come, whole) => {
                let come = std::mem::take(&mut *locked(&come));
                whole.send_replace(Some(come.end()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// A chunk that says where it was dropped.
    struct Noted(Vec<u8>, mpsc::Sender<Option<String>>);

    impl AsRef<[u8]> for Noted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Noted {
        fn drop(&mut self) {
            let _ = self.1.send(std::thread::current().name().map(str::to_owned));
        }
    }

    #[tokio::test]
    async fn chunks_become_one_body_in_their_order() {
        let gatherer = Gatherer::start().unwrap();
        let mut bodies: Vec<_> = (0..3u8).map(|body| gatherer.go_on(BytesMut::from(&[body][..]), false)).collect();
        for chunk in 0..100u8 {
            for (body, number) in bodies.iter_mut().zip(0..) {
                body.push(vec![chunk ^ number; 1000]);
            }
        }
        for (body, number) in bodies.into_iter().zip(0..) {
            let content = body.end();
            let expected: Vec<u8> =
                [number].into_iter().chain((0..100).flat_map(|chunk| vec![chunk ^ number; 1000])).collect();
            assert_eq!(content.len(), expected.len());
            // Whoever asks once more is told once more.
            assert_eq!(content.whole().await.unwrap().text(), &expected);
            assert_eq!(content.whole().await.unwrap().text(), &expected);
        }
    }

    #[tokio::test]
    async fn what_is_json_is_scanned_while_it_comes() {
        let gatherer = Gatherer::start().unwrap();
        let text = br#"{"model":"m","messages":[{"role":"user","content":"a\nb"}]}"#;
        for (json, text, scanned) in [(true, &text[..], true), (true, &text[1..], false), (false, text, false)] {
            let (begun, rest) = text.split_at(4);
            let mut body = gatherer.go_on(BytesMut::from(begun), json);
            rest.chunks(5).for_each(|chunk| body.push(chunk.to_vec()));
            let whole = body.end().whole().await.unwrap();
            assert_eq!((whole.text().as_ref(), matches!(whole, Body::Scanned(_))), (text, scanned));
        }
    }

    #[test]
    fn chunks_are_dropped_on_the_gatherers_thread() {
        let gatherer = Gatherer::start().unwrap();
        let (tell, told) = mpsc::channel();
        let mut body = gatherer.go_on(BytesMut::new(), false);
        body.push(Noted(vec![1], tell.clone()));
        assert_eq!(told.recv_timeout(SOON).unwrap().as_deref(), Some("foreword-body"));
        body.push(Noted(vec![2], tell));
        drop(body); // given up
        assert_eq!(told.recv_timeout(SOON).unwrap().as_deref(), Some("foreword-body"));
        // Nobody holds a chunk, nor can any come.
        drop(gatherer);
        assert_eq!(told.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[tokio::test]
    async fn a_body_that_nobody_puts_together_never_becomes_whole_and_says_so() {
        let (work, coming) = channel();
        let mut body = Gathering { work, come: Some(Arc::default()), length: 0 };
        drop(coming);
        body.push(vec![1, 2, 3]);
        let content = body.end();
        assert_eq!(content.len(), 3);
        assert!(content.whole().await.is_none());
    }
}
