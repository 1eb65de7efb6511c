//! A prompt that is one text, as of /v1/completions: nobody marks parts in it. What can be told of it is whether it
//! begins with a whole prompt that was sent before, and so it is cut where such prompts ended.

use xxhash_rust::xxh3::xxh3_128;

use super::chain::{BLOCK, linked};
use super::segment::{Prompt, Segment};

/// A text with the chain of digests over it, which can be told at any place.
#[derive(Clone, Debug)]
pub struct Raw {
    text: Box<[u8]>,
    /// The chain before each whole block, and behind the last.
    links: Box<[u128]>,
}

impl Raw {
    /// `start`: the chain in front of the text.
    pub(super) fn new(text: &[u8], start: u128) -> Self {
        let mut links = vec![start];
        let mut all = start;
        for block in text.chunks_exact(BLOCK) {
            all = linked(all, xxh3_128(block));
            links.push(all);
        }
        Self { text: text.into(), links: links.into() }
    }

    /// The chain of the first `bytes` alone, as if the text ended there; none behind its end.
    pub(super) fn chain_at(&self, bytes: u64) -> Option<u128> {
        let bytes = usize::try_from(bytes).ok()?;
        let link = *self.links.get(bytes / BLOCK)?;
        let rest = self.text.get(bytes / BLOCK * BLOCK..bytes)?;
        Some(if rest.is_empty() { link } else { linked(link, xxh3_128(rest)) })
    }
}

/// Cuts a prompt of one text at `ends`: bytes from its front, ascending. What does not lie within it is passed by.
pub(super) fn split(prompt: &mut Prompt, ends: &[u64]) {
    let (Some(raw), [whole]) = (&prompt.raw, &prompt.segments[..]) else { return };
    let mut segments: Vec<Segment> = Vec::with_capacity(ends.len() + 1);
    let mut begin = 0;
    for &end in ends.iter().filter(|&&end| end < whole.end) {
        let Some(chain) = raw.chain_at(end).filter(|_| end > begin) else { continue };
        segments.push(Segment {
            // Behind another beginning the same words are no segment that moved.
            digest: chain,
            chain,
            bytes: narrow(end - begin),
            end,
            blocks: narrow(end / BLOCK as u64),
            ..*whole
        });
        begin = end;
    }
    segments.push(Segment { digest: whole.chain, bytes: narrow(whole.end - begin), ..*whole });
    prompt.segments = segments;
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::chain::{Chain, Tag, Voice};
    use crate::prompt::segment::{Class, Path, Root};
    use proptest::prelude::*;

    fn prompt(text: &[u8]) -> Prompt {
        let tag = Tag { voice: Voice::Bare, opens: true };
        let mut chain = Chain::default();
        chain.add(Path::member(Root::Prompt), Class::FirstUser, tag, text);
        let raw = Some(Raw::new(text, tag.link()));
        let (segments, blocks) = chain.finish();
        Prompt { segments, blocks, raw, ..Prompt::default() }
    }

    proptest! {
        #[test]
        fn the_chain_at_any_place_is_that_of_the_text_up_to_there(
            text in proptest::collection::vec(any::<u8>(), 1..2000),
            place: proptest::sample::Index,
        ) {
            let end = place.index(text.len()) + 1;
            let raw = prompt(&text).raw.unwrap();
            prop_assert_eq!(raw.chain_at(end as u64), Some(prompt(&text[..end]).segments[0].chain));
            prop_assert_eq!(raw.chain_at(text.len() as u64 + 1), None);
        }

        #[test]
        fn cuts_keep_the_whole(
            text in proptest::collection::vec(any::<u8>(), 1..2000),
            mut ends in proptest::collection::vec(0_u64..2100, 0..6),
        ) {
            ends.sort_unstable();
            let mut cut = prompt(&text);
            split(&mut cut, &ends);
            let last = cut.segments.last().unwrap();
            let whole = &prompt(&text).segments[0];
            prop_assert_eq!((last.chain, last.end, last.blocks), (whole.chain, whole.end, whole.blocks));
            prop_assert_eq!(cut.segments.iter().map(|segment| u64::from(segment.bytes)).sum::<u64>(), whole.end);
            prop_assert!(cut.segments.iter().all(|segment| segment.bytes > 0));
        }
    }
}
