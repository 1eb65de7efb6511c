//! Errors of Foreword's own, made where Python finds them.

use foreword_core::error::{Dialect, Fault};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::port::{PyHead, py_headers};

/// Status, headers and body of an error in `dialect` (`messages` or `openai`). `detail` is what the kind's sentence
/// needs: the path, the method and the path, the limit in bytes or seconds, or what went wrong.
///
/// Raises `ValueError` for a dialect, a kind or a detail that does not fit.
#[pyfunction]
pub(crate) fn fault<'py>(
    py: Python<'py>,
    dialect: &str,
    kind: &str,
    detail: &str,
    request_id: &str,
) -> PyResult<(u16, Vec<PyHead<'py>>, Bound<'py, PyBytes>)> {
    let dialect = match dialect {
        "messages" => Dialect::Messages,
        "openai" => Dialect::OpenAi,
        other => return Err(PyValueError::new_err(format!("no dialect {other:?}"))),
    };
    let number = || detail.parse().map_err(|_| PyValueError::new_err(format!("{kind} needs a whole number")));
    let fault = match kind {
        "invalid" => Fault::invalid("", detail),
        "unauthorized" => Fault::unauthorized(),
        "not_found" => Fault::not_found(detail),
        "method_not_allowed" => {
            let (method, path) = detail.split_once(' ').unwrap_or((detail, ""));
            Fault::method_not_allowed(method, path)
        }
        "too_large" => Fault::too_large(number()?),
        "slow_body" => Fault::slow_body(number()?),
        "internal" => Fault::internal(detail),
        other => return Err(PyValueError::new_err(format!("no kind of fault {other:?}"))),
    };
    let body = fault.body(dialect, request_id);
    let length = body.len().to_string();
    let did = format!("rules=none; {}", fault.describe());
    let headers = [
        (&b"content-type"[..], &b"application/json"[..]),
        (b"content-length", length.as_bytes()),
        (b"request-id", request_id.as_bytes()),
        // Where OpenAI's SDKs look for it.
        (b"x-request-id", request_id.as_bytes()),
        (b"x-foreword", did.as_bytes()),
    ];
    Ok((fault.status, py_headers(py, headers.into_iter()), PyBytes::new(py, &body)))
}
