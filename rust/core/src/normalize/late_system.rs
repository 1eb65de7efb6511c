//! Rule 2: `role:"system"` messages inside the conversation.
//!
//! Engines whose template prints the system prompt at the head would move such a message there and lose the whole
//! prefix with every new one. It stays where it was said instead, in a role that the template prints in place.
//!
//! One policy ([`place`]) serves the chat splicer, the native Messages splicer and the translator: each describes
//! its messages as [`Turn`]s, gets a [`Placement`] for each from [`plan`], and carries it out in its own form.
//! A placement depends only on what came before the message (and on the results that the calls before it
//! still wait for, without which there is no request), so that later turns never change it.

use crate::json::Text;
use crate::profile::LateSystem;

const OPEN: &str = r"<system-reminder>\n";
const CLOSE: &str = r"\n</system-reminder>";

/// A message as the rule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// `role:"system"`.
    System,
    /// `role:"developer"` at the head of a chat: instructions, like a system message, but never late.
    Developer,
    /// A message with tool results; `last`: nothing comes behind them in that message.
    Results {
        /// Whether the message ends with a result.
        last: bool,
    },
    /// Any other message.
    Other,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Role and place as sent.
    Stay,
    /// Wrapped, at the end of the last tool result of the message with this index.
    Result(usize),
    /// In its own role (wrapped as a user's, or `system` in [`LateSystem::System`]), right behind the tool results of
    /// the message with this index.
    After(usize),
    /// Wrapped, as a user message in its place.
    User,
}

/// What decides about a late message.
#[derive(Clone, Copy, Debug)]
struct Around {
    /// The message that it follows, if that one ends with a tool result.
    result_before: Option<usize>,
    /// The last message of the results that follow, if they do: calls and results must not be parted.
    results_behind: Option<usize>,
}

/// The policy.
fn place(mode: LateSystem, around: Around) -> Placement {
    match (mode, around) {
        (LateSystem::Off, _) | (LateSystem::System, Around { results_behind: None, .. }) => Placement::Stay,
        (
            LateSystem::Tool,
            Around { result_before: Some(index), .. } | Around { result_before: None, results_behind: Some(index) },
        ) => Placement::Result(index),
        (LateSystem::System | LateSystem::User, Around { results_behind: Some(index), .. }) => Placement::After(index),
        (LateSystem::Tool | LateSystem::User, _) => Placement::User,
    }
}

/// A placement for each of `turns`; [`Placement::Stay`] for all that are not late system messages.
///
/// A system message is late when a message that is neither system nor developer came before it.
pub fn plan(turns: &[Turn], mode: LateSystem) -> Vec<Placement> {
    let started = turns.iter().position(|turn| !matches!(turn, Turn::System | Turn::Developer));
    let behind = results_behind(turns);
    let mut result_before = None;
    let mut placements = Vec::with_capacity(turns.len());
    for (index, (turn, results_behind)) in turns.iter().zip(behind).enumerate() {
        let late = *turn == Turn::System && started.is_some_and(|started| started < index);
        placements.push(if late { place(mode, Around { result_before, results_behind }) } else { Placement::Stay });
        match turn {
            Turn::System => {}
            Turn::Results { last: true } => result_before = Some(index),
            _ => result_before = None,
        }
    }
    placements
}

/// For each turn the last message of the run of tool results that begins behind it, if one does. System messages in
/// between do not count; a message that goes on behind its results ends the run.
fn results_behind(turns: &[Turn]) -> Vec<Option<usize>> {
    let mut behind = vec![None; turns.len()];
    let mut run = None;
    for (index, turn) in turns.iter().enumerate().rev() {
        behind[index] = run;
        run = match turn {
            Turn::System => run,
            Turn::Results { last: true } => run.or(Some(index)),
            Turn::Results { last: false } => Some(index),
            Turn::Developer | Turn::Other => None,
        };
    }
    behind
}

/// Whether a text (its pieces in order) is a reminder already, so that it gets no second wrapper.
pub fn is_wrapped(pieces: &[Text<'_>]) -> bool {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return false };
    let mut head = first.chars().map(|(character, _)| character).skip_while(|character| character.is_whitespace());
    // The end is looked at only where the head calls for one: finding it takes decoding all of the text.
    "<system-reminder>".chars().all(|expected| head.next() == Some(expected))
        && last.decode().trim_end().ends_with("</system-reminder>")
}

/// What goes around a note: the insides of two literals, empty where it brings its own wrapper.
pub fn wrapper(pieces: &[Text<'_>]) -> (&'static str, &'static str) {
    if is_wrapped(pieces) { ("", "") } else { (OPEN, CLOSE) }
}

/// A note as the inside of one literal: its pieces with a newline between, wrapped.
pub fn wrapped(pieces: &[Text<'_>]) -> Vec<u8> {
    let (open, close) = wrapper(pieces);
    let mut note = open.as_bytes().to_vec();
    for (index, piece) in pieces.iter().enumerate() {
        if index > 0 {
            note.extend_from_slice(br"\n");
        }
        note.extend_from_slice(piece.raw());
    }
    note.extend_from_slice(close.as_bytes());
    note
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RESULT: Turn = Turn::Results { last: true };
    const RESULT_AND_TEXT: Turn = Turn::Results { last: false };
    const MODES: [LateSystem; 4] = [LateSystem::System, LateSystem::Tool, LateSystem::User, LateSystem::Off];

    #[test]
    fn the_head_is_not_late() {
        for mode in MODES {
            let turns = [Turn::System, Turn::Developer, Turn::System, Turn::Other];
            assert_eq!(plan(&turns, mode), [Placement::Stay; 4]);
        }
    }

    #[test]
    fn each_mode_has_its_place() {
        let cases: [(&[Turn], usize, [Placement; 4]); 5] = [
            (&[Turn::Other, Turn::System], 1, [Placement::Stay, Placement::User, Placement::User, Placement::Stay]),
            (
                &[Turn::Other, Turn::Other, RESULT, Turn::System],
                3,
                [Placement::Stay, Placement::Result(2), Placement::User, Placement::Stay],
            ),
            (
                &[Turn::Other, RESULT_AND_TEXT, Turn::System],
                2,
                [Placement::Stay, Placement::User, Placement::User, Placement::Stay],
            ),
            (
                &[Turn::Other, Turn::System, RESULT, RESULT],
                1,
                [Placement::After(3), Placement::Result(3), Placement::After(3), Placement::Stay],
            ),
            (
                &[Turn::Other, RESULT, Turn::System, RESULT, Turn::Other],
                2,
                [Placement::After(3), Placement::Result(1), Placement::After(3), Placement::Stay],
            ),
        ];
        for (turns, at, expected) in cases {
            for (mode, expected) in MODES.into_iter().zip(expected) {
                assert_eq!(plan(turns, mode)[at], expected, "{turns:?} {mode:?}");
            }
        }
    }

    #[test]
    fn several_notes_follow_one_result() {
        let turns = [Turn::Other, RESULT, Turn::System, Turn::System];
        assert_eq!(plan(&turns, LateSystem::Tool)[2..], [Placement::Result(1); 2]);
    }

    #[test]
    fn a_text_with_its_own_wrapper_gets_no_second() {
        assert_eq!(wrapped(&[Text::new(b"a"), Text::new(b"b")]), br"<system-reminder>\na\nb\n</system-reminder>");
        let own = br"\n<system-reminder>x<\/system-reminder>\n";
        assert_eq!(wrapped(&[Text::new(own)]), own);
        assert_ne!(wrapped(&[Text::new(b"<system-reminder>x</system-reminder> y")]).first(), Some(&b'x'));
    }

    proptest! {
        #[test]
        fn later_turns_move_nothing(kinds in prop::collection::vec(0_usize..5, 1..14)) {
            let kinds = kinds.into_iter().map(|kind| [Turn::System, Turn::Developer, RESULT, RESULT_AND_TEXT, Turn::Other][kind]);
            let turns: Vec<Turn> = kinds.collect();
            for mode in MODES {
                let whole = plan(&turns, mode);
                for cut in 1..turns.len() {
                    // A request ends before an assistant's turn, never between calls and their results.
                    if matches!(turns[cut], Turn::Other) {
                        prop_assert_eq!(&plan(&turns[..cut], mode)[..], &whole[..cut]);
                    }
                }
            }
        }
    }
}
