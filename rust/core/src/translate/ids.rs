//! Identifiers of Anthropic's form, drawn from the one random seed of an exchange.

use crate::request::Ids;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// `msg_` and 24 alphanumerics: the id of an exchange's message.
pub(crate) fn message(ids: Ids) -> String {
    drawn("msg_", ids, 0, 24)
}

/// `toolu_01` and 22 alphanumerics: the id of the `nth` tool call of an exchange, where the engine gave none of its own.
pub(crate) fn tool_call(ids: Ids, nth: u64) -> String {
    drawn("toolu_01", ids, 1 + nth, 22)
}

/// Eight alphanumerics that tell the ids of one exchange from those of another.
pub(super) fn salt(ids: Ids) -> String {
    drawn("", ids, u64::MAX, 8)
}

/// Appends `count` alphanumerics to `head`; `stream` numbers independent draws from the same seed.
fn drawn(head: &str, ids: Ids, stream: u64, count: usize) -> String {
    let bytes = ids.seed.to_le_bytes();
    let half = |at: usize| bytes[at..].first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
    let (mut low, mut high) = (half(0) ^ mixed(stream), half(8));
    let mut id = String::with_capacity(head.len() + count);
    id.push_str(head);
    for _ in 0..count {
        low = low.wrapping_add(0x9E37_79B9_7F4A_7C15);
        high = mixed(high ^ low);
        // 62 does not divide 2^64; the bias is one part in 2^58.
        id.push(char::from(ALPHABET[(high % 62) as usize]));
    }
    id
}

/// A bijective mixer of 64 bits (the finaliser of `SplitMix64`).
fn mixed(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_form_and_differ() {
        let ids = Ids { seed: 0x7_0000_0000_0000_0009 };
        let message = message(ids);
        assert!(message.strip_prefix("msg_").is_some_and(|rest| rest.len() == 24));
        assert!(message.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric()));
        assert_eq!(message, super::message(ids), "one exchange, one id");
        assert_ne!(message, super::message(Ids { seed: 0x7_0000_0000_0000_000a }));
        assert_ne!(message, super::message(Ids { seed: 0x8_0000_0000_0000_0009 }));
        assert_ne!(tool_call(ids, 0), tool_call(ids, 1));
        assert_eq!(tool_call(ids, 0).len(), "toolu_01".len() + 22);
    }
}
