//! Large bodies, put together beside the thread that receives them.
//!
//! A body of megabytes is fresh memory: to fill it takes longer than to receive it, most of it in page faults. The
//! thread that receives carries all running streams, so it only passes chunks on. Between chunks, a body that will be
//! read is scanned as far as it has come: then the engine need not wait for that at its end.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
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
    Coming(watch::Receiver<Option<Come>>),
}

/// A body that has come, and its scan for the first who asks.
type Come = Arc<(Bytes, Mutex<Option<Scanning>>)>;

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
            Whole::Coming(coming) => {
                let come = coming.clone().wait_for(Option::is_some).await.ok()?.clone()?;
                let (bytes, scanning) = &*come;
                let text = bytes.clone();
                Some(match locked(scanning).take() {
                    Some(scanning) => Body::scanning(text, scanning),
                    None => text.into(),
                })
            }
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
    /// Bytes that have come and that the thread has not copied.
    behind: Arc<AtomicUsize>,
}

/// A body under collection.
#[derive(Debug)]
pub struct Gathering<C> {
    work: Sender<Work<C>>,
    behind: Arc<AtomicUsize>,
    /// Until its end.
    parts: Option<Shared>,
    length: usize,
}

type Shared = Arc<Mutex<Parts>>;

/// What has come of a body.
#[derive(Debug, Default)]
struct Parts {
    bytes: BytesMut,
    /// Its scan, if there is to be one.
    scanning: Option<Scanning>,
}

enum Work<C> {
    Chunk(Shared, C),
    End(Shared, watch::Sender<Option<Come>>),
}

impl<C: AsRef<[u8]> + Send + 'static> Gatherer<C> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to spare.
    pub fn start() -> io::Result<Self> {
        let (work, coming) = channel();
        let behind = Arc::default();
        let left = Left(Arc::clone(&behind));
        std::thread::Builder::new().name("foreword-body".into()).spawn(move || gather(&coming, &left))?;
        Ok(Self { work, behind })
    }

    /// Goes on with a body of which `begun` has come, in the room that `begun` has. It is scanned on the way if it is
    /// `json`, as far as is known before its end.
    pub fn go_on(&self, begun: BytesMut, json: bool) -> Gathering<C> {
        let length = begun.len();
        let parts = Parts { bytes: begun, scanning: json.then(Scanning::default) };
        let (work, behind) = (self.work.clone(), Arc::clone(&self.behind));
        Gathering { work, behind, parts: Some(Arc::new(Mutex::new(parts))), length }
    }

    /// Bytes that have come and still lie in their chunks.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.behind.load(Ordering::Relaxed)
    }
}

impl<C> Gathering<C> {
    /// Appends one chunk, which is dropped on the gatherer's thread.
    pub fn push(&mut self, chunk: C)
    where
        C: AsRef<[u8]>,
    {
        let length = chunk.as_ref().len();
        self.length += length;
        if let Some(parts) = &self.parts {
            self.behind.fetch_add(length, Ordering::Relaxed);
            if self.work.send(Work::Chunk(Arc::clone(parts), chunk)).is_err() {
                // Without the thread the body never becomes whole, and that is told then.
                self.behind.fetch_sub(length, Ordering::Relaxed);
            }
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

    fn finish(&mut self, whole: watch::Sender<Option<Come>>) {
        if let Some(parts) = self.parts.take() {
            let _ = self.work.send(Work::End(parts, whole));
        }
    }
}

impl<C> Drop for Gathering<C> {
    /// To free megabytes takes long, too: the thread does it where a body is given up.
    fn drop(&mut self) {
        self.finish(watch::Sender::new(None));
    }
}

/// What is left to be copied: nothing, once the thread is gone.
struct Left(Arc<AtomicUsize>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

fn gather<C: AsRef<[u8]>>(coming: &Receiver<Work<C>>, left: &Left) {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
    // Of these more has come than was scanned.
    let mut grown: VecDeque<Shared> = VecDeque::new();
    loop {
        // Chunks come first: until they are dropped, granian makes new ones in fresh memory.
        let work = if grown.is_empty() { coming.recv().map_err(Into::into) } else { coming.try_recv() };
        match work {
            Ok(Work::Chunk(parts, chunk)) => {
                let mut come = locked(&parts);
                come.bytes.extend_from_slice(chunk.as_ref());
                left.0.fetch_sub(chunk.as_ref().len(), Ordering::Relaxed);
                if come.scanning.is_some() {
                    grown.push_back(Arc::clone(&parts));
                }
            }
            Ok(Work::End(parts, whole)) => {
                let Parts { bytes, scanning } = std::mem::take(&mut *locked(&parts));
                whole.send_replace(Some(Arc::new((bytes.freeze(), Mutex::new(scanning)))));
            }
            Err(TryRecvError::Empty) => {
                if let Some(parts) = grown.pop_front()
                    && let Parts { bytes, scanning: Some(scanning) } = &mut *locked(&parts)
                {
                    scanning.advance(bytes);
                }
            }
            // The last sender is gone.
            Err(TryRecvError::Disconnected) => return,
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
        for json in [true, false] {
            let (begun, rest) = text.split_at(4);
            let mut body = gatherer.go_on(BytesMut::from(begun), json);
            rest.chunks(5).for_each(|chunk| body.push(chunk.to_vec()));
            let content = body.end();
            // The scan is given away once.
            for scanned in [json, false] {
                let whole = content.whole().await.unwrap();
                assert_eq!((whole.text().as_ref(), whole.is_begun()), (&text[..], scanned));
            }
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
        let mut body = Gathering { work, behind: Arc::default(), parts: Some(Arc::default()), length: 0 };
        drop(coming);
        body.push(vec![1, 2, 3]);
        assert_eq!(body.behind.load(Ordering::Relaxed), 0);
        let content = body.end();
        assert_eq!(content.len(), 3);
        assert!(content.whole().await.is_none());
    }
}
