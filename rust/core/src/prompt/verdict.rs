//! The verdict: who lost the prefix, from where a prompt left its line, what the engine reused, and what it could have.

use super::change::{Change, Kind};
use super::grain;
use super::journal::{Relation, Standing};
use super::segment::Class;
use crate::profile::Engine;
use crate::usage::EngineUsage;

/// What became of one exchange's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Nothing of this conversation was sent before.
    First,
    /// The same bytes again.
    Repeat,
    /// The line's prompt with more behind it, and reused as far as it could be.
    AppendOnly,
    /// A segment that was sent before is another one now.
    Changed,
    /// Most of the conversation was replaced: compaction, truncation, context editing.
    Compacted,
    /// The prefix is intact, and the engine reused far less of it: evicted, restarted, another replica.
    EngineLost,
    /// As [`Name::EngineLost`], or the template printed the earlier part anew.
    EngineLostOrTemplate,
    /// The template printed the earlier part anew: shown by the engine's own tokens.
    Template,
    /// The loss is under one block or checkpoint step.
    Granularity,
    /// Too short to be reused.
    BelowMinimum,
    /// Model, effort or template switches changed.
    Parameters,
    /// The prefix is intact, and the engine does not say what it reused.
    NotReported,
}

impl Name {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::First,
        Self::Repeat,
        Self::AppendOnly,
        Self::Changed,
        Self::Compacted,
        Self::EngineLost,
        Self::EngineLostOrTemplate,
        Self::Template,
        Self::Granularity,
        Self::BelowMinimum,
        Self::Parameters,
        Self::NotReported,
    ];

    /// As records, labels and `x-foreword` spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Repeat => "repeat",
            Self::AppendOnly => "append-only",
            Self::Changed => "changed",
            Self::Compacted => "compacted",
            Self::EngineLost => "engine-lost",
            Self::EngineLostOrTemplate => "engine-lost-or-template",
            Self::Template => "template",
            Self::Granularity => "granularity",
            Self::BelowMinimum => "below-minimum",
            Self::Parameters => "parameters",
            Self::NotReported => "not-reported",
        }
    }
}

/// A verdict with its numbers, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What became of the prefix.
    pub name: Name,
    /// What the engine could have reused had nothing gone wrong.
    pub expected: Option<u64>,
    /// Up to where this prompt equals the line it belongs to.
    pub shared: Option<u64>,
    /// What was read again and need not have been.
    pub lost: Option<u64>,
    /// Whether `lost` rests on counts of the engine alone.
    pub exact: bool,
    /// The first change, of `changed` and of prompts that changed where the engine lost more.
    pub change: Option<Change>,
}

/// What the engine is known to be like.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Its kind.
    pub engine: Engine,
    /// Tokens of a block of its cache, told or learnt.
    pub block: Option<u64>,
    /// Tokens that a block may have at most.
    pub step: Option<u64>,
    /// Whether its template is known to print late system messages where they stand.
    pub keeps_late_system: bool,
    /// Whether its template is known to leave earlier reasoning as it was once the user speaks again.
    pub keeps_reasoning: bool,
}

/// Tokens that a template's own end may differ by between a prompt and the history it becomes.
const TAIL: u64 = 16;

/// Tokens that the place of a difference is coarse by: a block of bytes.
const LEAST: u64 = 64;

/// Judges an exchange. `shared`: tokens in front of the first difference, as estimated from bytes and the engine's counts;
/// `least` tells how many these are if nothing was printed of the reasoning that a template may leave out.
pub fn judge(
    standing: &Standing,
    usage: &EngineUsage,
    shared: Option<u64>,
    least: impl FnOnce() -> u64,
    habits: &Habits,
) -> Verdict {
    let block = habits.block.unwrap_or(1).max(1);
    let prompt = usage.prompt;
    let at_most = |tokens: u64| prompt.map_or(tokens, |prompt| tokens.min(prompt.saturating_sub(1)));
    let before = match standing.relation {
        Relation::First | Relation::Compacted => shared,
        _ => standing.previous_tokens,
    };
    let expected = before.map(|tokens| at_most(tokens) / block * block);
    let change = standing.relation.change();
    let of = |name, lost, exact| Verdict { name, expected, shared, lost, exact, change };

    let reused = usage.cached;
    match (standing.relation, expected, reused) {
        (Relation::First, ..) => of(Name::First, Some(0), true),
        (Relation::Compacted, ..) => of(Name::Compacted, Some(0), true),
        (Relation::Changed(_), Some(expected), None) => {
            let left = shared.map(|shared| expected.saturating_sub(shared / block * block));
            of(Name::Changed, left, false)
        }
        (Relation::Changed(_), None, _) => of(Name::Changed, None, false),
        (Relation::Changed(_), Some(expected), Some(reused)) => {
            let lost = expected.saturating_sub(reused);
            let reach = shared.unwrap_or(0);
            // The place is an estimate: within a step and 2 % it is the change's.
            let step = grain::step(habits.engine, habits.step, reused, change.is_some_and(early)).max(reach / 50);
            let unprinted = reused > reach + step.max(LEAST).max(prompt.unwrap_or(0) / 50);
            if unprinted && lost < block + TAIL {
                let name = if lost == 0 { Name::AppendOnly } else { Name::Granularity };
                return Verdict { change: None, ..of(name, Some(lost), true) };
            }
            let by_engine = |reach: u64| reach.saturating_sub(reused);
            let mostly_engine = |reach| by_engine(reach) > expected.saturating_sub(reach);
            let name = match () {
                () if by_engine(reach) <= step || !mostly_engine(reach) => Name::Changed,
                () if standing.parameters_changed => Name::Parameters,
                () if template_may_have(standing, habits) => Name::EngineLostOrTemplate,
                () => match least() {
                    least if by_engine(least) <= step => Name::Changed,
                    least if !mostly_engine(least) => Name::EngineLostOrTemplate,
                    _ => Name::EngineLost,
                },
            };
            of(name, Some(lost), true)
        }
        // Where nothing is expected, the one before it is still under way.
        (Relation::Repeat, _, None) | (Relation::Repeat, None, _) => of(Name::Repeat, None, false),
        (_, _, None) if standing.model_changed => of(Name::Parameters, None, false),
        (_, _, None) => of(Name::NotReported, None, false),
        (_, None, Some(_)) => of(Name::AppendOnly, None, false),
        (relation, Some(expected), Some(reused)) => {
            let lost = expected.saturating_sub(reused);
            let step = grain::step(habits.engine, habits.step, reused, false);
            // The last checkpoint stands in front of the answer's opening, which every template prints.
            if habits.engine == Engine::Strata && reused > 0 && (1..=TAIL).contains(&lost) {
                let name = if relation == Relation::Repeat { Name::Repeat } else { Name::AppendOnly };
                return Verdict { expected: Some(reused), ..of(name, Some(0), true) };
            }
            let name = match () {
                () if lost == 0 && relation == Relation::Repeat => Name::Repeat,
                () if reused == 0 && before.unwrap_or(0) < grain::minimum(habits.engine, habits.block) => {
                    return Verdict { expected: Some(0), ..of(Name::BelowMinimum, Some(0), true) };
                }
                () if lost == 0 => Name::AppendOnly,
                () if lost < step.max(block + TAIL) => Name::Granularity,
                () if standing.parameters_changed => Name::Parameters,
                () if template_may_have(standing, habits) => Name::EngineLostOrTemplate,
                () => Name::EngineLost,
            };
            of(name, Some(lost), true)
        }
    }
}

/// Whether a change lies so early that no turn's checkpoint stands in front of it.
fn early(change: Change) -> bool {
    change.class.is_head() || change.class == Class::FirstUser
}

/// Whether a prefix that is intact as it was sent may have become another text in the template.
fn template_may_have(standing: &Standing, habits: &Habits) -> bool {
    let late = standing.relation.change().is_some_and(|change| change.class == Class::LateSystem);
    let hoists = (standing.new_late_system.is_some() || late) && !habits.keeps_late_system;
    let drops = standing.reasoning_may_go.is_some() && !habits.keeps_reasoning;
    hoists || drops
}

impl Verdict {
    /// The class that a loss is booked under.
    pub fn class(&self) -> Option<Class> {
        self.change.map(|change| change.class)
    }

    /// The kind of the first change.
    pub fn kind(&self) -> Option<Kind> {
        self.change.map(|change| change.kind)
    }
}
