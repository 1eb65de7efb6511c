//! A request body under collection.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use foreword_net::gathering::{Content, Gatherer, Gathering};
use foreword_net::lull::{LULL, Who};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// Chunks below this many bytes are copied at once: handing them over would cost more.
const COPY_HERE: usize = 64 * 1024;

/// Bytes that may lie in their chunks before more are asked for: else they would pile up in fresh memory.
const BEHIND_AT_MOST: usize = 2 * 1024 * 1024;

/// Puts large bodies together; none where the system has no thread to spare.
static GATHERER: LazyLock<Option<Gatherer<PyBackedBytes>>> = LazyLock::new(|| Gatherer::start().ok());

/// How many bodies there were.
static BODIES: AtomicU64 = AtomicU64::new(0);

/// Collects a request body chunk by chunk, so that megabytes never stand on Python's heap.
#[pyclass]
pub(crate) struct Body {
    collected: Collected,
    json: bool,
    /// Later bodies have higher ones.
    #[pyo3(get)]
    number: u64,
}

enum Collected {
    Here(BytesMut),
    /// Since its first large chunk. The gatherer does without the GIL: pyo3 frees the chunks that it has copied when
    /// Python next calls anything here, as each later `push` does.
    Beside(Gathering<PyBackedBytes>),
}

#[pymethods]
impl Body {
    /// An empty body with room for `capacity` bytes. A large one is scanned while it comes if it is `json` to be read.
    #[new]
    #[pyo3(signature = (capacity = 0, json = false))]
    fn new(capacity: usize, json: bool) -> Self {
        let number = BODIES.fetch_add(1, Ordering::Relaxed);
        Self { collected: Collected::Here(BytesMut::with_capacity(capacity)), json, number }
    }

    /// Appends one chunk and returns the length so far. A large one is copied later, on another thread.
    fn push(&mut self, chunk: Bound<'_, PyBytes>) -> usize {
        let bytes = match &mut self.collected {
            Collected::Here(bytes) => bytes,
            Collected::Beside(gathering) => {
                gathering.push(chunk.into());
                return gathering.len();
            }
        };
        let length = chunk.as_bytes().len();
        match GATHERER.as_ref().filter(|_| length >= COPY_HERE) {
            None => bytes.extend_from_slice(chunk.as_bytes()),
            Some(gatherer) => {
                let mut gathering = gatherer.go_on(std::mem::take(bytes), self.json);
                gathering.push(chunk.into());
                self.collected = Collected::Beside(gathering);
            }
        }
        self.__len__()
    }

    /// Whether the large body of this number may ask for a chunk, where no large one was given any for `waited` seconds:
    /// what has come is collected, and running streams are in a lull, or no other large one moves. `many`: others wait.
    ///
    /// Raises `ValueError` for a time that is none.
    #[staticmethod]
    fn may_come(number: u64, waited: f64, many: bool) -> PyResult<bool> {
        let waited = Duration::try_from_secs_f64(waited).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let behind = GATHERER.as_ref().map_or(0, Gatherer::behind);
        Ok(behind <= BEHIND_AT_MOST && LULL.may_move(Who::Coming(number), waited, many))
    }

    fn __len__(&self) -> usize {
        match &self.collected {
            Collected::Here(bytes) => bytes.len(),
            Collected::Beside(gathering) => gathering.len(),
        }
    }
}

impl Body {
    /// Takes the bytes out, without a copy.
    pub(crate) fn take(&mut self) -> Content {
        LULL.over(Who::Coming(self.number));
        match std::mem::replace(&mut self.collected, Collected::Here(BytesMut::new())) {
            Collected::Here(bytes) => bytes.freeze().into(),
            Collected::Beside(gathering) => gathering.end(),
        }
    }
}
