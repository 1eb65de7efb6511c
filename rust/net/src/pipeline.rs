//! One exchange from its opening to its record: prepare, send, read, finish.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreword_core::answer::{Reader, Refused};
use foreword_core::encoding;
use foreword_core::error::{Dialect, Fault};
use foreword_core::profile::{Engine, Profile};
use foreword_core::prompt::seen::{Diagnose, see};
use foreword_core::request::{self, Ids, Prepared, Request, Route};
use http::{HeaderMap, Method};
use tokio::task::JoinHandle;

use crate::ending;
use crate::exchange::{Head, Opening};
use crate::gateway::Shared;
use crate::headers::{media_type, put, relayed_headers, upstream_headers};
use crate::outbox::Outbox;
use crate::prefixes::Trace;
use crate::record::Record;
use crate::rendering::Doubt;
use crate::silence::{Due, Silence};
use crate::stop::{Stop, Why};
use crate::target;
use crate::told;
use crate::upstream::{Answer, AnswerBody, Call, Failure};
use crate::who;

/// Bodies up to this size are prepared on the network thread: handing over would cost more.
const PREPARE_HERE: usize = 64 * 1024;

/// The largest answer that is collected before it is passed on.
const WHOLE_ANSWER: usize = 256 * 1024 * 1024;

/// The largest answer to a question of Foreword's own: no engine's metrics are near it.
const OWN_ANSWER: usize = 32 * 1024 * 1024;

/// How long a stream may stay open behind its `finish_reason`: all but usage was said by then.
const UNENDED: Duration = Duration::from_secs(30);

/// Bytes of a flood that are read before other streams have their turn.
const TURN: usize = 32 * 1024;

/// How long the reason of a refusal may take, whose status is known.
const REFUSAL: Duration = Duration::from_secs(10);

/// How long a stated end may take to become the body's end, so that the connection can be used again.
const TRAILER: Duration = Duration::from_millis(500);

/// The settings that an engine's silence runs into.
const IDLE: &str = "FOREWORD_IDLE_SECONDS";
const ANSWER: &str = "FOREWORD_ANSWER_SECONDS";

const PANICKED: &str = "a thread panicked";
const NO_READER: &str = "an answer without a reader";

/// Runs one exchange. Whatever happens, the outbox gets its record in the end.
pub(crate) async fn run(shared: Arc<Shared>, opening: Opening, outbox: Arc<Outbox>, stop: Arc<Stop>) {
    let mut record = Record::new(opening.route, opening.request_id.clone(), opening.body.len());
    record.client = who::client(&opening);
    record.engine = shared.profile().engine.name();
    let anthropic = opening.target.starts_with("/v1/messages") || speaks_anthropic(&opening);
    let dialect = if anthropic { Dialect::Messages } else { Dialect::OpenAi };
    let mut exchange = Exchange {
        shared: &shared,
        outbox: &outbox,
        record,
        reader: None,
        own: opening.own,
        looking: None,
        trace: None,
        dialect,
        relayed: true,
        head_sent: false,
        stream_status: 200,
        over: false,
        retry_advice: Vec::new(),
        out: Vec::new(),
    };
    let fault = tokio::select! {
        biased;
        why = stop.told() => match why {
            Why::Left => {
                exchange.record.left = true;
                None
            }
            Why::Closing(fault) => Some(fault),
        },
        outcome = caught(exchange.answer(opening)) => {
            if let Some(outcome) = outcome {
                outcome.err()
            } else {
                // Whatever state it was left in, this reader has said its last word.
                exchange.reader = None;
                Some(Fault::internal(PANICKED))
            }
        }
    };
    if let Some(fault) = fault {
        // A fault is a record's end, whatever becomes of the words for the client.
        let _ = catch_unwind(AssertUnwindSafe(|| exchange.tell(fault)));
    }
    exchange.settle();
    let Exchange { record, trace, own, .. } = exchange;
    // Large where the engine is asked once more: no stream should carry its room.
    Box::pin(ending::close(shared, outbox, record, trace, own)).await;
}

/// Polls `future`; `None` if it panics.
async fn caught<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Some),
        Err(_) => std::task::Poll::Ready(None),
    })
    .await
}

fn speaks_anthropic(opening: &Opening) -> bool {
    opening.header("anthropic-version").is_some()
}

/// What the journal says of a request, and what the client asked it.
type Looked = Option<(Trace, Option<Diagnose>)>;

enum Looking {
    Done(Box<Looked>),
    Beside(JoinHandle<Looked>),
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
struct Exchange<'a> {
    shared: &'a Shared,
    outbox: &'a Arc<Outbox>,
    record: Record,
    reader: Option<Reader>,
    /// Whether the question is Foreword's own.
    own: bool,
    /// The journal's look at the request, which may still be under way.
    looking: Option<Looking>,
    /// Its way through the prefix journal; none for routes without a prompt.
    trace: Option<Trace>,
    dialect: Dialect,
    /// Whether the answer keeps the engine's dialect, and with it the engine's headers.
    relayed: bool,
    head_sent: bool,
    /// Status of a stream's head.
    stream_status: u16,
    /// Whether the reader has had its last word; a fault that it found itself it has told.
    over: bool,
    /// Headers of a refusal that say whether and when to try again.
    retry_advice: Vec<(Bytes, Bytes)>,
    /// Bytes for the client that were written and not yet put into the outbox.
    out: Vec<u8>,
}

impl Exchange<'_> {
    async fn answer(&mut self, opening: Opening) -> Result<(), Fault> {
        // The request is gone when this returns: a long answer must not keep megabytes of prompt.
        let (answer, reader, refusal) = Box::pin(self.ask(opening)).await?;
        match refusal {
            None => self.read(answer, reader).await,
            Some(refusal) => self.refuse(answer, &refusal, reader),
        }
    }

    /// Prepares and sends the request, and reads a refusal. An engine that refuses what Foreword added
    /// (`stream_options`, an effort) is asked once more, without.
    async fn ask(&mut self, opening: Opening) -> Result<(Answer, Reader, Option<Refusal>), Fault> {
        loop {
            let prepared = self.prepare(&opening, self.shared.profile()).await?;
            let (call, mut reader) = self.take_in(&opening, prepared)?;
            let answer = self.send(&call, &mut reader).await;
            self.look_up(&call, &mut reader).await;
            let mut answer = answer?;
            let status = answer.head.status;
            if status.is_success() {
                if let Some(trace) = &mut self.trace {
                    self.shared.prefixes.enter(trace, &mut self.record);
                }
                return Ok((answer, reader, None));
            }
            if !(300..600).contains(&status.as_u16()) {
                return Err(Fault::broken(&format!("status {}", status.as_u16())));
            }
            let refusal = self.refusal(&mut answer).await?;
            // Prepared anew, the request has it no more: it cannot be refused again.
            let Some(refused) = reader.refused_addition(status.as_u16(), &refusal.decoded) else {
                return Ok((answer, reader, Some(refusal)));
            };
            self.shared.learn(|profile| profile.leave_out(refused));
        }
    }

    /// Decodes, scans, normalises and translates: on this thread if that is quick, else beside it. The journal looks at
    /// a large body while it is being sent.
    async fn prepare(&mut self, opening: &Opening, profile: Arc<Profile>) -> Result<Prepared, Fault> {
        let route = opening.route;
        let encoding = opening.header("content-encoding").unwrap_or("identity").to_owned();
        let limit = self.shared.limits.body_bytes;
        let ids = Ids { seed: random() };
        let body = opening.body.whole().await.ok_or_else(|| Fault::internal(PANICKED))?;
        let request = Request { route, body, anthropic: speaks_anthropic(opening) };
        let here = request.body.text().len() <= PREPARE_HERE && encoding == "identity";
        let capture = Arc::clone(&self.shared.capture);
        let (name, request_id) = (self.record.route_name(), self.record.request_id.clone());
        let known = Arc::clone(&profile);
        let work = move || {
            let mut request = request;
            if route != Route::Other && encoding != "identity" {
                request.body = encoding::decode(&encoding, request.body.text().clone(), limit)?.into();
            }
            if matches!(route, Route::Messages | Route::Chat | Route::Completions | Route::Responses) {
                capture.take(name, &request_id, request.body.text());
            }
            request::prepare(request, &known, ids)
        };
        let mut prepared = if here {
            work()
        } else {
            tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(Fault::internal(PANICKED)))
        }?;
        self.record.prepared();
        let prefixes = Arc::clone(&self.shared.prefixes);
        let client = self.record.client.clone();
        let messages = prepared.notes.messages;
        let scanned = prepared.scanned.take();
        let look = move || {
            let body = scanned?;
            let mut seen = see(route, &body, &profile)?;
            seen.prompt.messages = messages;
            let mut trace = prefixes.look(seen.prompt, &client, seen.session.as_deref())?;
            prefixes.read(&mut trace, route, body.text(), &profile);
            Some((trace, seen.diagnose))
        };
        self.looking = Some(if here {
            Looking::Done(Box::new(look()))
        } else {
            Looking::Beside(tokio::task::spawn_blocking(look))
        });
        Ok(prepared)
    }

    /// Takes what the journal says of the request: where it stands, whose session it is, what to tell of the cache.
    async fn look_up(&mut self, call: &Call, reader: &mut Reader) {
        let looked = match self.looking.take() {
            None => return,
            Some(Looking::Done(looked)) => *looked,
            Some(Looking::Beside(looking)) => looking.await.ok().flatten(),
        };
        let Some((mut trace, asked)) = looked else { return };
        self.record.session = trace.session();
        if let Some(asked) = asked {
            reader.tell_diagnostics(self.diagnosis(&asked, &trace, reader.dialect()));
        }
        let renders = matches!(self.shared.profile().engine, Engine::Vllm | Engine::Unknown);
        if let Some(earlier) = trace.doubtful().filter(|_| renders)
            && let Some(place) = self.shared.questions.place()
        {
            // Pieces are shared, not copied.
            trace.keep(Doubt { headers: call.headers.clone(), body: call.body.clone(), earlier, place });
        }
        self.trace = Some(trace);
    }

    /// Notes what was prepared and makes the call upstream of it.
    fn take_in(&mut self, opening: &Opening, prepared: Prepared) -> Result<(Call, Reader), Fault> {
        self.record.body_bytes.1 = prepared.body.len();
        let profile = self.shared.profile();
        self.record.upstream_model = prepared
            .model
            .as_deref()
            .map(|model| profile.upstream_model(model).map_or_else(|| model.to_owned(), str::to_owned));
        let mut reader = prepared.reader;
        self.record.usage_mode = (reader.dialect() == Dialect::Messages).then_some(profile.usage);
        self.record.model = prepared.model;
        self.record.stream = prepared.stream;
        self.record.notes = Some(prepared.notes);
        if opening.route != Route::Other {
            self.dialect = reader.dialect();
        }
        if opening.route == Route::Model {
            let name = target::model(&opening.target);
            // No name at all is nobody's: not even a map that takes every name makes a model of it.
            let served = profile.upstream_model(&name).filter(|_| !name.is_empty()).map(str::to_owned);
            self.record.model = Some(request::shortened(&name));
            reader.want_model(name, served);
        }
        let target = prepared.path.map_or_else(|| opening.target.clone(), str::to_owned);
        let translated = prepared.path.is_some();
        self.relayed = !(translated || opening.route == Route::Models && speaks_anthropic(opening));
        let call = Call {
            method: Method::from_bytes(opening.method.as_bytes())
                .map_err(|_| Fault::invalid("", "unknown HTTP method"))?,
            target,
            headers: upstream_headers(opening, translated),
            body: prepared.body.into_parts(),
        };
        Ok((call, reader))
    }

    /// What the client is told of its cache, in its vendor's form.
    fn diagnosis(&self, asked: &Diagnose, trace: &Trace, dialect: Dialect) -> String {
        // A first turn only makes itself known.
        let Some(id) = &asked.previous else { return "null".to_owned() };
        let diagnosis = self.shared.prefixes.diagnose(trace, id);
        if dialect == Dialect::Messages { diagnosis.anthropic() } else { diagnosis.openai() }
    }

    /// Notes what the engine said, and gives the verdict, once.
    fn settle(&mut self) {
        if let Some(reader) = &self.reader {
            self.record.summary = reader.summary().clone();
        }
        let Some(trace) = &self.trace else { return };
        let profile = self.shared.profile();
        let awaited = profile.engine_log && self.record.lacks_reuse();
        if self.record.verdict.is_none() && self.record.answered() && !awaited {
            self.shared.prefixes.settle(trace, &mut self.record, &profile);
        }
    }

    /// Sends the request and waits for the answer's head; a stream's own head may go out meanwhile.
    async fn send(&mut self, call: &Call, reader: &mut Reader) -> Result<Answer, Fault> {
        let limits = self.shared.limits;
        let stream = self.record.stream;
        let (within, setting) = if stream { (limits.idle, IDLE) } else { (limits.answer, ANSWER) };
        let early = limits.early_head.filter(|_| stream);
        let mut silence = Silence::new(within, early);
        let sending = self.shared.upstream.send(call);
        tokio::pin!(sending);
        loop {
            let due = tokio::select! {
                biased;
                answer = &mut sending => {
                    let answer = answer.map_err(|failure| unreached(&failure))?;
                    self.record.retried |= answer.retried;
                    return Ok(answer);
                }
                due = silence.next() => due,
            };
            match due {
                Due::Limit => return Err(Fault::timeout(setting, within.as_secs())),
                Due::Ping => {
                    // The head may carry what was asked of the cache.
                    self.look_up(call, reader).await;
                    self.ping(reader, None).await;
                    silence.ping_in(limits.ping);
                }
            }
        }
    }

    /// Reads a successful answer.
    async fn read(&mut self, answer: Answer, reader: Reader) -> Result<(), Fault> {
        let Answer { head, body, .. } = answer;
        let streamed = media_type(&head.headers) == "text/event-stream";
        self.reader = Some(reader);
        let relayed = self.relayed;
        let encoded = head.headers.get("content-encoding").is_some_and(|coding| coding != "identity");
        let status = head.status.as_u16();
        // On a relayed route the engine alone knows what streams.
        if streamed && !encoded && (self.record.stream || relayed) {
            self.stream_status = status;
            let sent = relayed.then_some(&head.headers);
            return self.stream(sent, body).await;
        }
        let whole = self.collect(body).await?;
        if relayed && (encoded || self.record.route == Route::Other) {
            // Not ours to read: bytes and content-encoding stay together as they came.
            return self.pass(status, &head.headers, &whole);
        }
        let whole = decoded(&head.headers, whole)?;
        let Some(reader) = &mut self.reader else { return Err(Fault::internal(NO_READER)) };
        if self.record.stream && self.record.route == Route::Messages && !relayed {
            let outcome = reader.whole_as_stream(&whole, &mut self.out);
            self.over = true;
            self.flush(None);
            return outcome;
        }
        let whole = reader.whole(&whole)?;
        self.record.estimated = reader.estimated();
        if relayed { self.pass(status, &head.headers, &whole) } else { self.reply(status, &whole) }
    }

    /// Reads a stream, event by event as it comes.
    async fn stream(&mut self, sent: Option<&HeaderMap>, mut body: AnswerBody) -> Result<(), Fault> {
        let cut = self.events(sent, &mut body).await?;
        let whole = cut.is_none();
        let Some(reader) = &mut self.reader else { return Err(Fault::internal(NO_READER)) };
        let outcome = reader.end(cut, &mut self.out);
        self.over = true;
        self.flush(sent);
        outcome?;
        if !self.head_sent {
            self.start(sent);
        }
        if whole {
            finish(body);
        }
        Ok(())
    }

    /// Passes on what comes until the engine states its end or its body ends; what broke it if it breaks.
    async fn events(&mut self, sent: Option<&HeaderMap>, body: &mut AnswerBody) -> Result<Option<Fault>, Fault> {
        let limits = self.shared.limits;
        let mut turn = 0;
        let mut silence = Silence::new(limits.idle, Some(limits.ping));
        loop {
            let Some(reader) = &mut self.reader else { return Err(Fault::internal(NO_READER)) };
            let out = &mut self.out;
            let read = tokio::select! {
                biased;
                read = body.read(|data| (data.len(), reader.feed(data, out))) => read,
                due = silence.next() => {
                    if let Due::Limit = due {
                        return Err(Fault::timeout(IDLE, limits.idle.as_secs()));
                    }
                    if reader.summary().finish.is_some() && silence.lasts() >= UNENDED {
                        return Ok(None);
                    }
                    let Some(mut reader) = self.reader.take() else { return Err(Fault::internal(NO_READER)) };
                    self.ping(&mut reader, sent).await;
                    self.reader = Some(reader);
                    silence.ping_in(limits.ping);
                    continue;
                }
            };
            let (length, outcome) = match read {
                Ok(Some(read)) => read,
                Ok(None) => return Ok(None),
                Err(broken) => return Ok(Some(Fault::broken(&broken.to_string()))),
            };
            silence.heard();
            self.over = outcome.is_err();
            let done = reader.done();
            if !self.out.is_empty() {
                silence.ping_in(limits.ping);
                if !self.flush(sent) {
                    self.outbox.room().await;
                }
            }
            outcome?;
            if done {
                return Ok(None);
            }
            turn += length;
            if turn > TURN {
                turn = 0;
                tokio::task::yield_now().await;
            }
        }
    }

    /// Breaks a silence: the head of a stream if it has not gone out, and what the dialect says in silence.
    async fn ping(&mut self, reader: &mut Reader, sent: Option<&HeaderMap>) {
        reader.ping(&mut self.out);
        if self.out.is_empty() && !self.head_sent {
            self.start(sent);
        }
        if !self.put(sent) {
            self.outbox.room().await;
        }
    }

    /// Puts what the engine's answer became into the outbox, behind the head. Whether there is room for more.
    fn flush(&mut self, sent: Option<&HeaderMap>) -> bool {
        if !self.out.is_empty() {
            self.record.first_byte();
        }
        self.put(sent)
    }

    /// Puts what was written into the outbox, behind the head. Whether there is room for more.
    fn put(&mut self, sent: Option<&HeaderMap>) -> bool {
        if self.out.is_empty() {
            return true;
        }
        if !self.head_sent {
            self.start(sent);
        }
        self.pour()
    }

    /// Moves what was written into the outbox. Whether there is room for more. What has been put is gone from here before
    /// anything waits: a wait may be cut short, and what were left would be sent again.
    fn pour(&mut self) -> bool {
        self.record.answer_bytes += self.out.len();
        let room = self.outbox.body(&self.out);
        self.out.clear();
        room
    }

    /// Sends a stream's head: the engine's for a relayed one.
    fn start(&mut self, sent: Option<&HeaderMap>) {
        let mut headers = sent.map(relayed_headers).unwrap_or_default();
        if sent.is_some_and(|sent| media_type(sent) == "text/event-stream") {
            // Events may be left out, or told of a fault: the engine's count of bytes does not hold.
            headers.retain(|(name, _)| name != "content-length");
        }
        if sent.is_none() {
            put(&mut headers, "content-type", "text/event-stream");
            put(&mut headers, "cache-control", "no-cache");
        }
        if !headers.iter().any(|(name, _)| name == "x-accel-buffering") {
            put(&mut headers, "x-accel-buffering", "no");
        }
        self.send_head(self.stream_status, headers);
    }

    async fn collect(&mut self, mut body: AnswerBody) -> Result<Bytes, Fault> {
        let limits = self.shared.limits;
        let most = if self.own { OWN_ANSWER } else { WHOLE_ANSWER };
        let whole = tokio::time::timeout(limits.answer, body.collect(most))
            .await
            .map_err(|_| Fault::timeout(ANSWER, limits.answer.as_secs()))?
            .map_err(|broken| Fault::broken(&broken.to_string()))?;
        body.give_back();
        Ok(whole)
    }

    async fn refusal(&mut self, answer: &mut Answer) -> Result<Refusal, Fault> {
        // The status is known; what it says besides may be lost.
        let raw = tokio::time::timeout(REFUSAL, answer.body.collect(WHOLE_ANSWER)).await;
        let raw = raw.ok().and_then(Result::ok).unwrap_or_default();
        let decoded = decoded(&answer.head.headers, raw.clone()).unwrap_or_default();
        Ok(Refusal { raw, decoded })
    }

    /// Tells the client of an error status.
    fn refuse(&mut self, answer: Answer, refusal: &Refusal, reader: Reader) -> Result<(), Fault> {
        let Answer { head, body, .. } = answer;
        body.give_back();
        let retry_after = head.headers.get("retry-after").and_then(|value| value.to_str().ok());
        // What the engine's side says of a retry goes on: SDKs and Claude Code follow it.
        self.retry_advice = relayed_headers(&head.headers);
        self.retry_advice.retain(|(name, _)| name == "retry-after-ms" || name == "x-should-retry");
        let reader = self.reader.insert(reader);
        self.record.refusal = Some(Reader::understand(head.status.as_u16(), &refusal.decoded));
        match reader.refused(head.status.as_u16(), &refusal.decoded, retry_after) {
            Refused::Fault(fault) => Err(fault),
            Refused::Answer(body) => {
                self.record.estimated = reader.estimated();
                self.reply(200, &body)
            }
            Refused::Pass if self.head_sent => {
                // Too late for a status: the engine's own words become the stream's only event.
                self.record.fault =
                    Some(Fault::broken(&format!("status {} after a long silence", head.status.as_u16())));
                for line in refusal.decoded.split(|&byte| byte == b'\n') {
                    self.out.extend_from_slice(b"data: ");
                    self.out.extend_from_slice(line);
                    self.out.push(b'\n');
                }
                self.out.push(b'\n');
                self.flush(None);
                Ok(())
            }
            Refused::Pass => self.pass(head.status.as_u16(), &head.headers, &refusal.raw),
        }
    }

    /// Sends a whole answer with the engine's own headers.
    fn pass(&mut self, status: u16, sent: &HeaderMap, body: &[u8]) -> Result<(), Fault> {
        let mut headers = relayed_headers(sent);
        headers.retain(|(name, _)| name != "content-length");
        put(&mut headers, "content-length", &body.len().to_string());
        self.whole(status, headers, body)
    }

    /// Sends a whole JSON answer of Foreword's own making.
    fn reply(&mut self, status: u16, body: &[u8]) -> Result<(), Fault> {
        let mut headers = Vec::new();
        put(&mut headers, "content-type", "application/json");
        put(&mut headers, "content-length", &body.len().to_string());
        self.whole(status, headers, body)
    }

    fn whole(&mut self, status: u16, headers: Vec<(Bytes, Bytes)>, body: &[u8]) -> Result<(), Fault> {
        self.record.status = status;
        self.settle();
        if self.head_sent {
            return Err(Fault::broken("it is no stream, and a stream has begun"));
        }
        self.send_head(status, headers);
        self.record.first_byte();
        self.record.answer_bytes += body.len();
        self.outbox.body(body);
        Ok(())
    }

    /// Tells the client of a fault: with its status if nothing was sent, else as an event of the dialect. This never
    /// waits for room: a client that neither reads nor leaves must not keep the exchange from its end.
    fn tell(&mut self, fault: Fault) {
        let reader = self.reader.as_mut().filter(|reader| reader.started());
        self.record.fault = Some(fault.clone());
        if !self.head_sent {
            let body = fault.body(self.dialect, &self.record.request_id);
            let mut headers = Vec::new();
            put(&mut headers, "content-type", "application/json");
            put(&mut headers, "content-length", &body.len().to_string());
            if let Some(seconds) = &fault.retry_after {
                put(&mut headers, "retry-after", seconds);
            }
            headers.append(&mut self.retry_advice);
            // Whatever a reader wrote before it failed belongs to a stream that is not to be.
            self.out.clear();
            let _ = self.whole(fault.status, headers, &body);
            return;
        }
        match reader {
            Some(_) if self.over => (),
            Some(reader) => drop(reader.end(Some(fault), &mut self.out)),
            None => self.out.extend_from_slice(&fault.event(self.dialect)),
        }
        if !self.out.is_empty() {
            self.record.first_byte();
            self.pour();
        }
    }

    fn send_head(&mut self, status: u16, mut headers: Vec<(Bytes, Bytes)>) {
        put(&mut headers, "request-id", &self.record.request_id);
        if self.dialect == Dialect::OpenAi && !headers.iter().any(|(name, _)| name == "x-request-id") {
            // Where OpenAI's SDKs look for it.
            put(&mut headers, "x-request-id", &self.record.request_id);
        }
        self.record.status = status;
        put(&mut headers, "x-foreword", &told::describe(&self.record, self.trace.as_ref()));
        self.head_sent = true;
        self.outbox.head(Head { status, headers });
    }
}

fn unreached(failure: &Failure) -> Fault {
    match failure {
        Failure::Connect(error) => Fault::unreachable(&error.to_string()),
        Failure::ConnectTimeout => Fault::unreachable("no connection in time"),
        Failure::Broken(broken) => Fault::broken(&broken.to_string()),
    }
}

/// An error answer's body, as it came and decoded.
struct Refusal {
    raw: Bytes,
    decoded: Bytes,
}

/// Reads what is left of a stream whose end was stated, so that its connection can be used again.
fn finish(mut body: AnswerBody) {
    tokio::spawn(async move {
        let rest = async { while let Ok(Some(())) = body.read(|_| ()).await {} };
        if tokio::time::timeout(TRAILER, rest).await.is_ok() {
            body.give_back();
        }
    });
}

fn decoded(headers: &HeaderMap, body: Bytes) -> Result<Bytes, Fault> {
    match headers.get("content-encoding").and_then(|coding| coding.to_str().ok()) {
        None | Some("identity" | "") => Ok(body),
        Some(coding) => encoding::decode(coding, body, WHOLE_ANSWER)
            .map_err(|_| Fault::broken("the engine's answer could not be decompressed")),
    }
}

fn random() -> u128 {
    let mut seed = [0; 16];
    // Without a random source ids are still unique by what the engine calls its answers.
    let _ = getrandom::fill(&mut seed);
    u128::from_le_bytes(seed)
}
