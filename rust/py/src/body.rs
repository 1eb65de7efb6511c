//! A request body under collection.

use bytes::{Bytes, BytesMut};
use pyo3::prelude::*;

/// Below this many bytes giving up the GIL costs more than the copy.
const COPY_WITH_GIL: usize = 32 * 1024;

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

    /// Appends one chunk and returns the length so far. A large chunk is copied without the GIL, so that the server
    /// can hand over the next one meanwhile.
    fn push(&mut self, py: Python<'_>, chunk: &[u8]) -> usize {
        if chunk.len() < COPY_WITH_GIL {
            self.bytes.extend_from_slice(chunk);
        } else {
            let bytes = &mut self.bytes;
            py.detach(|| bytes.extend_from_slice(chunk));
        }
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
