//! The stand-in engine's prefix cache, for Python.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foreword_core::engine::blocks::{BlockCache as Blocks, TOKEN_BYTES};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A chained-hash block prefix cache as vLLM keeps it. Hashing runs without the GIL.
#[pyclass(frozen, module = "foreword._core")]
pub(crate) struct BlockCache(Mutex<Blocks>);

impl BlockCache {
    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        // No method leaves the cache half changed in a way that a later one could not live with.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses bytes that are no whole number of tokens.
pub(crate) fn whole_tokens(tokens: &[u8]) -> PyResult<()> {
    if tokens.len().is_multiple_of(TOKEN_BYTES) {
        Ok(())
    } else {
        Err(PyValueError::new_err(format!("tokens are u32s: {} bytes are no whole number of them", tokens.len())))
    }
}

#[pymethods]
impl BlockCache {
    #[new]
    fn new(block_tokens: usize, capacity_blocks: usize) -> PyResult<Self> {
        let block =
            NonZeroUsize::new(block_tokens).ok_or_else(|| PyValueError::new_err("block_tokens must be at least 1"))?;
        Ok(Self(Mutex::new(Blocks::new(block, capacity_blocks))))
    }

    #[pyo3(signature = (tokens, salt = b"".as_slice()))]
    fn lookup(&self, py: Python<'_>, tokens: &[u8], salt: &[u8]) -> PyResult<usize> {
        whole_tokens(tokens)?;
        Ok(py.detach(|| self.blocks().lookup(tokens, salt)))
    }

    #[pyo3(signature = (tokens, upto, salt = b"".as_slice()))]
    fn insert(&self, py: Python<'_>, tokens: &[u8], upto: usize, salt: &[u8]) -> PyResult<()> {
        whole_tokens(tokens)?;
        py.detach(|| self.blocks().insert(tokens, upto, salt));
        Ok(())
    }

    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.blocks().clear());
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.blocks().len())
    }
}
