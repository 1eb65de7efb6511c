//! What exchanges have shown of one model: the step of its cache, and what its template leaves where it was.

use super::grain::Grain;
use super::journal::{Relation, Standing};
use super::verdict::{Habits, Verdict};
use crate::profile::{Engine, LateSystem, Profile};
use crate::usage::EngineUsage;

/// A template does the same every time: one prompt that was reused whole shows it for good.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Learnt {
    grain: Grain,
    keeps_reasoning: bool,
    keeps_late_system: bool,
}

impl Learnt {
    /// Takes note of what was reused, before it is judged.
    pub(super) fn note_reuse(&mut self, usage: &EngineUsage) {
        self.grain.note(usage.cached.unwrap_or(0));
    }

    /// Takes note of an exchange that was judged. `alone`: nothing else went on from the prompt that it goes on from.
    /// `tokens` tells how many stand in front of a place of its prompt, about.
    pub(super) fn note(
        &mut self,
        standing: &Standing,
        verdict: &Verdict,
        alone: bool,
        tokens: impl Fn(u64) -> Option<u64>,
    ) {
        let goes_on = standing.relation == Relation::Extends && standing.at_tip && alone;
        let whole = goes_on && verdict.exact && verdict.lost == Some(0);
        let Some(reused) = verdict.expected.filter(|_| whole) else { return };
        // Of what stands in the last block alone, a prompt that was reused up to that block shows nothing.
        let behind = |bytes| tokens(bytes).is_some_and(|tokens| reused > tokens + tokens / 50);
        self.keeps_reasoning |= standing.reasoning_may_go.is_some_and(behind);
        self.keeps_late_system |= standing.new_late_system.is_some_and(behind);
    }

    /// What is known of the engine, with what its own words and the settings say.
    pub(super) fn habits(&self, profile: &Profile) -> Habits {
        // Rule 2 puts late system messages where no template moves them; Strata prints them where they stand.
        let in_place = profile.late_system != LateSystem::Off || profile.engine == Engine::Strata;
        Habits {
            engine: profile.engine,
            // Checkpoints lie at any token.
            block: if profile.engine == Engine::Strata { Some(1) } else { self.grain.block(profile.block_tokens) },
            step: self.grain.step(profile.block_tokens),
            keeps_late_system: in_place || self.keeps_late_system,
            keeps_reasoning: self.keeps_reasoning,
        }
    }
}
