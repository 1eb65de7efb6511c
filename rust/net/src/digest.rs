//! Digests that leave the process: keyed, so that nobody can try texts against them.
//!
//! Inside, segments are told apart by XXH3-128, which anyone can compute. What goes into records is BLAKE3 of that under
//! a key. Equal texts have equal digests within one key, and nothing can be compared across keys.

use std::fmt;

/// What the two kinds of digest are derived for: neither says anything about the other.
const SEGMENT: &str = "foreword 2026-11-12 digests of segments v1";
const SESSION: &str = "foreword 2026-11-12 digests of session ids v1";

/// The secret behind exported digests, as text: what `FOREWORD_DIGEST_KEY` holds, or a ledger's key file.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// A key of the operator's own. White space around it does not count.
    pub fn from_text(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// A new key: 64 hex digits of the system's randomness.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; blake3::KEY_LEN];
        getrandom::fill(&mut bytes)?;
        Ok(Self(blake3::Hash::from_bytes(bytes).to_hex().to_string()))
    }

    /// As it is written into a key file.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Makes exported digests under one key.
#[derive(Clone)]
pub struct Digests {
    segment: [u8; blake3::KEY_LEN],
    session: [u8; blake3::KEY_LEN],
}

impl Digests {
    /// Digests under `key`.
    pub fn new(key: &Key) -> Self {
        let derived = |context| blake3::derive_key(context, key.0.as_bytes());
        Self { segment: derived(SEGMENT), session: derived(SESSION) }
    }

    /// The digest of a segment whose text has the XXH3-128 `hash`: 48 bits, enough for the segments of one ledger.
    pub fn segment(&self, hash: u128) -> Hex<12> {
        Hex::of(&blake3::keyed_hash(&self.segment, &hash.to_le_bytes()))
    }

    /// The digest of a session id as the client sent it: 64 bits.
    pub fn session(&self, id: &str) -> Hex<16> {
        Hex::of(&blake3::keyed_hash(&self.session, id.as_bytes()))
    }
}

impl fmt::Debug for Digests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digests(..)")
    }
}

/// `N` lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hex<const N: usize>([u8; N]);

impl<const N: usize> Hex<N> {
    fn of(hash: &blake3::Hash) -> Self {
        let mut digits = [b'0'; N];
        for (digit, from) in digits.iter_mut().zip(hash.to_hex().bytes()) {
            *digit = from;
        }
        Self(digits)
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        // Hex digits are ASCII; the empty text stands for what cannot be.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_equal_within_a_key_only() {
        let ours = Digests::new(&Key::from_text("the fleet's key of digests\n"));
        let same = Digests::new(&Key::from_text("the fleet's key of digests"));
        let other = Digests::new(&Key::from_text("another key of digests"));
        assert_eq!(ours.segment(7), same.segment(7));
        assert_eq!(ours.session("s"), same.session("s"));
        assert_ne!(ours.segment(7), ours.segment(8));
        assert_ne!(ours.segment(7), other.segment(7));
        assert_ne!(ours.session("s"), other.session("s"));
    }

    /// Computed apart, with the Python package `blake3`. A change here makes ledgers from before and after incomparable.
    #[test]
    fn digests_are_those_of_version_1() {
        let digests = Digests::new(&Key::from_text("the fleet's key of digests"));
        assert_eq!(digests.segment(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff).as_str(), "bdca876300e7");
        assert_eq!(digests.session("0b5e1c6e-8a53-4b2e-9a38-8d4b6c9e7f10").as_str(), "06b5705b661f75e2");
    }

    #[test]
    fn random_keys_are_long_and_differ() {
        let (one, two) = (Key::random().unwrap(), Key::random().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.text().len(), 64);
        assert!(one.text().bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(!format!("{one:?}").contains(one.text()));
    }
}
