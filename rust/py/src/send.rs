//! ASGI's `send`, called from here: all the Python that an event of a running stream costs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator};

/// What keeps a `send` from being done: the step that was begun and what it waits for, or nothing and its exception.
pub(crate) type Stuck<'py> = (Option<Bound<'py, PyAny>>, Bound<'py, PyAny>);

/// The `send` of each exchange whose head has gone out.
#[derive(Default)]
pub(crate) struct Sends(Mutex<HashMap<u64, Py<PyAny>>>);

impl Sends {
    pub(crate) fn add(&self, token: u64, send: Py<PyAny>) {
        self.all().insert(token, send);
    }

    pub(crate) fn remove(&self, token: u64) {
        // Dropped behind the lock: the end of a Python object may run anything.
        let _send = self.all().remove(&token);
    }

    pub(crate) fn get<'py>(&self, py: Python<'py>, token: u64) -> Option<Bound<'py, PyAny>> {
        self.all().get(&token).map(|send| send.bind(py).clone())
    }

    fn all(&self) -> MutexGuard<'_, HashMap<u64, Py<PyAny>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a piece of a body. `None` if the server took it at once, as granian does while its queue has room.
pub(crate) fn send_body<'py>(send: &Bound<'py, PyAny>, body: Bound<'py, PyBytes>) -> Option<Stuck<'py>> {
    match begin(send, body) {
        Ok(None) => None,
        Ok(Some((step, blocker))) => Some((Some(step), blocker)),
        Err(error) => Some((None, error.into_value(send.py()).into_bound(send.py()).into_any())),
    }
}

type Step<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// The first step of `send(message)`, taken outside a task; what it waits for if it is not done with that.
fn begin<'py>(send: &Bound<'py, PyAny>, body: Bound<'py, PyBytes>) -> PyResult<Option<Step<'py>>> {
    let py = send.py();
    let message = PyDict::new(py);
    message.set_item(intern!(py, "type"), intern!(py, "http.response.body"))?;
    message.set_item(intern!(py, "body"), body)?;
    message.set_item(intern!(py, "more_body"), true)?;
    let step = send.call1((message,))?.call_method0(intern!(py, "__await__"))?;
    let blocker = step.cast::<PyIterator>()?.clone().next().transpose()?;
    Ok(blocker.map(|blocker| (step, blocker)))
}
