//! The journal as exchanges meet it: looked at when a request is prepared, entered when the engine takes it up,
//! settled when its usage is known. A short lock each time, never across an await.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use foreword_core::profile::{LateSystem, Profile};
use foreword_core::prompt::diagnosis::Diagnosis;
use foreword_core::prompt::journal::{Entry, Journal, Limits, Line, Relation, Standing, Told, Turn, Who};
use foreword_core::prompt::segment::{Class, Prompt, Segment};
use foreword_core::prompt::verdict::{Name, Verdict};
use foreword_core::request::Route;
use xxhash_rust::xxh3::xxh3_64;

use crate::digest::Digests;
use crate::excerpts::{self, Excerpts};
use crate::json::{Object, list};
use crate::outbox::locked;
use crate::record::Record;
use crate::rendering::Doubt;
use crate::who::Client;

/// Segments of a record's head, and new ones behind it, that are told one by one.
const HEAD_SEGMENTS: usize = 64;
const NEW_SEGMENTS: usize = 32;

/// Lines that are listed at a time: the journal is locked meanwhile.
const LISTED: usize = 500;

/// Records that wait for the engine's log. Whoever follows it closes each within seconds; a thousand are never due.
const PENDING: usize = 1024;

/// What was sent before, and what waits for its verdict.
pub(crate) struct Prefixes {
    limits: Limits,
    journal: Mutex<Journal>,
    failures: AtomicU64,
    pending: Mutex<VecDeque<(Record, Trace)>>,
    digests: Digests,
    /// None where excerpts are off: then no text outlives its request.
    excerpts: Option<Excerpts>,
}

/// One exchange's way through the journal.
#[derive(Debug)]
pub(crate) struct Trace {
    who: Who,
    /// Held until the engine takes the request up.
    prompt: Option<Prompt>,
    standing: Standing,
    entry: Option<Entry>,
    /// What to ask the engine, should the verdict leave open who lost the prefix.
    doubt: Option<Doubt>,
    /// Held until the engine takes the request up, where excerpts are on.
    body: Option<(Route, Bytes)>,
    /// What stands where the prompt left its line, as JSON.
    excerpt: Option<String>,
}

impl Trace {
    /// What is known of the verdict before the engine has said anything.
    pub(crate) fn standing(&self) -> &Standing {
        &self.standing
    }

    /// The session that it belongs to, as records name it.
    pub(crate) fn session(&self) -> Option<String> {
        self.who.shown.clone()
    }

    /// Whether its rendering may turn out to be in doubt, and after how many messages the earlier part ends.
    pub(crate) fn doubtful(&self) -> Option<usize> {
        let standing = &self.standing;
        let may = standing.new_late_system.or(standing.reasoning_may_go).is_some();
        standing.previous_messages.filter(|_| may && standing.relation == Relation::Extends)
    }

    /// Keeps what would have to be asked.
    pub(crate) fn keep(&mut self, doubt: Doubt) {
        self.doubt = Some(doubt);
    }

    /// What is to be asked, once.
    pub(crate) fn take_doubt(&mut self) -> Option<Doubt> {
        self.doubt.take()
    }

    /// Whether the engine took the request up.
    pub(crate) fn entered(&self) -> bool {
        self.entry.is_some()
    }
}

impl Prefixes {
    pub(crate) fn new(limits: Limits, digests: Digests, excerpts: bool) -> Self {
        let journal = Mutex::new(Journal::new(limits));
        let excerpts = excerpts.then(Excerpts::default);
        Self { limits, journal, failures: AtomicU64::new(0), pending: Mutex::default(), digests, excerpts }
    }

    /// Works on the journal. A fault in it costs what it knows, never an exchange.
    fn with<T>(&self, act: impl FnOnce(&mut Journal) -> Option<T>) -> Option<T> {
        let mut journal = locked(&self.journal);
        catch_unwind(AssertUnwindSafe(|| act(&mut journal))).unwrap_or_else(|_| {
            self.failures.fetch_add(1, Ordering::Relaxed);
            *journal = Journal::new(self.limits);
            None
        })
    }

    /// Where a prompt stands. `session` is what the body says, if the headers say nothing.
    pub(crate) fn look(&self, mut prompt: Prompt, client: &Client, session: Option<&str>) -> Option<Trace> {
        let id = client.session.as_deref().or(session);
        let key = id.map(|id| [id, "\0", client.agent.as_deref().unwrap_or_default()].concat());
        let who = Who {
            session: key.map(|key| xxh3_64(key.as_bytes())),
            client: client.name,
            shown: id.map(|id| self.digests.session(id).to_string()),
        };
        let standing = self.with(|journal| {
            journal.fit(&mut prompt, &who);
            Some(journal.look(&prompt, &who))
        })?;
        Some(Trace { who, prompt: Some(prompt), standing, entry: None, doubt: None, body: None, excerpt: None })
    }

    /// Notes what stands where the prompt of a decoded `body` left its line, if excerpts are on.
    pub(crate) fn read(&self, trace: &mut Trace, route: Route, body: &Bytes, profile: &Profile) {
        let Some(excerpts) = &self.excerpts else { return };
        let standing = &trace.standing;
        if let (Relation::Changed(_), Some(line)) = (standing.relation, standing.line()) {
            let found = excerpts.compare(line, route, body, standing.shared_segments, profile);
            trace.excerpt = found.as_ref().map(excerpts::described);
        }
        trace.body = Some((route, body.clone()));
    }

    /// Compares the prompt with that of an earlier answer.
    pub(crate) fn diagnose(&self, trace: &Trace, message_id: &str) -> Diagnosis {
        let Some(prompt) = &trace.prompt else { return Diagnosis::NotFound };
        self.with(|journal| Some(journal.diagnose(prompt, message_id))).unwrap_or(Diagnosis::NotFound)
    }

    /// The engine has taken the request up: from now on others can share what it reads.
    pub(crate) fn enter(&self, trace: &mut Trace, record: &mut Record) {
        let Some(prompt) = trace.prompt.take() else { return };
        let model = record.model.as_deref().unwrap_or_default();
        let began = record.began();
        let entry = self.with(|journal| journal.enter(&prompt, &trace.standing, &trace.who, model, began));
        record.place = entry.as_ref().map(|entry| (entry.line, entry.turn));
        record.prompt = Some(self.describe(&prompt, &trace.standing));
        record.excerpt = trace.excerpt.take();
        if let (Some(excerpts), Some((route, body)), Some(entry)) = (&self.excerpts, trace.body.take(), &entry) {
            excerpts.keep(entry.line, route, body);
        }
        trace.entry = entry;
    }

    /// The verdict of a finished exchange, into its record.
    pub(crate) fn settle(&self, trace: &Trace, record: &mut Record, profile: &Profile) {
        let Some(entry) = &trace.entry else { return };
        let told = Told {
            request_id: &record.request_id,
            message_id: record.summary.message_id.as_deref(),
            time: record.began(),
            usage: record.summary.usage,
        };
        let settled = self.with(|journal| Some(journal.settle(entry, &trace.standing, &told, profile)));
        let Some(verdict) = settled else { return };
        record.shadow = shadow(&verdict, &trace.standing, profile);
        record.verdict = Some(verdict);
    }

    /// Puts what the engine's tokens show in the place of a verdict that left it open.
    pub(crate) fn correct(&self, trace: &Trace, record: &mut Record, printed_anew: bool) {
        let name = if printed_anew { Name::Template } else { Name::EngineLost };
        let (Some(entry), Some(verdict)) = (&trace.entry, &mut record.verdict) else { return };
        verdict.name = name;
        self.with(|journal| {
            journal.correct(entry, &record.request_id, name);
            Some(())
        });
        if !printed_anew {
            record.shadow.clear();
        }
    }

    /// Keeps a record until the engine's log has told what was reused; one that has waited too long to be kept any
    /// further comes back, closed without it.
    pub(crate) fn wait(&self, record: Record, trace: Trace, profile: &Profile) -> Option<Record> {
        let mut pending = locked(&self.pending);
        pending.push_back((record, trace));
        if pending.len() <= PENDING {
            return None;
        }
        let (mut record, trace) = pending.pop_front()?;
        drop(pending);
        self.settle(&trace, &mut record, profile);
        Some(record)
    }

    /// The id of the record that has waited longest.
    pub(crate) fn waiting(&self) -> Option<String> {
        locked(&self.pending).front().map(|(record, _)| record.request_id.clone())
    }

    /// Closes a record that waits, with what the log told.
    pub(crate) fn told(&self, request_id: &str, cached: Option<u64>, profile: &Profile) -> Option<Record> {
        let mut pending = locked(&self.pending);
        let place = pending.iter().position(|(record, _)| record.request_id == request_id)?;
        let (mut record, trace) = pending.remove(place)?;
        drop(pending);
        record.summary.usage.cached = cached;
        record.cached_by_log = cached.is_some();
        self.settle(&trace, &mut record, profile);
        Some(record)
    }

    /// The `prompt` member of a record.
    fn describe(&self, prompt: &Prompt, standing: &Standing) -> String {
        let segments = &prompt.segments;
        let first = segments.iter().rposition(|segment| segment.class == Class::FirstUser || segment.class.is_head());
        let (head, rest) = segments.split_at(first.map_or(0, |last| last + 1));
        let new = segments.get(standing.shared_segments.max(head.len())..).unwrap_or(rest);
        let told = |segments: &[Segment], most| list(segments.iter().take(most).map(|segment| self.segment(segment)));
        let mut json = Object::default();
        json.raw("bytes", prompt.bytes().to_string());
        json.raw("segments", segments.len().to_string());
        json.raw("head", told(head, HEAD_SEGMENTS));
        let mut shared = Object::default();
        shared.raw("segments", standing.shared_segments.to_string());
        shared.raw("bytes", standing.shared_bytes.to_string());
        json.raw("shared", shared.end());
        json.raw("new", told(new, NEW_SEGMENTS));
        json.end()
    }

    fn segment(&self, segment: &Segment) -> String {
        let mut json = Object::default();
        json.text("path", Some(&segment.path.to_string()));
        json.text("class", Some(segment.class.name()));
        json.raw("bytes", segment.bytes.to_string());
        json.text("digest", Some(self.digests.segment(segment.digest).as_str()));
        json.end()
    }

    /// Gauges and counters of the journal.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 4] {
        let journal = locked(&self.journal);
        let count = |size: usize| u64::try_from(size).unwrap_or(u64::MAX);
        [
            ("journal_lines|", count(journal.lines().count())),
            ("journal_bytes|", count(journal.bytes())),
            ("journal_forgotten_total|", journal.forgotten()),
            ("diagnosis_failures_total|part=journal", self.failures.load(Ordering::Relaxed)),
        ]
    }

    /// The lines that were used last, the latest first, as a JSON array.
    pub(crate) fn sessions(&self) -> String {
        let journal = locked(&self.journal);
        list(journal.lines().take(LISTED).map(|line| described(&journal, line, line.turns.to_string())))
    }

    /// The lines of one session (16 hex digits) or one line (`line-17`) with their turns; none where there are none.
    pub(crate) fn session(&self, id: &str) -> Option<String> {
        let journal = locked(&self.journal);
        let number = id.strip_prefix("line-").and_then(|number| number.parse().ok());
        let wanted = |line: &&Line| Some(line.id) == number || line.who.shown.as_deref() == Some(id);
        let lines: Vec<_> = journal.lines().filter(wanted).collect();
        let shown = lines.first()?.who.shown.as_deref();
        let mut json = Object::default();
        json.text("session", shown);
        let with_turns = lines.iter().map(|line| described(&journal, line, list(line.recent.iter().map(turn))));
        json.raw("lines", list(with_turns));
        Some(json.end())
    }
}

/// A line, with its turns as they are told: their number, or the latest of them one by one.
fn described(journal: &Journal, line: &Line, turns: String) -> String {
    let (tokens, bytes) = journal.size(line);
    let mut json = Object::default();
    json.text("session", line.who.shown.as_deref());
    json.raw("line", line.id.to_string());
    json.text("client", Some(line.who.client));
    json.text("model", Some(&line.model));
    json.raw("turns", turns);
    json.count("prompt_tokens", tokens);
    json.raw("bytes", bytes.to_string());
    json.raw("first_seen", format!("{:.3}", line.first_seen));
    json.raw("last_seen", format!("{:.3}", line.last_seen));
    json.raw("lost", line.lost.to_string());
    let mut verdicts = Object::default();
    for (name, count) in Name::ALL.iter().zip(line.verdicts).filter(|(_, count)| *count > 0) {
        verdicts.raw(name.name(), count.to_string());
    }
    json.raw("verdicts", verdicts.end());
    json.end()
}

fn turn(turn: &Turn) -> String {
    let mut json = Object::default();
    json.text("request_id", Some(&turn.request_id));
    json.raw("time", format!("{:.3}", turn.time));
    json.count("prompt", turn.prompt);
    json.count("reused", turn.reused);
    write_verdict(&turn.verdict, "verdict", &mut json);
    json.end()
}

/// A verdict's members; its name under `name`.
pub(crate) fn write_verdict(verdict: &Verdict, name: &str, json: &mut Object) {
    json.text(name, Some(verdict.name.name()));
    json.count("expected", verdict.expected);
    json.count("shared", verdict.shared);
    json.count("lost", verdict.lost);
    json.raw("exact", verdict.exact.to_string());
    json.text("path", verdict.change.map(|change| change.path.to_string()).as_deref());
    json.text("class", verdict.class().map(Class::name));
    json.text("kind", verdict.kind().map(foreword_core::prompt::change::Kind::name));
}

/// What rules that are off would have saved, in tokens.
fn shadow(verdict: &Verdict, standing: &Standing, profile: &Profile) -> Vec<(&'static str, u64)> {
    let lost = verdict.lost.unwrap_or(0);
    let by_template = matches!(verdict.name, Name::Template | Name::EngineLostOrTemplate);
    let mut saved = Vec::new();
    if verdict.name == Name::Changed && verdict.class() == Some(Class::Header) && !profile.billing_header {
        saved.push((foreword_core::normalize::BILLING_HEADER, lost));
    }
    if by_template && standing.new_late_system.is_some() && profile.late_system == LateSystem::Off {
        saved.push((foreword_core::normalize::LATE_SYSTEM, lost));
    }
    saved.retain(|(_, tokens)| *tokens > 0);
    saved
}
