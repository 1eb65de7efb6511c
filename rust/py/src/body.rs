//! A request body under collection.

use bytes::{Bytes, BytesMut};
use pyo3::prelude::*;

/// Collects a request body chunk by chunk, so that megabytes never stand on Python's heap.
#[pyclass]
pub(crate) struct Body {
    bytes: BytesMut,
}

#[pymethods]
impl Body {
    /// An empty body with room for `capacity` bytes.
    #[new]
    #[pyo3(signature = (capacity = 0))]
    fn new(capacity: usize) -> Self {
        Self { bytes: BytesMut::with_capacity(capacity) }
    }

    /// Appends one chunk and returns the length so far.
    fn push(&mut self, chunk: &[u8]) -> usize {
        self.bytes.extend_from_slice(chunk);
        self.bytes.len()
    }

    fn __len__(&self) -> usize {
        self.bytes.len()
    }
}

impl Body {
    /// Takes the bytes out, without a copy.
    pub(crate) fn take(&mut self) -> Bytes {
        self.bytes.split().freeze()
    }
}
