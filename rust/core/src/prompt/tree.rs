//! The prompts that were sent, as a tree: each node is a whole prompt and holds only what it adds to the longest
//! whole prompt that it begins with. Entering one more turn costs what is new in it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::chain::Voice;
use super::segment::{Parameters, Prompt, Segment};

/// Hands a digest on as its own hash.
#[derive(Default)]
pub(super) struct Digested(u64);

impl Hasher for Digested {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }
}

pub(super) type ByDigest<K, V> = HashMap<K, V, BuildHasherDefault<Digested>>;

/// A prompt in the tree. Ids are never used twice.
pub(super) type NodeId = u64;

/// What a whole prompt adds to its parent.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Option<NodeId>,
    /// The prompt at the other end of the chain of parents; itself without any.
    root: NodeId,
    /// Segments that the parent does not have.
    pub(super) segments: Box<[Segment]>,
    /// Keys of the blocks that the parent does not have.
    blocks: Box<[u64]>,
    /// Chained digest at its end.
    pub(super) chain: u128,
    /// Bytes of rendered text of the whole prompt.
    pub(super) bytes: u64,
    /// Assistant's turns in it, as messages or calls: how far the conversation has come.
    pub(super) answers: u32,
    /// Tokens of the whole prompt as the engine counted them last.
    pub(super) tokens: Option<u64>,
    pub(super) parameters: Parameters,
    /// Messages that it was sent as.
    pub(super) messages: Option<usize>,
    /// The line that entered it last.
    pub(super) line: u64,
    /// Prompts that were entered as its children, ever.
    pub(super) continued: u32,
    /// Children and lines that hold it.
    holders: u32,
}

/// All prompts that are remembered.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: ByDigest<NodeId, Node>,
    next: NodeId,
    /// Whole prompts by the chained digest at their end.
    ends: ByDigest<u128, NodeId>,
    /// How many prompts hold a block, by its key.
    blocks: ByDigest<u64, u32>,
    bytes: usize,
}

/// A block's key: the same text is reusable only by the same model.
fn key(block: u64, model: u64) -> u64 {
    block ^ model
}

impl Tree {
    /// The node of that id; one that is gone is nobody's.
    pub(super) fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    /// Memory that it takes, in bytes, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The longest whole prompt that `prompt` begins with, and how many of its segments that is.
    pub(super) fn longest(&self, prompt: &Prompt) -> Option<(NodeId, usize)> {
        let mut segments = prompt.segments.iter().enumerate().rev();
        segments.find_map(|(index, segment)| Some((*self.ends.get(&segment.chain)?, index + 1)))
    }

    /// Bytes from the front of `prompt` that its model was sent before.
    pub(super) fn known_bytes(&self, prompt: &Prompt) -> u64 {
        let known = |block: &u64| self.blocks.contains_key(&key(*block, prompt.parameters.model));
        let blocks = prompt.blocks.partition_point(known);
        bytes_of(prompt, blocks)
    }

    /// Bytes from the front of `prompt` up to the first block that the prompt `id` does not have there too, of which it is
    /// known that they share the first `same` segments. Blocks count as the same of the same model only.
    pub(super) fn common_bytes(&self, id: NodeId, prompt: &Prompt, same: usize) -> u64 {
        let known = same.checked_sub(1).and_then(|last| prompt.segments.get(last)).map_or(0, |s| s.blocks as usize);
        let model = prompt.parameters.model;
        let new = prompt.blocks.get(known..).unwrap_or_default();
        let mut parts: Vec<&[u64]> = self.ancestry(id).map(|(_, node)| &*node.blocks).collect();
        parts.reverse();
        let mut skipped = known;
        let behind = parts.into_iter().flat_map(|part| {
            let here = skipped.min(part.len());
            skipped -= here;
            &part[here..]
        });
        let common = new.iter().zip(behind).take_while(|(block, other)| key(**block, model) == **other).count();
        bytes_of(prompt, known + common)
    }

    /// The segments of a whole prompt, in its order.
    pub(super) fn segments(&self, id: NodeId) -> Vec<&Segment> {
        let mut parts = Vec::new();
        let mut next = Some(id);
        while let Some(node) = next.and_then(|id| self.get(id)) {
            parts.push(&node.segments);
            next = node.parent;
        }
        parts.into_iter().rev().flat_map(|part| part.iter()).collect()
    }

    /// The whole prompts that the prompt `id` begins with, itself first.
    pub(super) fn ancestry(&self, id: NodeId) -> impl Iterator<Item = (NodeId, &Node)> {
        let numbered = |id| Some((id, self.get(id)?));
        std::iter::successors(numbered(id), move |(_, node)| node.parent.and_then(numbered))
    }

    /// The bytes at which those end; ascending.
    pub(super) fn ends(&self, id: NodeId) -> Vec<u64> {
        let mut ends: Vec<_> = self.ancestry(id).map(|(_, node)| node.bytes).collect();
        ends.reverse();
        ends
    }

    /// Whether the prompt `id` is `ancestor` or begins with it.
    pub(super) fn begins_with(&self, id: NodeId, ancestor: NodeId) -> bool {
        let root = |id| self.get(id).map(|node| node.root);
        let mut next = Some(id).filter(|&id| root(id) == root(ancestor));
        // Ids grow along the chain: parents are there before their children.
        while let Some(id) = next.filter(|&id| id >= ancestor) {
            if id == ancestor {
                return true;
            }
            next = self.get(id).and_then(|node| node.parent);
        }
        false
    }

    /// Tokens of the first `bytes` of a prompt that has so many bytes and tokens (`own`), and begins with as much of the
    /// prompt `id`: from what the engine counted around that place, and straight between two counts.
    pub(super) fn tokens(&self, id: Option<NodeId>, bytes: u64, own: (u64, u64)) -> u64 {
        self.tokens_at(id, bytes, own).0
    }

    /// The same, if nothing was printed of the reasoning that a template may leave out: of a template that `keeps` what it
    /// printed once, all behind the last count; of another, what the user had not spoken behind at that count.
    pub(super) fn least_tokens(&self, id: Option<NodeId>, bytes: u64, own: (u64, u64), keeps: bool) -> u64 {
        let (tokens, counted) = self.tokens_at(id, bytes, own);
        let segments = || id.into_iter().flat_map(|id| self.ancestry(id)).flat_map(|(_, node)| &node.segments);
        let reasoning = |end: u64| -> u64 {
            let reasoning = segments().filter(|segment| segment.voice == Voice::Reasoning);
            reasoning.map(|segment| segment.bytes_within(end)).sum()
        };
        if keeps {
            return tokens - share(tokens - counted.1, reasoning(bytes) - reasoning(counted.0), bytes - counted.0);
        }
        let spoken = segments().filter(|segment| segment.voice == Voice::User && segment.end <= counted.0);
        // Reasoning in front of a user's words was not counted if it was not printed behind them.
        let settled = reasoning(spoken.map(|segment| segment.end).max().unwrap_or(0));
        tokens - share(tokens, reasoning(bytes) - settled, bytes - settled)
    }

    /// Tokens at `bytes`, as for [`Tree::tokens`], and the last count in front of it: of how many bytes, and its tokens.
    fn tokens_at(&self, id: Option<NodeId>, bytes: u64, own: (u64, u64)) -> (u64, (u64, u64)) {
        let (mut low, mut high) = ((0, 0), own);
        let mut next = id;
        while let Some(node) = next.and_then(|id| self.get(id)) {
            if let Some(tokens) = node.tokens {
                if node.bytes <= bytes {
                    low = low.max((node.bytes, tokens));
                } else if node.bytes < high.0 {
                    high = (node.bytes, tokens);
                }
            }
            next = node.parent;
        }
        let (span, counted) = (high.0.saturating_sub(low.0), high.1.saturating_sub(low.1));
        let into = bytes.saturating_sub(low.0).min(span);
        (low.1 + share(counted, into, span), low)
    }

    /// Enters a whole prompt, held once more; one that is there already is the same node.
    pub(super) fn enter(&mut self, prompt: &Prompt, line: u64) -> Option<NodeId> {
        let last = prompt.segments.last()?;
        let (parent, have) = self.longest(prompt).map_or((None, 0), |(id, have)| (Some(id), have));
        if have == prompt.segments.len() {
            if let Some(node) = parent.and_then(|id| self.get_mut(id)) {
                node.holders += 1;
                node.parameters = prompt.parameters;
                node.line = line;
            }
            return parent;
        }
        if let Some(node) = parent.and_then(|id| self.get_mut(id)) {
            node.holders += 1;
            node.continued += 1;
        }
        let first_block = have.checked_sub(1).map_or(0, |last| prompt.segments[last].blocks as usize);
        let model = prompt.parameters.model;
        let blocks: Box<[u64]> = prompt.blocks[first_block..].iter().map(|block| key(*block, model)).collect();
        for &block in &blocks {
            *self.blocks.entry(block).or_default() += 1;
        }
        self.next += 1;
        let id = self.next;
        let node = Node {
            parent,
            root: parent.and_then(|id| self.get(id)).map_or(id, |node| node.root),
            segments: prompt.segments[have..].into(),
            blocks,
            chain: last.chain,
            bytes: last.end,
            answers: answers(&prompt.segments),
            tokens: None,
            parameters: prompt.parameters,
            messages: prompt.messages,
            line,
            continued: 0,
            holders: 1,
        };
        self.bytes += weight(&node);
        self.ends.insert(node.chain, id);
        self.nodes.insert(id, node);
        Some(id)
    }

    /// Lets go of a prompt; what nobody holds any more is forgotten.
    pub(super) fn release(&mut self, id: NodeId) {
        let mut next = Some(id);
        while let Some(id) = next {
            let Some(node) = self.get_mut(id) else { return };
            node.holders -= 1;
            if node.holders > 0 {
                return;
            }
            let Some(node) = self.nodes.remove(&id) else { return };
            self.bytes -= weight(&node);
            self.ends.remove(&node.chain);
            for block in &node.blocks {
                if let Some(count) = self.blocks.get_mut(block) {
                    *count -= 1;
                    if *count == 0 {
                        self.blocks.remove(block);
                    }
                }
            }
            next = node.parent;
        }
    }
}

/// What of so many `tokens`, which `all` bytes are, so many `bytes` of them are.
fn share(tokens: u64, bytes: u64, all: u64) -> u64 {
    let share = u128::from(tokens) * u128::from(bytes.min(all)) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Bytes of the first `blocks` blocks of a prompt.
fn bytes_of(prompt: &Prompt, blocks: usize) -> u64 {
    let whole = prompt.segments.partition_point(|segment| segment.blocks as usize <= blocks);
    let before = whole.checked_sub(1).map(|last| &prompt.segments[last]);
    let (bytes, counted) = before.map_or((0, 0), |segment| (segment.end, segment.blocks as usize));
    bytes + ((blocks - counted) * super::chain::BLOCK) as u64
}

/// How many assistant's turns a prompt holds: messages or items that the model said, told by their items.
pub(super) fn answers<'s>(segments: impl IntoIterator<Item = &'s Segment>) -> u32 {
    let mut count = 0;
    let mut last = None;
    for segment in segments {
        if segment.is_history() && segment.path.item != last {
            count += 1;
            last = segment.path.item;
        }
    }
    count
}

/// Memory that a prompt would take in an empty tree, in bytes, about.
pub(super) fn weight_alone(prompt: &Prompt) -> usize {
    weight_of(&prompt.segments, prompt.blocks.len())
}

fn weight(node: &Node) -> usize {
    weight_of(&node.segments, node.blocks.len())
}

/// Memory of a node with its entries in the maps, in bytes: measured sizes of their parts.
fn weight_of(segments: &[Segment], blocks: usize) -> usize {
    const ENTRY: usize = 2 * (16 + 4 + 1);
    size_of::<Node>() + 2 * ENTRY + size_of_val(segments) + blocks * (8 + 2 * (8 + 4 + 1))
}
