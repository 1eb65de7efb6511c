//! CPU time and memory of processes, read from /proc.

use rustix::param::{clock_ticks_per_second, page_size};
use std::{collections::HashMap, fs};

/// Processor time (user and system, all threads) and resident memory of one process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sample {
    parent: u32,
    cpu_ticks: u64,
    rss_pages: u64,
}

/// All descendants' and their roots' use at one moment.
pub(crate) struct Snapshot(HashMap<u32, Sample>);

impl Snapshot {
    /// Takes the processes `roots` and all that descend from them. Processes that are gone are left out.
    pub(crate) fn take(roots: &[u32]) -> std::io::Result<Self> {
        let mut all = HashMap::new();
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A process may end between the listing and this line.
            if let Some(sample) = fs::read_to_string(format!("/proc/{pid}/stat")).ok().as_deref().and_then(parse_stat) {
                all.insert(pid, sample);
            }
        }
        Ok(Self(descendants(&all, roots)))
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.0.keys().copied().collect();
        pids.sort_unstable();
        pids
    }

    /// Resident memory of all processes in bytes; shared pages count in each.
    pub(crate) fn rss_bytes(&self) -> u64 {
        self.0.values().map(|sample| sample.rss_pages).sum::<u64>() * page_size() as u64
    }

    /// Processor seconds that passed in these processes since `earlier`. One that was not there then counts from its
    /// start.
    pub(crate) fn cpu_seconds_since(&self, earlier: &Self) -> f64 {
        let then = |pid| earlier.0.get(pid).map_or(0, |sample| sample.cpu_ticks);
        let ticks: u64 = self.0.iter().map(|(pid, sample)| sample.cpu_ticks.saturating_sub(then(pid))).sum();
        ticks as f64 / clock_ticks_per_second() as f64
    }
}

/// Reads a line of /proc/PID/stat. The second field is a name in parentheses that may itself hold spaces and
/// parentheses.
fn parse_stat(line: &str) -> Option<Sample> {
    let (_, fields) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Sample {
        parent: u32::try_from(number(4)?).ok()?,
        cpu_ticks: number(14)? + number(15)?,
        rss_pages: number(24)?,
    })
}

fn descendants(all: &HashMap<u32, Sample>, roots: &[u32]) -> HashMap<u32, Sample> {
    let mut found = HashMap::new();
    let mut wanted = roots.to_vec();
    while let Some(pid) = wanted.pop() {
        if let Some(sample) = all.get(&pid)
            && found.insert(pid, *sample).is_none()
        {
            wanted.extend(all.iter().filter(|(_, other)| other.parent == pid).map(|(child, _)| *child));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        let line =
            "7 (a ) 1 (b) c) S 3 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 4 0 12345 1000000 640 18446744073709551615";
        assert_eq!(parse_stat(line), Some(Sample { parent: 3, cpu_ticks: 300, rss_pages: 640 }));
        assert_eq!(parse_stat("7 (a) S 3"), None);
    }

    #[test]
    fn finds_children_of_children_only() {
        let tree = [(1, 0), (10, 1), (11, 10), (12, 11), (20, 1)];
        let all = tree.into_iter().map(|(pid, parent)| (pid, Sample { parent, ..Sample::default() })).collect();
        assert_eq!(Snapshot(descendants(&all, &[10])).pids(), [10, 11, 12]);
    }

    #[test]
    fn own_work_shows() {
        let me = std::process::id();
        let before = Snapshot::take(&[me]).unwrap();
        let start = std::time::Instant::now();
        let mut after = Snapshot::take(&[me]).unwrap();
        while after.cpu_seconds_since(&before) < 0.05 {
            assert!(start.elapsed().as_secs() < 30, "reading /proc for 30 s took no time");
            after = Snapshot::take(&[me]).unwrap();
        }
        assert!(after.cpu_seconds_since(&before) <= 2.0 * start.elapsed().as_secs_f64() * 64.0);
        assert!(after.rss_bytes() > 100_000);
    }
}
