//! `foreword-rig read`: many streams through a relay, every event counted and timed, on one thread.

pub(crate) mod events;
mod stream;
mod tally;

use std::{collections::VecDeque, fs, io, path::PathBuf, rc::Rc, time::Duration};

use crate::{
    Failure, big_body,
    cli::{Options, Usage},
    clock::{self, SECOND},
    http::Url,
    plan::Plan,
    poll::{Interest, Poll, Ready},
    process::Snapshot,
    report::{Times, Value},
};
use stream::Stream;

const READ_BUFFER: usize = 64 * 1024;

struct Settings {
    url: Url,
    control: Option<Url>,
    plan: Plan,
    streams: usize,
    /// Streams opened per second.
    ramp: f64,
    body_bytes: usize,
    pids: Vec<u32>,
    slow: usize,
    /// The slow ones wait for the end of standard input too.
    hold: bool,
    abort_after: Option<u32>,
    timeout_ns: u64,
    ages: Option<PathBuf>,
    json: bool,
}

impl Settings {
    fn parse(words: Vec<String>) -> Result<Self, Usage> {
        let mut options = Options::new(words);
        let streams: usize = options.value("--streams")?.unwrap_or(100);
        let default = Plan::default();
        let plan = Plan {
            mode: options.value("--mode")?.unwrap_or(default.mode),
            rate: options.value("--rate")?.unwrap_or(default.rate),
            events: options.value("--events")?.unwrap_or(default.events),
            gate: streams,
        };
        let pids: Option<String> = options.value("--pids")?;
        let pids = pids
            .iter()
            .flat_map(|list| list.split(','))
            .map(|pid| pid.parse().map_err(|_| Usage(format!("--pids: {pid:?} is not a process id"))));
        let settings = Self {
            url: options.required("--url")?,
            control: options.value("--control")?,
            plan: plan.checked()?,
            streams,
            ramp: options.value("--ramp")?.unwrap_or(200.0),
            body_bytes: options.value("--body-bytes")?.unwrap_or(200),
            pids: pids.collect::<Result<_, _>>()?,
            slow: options.value("--slow-reader")?.unwrap_or(0),
            hold: options.switch("--hold"),
            abort_after: options.value("--abort-after")?,
            timeout_ns: options.value("--timeout")?.unwrap_or(30_u64) * SECOND,
            ages: options.value("--ages")?,
            json: options.switch("--json"),
        };
        options.finish()?;
        if streams == 0 || settings.slow >= streams {
            return Err(Usage("--streams must be above --slow-reader".into()));
        }
        if settings.ramp.is_nan() || settings.ramp <= 0.0 {
            return Err(Usage("--ramp must be above 0".into()));
        }
        Ok(settings)
    }
}

pub(crate) fn command(words: Vec<String>) -> Result<bool, Failure> {
    let settings = Settings::parse(words)?;
    if let Some(control) = &settings.control {
        control.post(&format!("/rig?{}", settings.plan))?;
    }
    let mut reader = Reader::new(settings)?;
    reader.open_all()?;
    reader.flow()?;
    reader.report()
}

/// The relay's use between two moments.
struct Charge {
    cpu_s: f64,
    /// Events that came in between.
    events: usize,
    rss_bytes: u64,
    processes: u64,
}

struct Reader {
    settings: Settings,
    poll: Poll,
    ready: Vec<Ready>,
    streams: Vec<Stream>,
    buffer: Vec<u8>,
    /// Ages of all events but each stream's first, whose time tells of the request.
    ages: Times,
    /// For the file of ages: when each of these events came and how old it was, both as eight bytes, the lowest first.
    log: Option<Vec<u8>>,
    first_flow_ns: Option<u64>,
    last_flow_ns: u64,
    last_byte_ns: u64,
    charge: Option<Charge>,
    /// Processor time of this reader for an event, in nanoseconds.
    own_cpu_ns: Option<f64>,
    /// From the first abort until the engine had no stream left.
    released_ns: Option<u64>,
}

impl Reader {
    fn new(settings: Settings) -> Result<Self, Failure> {
        Ok(Self {
            poll: Poll::new()?,
            ready: Vec::new(),
            streams: Vec::with_capacity(settings.streams),
            buffer: vec![0; READ_BUFFER],
            ages: Times::with_capacity(settings.streams * settings.plan.events as usize),
            log: settings.ages.is_some().then(Vec::new),
            first_flow_ns: None,
            last_flow_ns: 0,
            last_byte_ns: clock::now_ns(),
            charge: None,
            own_cpu_ns: None,
            released_ns: None,
            settings,
        })
    }

    fn request(&self, number: usize) -> Rc<[u8]> {
        let Settings { url, plan, body_bytes, .. } = &self.settings;
        let body = big_body::make(url.is_messages(), *body_bytes, plan.events, number);
        let head = big_body::head(url, body.len(), &format!("x-rig: {plan}\r\n"));
        [head.as_bytes(), body.as_bytes()].concat().into()
    }

    /// Opens the streams at the ramp's pace and waits until all have had their first event.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a ramp")]
    fn open_all(&mut self) -> Result<(), Failure> {
        let interval = (SECOND as f64 / self.settings.ramp) as u64;
        let start = clock::now_ns();
        let mut requests: VecDeque<_> = (0..self.settings.streams).map(|number| self.request(number)).collect();
        loop {
            let running = self.streams.iter().filter(|stream| stream.ttft_ns.is_some()).count();
            if running == self.settings.streams {
                eprintln!("running");
                return Ok(());
            }
            if let Some(failure) = self.streams.iter().find_map(|stream| stream.failure.as_deref()) {
                return Err(format!("{running} of {} streams opened: {failure}", self.settings.streams).into());
            }
            let due = start + interval * self.streams.len() as u64;
            let now = clock::now_ns();
            if now < due || requests.is_empty() {
                let wait = if requests.is_empty() { SECOND } else { due - now };
                if !self.step(wait)? {
                    return Err(
                        format!("{running} of {} streams opened, then nothing came", self.settings.streams).into()
                    );
                }
            } else if let Some(request) = requests.pop_front() {
                self.streams.push(Stream::open(self.settings.url.address, request, self.settings.plan.events)?);
                self.watch(self.streams.len() - 1, Interest::OUT)?;
                self.last_byte_ns = now;
            }
        }
    }

    /// Adds a stream to what is polled.
    fn watch(&self, number: usize, interest: Interest) -> Result<(), Failure> {
        if let Some(socket) = self.streams.get(number).and_then(Stream::socket) {
            self.poll.add(socket, number as u64, interest)?;
        }
        Ok(())
    }

    /// Reads until every stream has ended.
    fn flow(&mut self) -> Result<(), Failure> {
        let (slow, pids) = (self.settings.slow, self.settings.pids.clone());
        let before = if pids.is_empty() { None } else { Some(Snapshot::take(&pids)?) };
        for socket in self.streams.iter().take(slow).filter_map(Stream::socket) {
            self.poll.remove(socket)?;
        }
        let (own_before, events_before) = (clock::cpu_ns(), self.ages.count());
        self.read_until_closed(slow)?;
        let events = self.ages.count() - events_before;
        self.own_cpu_ns = (events > 0).then(|| (clock::cpu_ns() - own_before) as f64 / events as f64);
        if let Some(before) = before {
            // The relay is not quite done when the reader has the last byte.
            std::thread::sleep(Duration::from_millis(20));
            let after = Snapshot::take(&pids)?;
            if after.pids().is_empty() {
                return Err("none of the --pids is running".into());
            }
            self.charge = Some(Charge {
                events,
                cpu_s: after.cpu_seconds_since(&before),
                rss_bytes: after.rss_bytes().max(before.rss_bytes()),
                processes: after.pids().len() as u64,
            });
        }
        if self.settings.hold {
            io::copy(&mut io::stdin(), &mut io::sink())?;
        }
        (0..slow).try_for_each(|number| self.watch(number, Interest::IN))?;
        self.last_byte_ns = clock::now_ns();
        self.read_until_closed(0)
    }

    /// Reads until all streams but the first `but` are closed; those that bring nothing any more count as failed.
    fn read_until_closed(&mut self, but: usize) -> Result<(), Failure> {
        let mut left_ns = None;
        while self.streams.iter().skip(but).any(|stream| stream.socket().is_some()) {
            if !self.step(SECOND)? {
                let reason = format!("nothing came for {} s", self.settings.timeout_ns / SECOND);
                let stalled = self.streams.iter_mut().skip(but).filter(|stream| stream.socket().is_some());
                stalled.for_each(|stream| stream.fail(reason.clone()));
            }
            if let Some(limit) = self.settings.abort_after {
                let open = self.streams.iter_mut().filter(|stream| stream.socket().is_some());
                for stream in open.filter(|stream| stream.tally.received >= limit) {
                    left_ns.get_or_insert_with(clock::now_ns);
                    stream.leave();
                }
            }
        }
        if let (Some(left), Some(control)) = (left_ns, &self.settings.control) {
            while !control.post("/rig")?.starts_with("{\"live\":0,") {
                if clock::now_ns() - left > self.settings.timeout_ns {
                    return Err("the engine still has streams that the reader left".into());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            self.released_ns = Some(clock::now_ns() - left);
        }
        Ok(())
    }

    /// Waits once and serves what is ready; false when nothing has come for the time-out.
    fn step(&mut self, wait_ns: u64) -> Result<bool, Failure> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(Some(wait_ns), &mut ready)?;
        if !ready.is_empty() {
            self.last_byte_ns = clock::now_ns();
        }
        for one in ready.drain(..) {
            self.serve(one)?;
        }
        self.ready = ready;
        Ok(clock::now_ns() - self.last_byte_ns <= self.settings.timeout_ns)
    }

    fn serve(&mut self, ready: Ready) -> Result<(), Failure> {
        let Self { poll, streams, buffer, ages, log, first_flow_ns, last_flow_ns, .. } = self;
        let Some(stream) = streams.get_mut(usize::try_from(ready.token)?) else { return Ok(()) };
        if stream.is_sending() && ready.writable {
            stream.send();
            if let Some(socket) = stream.socket().filter(|_| !stream.is_sending()) {
                poll.modify(socket, ready.token, Interest::IN)?;
            }
        }
        if ready.readable {
            let mut flowed = false;
            stream.read(buffer, &mut |seq, now_ns, age_ns| {
                if seq > 0 {
                    ages.add(age_ns);
                    if let Some(log) = log {
                        log.extend_from_slice(&now_ns.to_le_bytes());
                        log.extend_from_slice(&age_ns.to_le_bytes());
                    }
                    flowed = true;
                }
            });
            if flowed {
                *last_flow_ns = clock::now_ns();
                first_flow_ns.get_or_insert(*last_flow_ns);
            }
        }
        Ok(())
    }

    /// Prints what was seen; whether all of it was as it must be.
    fn report(self) -> Result<bool, Failure> {
        let Self { settings, streams, ages, charge, .. } = self;
        if let (Some(path), Some(log)) = (&settings.ages, &self.log) {
            fs::write(path, log).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let total = |count: fn(&Stream) -> u64| streams.iter().map(count).sum::<u64>();
        let received = total(|s| s.tally.received.into());
        let missing = total(|s| s.tally.missing().into());
        let (duplicated, unexpected) = (total(|s| s.tally.duplicated.into()), total(|s| s.tally.unexpected.into()));
        let out_of_order = total(|s| s.tally.out_of_order.into());
        let failures: Vec<&String> = streams.iter().filter_map(|s| s.failure.as_ref()).collect();
        let lost = if settings.abort_after.is_some() { 0 } else { missing };
        let good = lost + duplicated + unexpected + out_of_order + failures.len() as u64 == 0;

        let flowed = received - streams.iter().filter(|s| s.ttft_ns.is_some()).count() as u64;
        let wall_s = clock::seconds(self.last_flow_ns.saturating_sub(self.first_flow_ns.unwrap_or(self.last_flow_ns)));
        let per_event =
            charge.as_ref().filter(|charge| charge.events > 0).map(|charge| charge.cpu_s * 1e6 / charge.events as f64);
        let mut ttft = Times::default();
        streams.iter().filter_map(|s| s.ttft_ns).for_each(|ns| ttft.add(ns));
        let late = settings.control.as_ref().map(|control| control.post("/rig")).transpose()?;
        let late_s =
            late.as_deref().and_then(|status| status.split_once("\"late_s\":")?.1.trim_end_matches('}').parse().ok());
        let Plan { mode, rate, events, .. } = settings.plan;
        Value::Object(vec![
            ("url", Value::Text(settings.url.text)),
            ("mode", Value::Text(mode.to_string())),
            ("streams", Value::Integer(streams.len() as u64)),
            ("rate", Value::Number(rate)),
            ("events_per_stream", Value::Integer(events.into())),
            ("received", Value::Integer(received)),
            ("lost", Value::Integer(lost)),
            ("duplicated", Value::Integer(duplicated)),
            ("out_of_order", Value::Integer(out_of_order)),
            ("unexpected", Value::Integer(unexpected)),
            ("failed_streams", Value::Integer(failures.len() as u64)),
            ("first_failure", Value::maybe(failures.first(), |text| Value::Text((*text).clone()))),
            ("sse_events", Value::Integer(total(|s| s.sse_events))),
            ("bytes", Value::Integer(total(|s| s.bytes))),
            ("wall_s", Value::Number(wall_s)),
            ("events_per_s", if wall_s > 0.0 { Value::Number(flowed as f64 / wall_s) } else { Value::Absent }),
            ("added_s", ages.percentiles(&[("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)])),
            ("ttft_s", ttft.percentiles(&[("p50", 0.5), ("p99", 0.99)])),
            ("engine_late_s", Value::maybe(late_s, Value::Number)),
            ("released_s", Value::maybe(self.released_ns, |ns| Value::Number(clock::seconds(ns)))),
            ("cpu_s", Value::maybe(charge.as_ref(), |charge| Value::Number(charge.cpu_s))),
            ("cpu_us_per_event", Value::maybe(per_event, Value::Number)),
            ("reader_cpu_us_per_event", Value::maybe(self.own_cpu_ns, |ns| Value::Number(ns / 1e3))),
            ("rss_bytes", Value::maybe(charge.as_ref(), |charge| Value::Integer(charge.rss_bytes))),
            ("processes", Value::maybe(charge.as_ref(), |charge| Value::Integer(charge.processes))),
        ])
        .print(settings.json);
        Ok(good)
    }
}
