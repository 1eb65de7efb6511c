//! The clocks of a silent engine.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// What a silence has come to.
pub(crate) enum Due {
    /// The client should hear something.
    Ping,
    /// The engine has been silent for too long.
    Limit,
}

/// Two clocks of a silent engine and one timer for both. Hearing something only moves a clock; the timer is set
/// anew when it fires, so that an event costs no timer.
pub(crate) struct Silence {
    within: Duration,
    limit: Instant,
    ping: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl Silence {
    /// Nothing may be heard for `within`; a ping is due after `ping` (none: never).
    pub(crate) fn new(within: Duration, ping: Option<Duration>) -> Self {
        let now = Instant::now();
        let ping = ping.map(|ping| now + ping);
        let limit = now + within;
        Self {
            within,
            limit,
            ping,
            timer: Box::pin(tokio::time::sleep_until(ping.map_or(limit, |ping| ping.min(limit)))),
        }
    }

    /// The engine said something.
    pub(crate) fn heard(&mut self) {
        self.limit = Instant::now() + self.within;
    }

    /// For how long the engine has been silent.
    pub(crate) fn lasts(&self) -> Duration {
        self.within.saturating_sub(self.limit.saturating_duration_since(Instant::now()))
    }

    /// The client heard something: the next ping is `after` away.
    pub(crate) fn ping_in(&mut self, after: Duration) {
        self.ping = Some(Instant::now() + after);
    }

    /// Waits for the next thing that is due. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Due {
        loop {
            self.timer.as_mut().await;
            let now = Instant::now();
            if now >= self.limit {
                return Due::Limit;
            }
            if self.ping.is_some_and(|ping| now >= ping) {
                return Due::Ping;
            }
            let next = self.ping.map_or(self.limit, |ping| ping.min(self.limit));
            self.timer.as_mut().reset(next);
        }
    }
}
