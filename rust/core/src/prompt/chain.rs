//! The chain of digests over a prompt.
//!
//! XXH3-128 over blocks of [`BLOCK`] bytes, each linked with its predecessor's digest, so that two prompts share exactly
//! the blocks before their first difference. Blocks are cut at segment boundaries: a segment that two prompts have in
//! the same place behind the same text has the same digests in both, whatever follows. A block is read once, for the
//! prompt's chain and for the segment's own digest.

use xxhash_rust::xxh3::xxh3_128;

use super::segment::{Class, Path, Segment};

/// Bytes of a block: about 64 tokens, the finest place that a first difference is told by.
pub const BLOCK: usize = 256;

/// What a segment is rendered as. A text that moves to another role or message renders differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Who says it, and in what form.
    pub voice: Voice,
    /// Whether a message begins with it.
    pub opens: bool,
}

impl Tag {
    /// What goes into the first link of a segment that is rendered so.
    pub(super) fn link(self) -> u128 {
        u128::from(self.voice as u8) | if self.opens { 0x80 } else { 0 }
    }
}

/// Who says a segment, and in what form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum Voice {
    Tool = 1,
    System,
    User,
    Assistant,
    Reasoning,
    Call,
    Result,
    Image,
    Other,
    /// All of a prompt that is one text, which no template wraps.
    Bare,
}

/// Grows a prompt's segments, digests and blocks together.
#[derive(Debug, Default)]
pub struct Chain {
    /// The digest of all so far.
    all: u128,
    segments: Vec<Segment>,
    blocks: Vec<u64>,
    end: u64,
    /// The segment whose text is kept, by its number, and the text.
    kept: Option<(usize, Vec<u8>)>,
}

impl Chain {
    /// A chain that also keeps the text of segment `index`.
    pub fn keeping(index: usize) -> Self {
        Self { kept: Some((index, Vec::new())), ..Self::default() }
    }

    /// Adds one segment that is rendered as `text`. An empty one renders to nothing and is no segment.
    pub fn add(&mut self, path: Path, class: Class, tag: Tag, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        let mut own = u128::from(tag.voice as u8);
        self.all ^= tag.link();
        for block in text.chunks(BLOCK) {
            let block = xxh3_128(block);
            own = linked(own, block);
            self.all = linked(self.all, block);
            self.blocks.push(low(self.all));
        }
        if let Some((index, kept)) = &mut self.kept
            && *index == self.segments.len()
        {
            kept.extend_from_slice(text);
        }
        self.end += text.len() as u64;
        self.segments.push(Segment {
            path,
            class,
            voice: tag.voice,
            digest: own,
            chain: self.all,
            bytes: u32::try_from(text.len()).unwrap_or(u32::MAX),
            end: self.end,
            blocks: u32::try_from(self.blocks.len()).unwrap_or(u32::MAX),
        });
    }

    /// Takes the text that was kept; empty where there is none.
    pub fn take_kept(&mut self) -> Vec<u8> {
        self.kept.take().map(|(_, text)| text).unwrap_or_default()
    }

    /// The segments, and the blocks' digests.
    pub fn finish(self) -> (Vec<Segment>, Vec<u64>) {
        (self.segments, self.blocks)
    }
}

/// A digest of what came before and of a block.
pub(super) fn linked(before: u128, block: u128) -> u128 {
    let mut link = [0; 32];
    link[..16].copy_from_slice(&before.to_le_bytes());
    link[16..].copy_from_slice(&block.to_le_bytes());
    xxh3_128(&link)
}

#[allow(clippy::cast_possible_truncation)]
fn low(digest: u128) -> u64 {
    digest as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::segment::Root;
    use proptest::prelude::*;

    fn chain(texts: &[Vec<u8>]) -> (Vec<Segment>, Vec<u64>) {
        let mut chain = Chain::default();
        for (index, text) in texts.iter().enumerate() {
            let tag = Tag { voice: Voice::User, opens: true };
            chain.add(Path::item(Root::Messages, index), Class::History, tag, text);
        }
        chain.finish()
    }

    proptest! {
        #[test]
        fn two_prompts_share_exactly_the_blocks_before_their_first_difference(
            texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..2000), 1..6),
            place: proptest::sample::Index,
            within: proptest::sample::Index,
        ) {
            let mut other = texts.clone();
            let changed = place.index(texts.len());
            let byte = within.index(texts[changed].len());
            other[changed][byte] ^= 1;
            let ((one, left), (two, right)) = (chain(&texts), chain(&other));
            let before = if changed == 0 { 0 } else { one[changed - 1].blocks as usize } + byte / BLOCK;
            let shared = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(shared, before);
            prop_assert!(left[before..].iter().zip(&right[before..]).all(|(a, b)| a != b));
            for (index, (a, b)) in one.iter().zip(&two).enumerate() {
                prop_assert_eq!(a.digest == b.digest, index != changed);
                prop_assert_eq!(a.chain == b.chain, index < changed);
            }
        }
    }
}
