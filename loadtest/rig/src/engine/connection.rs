//! One connection of a client: its requests one by one, and its unsent bytes.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
};

use super::{
    request::{Edges, Received},
    stream::Stream,
};
use crate::{
    clock,
    http::{Framing, Head},
    poll::Interest,
};

/// What a readable socket led to.
pub(crate) enum Input {
    Nothing,
    Request(Box<Received>),
    /// The client has left.
    Gone,
}

enum State {
    /// Between requests, or in the head of one.
    Idle,
    Receiving {
        head: Head,
        framing: Framing,
        body: Edges,
    },
    /// A request is being answered; with a stream, this is it.
    Answering(Option<Box<Stream>>),
}

pub(crate) struct Connection {
    pub(crate) socket: TcpStream,
    /// What epoll watches.
    pub(crate) interest: Interest,
    /// Closes when the answer is out, as the client asked.
    close_after: bool,
    state: State,
    /// Received and not yet looked at: a part of a head, or a request ahead of its turn.
    input: Vec<u8>,
    first_ns: u64,
    /// Accepted from the answer and not yet by the socket.
    unsent: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            interest: Interest::IN,
            close_after: false,
            state: State::Idle,
            input: Vec::new(),
            first_ns: 0,
            unsent: Vec::new(),
        })
    }

    pub(crate) fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.state {
            State::Answering(stream) => stream.as_deref_mut(),
            _ => None,
        }
    }

    pub(crate) fn has_stream(&self) -> bool {
        matches!(self.state, State::Answering(Some(_)))
    }

    /// Reads what is there, up to the end of one request.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Input> {
        loop {
            let count = match self.socket.read(buffer) {
                Ok(0) => return Ok(Input::Gone),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Input::Nothing),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let (bytes, _) = buffer.split_at(count);
            if let Some(request) = self.take(bytes)? {
                return Ok(Input::Request(Box::new(request)));
            }
            // A short read emptied the socket; if not, epoll tells again.
            if count < buffer.len() {
                return Ok(Input::Nothing);
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<Option<Received>> {
        if let State::Receiving { framing, body, .. } = &mut self.state {
            let taken = framing.take(bytes, |piece| body.push(piece))?;
            let (_, ahead) = bytes.split_at(taken);
            self.input.extend_from_slice(ahead);
            return Ok(self.received());
        }
        if matches!(self.state, State::Idle) && self.input.is_empty() {
            self.first_ns = clock::now_ns();
        }
        self.input.extend_from_slice(bytes);
        self.next_request()
    }

    /// Looks for a request in what was read ahead.
    pub(crate) fn next_request(&mut self) -> io::Result<Option<Received>> {
        if !matches!(self.state, State::Idle) {
            return Ok(None);
        }
        let Some((head, length)) = Head::parse(&self.input)? else { return Ok(None) };
        let mut framing = head.framing(Framing::Done)?;
        self.close_after = head.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if head.field("expect").is_some() {
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let mut body = Edges::default();
        let (_, after) = self.input.split_at(length);
        let taken = framing.take(after, |piece| body.push(piece))?;
        self.input.drain(..length + taken);
        self.state = State::Receiving { head, framing, body };
        Ok(self.received())
    }

    fn received(&mut self) -> Option<Received> {
        match std::mem::replace(&mut self.state, State::Answering(None)) {
            State::Receiving { head, framing, body } if framing.is_done() => {
                Some(Received { head, body, first_ns: self.first_ns, recv_ns: clock::now_ns() })
            }
            unfinished => {
                self.state = unfinished;
                None
            }
        }
    }

    /// Sets the stream that answers the request.
    pub(crate) fn begin(&mut self, stream: Box<Stream>) {
        self.state = State::Answering(Some(stream));
    }

    /// The answer is complete.
    pub(crate) fn end_answer(&mut self) {
        self.state = State::Idle;
        self.first_ns = clock::now_ns();
    }

    /// Whether everything was sent after which the client wants an end.
    pub(crate) fn is_over(&self) -> bool {
        self.close_after && matches!(self.state, State::Idle) && self.unsent.is_empty()
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Writes now what the socket takes; keeps the rest.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.unsent.is_empty() {
            let count = written(self.socket.write(bytes))?;
            let (_, rest) = bytes.split_at(count);
            self.unsent.extend_from_slice(rest);
        } else {
            self.unsent.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Goes on with what was kept.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if !self.unsent.is_empty() {
            let count = written(self.socket.write(&self.unsent))?;
            self.unsent.drain(..count);
        }
        Ok(())
    }
}

fn written(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}
