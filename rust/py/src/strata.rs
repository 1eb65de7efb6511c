//! Strata's cache for Python: the stand-in engine's, and the planner's simulation of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use foreword_core::engine::blocks::TOKEN_BYTES;
use foreword_core::engine::checkpoints::{Landmarks, Rules};
use foreword_core::engine::parking::Limits;
use foreword_core::engine::simulate::{Costs, Outcome, Request, Setting, When, simulate as play};
use foreword_core::engine::snapshot::Sizes;
use foreword_core::engine::strata::{Event, Settings, Strata, Text};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::blocks::whole_tokens;

/// Tokens as they come from Python: little-endian `u32`s.
#[derive(Clone)]
struct Tokens(Vec<u8>);

/// What is compared at once; a vector register's worth would be less clear and no faster for prompts that differ late.
const STRIDE: usize = 4_096;

impl Text for Tokens {
    fn tokens(&self) -> u64 {
        (self.0.len() / TOKEN_BYTES) as u64
    }

    fn shared(&self, prompt: &Self) -> u64 {
        let strides = self.0.chunks_exact(STRIDE).zip(prompt.0.chunks_exact(STRIDE));
        let same = strides.take_while(|(one, other)| one == other).count() * STRIDE;
        let tails = self.0[same..].iter().zip(&prompt.0[same..]);
        ((same + tails.take_while(|(one, other)| one == other).count()) / TOKEN_BYTES) as u64
    }
}

/// The checkpoints and parked conversations of one Strata. Texts are compared without the GIL.
#[pyclass(frozen, module = "foreword._core")]
pub(crate) struct ConversationCache(Mutex<Strata<Tokens>>);

impl ConversationCache {
    fn engine(&self) -> MutexGuard<'_, Strata<Tokens>> {
        // No method leaves the cache half changed in a way that a later one could not live with.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[allow(clippy::needless_pass_by_value)] // Python's lists come as vectors
#[pymethods]
impl ConversationCache {
    #[new]
    #[pyo3(signature = (*, kept = 6, every = 16_384, root = 2_048, budget = 0, slots = 4, min_free = 0, sizes = Vec::new()))]
    fn new(
        kept: usize,
        every: u64,
        root: u64,
        budget: u64,
        slots: usize,
        min_free: u64,
        sizes: Vec<(u64, u64)>,
    ) -> Self {
        Self(Mutex::new(Strata::new(Settings {
            rules: Rules { kept, every, root },
            limits: Limits { budget, slots, min_free },
            skip_above: None,
            sizes: Sizes::new(&sizes),
        })))
    }

    #[pyo3(signature = (prompt, free = None))]
    fn start<'py>(
        &self,
        py: Python<'py>,
        prompt: &[u8],
        free: Option<u64>,
    ) -> PyResult<(u64, Vec<Bound<'py, PyDict>>)> {
        whole_tokens(prompt)?;
        let started = py.detach(|| self.engine().start(&Tokens(prompt.to_vec()), free));
        let events = started.events.iter().map(|event| told(py, event)).collect::<PyResult<_>>()?;
        Ok((started.reused, events))
    }

    #[pyo3(signature = (upto, system_end = None, turn = None))]
    fn read(&self, upto: u64, system_end: Option<u64>, turn: Option<u64>) {
        self.engine().read(upto, Landmarks { system_end, turn });
    }

    fn finish(&self, py: Python<'_>, tokens: &[u8]) -> PyResult<()> {
        whole_tokens(tokens)?;
        py.detach(|| self.engine().finish(Tokens(tokens.to_vec())));
        Ok(())
    }

    fn clear(&self) {
        self.engine().clear();
    }

    #[getter]
    fn parked(&self) -> usize {
        self.engine().parked()
    }

    #[getter]
    fn parked_bytes(&self) -> u64 {
        self.engine().parked_bytes()
    }

    #[getter]
    fn evictions(&self) -> u64 {
        self.engine().evictions()
    }

    fn __len__(&self) -> usize {
        self.engine().checkpoints()
    }
}

fn told<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    match *event {
        Event::Superseded { copies } => {
            dict.set_item("event", "superseded")?;
            dict.set_item("copies", copies)?;
        }
        Event::Parked { tokens, bytes, evicted } => {
            dict.set_item("event", "parked")?;
            dict.set_item("tokens", tokens)?;
            dict.set_item("bytes", bytes)?;
            dict.set_item("evicted", evicted)?;
        }
        Event::NotParked { tokens, bytes, refusal } => {
            dict.set_item("event", "skipped")?;
            dict.set_item("tokens", tokens)?;
            dict.set_item("bytes", bytes)?;
            dict.set_item("reason", refusal.map(|refusal| refusal.to_string()))?;
        }
        Event::Restored { tokens, bytes, exact } => {
            dict.set_item("event", "restored")?;
            dict.set_item("tokens", tokens)?;
            dict.set_item("bytes", bytes)?;
            dict.set_item("exact", exact)?;
        }
    }
    Ok(dict)
}

/// One request as Python gives it: a `foreword.planner.load.Request`.
#[derive(FromPyObject)]
pub(crate) struct PlannedRequest {
    conversation: u32,
    prompt: u64,
    shared: u64,
    head: u64,
    system: u64,
    output: u64,
    at: Option<f64>,
    think: Option<f64>,
}

/// One setting as Python gives it: a `foreword.planner.grid.Setting`.
#[derive(FromPyObject)]
pub(crate) struct PlannedSetting {
    budget: u64,
    slots: usize,
    kept: usize,
    every: u64,
    root: u64,
    skip_above: Option<u64>,
    admit: Option<u64>,
    cap: Option<u64>,
}

/// What the engine's work takes, as Python gives it: a `foreword.planner.costs.Costs`.
#[derive(FromPyObject)]
pub(crate) struct PlannedCosts {
    sizes: Vec<(u64, u64)>,
    prefill_rate: f64,
    prefill_floor: f64,
    copy_rate: f64,
    decode_rate: f64,
}

/// What became of the load, for Python.
#[pyclass(frozen, get_all, module = "foreword._core")]
pub(crate) struct PlannedOutcome {
    turns: u64,
    refused: u64,
    evictions: u64,
    skipped: u64,
    restores: u64,
    lost_turns: u64,
    lost_reuse: Option<u64>,
    prompt_tokens: u64,
    read_tokens: u64,
    reread_tokens: u64,
    prefill_seconds: f64,
    ram_bytes: u64,
    ttft_p50: Option<f64>,
    ttft_p95: Option<f64>,
    ttft_p99: Option<f64>,
}

/// Plays the requests under each setting, one outcome a setting. The GIL is free meanwhile.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn simulate(
    py: Python<'_>,
    requests: Vec<PlannedRequest>,
    settings: Vec<PlannedSetting>,
    costs: PlannedCosts,
) -> Vec<PlannedOutcome> {
    py.detach(|| {
        let requests: Vec<Request> = requests.iter().map(request).collect();
        let costs = Costs {
            sizes: Sizes::new(&costs.sizes),
            prefill_rate: costs.prefill_rate,
            prefill_floor: costs.prefill_floor,
            copy_rate: costs.copy_rate,
            decode_rate: costs.decode_rate,
        };
        settings.iter().map(|given| outcome(&play(&requests, &setting(given), &costs))).collect()
    })
}

fn request(given: &PlannedRequest) -> Request {
    Request {
        conversation: given.conversation,
        prompt: given.prompt,
        shared: given.shared,
        head: given.head,
        system: given.system,
        output: given.output,
        when: match (given.at, given.think) {
            (Some(at), _) => When::At(at),
            (None, Some(think)) => When::After(think),
            (None, None) => When::InOrder,
        },
    }
}

fn setting(given: &PlannedSetting) -> Setting {
    Setting {
        limits: Limits { budget: given.budget, slots: given.slots, min_free: 0 },
        rules: Rules { kept: given.kept, every: given.every, root: given.root },
        skip_above: given.skip_above,
        admit: given.admit,
        cap: given.cap,
    }
}

fn outcome(found: &Outcome) -> PlannedOutcome {
    PlannedOutcome {
        turns: found.turns,
        refused: found.refused,
        evictions: found.evictions,
        skipped: found.skipped,
        restores: found.restores,
        lost_turns: found.lost_turns,
        lost_reuse: found.lost_reuse,
        prompt_tokens: found.prompt_tokens,
        read_tokens: found.read_tokens,
        reread_tokens: found.reread_tokens,
        prefill_seconds: found.prefill_seconds,
        ram_bytes: found.ram_bytes,
        ttft_p50: found.ttft_at(0.5),
        ttft_p95: found.ttft_at(0.95),
        ttft_p99: found.ttft_at(0.99),
    }
}

/// Bytes of the snapshots of conversations of so many tokens, by a table of (tokens, bytes).
#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn snapshot_bytes(sizes: Vec<(u64, u64)>, tokens: Vec<u64>) -> Vec<u64> {
    let sizes = Sizes::new(&sizes);
    tokens.iter().map(|&tokens| sizes.bytes(tokens)).collect()
}
