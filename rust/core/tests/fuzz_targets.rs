//! The fuzz targets (`rust/fuzz`) over their seeds and over simple mutations of these, as a plain test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../fuzz/src/seeds.rs"]
mod seeds;
mod support;
#[path = "../../fuzz/src/targets.rs"]
mod targets;

use std::panic::catch_unwind;
use std::path::Path;

/// Mutations of each seed.
const MUTATIONS: u64 = 12;

#[test]
fn every_target_holds_over_its_seeds() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    for &(name, target) in targets::ALL {
        let seeds = seeds::of(name, &fixtures);
        assert!(seeds.len() > 5, "{name} has no seeds");
        for (number, seed) in seeds.iter().enumerate() {
            let mutants = (0..MUTATIONS).map(|turn| mutated(seed, &seeds, number as u64 * MUTATIONS + turn));
            for input in std::iter::once(seed.clone()).chain(mutants) {
                let holds = catch_unwind(|| target(&input)).is_ok();
                assert!(holds, "{name} fails for \"{}\"", input.escape_ascii());
            }
        }
    }
}

/// A seed with a few bytes changed, cut out, doubled, or with a piece of another in the middle.
fn mutated(seed: &[u8], all: &[Vec<u8>], turn: u64) -> Vec<u8> {
    let mut state = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below.max(1)
    };
    let mut input = seed.to_vec();
    for _ in 0..=draw(3) {
        let at = draw(input.len());
        let end = (at + draw(24)).min(input.len());
        match draw(5) {
            0 if at < input.len() => input[at] = b"\"\\{}[],:\n\r 0ux\xff"[draw(15)],
            1 => drop(input.drain(at..end)),
            2 => {
                let piece = input[at..end].to_vec();
                input.splice(end..end, piece);
            }
            3 => {
                let other = &all[draw(all.len())];
                let from = draw(other.len());
                let piece = other[from..(from + draw(200)).min(other.len())].to_vec();
                input.splice(at..at, piece);
            }
            _ => input.truncate(end),
        }
    }
    input
}
