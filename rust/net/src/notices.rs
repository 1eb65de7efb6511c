//! What the core has to say to the operator beside its counters: rare sentences, which Python's log writes.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::outbox::locked;

/// Sentences that are kept until they are taken; older ones go first. Whoever says more has a counter for it.
const KEPT: usize = 64;

/// How much a notice matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For the record.
    Info,
    /// Somebody should look.
    Warning,
}

impl Level {
    /// The name that Python's logging knows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
        }
    }
}

/// Notices that wait to be taken.
#[derive(Debug, Default)]
pub struct Notices(Mutex<VecDeque<(Level, String)>>);

impl Notices {
    /// Something that happened once. Never a text of a prompt, never a key.
    pub fn info(&self, text: impl Into<String>) {
        self.put(Level::Info, text.into());
    }

    /// Something that somebody should look at.
    pub fn warn(&self, text: impl Into<String>) {
        self.put(Level::Warning, text.into());
    }

    /// All that were not yet taken, oldest first.
    pub fn take(&self) -> Vec<(Level, String)> {
        locked(&self.0).drain(..).collect()
    }

    fn put(&self, level: Level, text: String) {
        let mut kept = locked(&self.0);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((level, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_taken_once_and_bounded() {
        let notices = Notices::default();
        notices.info("first");
        for number in 0..KEPT {
            notices.warn(number.to_string());
        }
        let taken = notices.take();
        assert_eq!(taken.len(), KEPT);
        assert_eq!(taken.first(), Some(&(Level::Warning, "0".to_owned())));
        assert!(notices.take().is_empty());
    }
}
