//! The step in which an engine's cache can be reused, learnt from what it reports.

use crate::profile::Engine;

/// No engine's block is longer, in tokens.
const LARGEST_BLOCK: u64 = 1024;

/// Read tokens after which Strata keeps a checkpoint (`--prompt-cache-every`), and the least of a first one
/// (`--prompt-cache-root`).
const STRATA_STEP: u64 = 16_384;
const STRATA_ROOT: u64 = 2_048;

/// What is known of the step of one engine.
///
/// A block cache answers whole blocks only, so the greatest common divisor of all that it ever reused is a multiple
/// of its block, and soon the block itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grain {
    divisor: u64,
}

impl Grain {
    /// Takes note of a reuse that the engine reported, in tokens.
    pub fn note(&mut self, reused: u64) {
        if reused > 0 {
            self.divisor = gcd(self.divisor, reused);
        }
    }

    /// Tokens of a block by which a prompt is rounded down, as told (`told`) or learnt; `None` before anything was ever
    /// reused. A few reports may share more than the block. Most blocks are powers of two, so that is what is taken of
    /// it: too small a guess leaves a loss below the step, too large a one would hide what was lost.
    pub fn block(self, told: Option<u64>) -> Option<u64> {
        let told = told.filter(|&block| block > 0);
        let learnt = (self.divisor & self.divisor.wrapping_neg()).min(LARGEST_BLOCK);
        told.or((learnt > 0).then_some(learnt))
    }

    /// Tokens of the largest block that all reports allow: a loss below it is the block's.
    pub fn step(self, told: Option<u64>) -> Option<u64> {
        let whole = (1..=LARGEST_BLOCK).contains(&self.divisor).then_some(self.divisor);
        told.filter(|&block| block > 0).or(whole).or(self.block(None))
    }
}

/// The step under which a loss is nobody's fault, in tokens, where `reused` were found. `early`: the prompt changed in
/// front of its first turn.
///
/// Strata keeps a checkpoint at each turn's start. A prompt that goes on behind one and finds none at all was let go.
pub(super) fn step(engine: Engine, block: Option<u64>, reused: u64, early: bool) -> u64 {
    match engine {
        Engine::Strata if reused == 0 && !early => STRATA_ROOT,
        Engine::Strata => STRATA_STEP,
        _ => block.unwrap_or(UNKNOWN_BLOCK),
    }
}

/// Prompts below this many tokens cannot be reused.
pub(super) fn minimum(engine: Engine, block: Option<u64>) -> u64 {
    match engine {
        Engine::Strata => STRATA_ROOT,
        _ => block.unwrap_or(UNKNOWN_BLOCK),
    }
}

/// Assumed of an engine that has not reused anything yet: the largest block in common use.
const UNKNOWN_BLOCK: u64 = 256;

fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_learnt_from_what_is_reused() {
        let mut grain = Grain::default();
        assert_eq!(grain.block(None), None);
        assert_eq!(grain.block(Some(16)), Some(16));
        grain.note(17_920);
        assert_eq!((grain.block(None), grain.step(None)), (Some(512), Some(512)));
        grain.note(0);
        for reused in [64 * 30, 64 * 45] {
            grain.note(reused);
        }
        assert_eq!((grain.block(None), grain.step(None)), (Some(64), Some(320)));
        grain.note(64 * 31);
        assert_eq!((grain.block(None), grain.step(None)), (Some(64), Some(64)));
        // An engine that reuses to the token has no block.
        grain.note(1001);
        assert_eq!(grain.block(None), Some(1));
    }
}
