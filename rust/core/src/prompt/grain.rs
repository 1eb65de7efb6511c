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
/// of its block, and soon the block itself. Until then the larger guess only lets a loss pass for granularity.
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

    /// Tokens of a block, as told (`told`) or learnt; `None` before anything was ever reused.
    pub fn block(self, told: Option<u64>) -> Option<u64> {
        let told = told.filter(|&block| block > 0);
        told.or_else(|| match self.divisor {
            0 => None,
            small if small <= LARGEST_BLOCK => Some(small),
            // One or two reports share more than the block: its powers of two are a better guess.
            large => Some((large & large.wrapping_neg()).min(LARGEST_BLOCK)),
        })
    }
}

/// The step under which a loss is nobody's fault, in tokens.
pub(super) fn step(engine: Engine, block: Option<u64>) -> u64 {
    match engine {
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
        assert_eq!(grain.block(None), Some(512));
        grain.note(0);
        for reused in [64 * 31, 64 * 50] {
            grain.note(reused);
        }
        assert_eq!(grain.block(None), Some(64));
        // An engine that reuses to the token has no block.
        grain.note(1001);
        assert_eq!(grain.block(None), Some(1));
    }
}
