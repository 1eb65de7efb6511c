//! Errors of Foreword's own, made where Python finds them.

use foreword_core::error::{Dialect, Fault};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::port::{PyHead, py_headers};

/// Status, headers and body of an error in `dialect` (`messages` or `openai`).
///
/// Raises `ValueError` for a dialect or a kind that does not exist.
#[pyfunction]
pub(crate) fn fault<'py>(
    py: Python<'py>,
    dialect: &str,
    kind: &str,
    message: &str,
    request_id: &str,
) -> PyResult<(u16, Vec<PyHead<'py>>, Bound<'py, PyBytes>)> {
    let dialect = match dialect {
        "messages" => Dialect::Messages,
        "openai" => Dialect::OpenAi,
        other => return Err(PyValueError::new_err(format!("no dialect {other:?}"))),
    };
    let fault = match kind {
        "invalid" => Fault::invalid(message),
        "unauthorized" => Fault::unauthorized(message),
        "not_found" => Fault::not_found(message),
        "method_not_allowed" => Fault::method_not_allowed(message),
        "too_large" => Fault::too_large(message),
        "slow_body" => Fault::slow_body(message),
        "internal" => Fault::internal(),
        other => return Err(PyValueError::new_err(format!("no kind of fault {other:?}"))),
    };
    let body = fault.body(dialect, request_id);
    let length = body.len().to_string();
    let headers = [
        (&b"content-type"[..], &b"application/json"[..]),
        (b"content-length", length.as_bytes()),
        (b"request-id", request_id.as_bytes()),
    ];
    Ok((fault.status, py_headers(py, headers.into_iter()), PyBytes::new(py, &body)))
}
