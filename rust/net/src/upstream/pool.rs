//! Connections that are not in use.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::connection::Connection;
use crate::outbox::locked;

/// How long an unused connection is kept: under the engines' five seconds.
const KEEP_IDLE: Duration = Duration::from_secs(4);

/// How many unused connections are kept.
const KEEP_AT_MOST: usize = 256;

/// Unused connections, the freshest last.
#[derive(Clone, Default)]
pub(super) struct Pool {
    idle: Arc<Mutex<VecDeque<(Instant, Connection)>>>,
}

impl Pool {
    /// The freshest that lives.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut idle = locked(&self.idle);
        sweep(&mut idle);
        idle.pop_back().map(|(_, connection)| connection)
    }

    pub(super) fn put(&self, connection: Connection) {
        let mut idle = locked(&self.idle);
        sweep(&mut idle);
        if idle.len() == KEEP_AT_MOST {
            idle.pop_front();
        }
        idle.push_back((Instant::now(), connection));
    }
}

fn sweep(idle: &mut VecDeque<(Instant, Connection)>) {
    idle.retain_mut(|(since, connection)| since.elapsed() < KEEP_IDLE && connection.is_alive());
}
