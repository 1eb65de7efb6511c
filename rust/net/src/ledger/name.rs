//! Names of ledger files: they sort by the time of their opening, and tell our files from others'.

use std::time::Duration;

const PREFIX: &str = "exchanges-";
const SUFFIX: &str = ".jsonl";

/// `exchanges-20261112T083649.123Z-5f0c91d2.jsonl`: when it was opened (UTC), and a random part, so that no two
/// processes share a file.
pub(super) fn file_name(since_1970: Duration, random: u32) -> String {
    let seconds = since_1970.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since_1970.subsec_millis();
    format!("{PREFIX}{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{millis:03}Z-{random:08x}{SUFFIX}")
}

/// Whether a file of this name is ours to mend and to delete.
pub(super) fn is_ours(name: &str) -> bool {
    const SHAPE: &[u8] = b"00000000T000000.000Z-xxxxxxxx";
    let Some(middle) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)) else { return false };
    middle.len() == SHAPE.len()
        && middle.bytes().zip(SHAPE).all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            b'x' => byte.is_ascii_hexdigit(),
            fixed => byte == *fixed,
        })
}

/// Year, month and day of the Gregorian calendar, `days` after 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    const FOUR_CENTURIES: u64 = 146_097;
    // Counted from 0000-03-01: leap days come last in a year that begins in March.
    let days = days + 719_468;
    let (era, day) = (days / FOUR_CENTURIES, days % FOUR_CENTURIES);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    // Months from March have 153 days in each five.
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    (era * 400 + year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // `date -u -d DATE +%s` of the first second of each.
        for (seconds, date) in [
            (0, (1970, 1, 1)),
            (951_782_400, (2000, 2, 29)),
            (1_709_164_800, (2024, 2, 29)),
            (1_735_603_200, (2024, 12, 31)),
            (1_796_025_600, (2026, 11, 30)),
            (4_107_542_400, (2100, 3, 1)),
        ] {
            assert_eq!(civil(seconds / 86_400), date);
        }
    }

    #[test]
    fn names_sort_by_time_and_are_known_again() {
        let name = |millis| file_name(Duration::from_millis(millis), 0x5f0c_91d2);
        assert_eq!(name(1_796_025_600_123), "exchanges-20261130T080000.123Z-5f0c91d2.jsonl");
        assert!(name(1_796_025_600_999) < name(1_796_025_601_000));
        assert!(is_ours(&name(1)));
        for other in
            ["digest.key", "exchanges-.jsonl", "exchanges-20261130T080000.123Z-5f0c91d2.jsonl.gz", "notes.jsonl"]
        {
            assert!(!is_ours(other), "{other}");
        }
    }
}
