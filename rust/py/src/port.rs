//! The completion port as Python sees it: one descriptor to watch, one call that takes all that is ready.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use foreword_core::error::Fault;
use foreword_core::profile::{Engine, LateSystem, MessagesMode, ModelMap, Profile, TemplateOrder, UsageMode};
use foreword_core::prompt::journal;
use foreword_core::request::Route;
use foreword_net::capture::Order;
use foreword_net::clickhouse::Table;
use foreword_net::digest::Key;
use foreword_net::gateway::{Learnt, Limits};
use foreword_net::{Config, Gateway, Opening, export, ledger};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::body::Body;
use crate::send::{Sends, Stuck, send_body};

/// One header: name and value.
pub(crate) type PyHead<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// (token, (status, headers), body bytes, record, what keeps a `send` of these bytes from being done)
type Item<'py> =
    (u64, Option<(u16, Vec<PyHead<'py>>)>, Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>, Option<Stuck<'py>>);

/// The upstream client, its thread and the completion port.
#[pyclass(frozen)]
pub(crate) struct Sidecar {
    gateway: Gateway,
    sends: Sends,
}

#[pymethods]
impl Sidecar {
    /// Starts the network thread. Raises `ValueError` for a setting that cannot be used.
    #[new]
    fn new(config: &Bound<'_, PyDict>) -> PyResult<Self> {
        let gateway = Gateway::start(read_config(config)?).map_err(PyValueError::new_err)?;
        Ok(Self { gateway, sends: Sends::default() })
    }

    fn fileno(&self) -> i32 {
        self.gateway.fd().as_raw_fd()
    }

    /// Everything that is ready and not sent from here. The network thread never waits for the GIL: it only meets
    /// short locks.
    fn drain<'py>(&self, py: Python<'py>) -> Vec<Item<'py>> {
        let ready = self.gateway.drain(|token, ready| {
            let head = ready.head.as_ref().map(|head| {
                let headers = head.headers.iter().map(|(name, value)| (name.as_ref(), value.as_ref()));
                (head.status, py_headers(py, headers))
            });
            let record = ready.record.as_ref().map(|record| PyBytes::new(py, record));
            (token, head, PyBytes::new(py, &ready.body), record)
        });
        // Behind all locks: a `send` may run anything.
        let rest = ready.into_iter().filter_map(|(token, head, body, record)| {
            if record.is_some() {
                self.sends.remove(token);
            } else if head.is_none()
                && let Some(send) = self.sends.get(py, token)
            {
                return send_body(&send, body.clone()).map(|stuck| (token, None, body, None, Some(stuck)));
            }
            Some((token, head, body, record, None))
        });
        rest.collect()
    }

    /// From now on body pieces of this exchange go to `send` within [`Sidecar::drain`].
    fn send_by(&self, token: u64, send: Py<PyAny>) {
        self.sends.add(token, send);
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (route, method, target, headers, body, request_id, authorization))]
    fn open(
        &self,
        route: &str,
        method: &str,
        target: &[u8],
        headers: Vec<(Vec<u8>, Vec<u8>)>,
        body: Option<PyRefMut<'_, Body>>,
        request_id: &str,
        authorization: Option<Vec<u8>>,
    ) -> PyResult<u64> {
        let own = route == "own";
        let opening = Opening {
            route: if own { Route::Other } else { named(ROUTES, "route", route)? },
            own,
            method: method.to_owned(),
            target: String::from_utf8_lossy(target).into_owned(),
            headers: headers.into_iter().map(|(name, value)| (Bytes::from(name), Bytes::from(value))).collect(),
            body: body.map(|mut body| body.take()).unwrap_or_default(),
            request_id: request_id.to_owned(),
            authorization: authorization.map(Bytes::from),
        };
        Ok(self.gateway.open(opening))
    }

    fn cancel(&self, token: u64) {
        self.gateway.cancel(token);
    }

    fn hold(&self, token: u64) {
        self.gateway.hold(token);
    }

    fn release(&self, token: u64) {
        self.gateway.release(token);
    }

    #[pyo3(signature = (*, engine = None, models = None, late_system = None, template_order = None,
        block_tokens = None, engine_log = None))]
    fn update(
        &self,
        engine: Option<&str>,
        models: Option<Vec<String>>,
        late_system: Option<&str>,
        template_order: Option<&str>,
        block_tokens: Option<u64>,
        engine_log: Option<bool>,
    ) -> PyResult<()> {
        self.gateway.update(Learnt {
            engine: engine.map(|name| named(ENGINES, "engine", name)).transpose()?,
            models,
            late_system: late_system.map(|name| named(LATE_SYSTEM, "late_system", name)).transpose()?,
            template_order: template_order.map(|name| named(ORDERS, "template_order", name)).transpose()?,
            block_tokens,
            engine_log,
        });
        Ok(())
    }

    /// Closes the record of an exchange that waits for the engine's log; the final record.
    #[pyo3(signature = (request_id, cached))]
    fn settle<'py>(&self, py: Python<'py>, request_id: &str, cached: Option<u64>) -> Option<Bound<'py, PyBytes>> {
        self.gateway.settle(request_id, cached).map(|record| PyBytes::new(py, &record))
    }

    /// The lines of the prefix journal, as a JSON array.
    fn sessions<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let lines = py.detach(|| self.gateway.sessions());
        PyBytes::new(py, lines.as_bytes())
    }

    /// The lines of one session with their turns, as a JSON object.
    fn session<'py>(&self, py: Python<'py>, id: &str) -> Option<Bound<'py, PyBytes>> {
        self.gateway.session(id).map(|lines| PyBytes::new(py, lines.as_bytes()))
    }

    /// Counts a request that was refused before it became an exchange.
    fn refused(&self, route: &str, status: u16) {
        self.gateway.refused(route, status);
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        for (name, value) in self.gateway.stats() {
            stats.set_item(name, value)?;
        }
        Ok(stats)
    }

    /// Ends every running exchange with an error that says `message`.
    fn close(&self, message: &str) {
        self.gateway.close(Fault::overloaded(message));
    }

    /// Captures the next prompts whole. Raises `OSError` if the directory cannot be used.
    fn capture(&self, directory: PathBuf, requests: u32, seconds: f64) -> PyResult<PathBuf> {
        let lasting = duration("seconds", seconds)?;
        Ok(self.gateway.capture(Order { directory, requests, lasting })?)
    }

    /// What the core has to say since the last call: (level, sentence).
    fn notices(&self) -> Vec<(&'static str, String)> {
        self.gateway.notices().into_iter().map(|(level, text)| (level.name(), text)).collect()
    }

    /// Waits, at most `seconds`, until the records of ended exchanges are written. The GIL is released meanwhile.
    fn finish(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let within = duration("seconds", seconds)?;
        py.detach(|| self.gateway.finish(within));
        Ok(())
    }
}

/// Header pairs as Python bytes.
pub(crate) fn py_headers<'py, 'a>(
    py: Python<'py>,
    headers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Vec<PyHead<'py>> {
    headers.map(|(name, value)| (PyBytes::new(py, name), PyBytes::new(py, value))).collect()
}

const ROUTES: &[(&str, Route)] = &[
    ("messages", Route::Messages),
    ("count_tokens", Route::CountTokens),
    ("chat", Route::Chat),
    ("completions", Route::Completions),
    ("responses", Route::Responses),
    ("models", Route::Models),
    ("model", Route::Model),
    ("other", Route::Other),
];

/// `auto` is what most templates do, until something else is learnt.
const ORDERS: &[(&str, TemplateOrder)] = &[
    ("auto", TemplateOrder::ToolsFirst),
    ("tools-first", TemplateOrder::ToolsFirst),
    ("system-first", TemplateOrder::SystemFirst),
];

const ENGINES: &[(&str, Engine)] = &[
    ("auto", Engine::Unknown),
    ("vllm", Engine::Vllm),
    ("strata", Engine::Strata),
    ("sglang", Engine::Sglang),
    ("llamacpp", Engine::LlamaCpp),
    ("openai", Engine::OpenAi),
];

/// `auto` is what holds until the engine was asked.
const LATE_SYSTEM: &[(&str, LateSystem)] = &[
    ("auto", LateSystem::Tool),
    ("system", LateSystem::System),
    ("tool", LateSystem::Tool),
    ("user", LateSystem::User),
    ("off", LateSystem::Off),
];

const MESSAGES: &[(&str, MessagesMode)] = &[("translate", MessagesMode::Translate), ("native", MessagesMode::Native)];

const USAGE: &[(&str, UsageMode)] = &[("net", UsageMode::Net), ("raw", UsageMode::Raw)];

fn named<T: Copy>(table: &[(&str, T)], what: &str, name: &str) -> PyResult<T> {
    let found = table.iter().find(|(key, _)| *key == name);
    found.map(|(_, value)| *value).ok_or_else(|| PyValueError::new_err(format!("no {what} {name:?}")))
}

fn read_config(config: &Bound<'_, PyDict>) -> PyResult<Config> {
    let seconds = |name| -> PyResult<Duration> { duration(name, required(config, name)?.extract()?) };
    let choice = |name| -> PyResult<String> { required(config, name)?.extract() };
    let early = seconds("early_head_seconds")?;
    Ok(Config {
        upstream: choice("upstream")?,
        profile: Profile {
            engine: named(ENGINES, "engine", &choice("engine")?)?,
            messages: named(MESSAGES, "messages mode", &choice("messages")?)?,
            billing_header: required(config, "billing_header")?.extract()?,
            late_system: named(LATE_SYSTEM, "late_system", &choice("late_system")?)?,
            usage: named(USAGE, "usage", &choice("usage")?)?,
            model_map: model_map(&choice("model_map")?)?,
            template_order: named(ORDERS, "template_order", &choice("template_order")?)?,
            ..Profile::default()
        },
        limits: Limits {
            connect: seconds("connect_seconds")?,
            idle: seconds("idle_seconds")?,
            answer: seconds("answer_seconds")?,
            ping: seconds("ping_seconds")?,
            early_head: (!early.is_zero()).then_some(early),
            body_bytes: required(config, "max_body_bytes")?.extract()?,
        },
        journal: journal::Limits {
            lines: required(config, "sessions")?.extract()?,
            bytes: required(config, "journal_mib")?.extract::<usize>()?.saturating_mul(1024 * 1024),
        },
        export: read_export(config)?,
        capture: read_capture(config)?,
        excerpts: required(config, "excerpts")?.extract()?,
    })
}

fn read_export(config: &Bound<'_, PyDict>) -> PyResult<export::Config> {
    let text = |name| -> PyResult<Option<String>> { required(config, name)?.extract() };
    let bytes = required(config, "ledger_bytes")?.extract()?;
    Ok(export::Config {
        ledger: text("ledger")?.map(|directory| ledger::Config { directory: directory.into(), bytes }),
        clickhouse: text("clickhouse_url")?.map(|url| Table::parse(&url)).transpose().map_err(PyValueError::new_err)?,
        digest_key: text("digest_key")?.map(|key| Key::from_text(&key)),
    })
}

fn read_capture(config: &Bound<'_, PyDict>) -> PyResult<Option<Order>> {
    let directory: Option<PathBuf> = required(config, "capture")?.extract()?;
    let requests = required(config, "capture_requests")?.extract()?;
    let lasting = duration("capture_seconds", required(config, "capture_seconds")?.extract()?)?;
    Ok(directory.map(|directory| Order { directory, requests, lasting }))
}

fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| PyValueError::new_err(format!("{name} must not be {seconds}")))
}

fn required<'py>(config: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    config.get_item(name)?.ok_or_else(|| PyValueError::new_err(format!("{name} is missing")))
}

/// `auto`, `off`, or `pattern=model,...`.
fn model_map(text: &str) -> PyResult<ModelMap> {
    match text {
        "auto" => return Ok(ModelMap::Auto),
        "off" => return Ok(ModelMap::Off),
        _ => (),
    }
    let pair = |pair: &str| {
        let (pattern, model) =
            pair.split_once('=').filter(|(pattern, model)| !pattern.is_empty() && !model.is_empty())?;
        Some((pattern.trim().to_owned(), model.trim().to_owned()))
    };
    let globs: Option<Vec<_>> = text.split(',').map(pair).collect();
    globs.map(ModelMap::Globs).ok_or_else(|| PyValueError::new_err("model_map must be auto, off or pattern=model,..."))
}
