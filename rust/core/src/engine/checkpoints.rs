//! Strata's checkpoints: the places at which the state of one conversation can be taken up again.
//!
//! A hybrid model's recurrent state cannot be cut as a KV cache can. So the engine keeps copies of it on the way: at the
//! start of each assistant turn, each `every` newly read prompt tokens, and at the end of a system prompt of at least
//! `root` tokens. A prompt resumes at the last copy that does not lie behind its first changed token.
//!
//! Only positions are modelled here; who compares texts says how much of them is shared.

/// The engine's three flags. Lengths are in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// `--prompt-cache`: checkpoints kept of a conversation; 0: every request reads its whole prompt.
    pub kept: usize,
    /// `--prompt-cache-every`: newly read prompt tokens from one checkpoint to the next; 0: only at turns and the root.
    pub every: u64,
    /// `--prompt-cache-root`: the shortest system prompt at whose end the root checkpoint is taken; 0: none is.
    pub root: u64,
}

impl Default for Rules {
    /// The engine's own defaults.
    fn default() -> Self {
        Self { kept: 6, every: 16_384, root: 2_048 }
    }
}

/// Where a prompt has its boundaries, in tokens from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Landmarks {
    /// The end of the system prompt, if there is one.
    pub system_end: Option<u64>,
    /// The start of the assistant's turn that is to be written.
    pub turn: Option<u64>,
}

/// The checkpoints of one conversation.
///
/// Checkpoint 0 is pinned: the root, or where no root was taken the first one of all. The others rotate, the least
/// recently used going first.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    rules: Rules,
    /// Positions, the least recently used first.
    marks: Vec<u64>,
    pinned: Option<u64>,
    has_root: bool,
    /// Where the reading that goes on began: steps are counted from there.
    read_from: u64,
    at: u64,
}

impl Checkpoints {
    /// A conversation of which nothing has been read.
    pub fn new(rules: Rules) -> Self {
        Self { rules, marks: Vec::new(), pinned: None, has_root: false, read_from: 0, at: 0 }
    }

    /// Where a prompt of `prompt` tokens would resume that shares its first `shared` tokens with this conversation; 0:
    /// it is read from its start. At least the prompt's last token is always read, because it makes the first of the
    /// answer.
    pub fn resumable(&self, shared: u64, prompt: u64) -> u64 {
        self.marks.iter().copied().filter(|&mark| mark <= shared && mark < prompt).max().unwrap_or(0)
    }

    /// Takes the conversation up again for such a prompt: what lies behind the shared part is forgotten. Returns where
    /// it resumes.
    pub fn resume(&mut self, shared: u64, prompt: u64) -> u64 {
        let resumed = self.resumable(shared, prompt);
        self.marks.retain(|&mark| mark <= shared);
        if self.pinned.is_some_and(|pinned| pinned > shared) {
            (self.pinned, self.has_root) = (None, false);
        }
        if resumed > 0 {
            self.mark(resumed);
        }
        (self.read_from, self.at) = (resumed, resumed);
        resumed
    }

    /// Reads the prompt on to `upto` and takes the checkpoints that lie on the way.
    pub fn read(&mut self, upto: u64, landmarks: Landmarks) {
        let (before, every) = (self.at, self.rules.every);
        if upto <= before {
            return;
        }
        let root = landmarks.system_end.filter(|&end| self.rules.root > 0 && end >= self.rules.root);
        let mut found: Vec<u64> = [root, landmarks.turn].into_iter().flatten().collect();
        if let Some(steps) = (before - self.read_from).checked_div(every) {
            let mut step = self.read_from + (steps + 1) * every;
            while step <= upto {
                found.push(step);
                step += every;
            }
        }
        found.retain(|&mark| before < mark && mark <= upto);
        found.sort_unstable();
        found.dedup();
        for mark in found {
            if self.pinned.is_none() || (root == Some(mark) && !self.has_root) {
                (self.pinned, self.has_root) = (Some(mark), root == Some(mark));
            }
            self.mark(mark);
        }
        self.at = upto;
    }

    /// The answer was written up to `upto`. Checkpoints are taken of prompts only.
    pub fn write(&mut self, upto: u64) {
        self.at = self.at.max(upto);
    }

    /// The checkpoint farthest from the start, 0 if there is none.
    pub fn last(&self) -> u64 {
        self.marks.iter().copied().max().unwrap_or(0)
    }

    /// How far the conversation has been read and written, in tokens.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Checkpoints held.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Makes a checkpoint the most recently used; the least recently used one gives way that is not pinned.
    fn mark(&mut self, mark: u64) {
        self.marks.retain(|&other| other != mark);
        self.marks.push(mark);
        if self.marks.len() > self.rules.kept {
            let pinned = self.pinned;
            let gone = self.marks.iter().position(|&other| Some(other) != pinned).unwrap_or(0);
            self.marks.remove(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(kept: usize, every: u64) -> Rules {
        Rules { kept, every, root: 2_048 }
    }

    fn sorted(checkpoints: &Checkpoints) -> Vec<u64> {
        let mut marks = checkpoints.marks.clone();
        marks.sort_unstable();
        marks
    }

    fn after(rules: Rules, prompt: u64, system_end: Option<u64>) -> Checkpoints {
        let mut made = Checkpoints::new(rules);
        assert_eq!(made.resume(0, prompt), 0);
        made.read(prompt, Landmarks { system_end, turn: Some(prompt - 1) });
        made
    }

    #[test]
    fn a_checkpoint_at_each_turn_each_step_and_the_root() {
        assert_eq!(sorted(&after(Rules::default(), 40_000, Some(3_000))), [3_000, 16_384, 32_768, 39_999]);
        // A system prompt below the bound has no root, and one at the bound has.
        assert_eq!(sorted(&after(Rules::default(), 9_000, Some(2_047))), [8_999]);
        assert_eq!(sorted(&after(Rules::default(), 9_000, Some(2_048))), [2_048, 8_999]);
        assert_eq!(sorted(&after(rules(6, 0), 40_000, Some(3_000))), [3_000, 39_999]);
    }

    #[test]
    fn the_root_stays_and_the_others_rotate() {
        let made = after(Rules::default(), 254_000, Some(3_000));
        let steps: Vec<u64> = (12..=15).map(|n| n * 16_384).collect();
        assert_eq!(sorted(&made), [&[3_000], &steps[..], &[253_999]].concat());
        // Without a root the first step is checkpoint 0: the incident's prompts fell back to exactly 16,384 tokens.
        assert_eq!(after(Rules::default(), 254_000, None).resumable(20_000, 254_000), 16_384);
        // A root behind the first step takes its place.
        assert_eq!(after(Rules::default(), 254_000, Some(20_000)).resumable(21_000, 254_000), 20_000);
    }

    #[test]
    fn a_conversation_that_grows_reads_only_what_is_new() {
        let mut made = after(Rules::default(), 251_788, None);
        made.write(252_100);
        assert_eq!(made.at(), 252_100);
        assert_eq!(made.resume(252_100, 253_214), 251_787);
    }

    #[test]
    fn a_checkpoint_cannot_be_cut() {
        let made = after(Rules::default(), 40_000, Some(3_000));
        let falls = [(39_998, 32_768), (32_767, 16_384), (16_383, 3_000), (2_999, 0)];
        for (shared, resumed) in falls {
            assert_eq!(made.clone().resume(shared, 40_000), resumed);
        }
        // What lay behind the change is gone for good.
        let mut made = made;
        made.resume(20_000, 40_000);
        assert_eq!(made.resume(40_000, 40_000), 16_384);
    }

    #[test]
    fn steps_count_newly_read_tokens() {
        let mut made = after(Rules::default(), 20_000, None);
        assert_eq!(made.resume(20_000, 60_000), 19_999);
        made.read(60_000, Landmarks::default());
        assert_eq!(sorted(&made), [16_384, 19_999, 19_999 + 16_384, 19_999 + 32_768]);
    }

    #[test]
    fn reading_in_pieces_is_reading() {
        let landmarks = Landmarks { system_end: Some(5_000), turn: Some(99_000) };
        let whole = {
            let mut made = Checkpoints::new(Rules::default());
            made.read(99_123, landmarks);
            made
        };
        let mut pieces = Checkpoints::new(Rules::default());
        for upto in (1_000..99_000).step_by(700).chain([99_123]) {
            pieces.read(upto, landmarks);
        }
        assert_eq!(whole.marks, pieces.marks);
    }

    #[test]
    fn what_was_used_lately_stays() {
        let mut made = after(rules(3, 10_000), 45_000, None);
        assert_eq!(sorted(&made), [10_000, 40_000, 44_999]);
        made.resume(40_500, 61_000);
        made.read(61_000, Landmarks { system_end: None, turn: Some(60_999) });
        assert_eq!(sorted(&made), [10_000, 60_000, 60_999]);
    }

    #[test]
    fn none_are_kept_without_a_prompt_cache() {
        let made = after(rules(0, 16_384), 100_000, Some(3_000));
        assert!(made.is_empty());
        assert_eq!(made.resumable(100_000, 100_000), 0);
    }

    proptest! {
        #[test]
        fn never_more_than_kept_and_never_beyond_what_is_shared(
            kept in 0..8_usize,
            every in 0..50_u64,
            turns in prop::collection::vec((0..400_u64, 1..400_u64, 0..80_u64), 1..30),
        ) {
            let mut made = Checkpoints::new(Rules { kept, every, root: 20 });
            for (shared, prompt, system) in turns {
                let shared = shared.min(made.at()).min(prompt);
                let expected = made.resumable(shared, prompt);
                let resumed = made.resume(shared, prompt);
                prop_assert_eq!(resumed, expected);
                prop_assert!(resumed <= shared && resumed < prompt);
                made.read(prompt, Landmarks { system_end: Some(system), turn: Some(prompt - 1) });
                made.write(prompt + 7);
                prop_assert!(made.len() <= kept);
                prop_assert!(made.last() <= prompt);
                if kept > 0 && prompt > 1 {
                    prop_assert_eq!(made.resumable(prompt, prompt + 1).max(prompt - 1), made.last().max(prompt - 1));
                }
            }
        }
    }
}
