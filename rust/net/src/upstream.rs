//! The way to the engine: connections, their pool, and the one retry.
//!
//! Engines close idle connections after five seconds (vLLM: `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`), so ours go sooner.
//! A request on a reused connection that fails before any byte of an answer is sent once more, on a fresh one.
//! Nothing else is ever sent twice.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::header::HeaderMap;
use hyper::http::response::Parts;
use hyper::http::uri::Scheme;
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, pki_types::ServerName};

use crate::outbox::locked;

/// How long an unused connection is kept: under the engines' five seconds.
const KEEP_IDLE: Duration = Duration::from_secs(4);

/// How many unused connections are kept.
const KEEP_AT_MOST: usize = 256;

/// How long a finished connection may take to become usable again.
const SETTLE: Duration = Duration::from_millis(200);

/// What a connection buffers at most. hyper's own bound, 408 KiB, is what each stream of a flood would take.
const BUFFER: usize = 64 * 1024;

/// The kernel's timer of delayed acknowledgements. When it has run off, each segment is acknowledged by itself
/// again: that would be a quarter of the kernel's time for reading an event (measured).
const ACK_TIMER: Duration = Duration::from_millis(35);

/// Where the engine is.
#[derive(Clone)]
enum Address {
    Tcp { host: String, port: u16, tls: Option<TlsConnector> },
    Unix(PathBuf),
}

/// Why no answer came.
#[derive(Debug)]
pub enum Failure {
    /// No connection could be made.
    Connect(io::Error),
    /// Connecting took too long.
    ConnectTimeout,
    /// The connection broke before an answer's head was read.
    Broken(hyper::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "{error}"),
            Self::ConnectTimeout => write!(f, "no connection in time"),
            Self::Broken(error) => write!(f, "{error}"),
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

/// The engine's answer.
pub struct Answer {
    /// Status and headers.
    pub head: Parts,
    /// The body, and with it the connection.
    pub body: AnswerBody,
    /// Whether the request had to be sent twice.
    pub retried: bool,
}

/// One fixed upstream with its pool.
pub struct Upstream {
    address: Address,
    authority: String,
    prefix: String,
    connect_within: Duration,
    pool: Pool,
}

impl Upstream {
    /// An upstream at `url`: `http://host:port[/prefix]`, `https://...` or `unix:/path`.
    ///
    /// # Errors
    /// One sentence that says what is wrong with the URL.
    pub fn new(url: &str, connect_within: Duration) -> Result<Self, String> {
        let pool = Pool::default();
        if let Some(path) = url.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let address = Address::Unix(PathBuf::from(path));
            return Ok(Self { address, authority: "localhost".into(), prefix: String::new(), connect_within, pool });
        }
        let uri: Uri = url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => None,
            Some(scheme) if *scheme == Scheme::HTTPS => Some(tls_connector()?),
            _ => return Err(format!("{url:?} must begin with http://, https:// or unix:")),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| format!("{url:?} names no host"))?;
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let authority = uri.authority().map_or_else(
            || host.to_owned(),
            |authority| {
                let authority = authority.as_str();
                authority.rsplit_once('@').map_or(authority, |(_, host)| host).to_owned()
            },
        );
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { address: Address::Tcp { host, port, tls }, authority, prefix, connect_within, pool })
    }

    /// The engine's host name, without a port.
    pub fn host(&self) -> &str {
        match &self.address {
            Address::Tcp { host, .. } => host,
            Address::Unix(_) => "localhost",
        }
    }

    /// Sends one request and waits for the head of its answer.
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    /// [`Failure`] when there is no answer. A request whose reused connection broke before any byte of an answer
    /// has been sent a second time by then.
    pub async fn send(&self, call: &Call) -> Result<Answer, Failure> {
        if let Some(lease) = self.pool.take() {
            let heard = Arc::clone(&lease.heard);
            let before = heard.load(Ordering::Relaxed);
            match self.send_on(lease, call).await {
                Err(Failure::Broken(_)) if heard.load(Ordering::Relaxed) == before => {
                    let lease = self.connect().await?;
                    let mut answer = self.send_on(lease, call).await?;
                    answer.retried = true;
                    return Ok(answer);
                }
                other => return other,
            }
        }
        let lease = self.connect().await?;
        self.send_on(lease, call).await
    }

    async fn send_on(&self, mut lease: Lease, call: &Call) -> Result<Answer, Failure> {
        let mut request = Request::new(Pieces::new(call.body.clone()));
        *request.method_mut() = call.method.clone();
        // The target was made of an HTTP request line or of our own constants; anything else is the root.
        *request.uri_mut() = format!("{}{}", self.prefix, call.target).parse().unwrap_or_default();
        *request.headers_mut() = call.headers.clone();
        if let Ok(host) = self.authority.parse() {
            request.headers_mut().insert(hyper::header::HOST, host);
        }
        let Lease { sender, wire, .. } = &mut lease;
        let mut sending = pin!(sender.send_request(request));
        let response = poll_fn(|cx| {
            wire.drive(cx);
            sending.as_mut().poll(cx)
        })
        .await
        .map_err(Failure::Broken)?;
        let (head, body) = response.into_parts();
        Ok(Answer { head, body: AnswerBody { body, lease }, retried: false })
    }

    async fn connect(&self) -> Result<Lease, Failure> {
        let stream = tokio::time::timeout(self.connect_within, self.dial())
            .await
            .map_err(|_| Failure::ConnectTimeout)?
            .map_err(Failure::Connect)?;
        let heard = Arc::new(AtomicU64::new(0));
        let stream = Counted { stream, heard: Arc::clone(&heard), read: Instant::now() };
        let mut http = http1::Builder::new();
        http.max_buf_size(BUFFER);
        let (sender, connection) = http.handshake(TokioIo::new(stream)).await.map_err(Failure::Broken)?;
        Ok(Lease { sender, wire: Wire(Some(Box::new(connection))), heard, pool: self.pool.clone() })
    }

    async fn dial(&self) -> io::Result<Box<dyn Duplex>> {
        match &self.address {
            Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Tcp { host, port, tls } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let socket = socket2::SockRef::from(&stream);
                socket.set_keepalive(true)?;
                let Some(tls) = tls else { return Ok(Box::new(stream)) };
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                Ok(Box::new(tls.connect(name, stream).await?))
            }
        }
    }
}

/// The body of an answer. Reading it drives its connection: one task does both, so that an event wakes one.
///
/// Dropped, it closes the connection at once, whatever that was doing: so an engine learns that a client left.
pub struct AnswerBody {
    body: Incoming,
    lease: Lease,
}

impl AnswerBody {
    /// Gives the connection back once the body has been read to its end.
    pub fn give_back(self) {
        let mut lease = self.lease;
        tokio::spawn(async move {
            let ready = poll_fn(|cx| {
                lease.wire.drive(cx);
                lease.sender.poll_ready(cx)
            });
            if let Ok(Ok(())) = tokio::time::timeout(SETTLE, ready).await {
                lease.pool.clone().put(lease);
            }
        });
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => {
                self.lease.wire.drive(cx);
                Pin::new(&mut self.body).poll_frame(cx)
            }
            ready @ Poll::Ready(_) => ready,
        }
    }
}

/// A connection and the right to send on it.
struct Lease {
    sender: SendRequest<Pieces>,
    wire: Wire,
    /// Bytes that the engine has sent on this connection.
    heard: Arc<AtomicU64>,
    pool: Pool,
}

impl Lease {
    /// Whether an unused connection can still be used, as far as is known without writing on it.
    fn is_alive(&mut self) -> bool {
        self.wire.drive(&mut Context::from_waker(Waker::noop()));
        self.wire.0.is_some() && !self.sender.is_closed()
    }
}

/// The half of a connection that moves bytes; none once it is over. Its errors reach the sender and the body.
struct Wire(Option<Box<Connection<TokioIo<Counted>, Pieces>>>);

impl Wire {
    fn drive(&mut self, cx: &mut Context<'_>) {
        if self.0.as_mut().is_some_and(|connection| Pin::new(connection).poll(cx).is_ready()) {
            self.0 = None;
        }
    }
}

/// Unused connections, the freshest last.
#[derive(Clone, Default)]
struct Pool {
    idle: Arc<Mutex<VecDeque<(Instant, Lease)>>>,
}

impl Pool {
    fn take(&self) -> Option<Lease> {
        let mut idle = locked(&self.idle);
        idle.retain_mut(|(since, lease)| since.elapsed() < KEEP_IDLE && lease.is_alive());
        idle.pop_back().map(|(_, lease)| lease)
    }

    fn put(&self, lease: Lease) {
        let mut idle = locked(&self.idle);
        idle.retain_mut(|(since, lease)| since.elapsed() < KEEP_IDLE && lease.is_alive());
        if idle.len() == KEEP_AT_MOST {
            idle.pop_front();
        }
        idle.push_back((Instant::now(), lease));
    }
}

/// Anything that bytes go through both ways.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {
    /// Asks the kernel not to acknowledge each small segment by itself, until the next [`ACK_TIMER`] without one.
    fn delay_acknowledgements(&self) {}
}

impl Duplex for UnixStream {}

impl Duplex for TlsStream<TcpStream> {}

impl Duplex for TcpStream {
    #[cfg(target_os = "linux")]
    fn delay_acknowledgements(&self) {
        // Only a matter of speed.
        let _ = socket2::SockRef::from(self).set_tcp_quickack(false);
    }
}

/// A stream that counts what it reads: a second try is only allowed while the engine has not said a byte.
struct Counted {
    stream: Box<dyn Duplex>,
    heard: Arc<AtomicU64>,
    /// When something was read last.
    read: Instant,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let now = Instant::now();
        if now - self.read > ACK_TIMER {
            self.stream.delay_acknowledgements();
        }
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        let count = buf.filled().len() - before;
        if count > 0 {
            self.read = now;
            self.heard.fetch_add(count as u64, Ordering::Relaxed);
        }
        outcome
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A request body in pieces of known length.
struct Pieces {
    left: VecDeque<Bytes>,
    bytes: u64,
}

impl Pieces {
    fn new(parts: Vec<Bytes>) -> Self {
        Self { bytes: parts.iter().map(|part| part.len() as u64).sum(), left: parts.into() }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.left.pop_front();
        self.bytes -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}

fn tls_connector() -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("https needs root certificates, and this system has none (set SSL_CERT_FILE)".into());
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
