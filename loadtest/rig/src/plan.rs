//! What the engine does with a stream.

use crate::{cli::Usage, clock::SECOND, mark};
use std::{fmt, str::FromStr};

/// When a stream's events are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All streams of one rate at the same instants, as the steps of an engine make them.
    Burst,
    /// Each stream at its own phase.
    Spread,
    /// As fast as the socket takes them.
    Flood,
}

impl FromStr for Mode {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "burst" => Ok(Self::Burst),
            "spread" => Ok(Self::Spread),
            "flood" => Ok(Self::Flood),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Burst => "burst",
            Self::Spread => "spread",
            Self::Flood => "flood",
        })
    }
}

/// Mode, pace and length of streams; as text `mode=burst&rate=50&events=500&gate=1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    /// Events per second and stream.
    pub(crate) rate: f64,
    /// Content events per stream, the first one included.
    pub(crate) events: u32,
    /// Streams go on after their first event only when so many of them have come so far.
    pub(crate) gate: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self { mode: Mode::Burst, rate: 50.0, events: 500, gate: 1 }
    }
}

impl Plan {
    /// This plan with the settings that `text` names.
    pub(crate) fn with(mut self, text: &str) -> Result<Self, Usage> {
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let bad = || Usage(format!("plan: {pair:?} is not a valid setting"));
            let (name, value) = pair.split_once('=').ok_or_else(bad)?;
            match name {
                "mode" => self.mode = value.parse().map_err(|()| bad())?,
                "rate" => self.rate = value.parse().map_err(|_| bad())?,
                "events" => self.events = value.parse().map_err(|_| bad())?,
                "gate" => self.gate = value.parse().map_err(|_| bad())?,
                _ => return Err(bad()),
            }
        }
        self.checked()
    }

    /// This plan, if it can be carried out.
    pub(crate) fn checked(self) -> Result<Self, Usage> {
        if !(0.001..=1e6).contains(&self.rate) {
            return Err(Usage(format!("rate {}: must be within 0.001 and 1000000", self.rate)));
        }
        if !(1..=mark::MAX_SEQ).contains(&self.events) {
            return Err(Usage(format!("events {}: must be within 1 and {}", self.events, mark::MAX_SEQ)));
        }
        Ok(self)
    }

    /// Time between two events of a stream, in nanoseconds.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the rate was checked")]
    pub(crate) fn period_ns(&self) -> u64 {
        (SECOND as f64 / self.rate) as u64
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, rate, events, gate } = self;
        write!(f, "mode={mode}&rate={rate}&events={events}&gate={gate}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_changes_what_it_names_and_no_more() {
        let plan = Plan::default().with("rate=20&mode=spread").unwrap();
        assert_eq!(plan, Plan { mode: Mode::Spread, rate: 20.0, ..Plan::default() });
        assert_eq!(plan.period_ns(), 50_000_000);
        assert_eq!(Plan::default().with(&plan.to_string()).unwrap(), plan);
    }

    #[test]
    fn refuses_wrong_settings() {
        for bad in ["rate=0", "rate=NaN", "events=0", "events=1000000", "mode=fast", "rate", "speed=1"] {
            assert!(Plan::default().with(bad).is_err(), "{bad}");
        }
    }
}
