//! The sidecar's engine room: the network thread, the settings that exchanges see, and the exchanges that run.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foreword_core::error::Fault;
use foreword_core::profile::{Engine, LateSystem, Profile, TemplateOrder};
use foreword_core::prompt::journal;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;

use crate::capture::{Capture, Order};
use crate::exchange::Opening;
use crate::export::{self, Export};
use crate::notices::{Level, Notices};
use crate::outbox::{Outbox, Port, Ready, locked};
use crate::pipeline;
use crate::prefixes::Prefixes;
use crate::rendering::Questions;
use crate::stats::Stats;
use crate::stop::{Stop, Why};
use crate::upstream::Upstream;

/// Threads that scan, splice and translate large bodies.
const PREPARING_THREADS: usize = 2;

/// How far these stand back behind running streams where cores are scarce.
#[cfg(target_os = "linux")]
const PREPARING_NICE: i32 = 10;

/// After so many tasks the sockets are looked at, even where more tasks are ready: while large bodies are written, some
/// always are.
const LOOK_EVERY: u32 = 8;

/// How long the end may wait for records that are queued, where nobody asked for more.
const LAST_RECORDS: Duration = Duration::from_secs(1);

/// What the network half must know at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The engine's URL: http, https or unix:.
    pub upstream: String,
    /// What core decides by.
    pub profile: Profile,
    /// Limits of time and size.
    pub limits: Limits,
    /// Bounds of the prefix journal.
    pub journal: journal::Limits,
    /// Where records go.
    pub export: export::Config,
    /// Requests that are captured whole from the start on.
    pub capture: Option<Order>,
    /// Whether records hold what stands where a prompt left its line, in its own words.
    pub excerpts: bool,
}

/// What was learnt of the engine since the start.
#[derive(Clone, Debug, Default)]
pub struct Learnt {
    /// Its kind.
    pub engine: Option<Engine>,
    /// The models that it serves.
    pub models: Option<Vec<String>>,
    /// Where late system messages go.
    pub late_system: Option<LateSystem>,
    /// What its template prints first.
    pub template_order: Option<TemplateOrder>,
    /// Tokens of a block of its prefix cache.
    pub block_tokens: Option<u64>,
    /// Whether its log tells what it reused.
    pub engine_log: Option<bool>,
}

/// Limits of time and size.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connecting to the engine.
    pub connect: Duration,
    /// Between bytes of a stream.
    pub idle: Duration,
    /// A whole answer that is no stream.
    pub answer: Duration,
    /// Silence after which an Anthropic stream gets a ping.
    pub ping: Duration,
    /// Silence of the engine after which a stream's head goes out; none: never.
    pub early_head: Option<Duration>,
    /// Decoded size of a request body in bytes.
    pub body_bytes: usize,
}

/// What all exchanges share.
pub(crate) struct Shared {
    pub(crate) upstream: Upstream,
    pub(crate) limits: Limits,
    pub(crate) stats: Stats,
    pub(crate) prefixes: Arc<Prefixes>,
    pub(crate) questions: Questions,
    /// For records that come when their exchange is over.
    pub(crate) port: Port,
    pub(crate) export: Export,
    pub(crate) capture: Arc<Capture>,
    notices: Arc<Notices>,
    profile: Mutex<Arc<Profile>>,
    exchanges: Mutex<Exchanges>,
}

#[derive(Default)]
struct Exchanges {
    running: HashMap<u64, Running>,
    /// What each is told, once the sidecar must go.
    closing: Option<Fault>,
}

struct Running {
    outbox: Arc<Outbox>,
    stop: Arc<Stop>,
}

impl Shared {
    pub(crate) fn profile(&self) -> Arc<Profile> {
        Arc::clone(&locked(&self.profile))
    }

    /// Changes what later exchanges see.
    pub(crate) fn learn(&self, change: impl FnOnce(&mut Profile)) {
        let mut profile = locked(&self.profile);
        let mut changed = Profile::clone(&profile);
        change(&mut changed);
        *profile = Arc::new(changed);
    }
}

/// The network thread and everything on it. Dropping it stops the thread and closes every connection.
pub struct Gateway {
    shared: Arc<Shared>,
    port: Port,
    handle: Handle,
    next_token: AtomicU64,
    stop: Arc<Notify>,
}

impl Gateway {
    /// Starts the network thread.
    ///
    /// # Errors
    /// One sentence: a URL that cannot be used, or a system without threads or descriptors to spare.
    pub fn start(config: Config) -> Result<Self, String> {
        let mut profile = config.profile;
        let upstream = Upstream::new(&config.upstream, config.limits.connect)?;
        profile.anthropic_upstream = upstream.host().ends_with("anthropic.com");
        let notices: Arc<Notices> = Arc::default();
        let export = Export::start(config.export, &notices).map_err(|error| format!("no records: {error}"))?;
        let capture = Arc::new(Capture::new(Arc::clone(&notices)));
        if let Some(order) = config.capture {
            // A switch of diagnosis never stops the start.
            if let Err(error) = capture.arm(order) {
                notices.warn(format!("nothing is captured: {error}"));
            }
        }
        if config.excerpts {
            notices.warn("excerpts are on: records hold up to 80 bytes OF TEXT on each side of a change".to_owned());
        }
        let port = Port::new().map_err(|error| format!("no completion port: {error}"))?;
        let shared = Arc::new(Shared {
            upstream,
            limits: config.limits,
            stats: Stats::default(),
            prefixes: Arc::new(Prefixes::new(config.journal, export.digests().clone(), config.excerpts)),
            export,
            capture,
            notices,
            questions: Questions::default(),
            port: port.clone(),
            profile: Mutex::new(Arc::new(profile)),
            exchanges: Mutex::default(),
        });
        let stop = Arc::new(Notify::new());
        let handle =
            spawn_network(port.clone(), Arc::clone(&stop)).map_err(|error| format!("no network thread: {error}"))?;
        Ok(Self { shared, port, handle, next_token: AtomicU64::new(1), stop })
    }

    /// Begins one exchange and returns its token.
    pub fn open(&self, opening: Opening) -> u64 {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let outbox = Outbox::new(token, self.port.clone());
        let stop = Arc::new(Stop::default());
        let mut exchanges = locked(&self.shared.exchanges);
        if let Some(fault) = &exchanges.closing {
            stop.tell(Why::Closing(fault.clone()));
        }
        let running = Running { outbox: Arc::clone(&outbox), stop: Arc::clone(&stop) };
        exchanges.running.insert(token, running);
        drop(exchanges);
        if !opening.own {
            self.shared.stats.opened();
        }
        self.handle.spawn(pipeline::run(Arc::clone(&self.shared), opening, outbox, stop));
        token
    }

    /// The client of this exchange left: its connection to the engine is closed at once.
    pub fn cancel(&self, token: u64) {
        self.with(token, |running| {
            running.stop.tell(Why::Left);
            // What is still here will not be read; a producer that waits for room must see that it is over.
            running.outbox.release();
        });
    }

    /// The client of this exchange does not read at present.
    pub fn hold(&self, token: u64) {
        self.with(token, |running| running.outbox.hold());
    }

    /// It reads again.
    pub fn release(&self, token: u64) {
        self.with(token, |running| running.outbox.release());
    }

    /// Takes all that is ready, one call of `take` an exchange.
    pub fn drain<T>(&self, mut take: impl FnMut(u64, &Ready) -> T) -> Vec<T> {
        let mut over = Vec::new();
        let taken = self.port.drain(|token, ready| {
            if ready.record.is_some() {
                over.push(token);
            }
            take(token, ready)
        });
        if !over.is_empty() {
            let mut exchanges = locked(&self.shared.exchanges);
            for token in over {
                exchanges.running.remove(&token);
            }
        }
        taken
    }

    /// The descriptor that becomes readable when [`Gateway::drain`] has something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.port.fd()
    }

    /// What was learnt of the engine; what is `None` stays as it is known.
    pub fn update(&self, learnt: Learnt) {
        self.shared.learn(|profile| {
            let other_models = learnt.models.as_ref().is_some_and(|models| *models != profile.models);
            if other_models || learnt.engine.is_some_and(|engine| engine != profile.engine) {
                profile.forget_refusals();
            }
            profile.engine = learnt.engine.unwrap_or(profile.engine);
            profile.late_system = learnt.late_system.unwrap_or(profile.late_system);
            profile.template_order = learnt.template_order.unwrap_or(profile.template_order);
            profile.block_tokens = learnt.block_tokens.or(profile.block_tokens);
            profile.engine_log = learnt.engine_log.unwrap_or(profile.engine_log);
            if let Some(models) = learnt.models {
                profile.models = models;
            }
        });
    }

    /// Closes the record of an exchange that waits for the engine's log with the cached tokens that the log told.
    /// The final record; `None` if none waits under that id.
    pub fn settle(&self, request_id: &str, cached: Option<u64>) -> Option<Vec<u8>> {
        let record = self.shared.prefixes.told(request_id, cached, &self.shared.profile())?;
        let json = record.to_json();
        self.shared.export.put(&json);
        Some(json)
    }

    /// The lines of the prefix journal, the one used latest first, as a JSON array.
    pub fn sessions(&self) -> String {
        self.shared.prefixes.sessions()
    }

    /// The lines of a session (16 hex digits), or one line (`line-17`), with their turns, as a JSON object.
    pub fn session(&self, id: &str) -> Option<String> {
        self.shared.prefixes.session(id)
    }

    /// Counts a request that was refused before it became an exchange.
    pub fn refused(&self, route: &str, status: u16) {
        self.shared.stats.refused(route, status);
    }

    /// All counters, by name.
    pub fn stats(&self) -> BTreeMap<String, u64> {
        let mut all = self.shared.stats.snapshot();
        all.extend(self.shared.prefixes.counters().map(|(name, count)| (name.to_owned(), count)));
        all.extend(self.shared.export.counters().map(|(name, count)| (name.to_owned(), count)));
        all
    }

    /// What the core has to say since the last call: sentences for the log.
    pub fn notices(&self) -> Vec<(Level, String)> {
        self.shared.notices.take()
    }

    /// Captures the next prompts whole, with their text; returns the folder that they go to.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn capture(&self, order: Order) -> io::Result<PathBuf> {
        self.shared.capture.arm(order)
    }

    /// Ends every exchange that still runs with `fault`, told in its dialect.
    pub fn close(&self, fault: Fault) {
        let mut exchanges = locked(&self.shared.exchanges);
        for running in exchanges.running.values() {
            running.stop.tell(Why::Closing(fault.clone()));
        }
        exchanges.closing = Some(fault);
    }

    /// Waits, at most `within`, until the records of all exchanges that have ended are written. Later ones are not.
    pub fn finish(&self, within: Duration) {
        // The engine's log will say no more.
        while let Some(id) = self.shared.prefixes.waiting() {
            self.settle(&id, None);
        }
        self.shared.export.finish(within);
    }

    fn with(&self, token: u64, act: impl FnOnce(&Running)) {
        if let Some(running) = locked(&self.shared.exchanges).running.get(&token) {
            act(running);
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.notify_one();
        self.finish(LAST_RECORDS);
    }
}

/// Starts the thread with the runtime, and the notifier on it.
fn spawn_network(port: Port, stop: Arc<Notify>) -> io::Result<Handle> {
    let pace = Mutex::new(ReadPace::default());
    let runtime: Runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(PREPARING_THREADS)
        .thread_name("foreword-ready")
        .event_interval(LOOK_EVERY)
        .on_thread_start(|| {
            // Of the threads that prepare; the network's own is there already. On Linux this is the thread's alone.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::setpriority_process(None, PREPARING_NICE);
        })
        .on_thread_park(move || {
            if let Some(wait) = locked(&pace).rest(Instant::now()) {
                std::thread::sleep(wait);
            }
        })
        .build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new().name("foreword-net".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = port.notify() => (),
                () = stop.notified() => (),
            }
        });
        // Bodies under preparation are small work; nothing else may delay the end of the process.
        runtime.shutdown_background();
    })?;
    Ok(handle)
}

/// When the network thread rests between two looks at its sockets.
///
/// An engine writes a step's events one by one, some ten microseconds apart: a thread that is woken for each of them pays
/// more for waking than for reading. So looks are rationed: a few at once, and then one a tick, which finds all that
/// came meanwhile. A thread that is woken less often than once a tick never rests, so that a quiet sidecar answers
/// at once.
#[derive(Debug)]
struct ReadPace {
    /// Looks that may be taken without a rest.
    looks: u32,
    /// Up to when looks have been given.
    given: Instant,
}

impl Default for ReadPace {
    fn default() -> Self {
        Self { looks: Self::AT_ONCE, given: Instant::now() }
    }
}

impl ReadPace {
    const TICK: Duration = Duration::from_millis(1);
    /// Looks that a thread can save up.
    const AT_ONCE: u32 = 4;

    /// Called when the thread has nothing left to do: how long it should rest before it waits for its sockets.
    fn rest(&mut self, now: Instant) -> Option<Duration> {
        let ticks = now.saturating_duration_since(self.given).as_nanos() / Self::TICK.as_nanos();
        match u32::try_from(ticks) {
            Ok(ticks) if ticks < Self::AT_ONCE => {
                self.looks = Self::AT_ONCE.min(self.looks + ticks);
                self.given += Self::TICK * ticks;
            }
            _ => *self = Self { looks: Self::AT_ONCE, given: now },
        }
        if let Some(left) = self.looks.checked_sub(1) {
            self.looks = left;
            return None;
        }
        // The next tick's look, taken at its beginning.
        self.given += Self::TICK;
        Some(self.given.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rests of a thread that has nothing left to do at these times, in microseconds.
    fn rests(at: impl IntoIterator<Item = u64>) -> Vec<u128> {
        let start = Instant::now();
        let mut pace = ReadPace { looks: ReadPace::AT_ONCE, given: start };
        at.into_iter()
            .map(|at| pace.rest(start + Duration::from_micros(at)).map_or(0, |rest| rest.as_micros()))
            .collect()
    }

    #[test]
    fn a_quiet_thread_never_rests() {
        assert!(rests((0..1_000).map(|look| look * 1_000)).iter().all(|&rest| rest == 0));
    }

    #[test]
    fn a_step_of_an_engine_is_seen_in_a_few_looks() {
        assert_eq!(rests([0, 10, 20, 30, 40]), [0, 0, 0, 0, 960]);
        // Rested until 1,000; each later look waits for its own tick.
        assert_eq!(rests([0, 10, 20, 30, 40, 1_050, 2_100, 3_999]), [0, 0, 0, 0, 960, 950, 900, 1]);
    }

    #[test]
    fn looks_come_back_with_time_up_to_a_bound() {
        assert_eq!(rests([0, 0, 0, 0, 2_000, 2_000, 2_000]), [0, 0, 0, 0, 0, 0, 1_000]);
        assert_eq!(rests([0, 0, 0, 0, 900_000, 900_000, 900_000, 900_000, 900_000])[8], 1_000);
    }
}
