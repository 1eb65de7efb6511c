//! The stamp inside each content delta: `t=` and 18 digits of nanoseconds, ` s=` and 6 digits of sequence number,
//! a space.
//!
//! Plain ASCII without anything that JSON escapes, so that it survives a translation to another dialect byte by byte.
//! Fixed width, so that the engine writes digits into a frame made once, and chunk sizes never change.

/// Length of a mark in bytes.
pub(crate) const LEN: usize = 30;
/// The highest sequence number that fits.
pub(crate) const MAX_SEQ: u32 = 999_999;

const TIME: std::ops::Range<usize> = 2..20;
const SEQ: std::ops::Range<usize> = 23..29;

/// When an event was written and which of its stream it is (from 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub(crate) t_ns: u64,
    pub(crate) seq: u32,
}

impl Mark {
    /// The mark as text.
    pub(crate) fn bytes(self) -> [u8; LEN] {
        let mut text = *b"t=000000000000000000 s=000000 ";
        self.write(&mut text);
        text
    }

    /// Writes the digits over those of an older mark.
    pub(crate) fn write(self, text: &mut [u8; LEN]) {
        digits(&mut text[TIME], self.t_ns);
        digits(&mut text[SEQ], u64::from(self.seq));
    }

    /// The mark that `text` starts with.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; LEN] = text.first_chunk()?;
        if !text.starts_with(b"t=") || text[TIME.end..SEQ.start] != *b" s=" || text[SEQ.end] != b' ' {
            return None;
        }
        Some(Self { t_ns: number(&text[TIME])?, seq: u32::try_from(number(&text[SEQ])?).ok()? })
    }
}

fn digits(field: &mut [u8], mut value: u64) {
    for digit in field.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

fn number(field: &[u8]) -> Option<u64> {
    field.iter().try_fold(0, |sum: u64, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| sum * 10 + u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_written() {
        for mark in [Mark { t_ns: 0, seq: 0 }, Mark { t_ns: 999_999_999_999_999_999, seq: MAX_SEQ }] {
            assert_eq!(Mark::parse(&mark.bytes()), Some(mark));
        }
        assert_eq!(&Mark { t_ns: 123, seq: 42 }.bytes(), b"t=000000000000000123 s=000042 ");
    }

    #[test]
    fn refuses_anything_else() {
        let good = Mark { t_ns: 123, seq: 42 }.bytes();
        assert_eq!(Mark::parse(&good[..LEN - 1]), None);
        for at in 0..LEN {
            let mut bad = good;
            bad[at] = b'x';
            assert_eq!(Mark::parse(&bad), None, "byte {at}");
        }
    }
}
