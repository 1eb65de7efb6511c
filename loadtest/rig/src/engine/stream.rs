//! The events of one streamed answer.

use super::chunks::{self, MarkedChunk, Voice};
use crate::{
    clock,
    mark::Mark,
    plan::{Mode, Plan},
};

/// When a stream has its next event.
pub(crate) enum Next {
    /// At this time, in `CLOCK_MONOTONIC` nanoseconds.
    At(u64),
    /// Whenever the socket takes more.
    Writable,
    /// It has ended.
    Ended,
}

/// Successive streams are set apart by this share of a period: for any number of streams their phases lie nearly even.
const GOLDEN: f64 = 0.618_033_988_749_895;

pub(crate) struct Stream {
    plan: Plan,
    voice: Voice,
    chunk: MarkedChunk,
    seq: u32,
    due_ns: u64,
    flowing: bool,
    prompt_tokens: u64,
    with_usage: bool,
}

impl Stream {
    /// A stream whose first event (number 0) has been sent.
    pub(crate) fn new(plan: Plan, voice: Voice, prompt_tokens: u64, with_usage: bool) -> Self {
        let chunk = voice.marked();
        Self { plan, voice, chunk, seq: 1, due_ns: 0, flowing: false, prompt_tokens, with_usage }
    }

    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Whether it writes whenever its socket takes bytes.
    pub(crate) fn is_flowing(&self) -> bool {
        self.flowing
    }

    /// For a flood: lets it go; `false` for any other mode.
    pub(crate) fn let_flow(&mut self) -> bool {
        self.flowing = self.plan.mode == Mode::Flood;
        self.flowing
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.seq >= self.plan.events
    }

    /// Sets the time of the first event after `start_ns`. `number` counts the streams that start together.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a period")]
    pub(crate) fn start(&mut self, start_ns: u64, number: usize) -> u64 {
        let period = self.plan.period_ns();
        self.due_ns = match self.plan.mode {
            Mode::Burst => (start_ns / period + 1) * period,
            Mode::Spread => start_ns + ((number as f64 * GOLDEN).fract() * period as f64) as u64,
            Mode::Flood => start_ns,
        };
        self.due_ns
    }

    fn next(&self) -> Next {
        match self.plan.mode {
            _ if self.is_at_end() => Next::Ended,
            Mode::Flood => Next::Writable,
            Mode::Burst | Mode::Spread => Next::At(self.due_ns),
        }
    }

    /// Appends the event that is due; returns when the next one is.
    pub(crate) fn event(&mut self, out: &mut Vec<u8>) -> Next {
        let mark = Mark { t_ns: clock::now_ns(), seq: self.seq };
        out.extend_from_slice(self.chunk.stamped(mark));
        self.seq += 1;
        self.due_ns += self.plan.period_ns();
        self.next()
    }

    /// Appends events to `batch` until it holds `size` bytes or the stream is at its end.
    pub(crate) fn fill(&mut self, batch: &mut Vec<u8>, size: usize) -> Next {
        let t_ns = clock::now_ns();
        while batch.len() < size && !self.is_at_end() {
            batch.extend_from_slice(self.chunk.stamped(Mark { t_ns, seq: self.seq }));
            self.seq += 1;
        }
        self.next()
    }

    /// What follows the last content event, each to be written apart.
    pub(crate) fn tail(&self) -> Vec<Vec<u8>> {
        let mut tail = vec![self.voice.finish()];
        if self.with_usage {
            tail.push(self.voice.usage(self.prompt_tokens, self.plan.events));
        }
        tail.extend([chunks::DONE.to_vec(), chunks::END.to_vec()]);
        tail
    }
}
