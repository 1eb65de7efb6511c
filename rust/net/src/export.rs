//! Where final exchange records go beside the log, and the key under which what they name leaves the process.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::clickhouse::{ClickHouse, Table};
use crate::digest::{Digests, Key};
use crate::ledger::{self, Ledger};
use crate::notices::Notices;

/// Which records leave the process, and how.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The ledger on this machine; none keeps none.
    pub ledger: Option<ledger::Config>,
    /// The table that a fleet shares; none ships nothing.
    pub clickhouse: Option<Table>,
    /// The operator's key of digests; else the ledger's own, else one that lives as long as the process.
    pub digest_key: Option<Key>,
}

/// The running exporters.
pub struct Export {
    digests: Digests,
    ledger: Option<Ledger>,
    clickhouse: Option<ClickHouse>,
}

impl Export {
    /// Starts what `config` names.
    ///
    /// # Errors
    /// A system without threads or randomness to spare. A directory or a server that cannot be used is no error: it is
    /// tried again.
    pub fn start(config: Config, notices: &Arc<Notices>) -> io::Result<Self> {
        let (key, kept) = match (config.digest_key, &config.ledger) {
            (Some(key), _) => (key, None),
            (None, Some(ledger)) => {
                let key = ledger::key(&ledger.directory, notices).map_err(io::Error::other)?;
                (key.clone(), Some(key))
            }
            (None, None) => (Key::random().map_err(io::Error::other)?, None),
        };
        let ledger = config.ledger.map(|config| Ledger::start(config, kept, Arc::clone(notices))).transpose()?;
        let clickhouse = config.clickhouse.map(|table| ClickHouse::start(table, Arc::clone(notices))).transpose()?;
        Ok(Self { digests: Digests::new(&key), ledger, clickhouse })
    }

    /// Makes the digests of this process's records.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// Takes one final record: one JSON object without a line break. Never waits, never fails.
    pub fn put(&self, record: &[u8]) {
        if self.ledger.is_none() && self.clickhouse.is_none() {
            return;
        }
        let record = Bytes::copy_from_slice(record);
        if let Some(ledger) = &self.ledger {
            ledger.put(record.clone());
        }
        if let Some(clickhouse) = &self.clickhouse {
            clickhouse.put(record);
        }
    }

    /// Counters by the names that [`crate::stats`] uses, of what is switched on.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let ledger = self.ledger.iter().flat_map(Ledger::counters);
        ledger.chain(self.clickhouse.iter().flat_map(ClickHouse::counters))
    }

    /// Takes no more records and waits, at most `within`, until those that are queued are written and sent.
    pub fn finish(&self, within: Duration) {
        let deadline = Instant::now() + within;
        if let Some(ledger) = &self.ledger {
            ledger.close();
        }
        if let Some(clickhouse) = &self.clickhouse {
            clickhouse.close();
            clickhouse.wait_sent(deadline);
        }
        if let Some(ledger) = &self.ledger {
            ledger.wait_written(deadline);
        }
    }
}
