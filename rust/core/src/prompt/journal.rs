//! The journal: what was sent before, by conversation.
//!
//! A session id that the client sends narrows the candidates; the **line** within it is always the one with the
//! longest shared prefix, so that sub-agents, title requests and resumed runs each find their own. Lives in memory
//! only. Beyond its bounds the line that was used least recently is forgotten, whole.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::change::{self, Change, Kind, Kinship};
use super::diagnosis::{self, Diagnosis};
use super::learnt::Learnt;
use super::segment::{Class, Parameters, Prompt, Segment, open_reasoning, user_speaks};
use super::tree::{ByDigest, NodeId, Tree};
use super::verdict::{self, Verdict};
use crate::profile::Profile;
use crate::usage::EngineUsage;

/// Turns of a line that are kept for reports.
const TURNS: usize = 32;

/// Lines of a session that a prompt is compared with, the latest first.
const CANDIDATES: usize = 8;

/// Prompts of a client that one of a single text is compared with, the latest lines first: a digest each.
const TEXTS: usize = 512;

/// Models of which something is learnt.
const MODELS: usize = 64;

/// Memory of a line with its turns, in bytes, about.
const LINE_BYTES: usize = 512;
const TURN_BYTES: usize = 256;

/// How much the journal may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Lines.
    pub lines: usize,
    /// Bytes of memory, about.
    pub bytes: usize,
}

/// Whose request it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Digest of the session id that the client sent, with its sub-agent's.
    pub session: Option<u64>,
    /// The client's name.
    pub client: &'static str,
    /// The session as reports name it.
    pub shown: Option<String>,
}

impl Who {
    /// What the lines of this client are found under.
    fn key(&self) -> u64 {
        self.session.unwrap_or_else(|| xxhash_rust::xxh3::xxh3_64(self.client.as_bytes()))
    }
}

/// How a prompt stands to what was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It belongs to no line yet.
    First,
    /// It was sent before, to the byte.
    Repeat,
    /// It begins with a whole prompt of its line.
    Extends,
    /// It belongs to a line and differs from it in what was sent before.
    Changed(Change),
    /// It goes on with a line most of which was replaced.
    Compacted,
}

impl Relation {
    /// The verdict that it amounts to while the engine has said nothing.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Repeat => "repeat",
            Self::Extends => "append-only",
            Self::Changed(_) => "changed",
            Self::Compacted => "compacted",
        }
    }

    /// The change, if it is one.
    pub fn change(self) -> Option<Change> {
        match self {
            Self::Changed(change) => Some(change),
            _ => None,
        }
    }
}

/// What the journal knows of a prompt before the engine has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How it stands to its line.
    pub relation: Relation,
    /// Tokens of the line's prompt that it is compared with, as the engine counted them.
    pub previous_tokens: Option<u64>,
    /// Whether model, effort or template switches are others than before.
    pub parameters_changed: bool,
    /// Whether the model is another one.
    pub model_changed: bool,
    /// Where a late system message is new in it: bytes in front of the place at the head that some templates move it to.
    pub new_late_system: Option<u64>,
    /// Where the user speaks for the first time behind reasoning that was sent before, or no more: bytes in front of that
    /// reasoning. Many templates then drop it, or print it again.
    pub reasoning_may_go: Option<u64>,
    /// Whether the line had got no further than the prompt that it is compared with.
    pub at_tip: bool,
    /// Messages that the line's prompt was sent as.
    pub previous_messages: Option<usize>,
    /// Segments that it begins with and its line (or, of a first prompt, anyone) had before.
    pub shared_segments: usize,
    /// Bytes of the same, as far into a segment as blocks tell.
    pub shared_bytes: u64,
    line: Option<LineId>,
    previous: Option<NodeId>,
}

impl Standing {
    /// The line that the prompt goes on with, if it does.
    pub fn line(&self) -> Option<LineId> {
        self.line
    }
}

/// A line's number, from 1.
pub type LineId = u64;

/// An exchange that the engine has taken up: its place in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The line.
    pub line: LineId,
    /// Its turn of that line, from 1.
    pub turn: u32,
    node: NodeId,
    bytes: u64,
    parameters: Parameters,
}

/// What is told of a finished exchange.
#[derive(Clone, Debug, Default)]
pub struct Told<'a> {
    /// The id told to the client.
    pub request_id: &'a str,
    /// The answer's id as told to the client.
    pub message_id: Option<&'a str>,
    /// Seconds since 1970 at which it began.
    pub time: f64,
    /// The engine's own usage.
    pub usage: EngineUsage,
}

/// One turn of a line, for reports.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The id told to the client.
    pub request_id: Box<str>,
    /// Seconds since 1970.
    pub time: f64,
    /// Tokens of the prompt.
    pub prompt: Option<u64>,
    /// Tokens reused.
    pub reused: Option<u64>,
    /// The verdict.
    pub verdict: Verdict,
    message: Option<u64>,
}

/// One line of a conversation.
#[derive(Debug)]
pub struct Line {
    /// Its number.
    pub id: LineId,
    /// Whose it is.
    pub who: Who,
    /// The model as asked for.
    pub model: Box<str>,
    /// Turns so far.
    pub turns: u32,
    /// The latest of them.
    pub recent: VecDeque<Turn>,
    /// Seconds since 1970.
    pub first_seen: f64,
    /// Seconds since 1970.
    pub last_seen: f64,
    /// Tokens lost in all.
    pub lost: u64,
    /// How often each verdict was given, in the order of [`verdict::Name::ALL`].
    pub verdicts: [u32; verdict::Name::ALL.len()],
    key: u64,
    tip: NodeId,
    /// The prompt before, which diagnoses may still name.
    before: Option<NodeId>,
    used: u64,
}

/// The journal.
#[derive(Debug)]
pub struct Journal {
    limits: Limits,
    tree: Tree,
    lines: ByDigest<LineId, Line>,
    sessions: ByDigest<u64, Vec<LineId>>,
    /// Lines by when they were used last.
    order: BTreeMap<u64, LineId>,
    /// Prompts by the digest of the answer's id.
    messages: ByDigest<u64, (NodeId, Parameters)>,
    learnt: HashMap<u64, Learnt>,
    clock: u64,
    next_line: LineId,
    turns: usize,
    forgotten: u64,
}

impl Journal {
    /// An empty journal.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            tree: Tree::default(),
            lines: ByDigest::default(),
            sessions: ByDigest::default(),
            order: BTreeMap::new(),
            messages: ByDigest::default(),
            learnt: HashMap::new(),
            clock: 0,
            next_line: 0,
            turns: 0,
            forgotten: 0,
        }
    }

    /// Cuts a prompt of one text where those prompts of its client ended that it begins with; another stays as it is.
    pub fn fit(&self, prompt: &mut Prompt, who: &Who) {
        let Some(raw) = &prompt.raw else { return };
        let own = self.sessions.get(&who.key()).map_or(&[][..], Vec::as_slice);
        let tips = own.iter().rev().filter_map(|id| self.lines.get(id)).map(|line| line.tip);
        let earlier = tips.flat_map(|tip| self.tree.ancestry(tip)).take(TEXTS);
        let begun = earlier.filter(|(_, node)| raw.chain_at(node.bytes) == Some(node.chain));
        let Some((longest, _)) = begun.max_by_key(|(_, node)| node.bytes) else { return };
        super::raw::split(prompt, &self.tree.ends(longest));
    }

    /// Where a prompt stands, before anything of it is entered.
    pub fn look(&self, prompt: &Prompt, who: &Who) -> Standing {
        let known = self.tree.known_bytes(prompt);
        let found = self.find(prompt, who, known);
        let node = found.previous.and_then(|id| self.tree.get(id));
        let whole = found.segments.checked_sub(1).map_or(0, |last| prompt.segments[last].end);
        let reach = match found.relation {
            Relation::Repeat | Relation::Extends => whole,
            Relation::First | Relation::Compacted => known,
            // What anybody else was sent before, or the line before its previous prompt, says nothing of this change.
            Relation::Changed(_) => {
                let within = prompt.segments.get(found.segments).map_or(0, |segment| u64::from(segment.bytes));
                let common = found.previous.map_or(0, |id| self.tree.common_bytes(id, prompt, found.segments));
                common.clamp(whole, whole + within)
            }
        };
        let shared_segments = match found.relation {
            Relation::First | Relation::Compacted => prompt.segments.partition_point(|segment| segment.end <= known),
            _ => found.segments,
        };
        let (same, new) = prompt.segments.split_at(found.segments.min(prompt.segments.len()));
        // What the line had there, where it had something else.
        let old = match (found.relation, found.previous) {
            (Relation::Changed(_), Some(id)) => self.tree.segments(id),
            _ => Vec::new(),
        };
        let old = old.into_iter().skip(found.segments);
        let head = same.iter().rfind(|segment| segment.class.is_head()).map_or(0, |segment| segment.end);
        let parameters = node.map_or(prompt.parameters, |node| node.parameters);
        Standing {
            relation: found.relation,
            previous_tokens: node.and_then(|node| node.tokens),
            parameters_changed: parameters != prompt.parameters,
            model_changed: parameters.model != prompt.parameters.model,
            new_late_system: new.iter().any(|segment| segment.class == Class::LateSystem).then_some(head),
            reasoning_may_go: open_reasoning(same).filter(|_| node.is_some() && user_speaks(old) != user_speaks(new)),
            at_tip: found.line.and_then(|id| self.lines.get(&id)).is_some_and(|line| Some(line.tip) == found.previous),
            previous_messages: node.and_then(|node| node.messages),
            shared_segments,
            shared_bytes: reach,
            line: found.line,
            previous: found.previous,
        }
    }

    /// `known`: bytes from the front of the prompt that anybody sent before.
    fn find(&self, prompt: &Prompt, who: &Who, known: u64) -> Found {
        let own = self.sessions.get(&who.key()).map_or(&[][..], Vec::as_slice);
        let longest = self.tree.longest(prompt).and_then(|(node, have)| self.continued(node, have, own, who));
        if let Some(extended) = &longest {
            let whole = extended.segments == prompt.segments.len();
            if whole || extended.at_tip && self.tree.get(extended.node).is_some_and(|node| known <= node.bytes) {
                return extended.found(whole);
            }
        }
        let mut related = self.related(prompt, who, own, longest.as_ref());
        if who.session.is_none() && related.as_ref().is_some_and(Found::asks_anew) {
            // No session says that it is the same conversation: another question behind the same examples.
            related = None;
        }
        match (related, longest) {
            (Some(related), _) => related,
            (None, Some(extended)) => extended.found(false),
            (None, None) => Found { relation: Relation::First, line: None, previous: None, segments: 0 },
        }
    }

    /// The line that goes on with the whole prompt `node`, if this client's does or may.
    fn continued(&self, node: NodeId, segments: usize, own: &[LineId], who: &Who) -> Option<Extended> {
        // The one used last that is at that prompt, else the one used last that went on from it. Clients without
        // session ids share their lines, up to all that there are: most must be passed by without a walk.
        let of_own = || own.iter().rev().filter_map(|id| self.lines.get(id));
        let mine = of_own()
            .find(|line| line.tip == node)
            .or_else(|| of_own().find(|line| self.tree.begins_with(line.tip, node)));
        let entered = self.tree.get(node)?;
        let line = mine.or_else(|| {
            let other = self.lines.get(&entered.line).filter(|line| self.tree.begins_with(line.tip, node))?;
            // With an answer in it, it is a conversation that was resumed under another id. Without, two users may
            // have begun with the same words.
            (entered.answers > 0 || who.session.is_none() && other.who.session.is_none() && other.key == who.key())
                .then_some(other)
        })?;
        Some(Extended { node, line: line.id, at_tip: line.tip == node, segments })
    }

    /// The line of `own` that a prompt changes or compacts, if it is not rather a branch of `extended`.
    fn related(&self, prompt: &Prompt, who: &Who, own: &[LineId], extended: Option<&Extended>) -> Option<Found> {
        let mut best: Option<(u32, usize, Found)> = None;
        for line in own.iter().rev().filter_map(|id| self.lines.get(id)).take(CANDIDATES) {
            if extended.is_some_and(|extended| extended.node == line.tip) {
                continue;
            }
            let earlier = self.tree.segments(line.tip);
            let (kinship, shared) = change::compare(&earlier, prompt);
            let (rank, relation) = match kinship {
                Kinship::Changed(change) => (3, Relation::Changed(change)),
                // Qwen Code has another agent read what was said, for its memory.
                Kinship::Reheaded(change) if who.session.is_some() => (3, Relation::Changed(change)),
                Kinship::Rewound(change) if rewords_last_turn(&earlier, shared, extended) => {
                    (2, Relation::Changed(change))
                }
                Kinship::Compacted if extended.is_none_or(|extended| shared >= extended.segments) => {
                    (1, Relation::Compacted)
                }
                Kinship::PerhapsChanged(change) if own.len() == 1 => (0, Relation::Changed(change)),
                // Only a session can tell a conversation that goes on from another one that begins, and in it only
                // the line that was used last; a sub-agent that names itself has a session of its own.
                Kinship::PerhapsCompacted
                    if who.session.is_some() && extended.is_none() && own.last() == Some(&line.id) =>
                {
                    (0, Relation::Compacted)
                }
                _ => continue,
            };
            if extended.is_some_and(|extended| shared < extended.segments) {
                continue;
            }
            if best.as_ref().is_none_or(|(best_rank, best_shared, _)| (rank, shared) > (*best_rank, *best_shared)) {
                // Where it is not certain that the line goes on here, it stays as it is, should it go on elsewhere.
                let goes_on = kinship != Kinship::PerhapsCompacted;
                let going = goes_on.then_some(line.id);
                let found = Found { relation, line: going, previous: Some(line.tip), segments: shared };
                best = Some((rank, shared, found));
            }
        }
        best.map(|(.., found)| found)
    }

    /// Enters a prompt that the engine has taken up.
    ///
    /// `None` for a prompt without segments, which nothing can share, and for one that would not fit if it were alone:
    /// it would drive out all others and still be too much.
    pub fn enter(&mut self, prompt: &Prompt, standing: &Standing, who: &Who, model: &str, time: f64) -> Option<Entry> {
        if super::tree::weight_alone(prompt) > self.limits.bytes {
            return None;
        }
        self.clock += 1;
        // A line that went on meanwhile is another one now.
        let going = standing.line.and_then(|id| self.lines.get(&id)).filter(|line| Some(line.tip) == standing.previous);
        let id = going.map_or_else(
            || {
                self.next_line += 1;
                self.next_line
            },
            |line| line.id,
        );
        let node = self.tree.enter(prompt, id)?;
        let used = self.clock;
        let key = who.key();
        let line = self.lines.entry(id).or_insert_with(|| Line {
            id,
            who: who.clone(),
            model: model.into(),
            turns: 0,
            recent: VecDeque::new(),
            first_seen: time,
            last_seen: time,
            lost: 0,
            verdicts: [0; verdict::Name::ALL.len()],
            key,
            tip: node,
            before: None,
            used,
        });
        let mut released = None;
        if line.turns > 0 {
            self.order.remove(&line.used);
            released = line.before.replace(line.tip);
            if line.key != key {
                forget(&mut self.sessions, line.key, id);
            }
        }
        line.tip = node;
        line.turns += 1;
        line.used = used;
        line.last_seen = time;
        line.key = key;
        line.who = who.clone();
        let turn = line.turns;
        self.order.insert(used, id);
        let listed = self.sessions.entry(key).or_default();
        if listed.last() != Some(&id) {
            listed.retain(|&other| other != id);
            listed.push(id);
        }
        if let Some(node) = released {
            self.tree.release(node);
        }
        self.forget_beyond_limits(id);
        Some(Entry { line: id, turn, node, bytes: prompt.bytes(), parameters: prompt.parameters })
    }

    /// Closes an exchange: what the engine said of it becomes its verdict.
    pub fn settle(&mut self, entry: &Entry, standing: &Standing, told: &Told<'_>, profile: &Profile) -> Verdict {
        let usage = &told.usage;
        let mut learnt = self.learnt.get(&entry.parameters.model).copied().unwrap_or_default();
        learnt.note_reuse(usage);
        let habits = learnt.habits(profile);
        let tokens = |bytes| Some(self.tree.tokens(standing.previous, bytes, (entry.bytes, usage.prompt?)));
        let least = || {
            let own = (entry.bytes, usage.prompt.unwrap_or(0));
            self.tree.least_tokens(standing.previous, standing.shared_bytes, own, habits.keeps_reasoning)
        };
        let verdict = verdict::judge(standing, usage, tokens(standing.shared_bytes), least, &habits);
        // What was sent behind the earlier prompt before is in the cache as the template prints that by now.
        let alone = standing.previous.and_then(|id| self.tree.get(id)).is_some_and(|node| node.continued <= 1);
        learnt.note(standing, &verdict, alone, tokens);
        if self.learnt.len() < MODELS || self.learnt.contains_key(&entry.parameters.model) {
            self.learnt.insert(entry.parameters.model, learnt);
        }
        if let Some(node) = self.tree.get_mut(entry.node) {
            node.tokens = usage.prompt.or(node.tokens);
        }
        let message = told.message_id.map(digest);
        if let Some(message) = message {
            self.messages.insert(message, (entry.node, entry.parameters));
        }
        let Some(line) = self.lines.get_mut(&entry.line) else {
            message.map(|message| self.messages.remove(&message));
            return verdict;
        };
        line.lost += verdict.lost.unwrap_or(0);
        let place = verdict::Name::ALL.iter().position(|name| *name == verdict.name);
        if let Some(count) = place.and_then(|place| line.verdicts.get_mut(place)) {
            *count += 1;
        }
        // First out, then in: one turn more than it keeps would double the room of each line.
        if line.recent.len() >= TURNS {
            self.turns -= 1;
            if let Some(message) = line.recent.pop_front().and_then(|turn| turn.message) {
                self.messages.remove(&message);
            }
        }
        line.recent.push_back(Turn {
            request_id: told.request_id.into(),
            time: told.time,
            prompt: usage.prompt,
            reused: usage.cached,
            verdict,
            message,
        });
        self.turns += 1;
        self.forget_beyond_limits(entry.line);
        verdict
    }

    /// Puts a verdict in the place of one that was given in doubt.
    pub fn correct(&mut self, entry: &Entry, request_id: &str, name: verdict::Name) {
        let Some(line) = self.lines.get_mut(&entry.line) else { return };
        let Some(turn) = line.recent.iter_mut().rfind(|turn| &*turn.request_id == request_id) else { return };
        for (known, count) in verdict::Name::ALL.into_iter().zip(&mut line.verdicts) {
            if known == turn.verdict.name {
                *count = count.saturating_sub(1);
            }
            *count += u32::from(known == name);
        }
        turn.verdict.name = name;
    }

    /// Compares a prompt with that of an earlier answer, for the vendors' own diagnostics.
    pub fn diagnose(&self, prompt: &Prompt, message_id: &str) -> Diagnosis {
        let Some((id, parameters)) = self.messages.get(&digest(message_id)) else { return Diagnosis::NotFound };
        let Some(node) = self.tree.get(*id) else { return Diagnosis::NotFound };
        diagnosis::compare(&self.tree.segments(*id), *parameters, node.tokens, prompt)
    }

    /// All lines, the latest first.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.order.values().rev().filter_map(|id| self.lines.get(id))
    }

    /// Tokens of the latest prompt of a line, as the engine counted them, and its bytes.
    pub fn size(&self, line: &Line) -> (Option<u64>, u64) {
        self.tree.get(line.tip).map_or((None, 0), |node| (node.tokens, node.bytes))
    }

    /// Memory that it takes, in bytes, about.
    pub fn bytes(&self) -> usize {
        self.tree.bytes() + self.lines.len() * LINE_BYTES + self.turns * TURN_BYTES
    }

    /// Lines that were forgotten for want of room.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Forgets the lines used least recently until the bounds hold; the line `kept` stays.
    fn forget_beyond_limits(&mut self, kept: LineId) {
        while self.lines.len() > self.limits.lines || self.bytes() > self.limits.bytes {
            let Some((&used, &id)) = self.order.iter().next() else { return };
            if id == kept {
                return;
            }
            self.order.remove(&used);
            let Some(line) = self.lines.remove(&id) else { continue };
            self.forgotten += 1;
            self.turns -= line.recent.len();
            for message in line.recent.iter().filter_map(|turn| turn.message) {
                self.messages.remove(&message);
            }
            forget(&mut self.sessions, line.key, id);
            self.tree.release(line.tip);
            line.before.into_iter().for_each(|node| self.tree.release(node));
        }
    }
}

/// A line's continuation.
struct Extended {
    node: NodeId,
    line: LineId,
    /// Whether the line's latest prompt is what is continued.
    at_tip: bool,
    /// Segments of the prompt that is continued.
    segments: usize,
}

impl Extended {
    fn found(&self, whole: bool) -> Found {
        let relation = if whole { Relation::Repeat } else { Relation::Extends };
        Found { relation, line: Some(self.line), previous: Some(self.node), segments: self.segments }
    }
}

struct Found {
    relation: Relation,
    line: Option<LineId>,
    previous: Option<NodeId>,
    /// Segments that both begin with.
    segments: usize,
}

impl Found {
    /// Whether only what nobody has answered yet is another than before.
    fn asks_anew(&self) -> bool {
        self.relation.change().is_some_and(|change| change.class == Class::LastTurn && change.kind == Kind::Edited)
    }
}

/// Whether a prompt that was taken up from the midst of a line only puts its last turn in other words: it shares
/// everything up to there. Taken up from further back it is a branch of the earlier prompt `extended`.
fn rewords_last_turn(earlier: &[&Segment], shared: usize, extended: Option<&Extended>) -> bool {
    let last = change::class_in(earlier, shared) == Some(Class::LastTurn);
    extended.is_none() || last && extended.is_some_and(|extended| shared > extended.segments)
}

fn forget(sessions: &mut ByDigest<u64, Vec<LineId>>, key: u64, id: LineId) {
    if let Some(listed) = sessions.get_mut(&key) {
        listed.retain(|&other| other != id);
        if listed.is_empty() {
            sessions.remove(&key);
        }
    }
}

fn digest(text: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}
