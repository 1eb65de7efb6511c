//! `foreword-rig engine`: a fake OpenAI-compatible engine at line rate, on one thread.

mod chunks;
mod connection;
mod request;
mod stream;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    io::{self, ErrorKind, Write as _},
    net::{Ipv4Addr, TcpListener},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    Failure,
    cli::Options,
    clock,
    mark::Mark,
    plan::Plan,
    poll::{Interest, Poll, Ready},
};
use chunks::Voice;
use connection::{Connection, Input};
use request::Received;
use stream::{Next, Stream};

/// The listener's token; those of connections are `generation << 32 | slot`.
const LISTENER: u64 = u64::MAX;
/// Time between the opening of the gate and the first event: the reader samples the relay's processes in it.
const PAUSE_NS: u64 = 250_000_000;
/// Bytes of a flooding stream's write.
const BATCH: usize = 64 * 1024;
const READ_BUFFER: usize = 256 * 1024;

pub(crate) fn command(words: Vec<String>) -> Result<(), Failure> {
    let mut options = Options::new(words);
    let port: u16 = options.value("--port")?.unwrap_or(0);
    let default = Plan::default();
    let plan = Plan {
        mode: options.value("--mode")?.unwrap_or(default.mode),
        rate: options.value("--rate")?.unwrap_or(default.rate),
        events: options.value("--events")?.unwrap_or(default.events),
        gate: options.value("--gate")?.unwrap_or(default.gate),
    }
    .checked()?;
    options.finish()?;

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    // std asks for 128: too few for hundreds of streams that arrive at once.
    rustix::net::listen(&listener, 4096)?;
    listener.set_nonblocking(true)?;
    println!("http://{}", listener.local_addr()?);
    io::stdout().flush()?;
    Engine::new(listener, plan)?.run()
}

struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

struct Engine {
    poll: Poll,
    listener: TcpListener,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Streams by the time of their next event.
    timers: BinaryHeap<Reverse<(u64, u64)>>,
    /// What streams do whose request names nothing else.
    plan: Plan,
    /// Streams before their gate, by the number that opens it: readers beside one another do not open each other's.
    waiting: BTreeMap<usize, Vec<u64>>,
    /// Streams that have passed theirs.
    started: usize,
    buffer: Vec<u8>,
    batch: Vec<u8>,
    /// The longest time by which an event was written after it was due.
    late_ns: u64,
}

fn token_of(slot: usize, generation: u32) -> u64 {
    (u64::from(generation) << 32) | slot as u64
}

impl Engine {
    fn new(listener: TcpListener, plan: Plan) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.add(&listener, LISTENER, Interest::IN)?;
        Ok(Self {
            poll,
            listener,
            slots: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            plan,
            waiting: BTreeMap::new(),
            started: 0,
            buffer: vec![0; READ_BUFFER],
            batch: Vec::with_capacity(2 * BATCH),
            late_ns: 0,
        })
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut ready: Vec<Ready> = Vec::new();
        loop {
            let timeout = self.timers.peek().map(|Reverse((due, _))| due.saturating_sub(clock::now_ns()));
            self.poll.wait(timeout, &mut ready)?;
            for one in ready.drain(..) {
                if one.token == LISTENER {
                    self.accept()?;
                } else {
                    self.serve(one.token, |engine, connection| engine.ready(connection, one));
                }
            }
            let now = clock::now_ns();
            while let Some(&Reverse((due, token))) = self.timers.peek()
                && due <= now
            {
                self.timers.pop();
                self.serve(token, |engine, connection| engine.due(connection, token));
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            let connection = Box::new(Connection::new(socket)?);
            let slot = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Slot { generation: 0, connection: None });
                self.slots.len() - 1
            });
            let Some(place) = self.slots.get_mut(slot) else { continue };
            place.generation = place.generation.wrapping_add(1) & 0x7fff_ffff;
            self.poll.add(&connection.socket, token_of(slot, place.generation), connection.interest)?;
            place.connection = Some(connection);
        }
    }

    /// Does something with a connection, then watches what it needs next; drops it when it is over or broken.
    fn serve(&mut self, token: u64, act: impl FnOnce(&mut Self, &mut Connection) -> io::Result<bool>) {
        let slot = (token & 0xffff_ffff) as usize;
        let Some(place) = self.slots.get_mut(slot).filter(|place| token_of(slot, place.generation) == token) else {
            return;
        };
        let Some(mut connection) = place.connection.take() else { return };
        let stays = act(self, &mut connection).and_then(|stays| Ok(stays && self.watch(&mut connection, token)?));
        if let Ok(true) = stays {
            if let Some(place) = self.slots.get_mut(slot) {
                place.connection = Some(connection);
            }
        } else {
            self.waiting.values_mut().for_each(|tokens| tokens.retain(|waiting| *waiting != token));
            self.free.push(slot);
        }
        let full = |(gate, tokens): (&usize, &Vec<u64>)| (tokens.len() >= (*gate).max(1)).then_some(*gate);
        if let Some(tokens) = self.waiting.iter().find_map(full).and_then(|gate| self.waiting.remove(&gate)) {
            self.start(tokens);
        }
    }

    fn watch(&self, connection: &mut Connection, token: u64) -> io::Result<bool> {
        let floods = connection.stream().is_some_and(|stream| stream.is_flowing());
        let mut interest = Interest::IN | Interest::RDHUP;
        interest.set(Interest::OUT, floods || connection.has_unsent());
        if interest != connection.interest {
            connection.interest = interest;
            self.poll.modify(&connection.socket, token, interest)?;
        }
        Ok(!connection.is_over())
    }

    fn ready(&mut self, connection: &mut Connection, ready: Ready) -> io::Result<bool> {
        if ready.writable {
            connection.flush()?;
            self.flood(connection)?;
        }
        if ready.readable {
            match connection.read(&mut self.buffer)? {
                Input::Gone => return Ok(false),
                Input::Nothing => {}
                Input::Request(request) => self.answer(connection, ready.token, &request)?,
            }
        }
        // A client may have sent its next request before the last answer's end.
        while let Some(request) = connection.next_request()? {
            self.answer(connection, ready.token, &request)?;
        }
        Ok(true)
    }

    fn due(&mut self, connection: &mut Connection, token: u64) -> io::Result<bool> {
        let Some(stream) = connection.stream() else { return Ok(true) };
        if stream.let_flow() {
            return Ok(true);
        }
        self.late_ns = self.late_ns.max(clock::now_ns().saturating_sub(stream.due_ns()));
        self.batch.clear();
        let next = stream.event(&mut self.batch);
        connection.send(&self.batch)?;
        match next {
            Next::At(due) => self.timers.push(Reverse((due, token))),
            Next::Writable => {}
            Next::Ended => finish(connection)?,
        }
        Ok(true)
    }

    fn flood(&mut self, connection: &mut Connection) -> io::Result<()> {
        if connection.has_unsent() {
            return Ok(());
        }
        let Some(stream) = connection.stream().filter(|stream| stream.is_flowing()) else { return Ok(()) };
        self.batch.clear();
        let next = stream.fill(&mut self.batch, BATCH);
        connection.send(&self.batch)?;
        if let Next::Ended = next { finish(connection) } else { Ok(()) }
    }

    /// Starts all streams that wait for one another.
    fn start(&mut self, tokens: Vec<u64>) {
        let start_ns = clock::now_ns() + PAUSE_NS;
        for token in tokens {
            let place = self.slots.get_mut((token & 0xffff_ffff) as usize);
            let Some(stream) = place.and_then(|place| place.connection.as_mut()?.stream()) else { continue };
            self.timers.push(Reverse((stream.start(start_ns, self.started), token)));
            self.started += 1;
        }
    }

    fn answer(&mut self, connection: &mut Connection, token: u64, request: &Received) -> io::Result<()> {
        let mut words = request.head.start();
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let answer = match (method, path) {
            ("POST", "/v1/chat/completions") => return self.complete(connection, token, request),
            ("GET", "/v1/models") => chunks::json("200 OK", MODELS),
            ("GET", "/version") => chunks::json("200 OK", r#"{"version":"0.32.0"}"#),
            ("GET", "/health") => chunks::json("200 OK", ""),
            ("POST", "/tokenize") => {
                let count = prompt_tokens(request);
                chunks::json(
                    "200 OK",
                    &format!(r#"{{"count":{count},"max_model_len":{MAX_MODEL_LEN},"tokens":[],"token_strs":null}}"#),
                )
            }
            ("POST", "/rig") => match self.plan.with(query) {
                Ok(plan) => {
                    let late = clock::seconds(self.late_ns);
                    if !query.is_empty() {
                        (self.plan, self.late_ns) = (plan, 0);
                    }
                    let live = self
                        .slots
                        .iter()
                        .filter_map(|slot| slot.connection.as_ref())
                        .filter(|c| c.has_stream())
                        .count();
                    let waiting: usize = self.waiting.values().map(Vec::len).sum();
                    chunks::json("200 OK", &format!(r#"{{"live":{live},"waiting":{waiting},"late_s":{late}}}"#))
                }
                Err(error) => refusal(&error.to_string()),
            },
            ("GET" | "POST", _) => chunks::json("404 Not Found", r#"{"detail":"Not Found"}"#),
            _ => chunks::json("405 Method Not Allowed", ""),
        };
        connection.send(&answer)?;
        connection.end_answer();
        Ok(())
    }

    /// Answers a chat completion: at once with head, role and the first content event, then as planned.
    fn complete(&mut self, connection: &mut Connection, token: u64, request: &Received) -> io::Result<()> {
        let mut plan = match self.plan.with(request.head.field("x-rig").unwrap_or_default()) {
            Ok(plan) => plan,
            Err(error) => {
                connection.send(&refusal(&error.to_string()))?;
                connection.end_answer();
                return Ok(());
            }
        };
        plan.events = request.body.max_tokens().unwrap_or(plan.events).clamp(1, plan.events);
        let prompt = prompt_tokens(request);
        let voice = Voice {
            id: request.recv_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        };
        let Received { first_ns, recv_ns, body, .. } = request;
        let mark = Mark { t_ns: clock::now_ns(), seq: 0 }.bytes();
        let mark = String::from_utf8_lossy(&mark);
        let text = format!("{mark}recv_ns={recv_ns} first_ns={first_ns} body_bytes={} ", body.length);
        if !body.wants_stream() {
            connection.send(&chunks::json("200 OK", &voice.whole(&text, prompt, 1)))?;
            connection.end_answer();
            return Ok(());
        }
        for piece in [chunks::STREAM_HEAD, &voice.role(), &voice.content(&text)] {
            connection.send(piece)?;
        }
        let stream = Stream::new(plan, voice, prompt, body.wants_usage());
        let ended = stream.is_at_end();
        connection.begin(Box::new(stream));
        if ended {
            return finish(connection);
        }
        self.waiting.entry(plan.gate).or_default().push(token);
        Ok(())
    }
}

const MAX_MODEL_LEN: u32 = 8_388_608;
const MODELS: &str = r#"{"object":"list","data":[{"id":"rig","object":"model","created":1796008029,"owned_by":"vllm","root":"rig","parent":null,"max_model_len":8388608,"permission":[]}]}"#;

/// About as many tokens as such a body would have.
fn prompt_tokens(request: &Received) -> u64 {
    request.body.length as u64 / 4 + 1
}

fn refusal(reason: &str) -> Vec<u8> {
    let message = reason.replace(['"', '\\'], "'");
    let body = format!(r#"{{"error":{{"message":"{message}","type":"BadRequestError","param":null,"code":400}}}}"#);
    chunks::json("400 Bad Request", &body)
}

/// Writes what follows the last content event.
fn finish(connection: &mut Connection) -> io::Result<()> {
    let tail = connection.stream().map(|stream| stream.tail()).unwrap_or_default();
    for piece in tail {
        connection.send(&piece)?;
    }
    connection.end_answer();
    Ok(())
}
