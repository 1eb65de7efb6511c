//! Which events of a stream came, and in what order.

/// The sequence numbers that one stream has brought.
pub(crate) struct Tally {
    seen: Vec<u64>,
    /// All numbers below are wanted.
    wanted: u32,
    highest: Option<u32>,
    pub(crate) received: u32,
    pub(crate) duplicated: u32,
    pub(crate) out_of_order: u32,
    /// Numbers that the engine cannot have sent.
    pub(crate) unexpected: u32,
}

impl Tally {
    pub(crate) fn new(wanted: u32) -> Self {
        Self {
            seen: vec![0; wanted.div_ceil(64) as usize],
            wanted,
            highest: None,
            received: 0,
            duplicated: 0,
            out_of_order: 0,
            unexpected: 0,
        }
    }

    pub(crate) fn add(&mut self, seq: u32) {
        let word = self.seen.get_mut((seq / 64) as usize).filter(|_| seq < self.wanted);
        let Some(word) = word else {
            self.unexpected += 1;
            return;
        };
        let bit = 1 << (seq % 64);
        if *word & bit != 0 {
            self.duplicated += 1;
            return;
        }
        *word |= bit;
        self.received += 1;
        if self.highest.is_some_and(|highest| seq < highest) {
            self.out_of_order += 1;
        } else {
            self.highest = Some(seq);
        }
    }

    /// How many have not come.
    pub(crate) fn missing(&self) -> u32 {
        self.wanted - self.received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_faults_apart() {
        let mut tally = Tally::new(70);
        for seq in (0..70).filter(|seq| ![5, 65].contains(seq)) {
            tally.add(seq);
        }
        assert_eq!((tally.received, tally.missing(), tally.out_of_order), (68, 2, 0));
        tally.add(5);
        tally.add(5);
        tally.add(70);
        assert_eq!((tally.missing(), tally.out_of_order, tally.duplicated, tally.unexpected), (1, 1, 1, 1));
    }
}
