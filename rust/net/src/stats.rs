//! Counters of the whole sidecar, one update an exchange.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use foreword_core::request::Notes;

use crate::outbox::locked;
use crate::record::Record;

/// The rules that are counted.
const RULES: [&str; 2] = ["billing-header", "late-system"];

/// Counters by the name `family|label=value,...`; gauges of what is going on now.
#[derive(Debug)]
pub struct Stats {
    counters: Mutex<BTreeMap<String, u64>>,
    open: AtomicU64,
}

impl Default for Stats {
    /// Counters whose labels are known beforehand begin at 0: a rate over a counter that appears misses its first step.
    fn default() -> Self {
        let states = ["applied", "dormant", "unknown"];
        let rules = RULES.iter().flat_map(|rule| states.map(|state| format!("rule_total|rule={rule},state={state}")));
        let counters = rules.chain(["upstream_retries_total|".to_owned()]).map(|name| (name, 0)).collect();
        Self { counters: Mutex::new(counters), open: AtomicU64::new(0) }
    }
}

impl Stats {
    /// A request was refused before it became an exchange: by its key, its size or its pace.
    pub fn refused(&self, route: &str, status: u16) {
        let mut counters = locked(&self.counters);
        *counters.entry(format!("exchanges_total|route={route},status={status}")).or_default() += 1;
        *counters.entry(format!("outcomes_total|route={route},outcome=client-error")).or_default() += 1;
    }

    /// An exchange began.
    pub fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// An exchange ended.
    pub fn closed(&self, record: &Record) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        let route = record.route_name();
        let mut counters = locked(&self.counters);
        let mut add = |name: String, by: u64| *counters.entry(name).or_default() += by;
        add(format!("exchanges_total|route={route},status={}", record.status), 1);
        add(format!("outcomes_total|route={route},outcome={}", record.outcome()), 1);
        if record.retried {
            add("upstream_retries_total|".into(), 1);
        }
        add(format!("events_total|route={route}"), record.summary.events);
        add(format!("unreadable_events_total|route={route}"), record.summary.unreadable);
        let usage = &record.summary.usage;
        if let Some(prompt) = usage.prompt {
            add(format!("prompt_tokens_total|route={route}"), prompt);
            match usage.cached {
                // A rate needs both numbers of the same exchanges: absent is not zero.
                Some(cached) => {
                    add(format!("cache_queried_tokens_total|route={route}"), prompt);
                    add(format!("cached_tokens_total|route={route}"), cached);
                }
                None => add(format!("cache_not_reported_total|route={route}"), 1),
            }
        }
        if let Some(completion) = usage.completion {
            add(format!("completion_tokens_total|route={route}"), completion);
        }
        if let Some(notes) = record.notes.as_ref().filter(|_| record.normalises()) {
            for rule in RULES {
                add(format!("rule_total|rule={rule},state={}", state(rule, notes)), 1);
            }
        }
    }

    /// All of them.
    pub fn snapshot(&self) -> BTreeMap<String, u64> {
        let mut all = locked(&self.counters).clone();
        all.insert("open_exchanges|".into(), self.open.load(Ordering::Relaxed));
        all
    }
}

/// What a rule did with one request.
fn state(rule: &str, notes: &Notes) -> &'static str {
    if notes.rules.contains(&rule) {
        "applied"
    } else if notes.unknown.contains(&rule) {
        "unknown"
    } else {
        "dormant"
    }
}
