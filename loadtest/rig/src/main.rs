//! Line-rate instrument for a streaming relay: an engine that emits vLLM-shaped chunks with a time stamp in each, and a
//! reader that opens many streams through the relay, counts every event and measures what the relay added and cost.
//!
//! Engine and reader are processes of their own, single-threaded on epoll, so that what they cost is not mistaken for
//! the relay's cost. Both must run on one machine: time stamps are `CLOCK_MONOTONIC`.
#![allow(clippy::cast_precision_loss, reason = "figures for people: 52 bits of nanoseconds are 52 days")]

mod big_body;
mod cli;
mod clock;
mod engine;
mod http;
mod mark;
mod plan;
mod poll;
mod process;
mod reader;
mod report;

use std::process::ExitCode;

/// A failure that ends the command; its text goes to standard error.
type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "\
usage: foreword-rig engine|read|body [options]

engine   fake OpenAI-compatible engine at line rate
  --port N             port on 127.0.0.1; 0 picks one (default 0; the address is printed)
  --mode MODE          burst: all streams at the same step; spread: each at its own phase; flood (default burst)
  --rate R             events per second and stream (default 50)
  --events E           events per stream, unless the request's max_tokens is lower (default 500)
  --gate N             streams wait after their first event until N of them wait (default 1)

read     open streams through a relay, count and time every event
  --url URL            http://HOST:PORT/v1/messages or /v1/chat/completions
  --control URL        the engine's own address: sets the plan there, for relays that drop the x-rig header
  --streams N          (default 100)   --mode, --rate, --events: as above, sent to the engine
  --ramp R             streams opened per second (default 200)
  --body-bytes B       size of each request's prompt (default 200)
  --pids P1,P2         processes whose CPU time and memory are charged to the relay, with their descendants
  --slow-reader K      the first K streams are not read until all others have ended
  --hold               and not before standard input ends
  --abort-after A      every stream is closed by the reader after A events
  --timeout S          give up after S seconds without a byte (default 30)
  --ages FILE          write there, for each event but a stream's first, when it came (CLOCK_MONOTONIC) and how old it
                       was: two 64-bit numbers of nanoseconds, the lowest byte first
  --json

body     send big requests one after the other, time their arrival in the engine
  --url URL            as above
  --bytes B            size of each body (default 5000000)
  --count C            (default 20)    --timeout S (default 30)
  --at-once            all at the same time: makes them, says ready on standard error, sends when standard input ends
  --json

exit status: 0 all events arrived, 1 a failure or a lost event, 2 usage";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let words: Vec<String> = words.collect();
    if matches!(command.as_str(), "-h" | "--help") || words.iter().any(|w| w == "-h" || w == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let outcome = match command.as_str() {
        "engine" => engine::command(words).map(|()| true),
        "read" => reader::command(words),
        "body" => big_body::command(words),
        other => Err(cli::Usage(format!("unknown command {other:?}")).into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("foreword-rig: {failure}");
            if failure.is::<cli::Usage>() {
                eprintln!("{USAGE}");
                ExitCode::from(2)
            } else {
                ExitCode::from(1)
            }
        }
    }
}
