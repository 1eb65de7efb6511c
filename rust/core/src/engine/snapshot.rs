//! How large the snapshot of a conversation is, by its length.
//!
//! No straight line describes it (a snapshot holds a KV cache that grows, and copies of a state that does not), so it is
//! a table of measured points with lines between them.

/// Bytes of a checkpoint of Strata's in host memory (about 118 MB).
pub const CHECKPOINT_BYTES: u64 = 118_000_000;

/// What Strata's own log has shown: tokens, bytes.
const MEASURED: [(u64, u64); 3] = [(64_930, 2_510_827_952), (175_488, 3_508_535_296), (254_000, 4_716_362_992)];

/// Snapshot sizes: piecewise linear through points, level before them at no less than one checkpoint for no tokens, and
/// with the last line's slope behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(Vec<(u64, u64)>);

impl Sizes {
    /// A table of (tokens, bytes). Points come in any order; of points with equal tokens the last one counts, and one
    /// that is smaller than a shorter conversation's is raised to it. Without points: what was measured on Strata.
    pub fn new(points: &[(u64, u64)]) -> Self {
        let mut table = if points.is_empty() { MEASURED.to_vec() } else { points.to_vec() };
        table.sort_by_key(|&(tokens, _)| tokens);
        table.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                earlier.1 = later.1;
            }
            same
        });
        let mut largest = 0;
        for point in &mut table {
            largest = largest.max(point.1);
            point.1 = largest;
        }
        if let Some(&(tokens, bytes)) = table.first()
            && tokens > 0
        {
            table.insert(0, (0, CHECKPOINT_BYTES.min(bytes)));
        }
        Self(table)
    }

    /// Bytes of the snapshot of a conversation of so many tokens.
    pub fn bytes(&self, tokens: u64) -> u64 {
        let after = self.0.partition_point(|&(at, _)| at <= tokens);
        let (from, to) = match (self.0.get(after.saturating_sub(1)), self.0.get(after)) {
            (Some(&from), Some(&to)) => (from, to),
            // Behind the last point: on along the last line.
            (Some(&last), None) => (self.0.get(self.0.len().wrapping_sub(2)).copied().unwrap_or((0, last.1)), last),
            _ => return 0,
        };
        let (run, rise) = (to.0.saturating_sub(from.0).max(1), to.1.saturating_sub(from.1));
        let along = u128::from(rise) * u128::from(tokens.saturating_sub(from.0)) / u128::from(run);
        from.1.saturating_add(u64::try_from(along).unwrap_or(u64::MAX))
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self::new(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_points_are_met() {
        for (tokens, bytes) in MEASURED {
            assert_eq!(Sizes::default().bytes(tokens), bytes);
        }
        assert_eq!(Sizes::default().bytes(0), CHECKPOINT_BYTES);
        let between = Sizes::default().bytes(120_209);
        assert!((3_009_000_000..3_010_000_000).contains(&between), "{between}");
    }

    #[test]
    fn it_goes_on_behind_the_last_point_and_never_falls() {
        let sizes = Sizes::new(&[(200, 5_000), (100, 2_000), (300, 4_000), (200, 6_000)]);
        assert_eq!([100, 150, 200, 250, 300].map(|at| sizes.bytes(at)), [2_000, 4_000, 6_000, 6_000, 6_000]);
        assert_eq!(Sizes::new(&[(0, 50), (100, 150)]).bytes(400), 450);
        assert_eq!(Sizes::new(&[(100, 150)]).bytes(200), 150);
        assert_eq!(Sizes::new(&[(7, u64::MAX), (0, 0)]).bytes(u64::MAX), u64::MAX);
    }
}
