//! Where the bytes that matter lie in a text, found 64 at a time.
//!
//! Strings are nearly all of a body, and few of their bytes mean anything to a reader of JSON. Those are marked in a bit
//! mask for each block of 64 bytes, so that going on to the next is a count of zero bits, however near it is. A search
//! such as memchr's is faster over long runs, but pays more than a block costs each time that it begins; in prompts of
//! source code an escape comes every few dozen bytes.

use std::marker::PhantomData;

/// Bytes that one mask is of.
const BLOCK: usize = 64;

/// A set of bytes to be found.
pub(super) trait Marked {
    fn has(byte: u8) -> bool;
}

/// What ends a plain run within a string literal: quotes, backslashes and control characters.
#[derive(Clone, Debug)]
pub(super) struct Specials;

/// Backslashes.
#[derive(Clone, Debug)]
pub(super) struct Escapes;

impl Marked for Specials {
    #[inline]
    fn has(byte: u8) -> bool {
        // Flipping 2 makes the quote a space and leaves control characters below it: one comparison for both. With `||`
        // the compiler makes more instructions of it.
        u8::from(byte ^ 2 <= b' ') | u8::from(byte == b'\\') != 0
    }
}

impl Marked for Escapes {
    #[inline]
    fn has(byte: u8) -> bool {
        byte == b'\\'
    }
}

/// Goes through the marked bytes of a text, from its head on.
#[derive(Clone, Debug)]
pub(super) struct Marks<'t, M> {
    text: &'t [u8],
    /// Where the block of `bits` begins.
    base: usize,
    /// The marks of that block: bit n for its byte n.
    bits: u64,
    marked: PhantomData<M>,
}

impl<'t, M: Marked> Marks<'t, M> {
    #[inline]
    pub(super) fn new(text: &'t [u8]) -> Self {
        let (base, bits) = seek::<M>(text, 0);
        Self { text, base, bits, marked: PhantomData }
    }

    /// Offset of the first marked byte at or behind `from`, or the text's length. Meant to go forward: a place before the
    /// last one found costs another look at what lies between.
    #[inline]
    pub(super) fn next(&mut self, from: usize) -> usize {
        let within = from.wrapping_sub(self.base);
        if within < BLOCK {
            let bits = self.bits >> within;
            if bits != 0 {
                return from + bits.trailing_zeros() as usize;
            }
        }
        (self.base, self.bits) = seek::<M>(self.text, if within < BLOCK { self.base + BLOCK } else { from });
        self.text.len().min(self.base + self.bits.trailing_zeros() as usize)
    }
}

/// Goes over blocks, the first of which begins at `from`, up to one with marks: where it begins, and its marks. None are
/// in what is found at the text's end.
#[inline(never)]
fn seek<M: Marked>(text: &[u8], from: usize) -> (usize, u64) {
    let (blocks, tail) = text.get(from..).unwrap_or_default().as_chunks();
    let mut base = from;
    for block in blocks {
        let flags = flags::<M>(block);
        if flags != 0 {
            return (base, transposed(flags));
        }
        base += BLOCK;
    }
    (base, tail_bits::<M>(tail))
}

#[cold]
fn tail_bits<M: Marked>(tail: &[u8]) -> u64 {
    let mut block = [b' '; BLOCK];
    block.iter_mut().zip(tail).for_each(|(place, byte)| *place = *byte);
    transposed(flags::<M>(&block))
}

/// A block's marks, as a matrix of 8 x 8 bits: bit m of byte n is the mark of the block's byte 8 m + n. Written so that a
/// compiler makes vector instructions of it, on any processor that has them.
#[inline]
fn flags<M: Marked>(block: &[u8; BLOCK]) -> u64 {
    let mut flags = [0_u8; BLOCK];
    for (place, (flag, &byte)) in flags.iter_mut().zip(block).enumerate() {
        *flag = if M::has(byte) { 1 << (place / 8) } else { 0 };
    }
    let (runs, _) = flags.as_chunks();
    runs.iter().fold(0, |sum, run| sum | u64::from_le_bytes(*run))
}

/// That matrix with bit n for byte n.
#[inline]
fn transposed(mut matrix: u64) -> u64 {
    for (distance, upper) in [(7, 0x00aa_00aa_00aa_00aa), (14, 0x0000_cccc_0000_cccc), (28, 0x0000_0000_f0f0_f0f0)] {
        let differ = (matrix ^ (matrix >> distance)) & upper;
        matrix ^= differ ^ (differ << distance);
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where `steps` lead to, each from where the one before stood.
    fn found<M: Marked>(text: &[u8], steps: &[usize]) -> Vec<usize> {
        let mut marks = Marks::<M>::new(text);
        let mut from = 0;
        let step = |step: &usize| {
            from += step;
            marks.next(from)
        };
        steps.iter().map(step).collect()
    }

    fn found_slowly(text: &[u8], steps: &[usize], is_marked: impl Fn(u8) -> bool) -> Vec<usize> {
        let mut from = 0;
        let step = |step: &usize| {
            from += step;
            (from..text.len()).find(|&at| is_marked(text[at])).unwrap_or(text.len())
        };
        steps.iter().map(step).collect()
    }

    proptest! {
        #[test]
        fn finds_what_a_look_at_each_byte_finds(
            text in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'a'), Just(b'\\'), Just(b'"')], 0..400),
            steps in prop::collection::vec(0_usize..90, 0..40),
        ) {
            let special = |byte| matches!(byte, b'"' | b'\\' | ..0x20);
            prop_assert_eq!(found::<Specials>(&text, &steps), found_slowly(&text, &steps, special));
            prop_assert_eq!(found::<Escapes>(&text, &steps), found_slowly(&text, &steps, |byte| byte == b'\\'));
        }
    }
}
