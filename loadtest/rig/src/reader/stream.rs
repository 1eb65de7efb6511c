//! One stream of the reader: its request, its answer, what was seen of it.

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    rc::Rc,
};

use super::{
    events::{Lines, Seen},
    tally::Tally,
};
use crate::{
    clock,
    http::{Framing, Head, Malformed},
};

/// No more of an answer that is not a stream of events is kept.
const MAX_REFUSAL: usize = 2000;

enum State {
    /// So many bytes of the request were sent.
    Sending(usize),
    Head(Vec<u8>),
    Events(Framing),
    /// Something else than 200 came; its body so far.
    Refused {
        status: u16,
        framing: Framing,
        body: Vec<u8>,
    },
    Closed,
}

pub(crate) struct Stream {
    /// None once it is closed, from either side.
    socket: Option<TcpStream>,
    request: Rc<[u8]>,
    state: State,
    lines: Lines,
    pub(crate) tally: Tally,
    opened_ns: u64,
    /// From the connect to the first content event.
    pub(crate) ttft_ns: Option<u64>,
    pub(crate) ended: bool,
    pub(crate) failure: Option<String>,
    pub(crate) sse_events: u64,
    pub(crate) bytes: u64,
}

impl Stream {
    /// Starts to connect.
    pub(crate) fn open(address: SocketAddr, request: Rc<[u8]>, events: u32) -> io::Result<Self> {
        let opened_ns = clock::now_ns();
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let socket = TcpStream::from(socket);
        socket.set_nodelay(true)?;
        Ok(Self {
            socket: Some(socket),
            request,
            state: State::Sending(0),
            lines: Lines::default(),
            tally: Tally::new(events),
            opened_ns,
            ttft_ns: None,
            ended: false,
            failure: None,
            sse_events: 0,
            bytes: 0,
        })
    }

    pub(crate) fn is_sending(&self) -> bool {
        matches!(self.state, State::Sending(_))
    }

    /// The connection, as long as it is open.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        self.socket.as_ref()
    }

    /// Sends what the socket takes of the request.
    pub(crate) fn send(&mut self) {
        let (State::Sending(sent), Some(socket)) = (&mut self.state, &mut self.socket) else { return };
        match socket.write(self.request.get(*sent..).unwrap_or_default()) {
            Ok(count) => {
                *sent += count;
                if *sent == self.request.len() {
                    self.state = State::Head(Vec::new());
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => self.fail(format!("sending the request: {error}")),
        }
    }

    /// Reads once; `latency` gets each content event's number, when it came, and its age in nanoseconds.
    pub(crate) fn read(&mut self, buffer: &mut [u8], latency: &mut impl FnMut(u32, u64, u64)) {
        let Some(socket) = &mut self.socket else { return };
        match socket.read(buffer) {
            Ok(0) => self.end_of_file(),
            Ok(count) => {
                let now = clock::now_ns();
                self.bytes += count as u64;
                let (bytes, _) = buffer.split_at(count);
                if let Err(error) = self.take(bytes, now, latency) {
                    self.fail(error.to_string());
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => self.fail(format!("reading: {error}")),
        }
    }

    fn take(&mut self, bytes: &[u8], now: u64, latency: &mut impl FnMut(u32, u64, u64)) -> Result<(), Malformed> {
        match &mut self.state {
            // An answer before the request's end can only be a refusal.
            State::Sending(_) | State::Closed => {
                self.state = State::Head(Vec::new());
                self.take(bytes, now, latency)
            }
            State::Head(head) => {
                head.extend_from_slice(bytes);
                let Some((parsed, length)) = Head::parse(head)? else { return Ok(()) };
                let body = head.split_off(length);
                let status = parsed.status().ok_or(Malformed("no status"))?;
                let framing = parsed.framing(Framing::ToEnd)?;
                self.state = match status {
                    200 => State::Events(framing),
                    100 => State::Head(Vec::new()),
                    status => State::Refused { status, framing, body: Vec::new() },
                };
                if body.is_empty() { Ok(()) } else { self.take(&body, now, latency) }
            }
            State::Events(framing) => {
                let Self { lines, tally, opened_ns, ttft_ns, ended, failure, sse_events, .. } = self;
                framing.take(bytes, |body| {
                    lines.take(body, |seen| match seen {
                        Seen::Event => *sse_events += 1,
                        Seen::Content { mark, .. } => {
                            tally.add(mark.seq);
                            ttft_ns.get_or_insert(now - *opened_ns);
                            latency(mark.seq, now, now.saturating_sub(mark.t_ns));
                        }
                        Seen::End => *ended = true,
                        Seen::Error(data) => *failure = Some(format!("error event: {}", String::from_utf8_lossy(data))),
                    });
                })?;
                if framing.is_done() {
                    self.end_of_file();
                }
                Ok(())
            }
            State::Refused { framing, body, .. } => {
                framing.take(bytes, |piece| body.extend_from_slice(piece))?;
                body.truncate(MAX_REFUSAL);
                if framing.is_done() {
                    self.end_of_file();
                }
                Ok(())
            }
        }
    }

    fn end_of_file(&mut self) {
        let fault = match &self.state {
            State::Refused { status, body, .. } => Some(format!("status {status}: {}", String::from_utf8_lossy(body))),
            State::Events(framing) if !framing.is_done() && *framing != Framing::ToEnd => {
                Some("cut inside the body".into())
            }
            State::Events(_) if !self.ended => Some("the body ended before the stream".into()),
            State::Events(_) | State::Closed => None,
            State::Sending(_) | State::Head(_) => Some("closed before an answer".into()),
        };
        match fault {
            Some(reason) => self.fail(reason),
            None => self.leave(),
        }
    }

    /// Closes the connection for a reason; the first one counts.
    pub(crate) fn fail(&mut self, reason: String) {
        self.leave();
        self.failure.get_or_insert(reason);
    }

    /// Closes the connection, wherever the answer is.
    pub(crate) fn leave(&mut self) {
        self.socket = None;
        self.state = State::Closed;
    }
}
