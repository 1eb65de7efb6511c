//! vLLM's prefix cache: whole blocks under chained hashes, the least recently used evicted first.
//!
//! What is modelled (vLLM's `v1/core/kv_cache_utils.py` and `block_pool.py`): only full blocks have a hash; a block's
//! hash covers its parent's, so that a change at one token loses every block from there on; a lookup answers at most
//! the prompt less one token, because the last one must be computed to get logits; a salt goes into the first block;
//! a request's blocks are freed in reverse order, so that its tail is evicted before its head.
//!
//! What is not: blocks of running requests are not pinned. A real engine queues or preempts a request for which there
//! is no room; here the least recently used blocks give way, whoever computed them.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use xxhash_rust::xxh3::xxh3_128;

/// Bytes of one token: a little-endian `u32`.
pub const TOKEN_BYTES: usize = 4;

/// The end of the list of slots.
const NONE: usize = usize::MAX;

/// The chained XXH3-128 digests of a prompt's whole blocks, computed as they are asked for.
struct Chain<'a> {
    blocks: std::slice::ChunksExact<'a, u8>,
    /// The parent's digest, then the block's bytes: what is hashed next.
    link: Vec<u8>,
}

impl<'a> Chain<'a> {
    fn new(tokens: &'a [u8], block_bytes: usize, salt: &[u8]) -> Self {
        Self { blocks: tokens.chunks_exact(block_bytes), link: xxh3_128(salt).to_le_bytes().to_vec() }
    }
}

impl Iterator for Chain<'_> {
    type Item = u128;

    fn next(&mut self) -> Option<u128> {
        let block = self.blocks.next()?;
        self.link.extend_from_slice(block);
        let digest = xxh3_128(&self.link);
        self.link.clear();
        self.link.extend_from_slice(&digest.to_le_bytes());
        Some(digest)
    }
}

/// One block held, in a list that is doubly linked by index from the most to the least recently used.
struct Slot {
    digest: u128,
    newer: usize,
    older: usize,
}

/// A block prefix cache of fixed capacity.
///
/// Tokens are given as the bytes of little-endian `u32`s ([`TOKEN_BYTES`] each); a block that is not whole does not
/// count. Cost: one hash a block looked at, amortised constant time for everything else.
pub struct BlockCache {
    block_bytes: usize,
    capacity: usize,
    index: HashMap<u128, usize>,
    slots: Vec<Slot>,
    newest: usize,
    oldest: usize,
}

impl BlockCache {
    /// An empty cache of `capacity` blocks of `block_tokens` tokens each.
    pub fn new(block_tokens: NonZeroUsize, capacity: usize) -> Self {
        Self {
            block_bytes: block_tokens.get().saturating_mul(TOKEN_BYTES),
            capacity,
            index: HashMap::new(),
            slots: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    /// Tokens at the head of `tokens` that are in the cache: whole blocks without a gap, at most the prompt less one
    /// token. They become the most recently used.
    pub fn lookup(&mut self, tokens: &[u8], salt: &[u8]) -> usize {
        let usable = (tokens.len() / TOKEN_BYTES).saturating_sub(1) * TOKEN_BYTES;
        let hits: Vec<usize> = Chain::new(&tokens[..usable], self.block_bytes, salt)
            .map_while(|digest| self.index.get(&digest).copied())
            .collect();
        for &slot in hits.iter().rev() {
            self.touch(slot);
        }
        hits.len() * (self.block_bytes / TOKEN_BYTES)
    }

    /// Makes the whole blocks of the first `upto` tokens visible and the most recently used, head first.
    ///
    /// Called as a prompt is computed, and once more with the answer's tokens when the request ends, which is when an
    /// engine frees its blocks. Of a prompt larger than the cache the head is kept.
    pub fn insert(&mut self, tokens: &[u8], upto: usize, salt: &[u8]) {
        let computed = tokens.len().min(upto.saturating_mul(TOKEN_BYTES));
        let chain: Vec<u128> = Chain::new(&tokens[..computed], self.block_bytes, salt).take(self.capacity).collect();
        // Out of the way of the eviction that makes room for the others.
        let mut missing = 0;
        for digest in &chain {
            match self.index.get(digest).copied() {
                Some(slot) => self.touch(slot),
                None => missing += 1,
            }
        }
        for _ in 0..(self.slots.len() + missing).saturating_sub(self.capacity) {
            self.evict();
        }
        for &digest in chain.iter().rev() {
            match self.index.get(&digest).copied() {
                Some(slot) => self.touch(slot),
                None => self.add(digest),
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.index.clear();
        self.slots.clear();
        (self.newest, self.oldest) = (NONE, NONE);
    }

    /// Blocks held.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no block is held.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn add(&mut self, digest: u128) {
        let slot = self.slots.len();
        self.slots.push(Slot { digest, newer: NONE, older: NONE });
        self.index.insert(digest, slot);
        self.link_newest(slot);
    }

    fn touch(&mut self, slot: usize) {
        self.unlink(slot);
        self.link_newest(slot);
    }

    /// Drops the least recently used block; the last slot moves into its place.
    fn evict(&mut self) {
        let gone = self.oldest;
        if gone == NONE {
            return;
        }
        self.unlink(gone);
        self.index.remove(&self.slots[gone].digest);
        self.slots.swap_remove(gone);
        let Some(moved) = self.slots.get(gone) else { return };
        let (digest, newer, older) = (moved.digest, moved.newer, moved.older);
        self.index.insert(digest, gone);
        self.join(newer, gone);
        self.join(gone, older);
    }

    fn link_newest(&mut self, slot: usize) {
        let second = self.newest;
        self.join(NONE, slot);
        self.join(slot, second);
    }

    fn unlink(&mut self, slot: usize) {
        let (newer, older) = (self.slots[slot].newer, self.slots[slot].older);
        self.join(newer, older);
    }

    /// Makes two slots neighbours; [`NONE`] stands for the end of the list on its side.
    fn join(&mut self, newer: usize, older: usize) {
        if newer == NONE {
            self.newest = older;
        } else {
            self.slots[newer].older = older;
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            self.slots[older].newer = newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(tokens: &[u32]) -> Vec<u8> {
        tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
    }

    fn cache(block: usize, capacity: usize) -> BlockCache {
        BlockCache::new(NonZeroUsize::new(block).unwrap(), capacity)
    }

    /// The same cache told in the slowest way: every block is the whole prompt up to its end, beside the time of its
    /// last use. No hashes, no list, no index.
    struct Slow {
        block: usize,
        capacity: usize,
        clock: u64,
        held: Vec<(Vec<u8>, Vec<u32>, u64)>,
    }

    impl Slow {
        fn prefixes(&self, tokens: &[u32]) -> Vec<Vec<u32>> {
            (1..=tokens.len() / self.block).map(|n| tokens[..n * self.block].to_vec()).collect()
        }

        /// The head of a request is used last: it must be the last to go.
        fn use_all(&mut self, salt: &[u8], prefixes: &[Vec<u32>]) {
            for prefix in prefixes.iter().rev() {
                self.clock += 1;
                let clock = self.clock;
                for (_, _, used) in self.held.iter_mut().filter(|(s, p, _)| s == salt && p == prefix) {
                    *used = clock;
                }
            }
        }

        fn holds(&self, salt: &[u8], prefix: &[u32]) -> bool {
            self.held.iter().any(|(s, p, _)| s == salt && p == prefix)
        }

        fn lookup(&mut self, tokens: &[u32], salt: &[u8]) -> usize {
            let mut hits = self.prefixes(&tokens[..tokens.len().saturating_sub(1)]);
            let found = hits.iter().take_while(|prefix| self.holds(salt, prefix)).count();
            hits.truncate(found);
            self.use_all(salt, &hits);
            found * self.block
        }

        fn insert(&mut self, tokens: &[u32], upto: usize, salt: &[u8]) {
            let mut prefixes = self.prefixes(&tokens[..upto.min(tokens.len())]);
            prefixes.truncate(self.capacity);
            self.use_all(salt, &prefixes);
            let new: Vec<_> = prefixes.iter().filter(|p| !self.holds(salt, p)).cloned().collect();
            while self.held.len() + new.len() > self.capacity {
                let oldest = (0..self.held.len()).min_by_key(|&at| self.held[at].2).unwrap();
                self.held.remove(oldest);
            }
            self.held.extend(new.into_iter().map(|prefix| (salt.to_vec(), prefix, 0)));
            self.use_all(salt, &prefixes);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Lookup,
        Insert(usize),
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<(Vec<u32>, u8, Step)>> {
        let step = prop_oneof![
            4 => Just(Step::Lookup),
            6 => (0..40_usize).prop_map(Step::Insert),
            1 => Just(Step::Clear),
        ];
        // Two token values and a common head make prompts that share prefixes of every length.
        let prompt = (0..24_usize, prop::collection::vec(0..2_u32, 0..12))
            .prop_map(|(head, tail)| std::iter::repeat_n(7, head).chain(tail).collect());
        prop::collection::vec((prompt, 0..2_u8, step), 1..60)
    }

    proptest! {
        #[test]
        fn agrees_with_the_slow_reference(block in 1..5_usize, capacity in 0..14_usize, steps in steps()) {
            let mut fast = cache(block, capacity);
            let mut slow = Slow { block, capacity, clock: 0, held: Vec::new() };
            for (tokens, salt, step) in steps {
                let salt = vec![b's'; usize::from(salt)];
                match step {
                    Step::Lookup => {
                        prop_assert_eq!(fast.lookup(&bytes(&tokens), &salt), slow.lookup(&tokens, &salt));
                    }
                    Step::Insert(upto) => {
                        fast.insert(&bytes(&tokens), upto, &salt);
                        slow.insert(&tokens, upto, &salt);
                    }
                    Step::Clear => {
                        fast.clear();
                        slow.held.clear();
                    }
                }
                prop_assert_eq!(fast.len(), slow.held.len());
                prop_assert_eq!(fast.is_empty(), slow.held.is_empty());
            }
        }
    }

    #[test]
    fn the_last_token_is_never_answered() {
        let prompt = bytes(&[1; 128]);
        let mut cache = cache(64, 8);
        cache.insert(&prompt, 128, b"");
        assert_eq!(cache.len(), 2);
        assert_eq!(cache.lookup(&prompt, b""), 64);
        assert_eq!(cache.lookup(&bytes(&[1; 129]), b""), 128);
        assert_eq!(cache.lookup(&[], b""), 0);
    }

    #[test]
    fn a_changed_token_loses_every_block_from_there_on() {
        let mut tokens: Vec<u32> = (0..256).collect();
        let mut cache = cache(64, 100);
        cache.insert(&bytes(&tokens), 256, b"");
        tokens[70] += 1;
        assert_eq!(cache.lookup(&bytes(&tokens), b""), 64);
        tokens[0] += 1;
        assert_eq!(cache.lookup(&bytes(&tokens), b""), 0);
    }

    #[test]
    fn salts_do_not_share() {
        let prompt = bytes(&[5; 100]);
        let mut cache = cache(10, 100);
        cache.insert(&prompt, 100, b"tenant-a");
        assert_eq!(cache.lookup(&prompt, b"tenant-b"), 0);
        assert_eq!(cache.lookup(&prompt, b""), 0);
        assert_eq!(cache.lookup(&prompt, b"tenant-a"), 90);
    }

    #[test]
    fn a_request_loses_its_tail_first() {
        let (first, second) = (bytes(&[1; 41]), bytes(&[2; 41]));
        let mut cache = cache(10, 6);
        cache.insert(&first, 41, b"");
        cache.insert(&second, 41, b"");
        assert_eq!(cache.lookup(&first, b""), 20);
        assert_eq!(cache.lookup(&second, b""), 40);
    }

    #[test]
    fn blocks_become_visible_as_they_are_computed() {
        let prompt = bytes(&(0..1000).collect::<Vec<u32>>());
        let mut cache = cache(16, 100);
        for (upto, visible) in [(15, 0), (16, 16), (500, 496), (400, 496), (1000, 992)] {
            cache.insert(&prompt, upto, b"");
            assert_eq!(cache.lookup(&prompt, b""), visible);
        }
    }
}
