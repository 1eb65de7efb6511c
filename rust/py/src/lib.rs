//! Python bindings of Foreword: the completion port and thin wrappers. The only crate that knows Python.

mod blocks;
mod body;
mod fault;
mod port;
mod send;
mod strata;

use pyo3::prelude::*;

/// The module `foreword._core`; its types are written down in `_core.pyi`.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::blocks::BlockCache;
    #[pymodule_export]
    use super::body::Body;
    #[pymodule_export]
    use super::fault::fault;
    #[pymodule_export]
    use super::port::Sidecar;
    #[pymodule_export]
    use super::strata::{ConversationCache, PlannedOutcome, simulate, snapshot_bytes};
}
