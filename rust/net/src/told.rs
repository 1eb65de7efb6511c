//! What an answer says of what the sidecar did: the value of `x-foreword`.

use foreword_core::prompt::change::Change;
use foreword_core::request::Notes;

use crate::prefixes::Trace;
use crate::record::Record;

/// The value of `x-foreword`: `rules=billing-header; verdict=append-only; reused=98.7`. The head of a stream carries
/// what is known before the engine has said what it reused.
pub(crate) fn describe(record: &Record, trace: Option<&Trace>) -> String {
    let nothing = Notes::default();
    let notes = record.notes.as_ref().unwrap_or(&nothing);
    let rules = if notes.rules.is_empty() { "none".to_owned() } else { notes.rules.join(",") };
    let mut told = vec![format!("rules={rules}")];
    if !notes.unknown.is_empty() {
        told.push(format!("unknown={}", notes.unknown.join(",")));
    }
    if !notes.dropped.is_empty() {
        told.push(format!("dropped={}", notes.dropped.join(",")));
    }
    if record.estimated {
        told.push("tokens=estimated".to_owned());
    }
    match (&record.verdict, trace.filter(|trace| trace.entered())) {
        (Some(verdict), _) => {
            told.push(format!("verdict={}", verdict.name.name()));
            tell_change(verdict.change, &mut told);
            let usage = &record.summary.usage;
            if let (Some(prompt), Some(cached)) = (usage.prompt.filter(|&prompt| prompt > 0), usage.cached) {
                told.push(format!("reused={}", percent(cached, prompt)));
            }
            if let Some(lost) = verdict.lost.filter(|&lost| lost > 0) {
                told.push(format!("lost={lost}"));
            }
        }
        (None, Some(trace)) => {
            let relation = trace.standing().relation;
            told.push(format!("verdict={}", relation.name()));
            tell_change(relation.change(), &mut told);
        }
        (None, None) => {}
    }
    if let Some(fault) = &record.fault {
        told.push(fault.describe());
    }
    told.join("; ")
}

fn tell_change(change: Option<Change>, told: &mut Vec<String>) {
    if let Some(Change { path, class, kind }) = change {
        told.push(format!("path={path}"));
        told.push(format!("class={}", class.name()));
        told.push(format!("kind={}", kind.name()));
    }
}

/// A share in percent with one decimal, rounded down: only all of it is 100.0.
fn percent(part: u64, whole: u64) -> String {
    let tenths = u128::from(part.min(whole)) * 1000 / u128::from(whole.max(1));
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn only_all_of_it_is_a_hundred_percent() {
        for (part, whole, told) in
            [(0, 7, "0.0"), (9_999, 10_000, "99.9"), (7, 7, "100.0"), (9, 7, "100.0"), (1, 0, "0.0")]
        {
            assert_eq!(percent(part, whole), told);
        }
        assert_eq!(percent(u64::MAX - 1, u64::MAX), "99.9");
    }
}
