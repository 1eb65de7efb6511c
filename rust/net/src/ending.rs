//! What becomes of an exchange's record when its client is done: it is whole, or it waits for the engine's log, or for
//! what the engine says when it is asked.

use std::sync::Arc;

use foreword_core::prompt::verdict::Name;

use crate::gateway::Shared;
use crate::outbox::Outbox;
use crate::prefixes::Trace;
use crate::record::Record;
use crate::rendering::{self, Doubt};

/// The token of records that come when their exchange is over.
const LATE: u64 = 0;

/// Ends an exchange: its record goes to the ledger (none of Foreword's own questions) and, as the last of it, into the
/// outbox.
pub(crate) async fn close(
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    mut record: Record,
    mut trace: Option<Trace>,
    own: bool,
) {
    record.over();
    if !own {
        shared.stats.closed(&record);
    }
    let profile = shared.profile();
    let awaited = profile.engine_log && record.lacks_reuse() && trace.as_ref().is_some_and(Trace::entered);
    if let Some(trace) = trace.take_if(|_| awaited) {
        let pending = record.to_pending_json();
        // Kept before it is told of: whoever hears of it may close it at once.
        if let Some(closed) = shared.prefixes.wait(record, trace, &profile) {
            shared.export.put(&closed.to_json());
        }
        outbox.end(pending);
        return;
    }
    if let Some((trace, doubt)) = doubted(trace, &record, &shared) {
        // The client is done; only its record waits for what the engine has to say.
        outbox.end(Vec::new());
        resolve(&shared, &trace, doubt, record).await;
        return;
    }
    let json = record.to_json();
    if !own {
        // Before the client sees its end: whoever stops the process then must find the record written.
        shared.export.put(&json);
    }
    outbox.end(json);
}

/// What the engine is to be asked where the verdict leaves open whether it or its template lost the prefix.
fn doubted(trace: Option<Trace>, record: &Record, shared: &Shared) -> Option<(Trace, Doubt)> {
    let open = record.verdict.is_some_and(|verdict| verdict.name == Name::EngineLostOrTemplate);
    let mut trace = trace.filter(|_| open)?;
    let doubt = trace.take_doubt()?;
    shared.questions.may_ask().then_some((trace, doubt))
}

/// Asks the engine, and closes the record with what it shows.
async fn resolve(shared: &Shared, trace: &Trace, doubt: Doubt, mut record: Record) {
    if let Some(printed_anew) = rendering::printed_anew(&shared.upstream, doubt).await {
        shared.prefixes.correct(trace, &mut record, printed_anew);
    }
    let json = record.to_json();
    shared.export.put(&json);
    Outbox::new(LATE, shared.port.clone()).end(json);
}
