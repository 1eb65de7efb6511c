//! Connections that are not in use.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::connection::Connection;
use crate::outbox::locked;

/// How long an unused connection is kept: under the engines' five seconds.
pub(super) const KEEP_IDLE: Duration = Duration::from_secs(4);

/// How many unused connections are kept.
const KEEP_AT_MOST: usize = 256;

/// Between two wakes for what has been unused for too long.
const SWEEPS: Duration = Duration::from_millis(500);

/// Unused connections. Each is closed when its time is over, or the engine has closed it by then.
#[derive(Clone, Default)]
pub(super) struct Pool {
    idle: Arc<Mutex<Idle>>,
}

#[derive(Default)]
struct Idle {
    /// The freshest last.
    connections: VecDeque<(Instant, Connection)>,
    /// Whether a task will come by, as it does while there are any.
    awaited: bool,
}

impl Pool {
    /// The freshest that lives.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut idle = locked(&self.idle);
        idle.sweep();
        idle.connections.pop_back().map(|(_, connection)| connection)
    }

    /// Keeps a connection for later. Only within a tokio runtime, which closes it when its time is over.
    pub(super) fn put(&self, connection: Connection) {
        let mut idle = locked(&self.idle);
        idle.sweep();
        if idle.connections.len() == KEEP_AT_MOST {
            idle.connections.pop_front();
        }
        idle.connections.push_back((Instant::now(), connection));
        if !std::mem::replace(&mut idle.awaited, true) {
            tokio::spawn(self.clone().sweep());
        }
    }

    /// Closes what nobody comes for, and ends when nothing is left: a sidecar at rest has no timer.
    async fn sweep(self) {
        while let Some(due) = self.next_sweep() {
            sleep_until(due).await;
        }
    }

    /// Sweeps; when to come by again.
    fn next_sweep(&self) -> Option<Instant> {
        let mut idle = locked(&self.idle);
        idle.sweep();
        let due = idle.connections.front().map(|(since, _)| (*since + KEEP_IDLE).max(Instant::now() + SWEEPS));
        idle.awaited = due.is_some();
        due
    }
}

impl Idle {
    fn sweep(&mut self) {
        self.connections.retain_mut(|(since, connection)| since.elapsed() < KEEP_IDLE && connection.is_alive());
    }
}
