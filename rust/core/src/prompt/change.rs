//! Two prompts side by side: where the later one leaves the earlier, and whether they are one conversation.

use super::segment::{Class, Path, Prompt, Segment};
use super::tree::ByDigest;

/// The first change of a line's prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The segment: where the later prompt has it; where it was removed, where the earlier one had it.
    pub path: Path,
    /// Its class there.
    pub class: Class,
    /// What became of it.
    pub kind: Kind,
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Edited,
    Inserted,
    Removed,
    Reordered,
}

impl Kind {
    /// Its name, as in records and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Edited => "edited",
            Self::Inserted => "inserted",
            Self::Removed => "removed",
            Self::Reordered => "reordered",
        }
    }
}

/// How a later prompt stands to an earlier one that it does not begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kinship {
    /// Another conversation.
    Stranger,
    /// The same, with a change in it.
    Changed(Change),
    /// The same words behind another head: perhaps the same, perhaps another agent that was given them to read, or another
    /// conversation with the same first words.
    Reheaded(Change),
    /// Perhaps the same: only its length speaks for it.
    PerhapsChanged(Change),
    /// The same, with most of what was said replaced.
    Compacted,
    /// Perhaps the same, compacted: a long conversation, and behind the same head a short one that begins anew.
    PerhapsCompacted,
    /// The same up to a place in its midst, and nothing of the rest: taken up again from there.
    Rewound(Change),
}

/// How often each digest occurs.
type Bag = ByDigest<u128, u32>;

fn bag<'s>(segments: impl Iterator<Item = &'s Segment>) -> Bag {
    let mut bag = Bag::default();
    for segment in segments {
        *bag.entry(segment.digest).or_default() += 1;
    }
    bag
}

/// Bytes and number of those of `segments` that `bag` holds.
fn kept<'s>(segments: impl Iterator<Item = &'s Segment>, bag: &Bag) -> (u64, usize) {
    let held = segments.filter(|segment| bag.contains_key(&segment.digest));
    held.fold((0, 0), |(bytes, count), segment| (bytes + u64::from(segment.bytes), count + 1))
}

fn bytes<'s>(segments: impl Iterator<Item = &'s Segment>) -> u64 {
    segments.map(|segment| u64::from(segment.bytes)).sum()
}

/// Compares a prompt with an earlier one that it neither is nor extends: how they stand, and how many segments both
/// begin with.
pub(super) fn compare(earlier: &[&Segment], prompt: &Prompt) -> (Kinship, usize) {
    let first = earlier.iter().zip(&prompt.segments).take_while(|(one, other)| one.chain == other.chain).count();
    (kinship(earlier, prompt, first), first)
}

/// The class of segment `index` of an earlier prompt. What was its last turn when it was entered is history once an answer
/// stands behind it.
pub(super) fn class_in(earlier: &[&Segment], index: usize) -> Option<Class> {
    let class = earlier.get(index)?.class;
    let answered = || earlier[index..].iter().any(|segment| segment.is_history());
    Some(if class == Class::LastTurn && answered() { Class::History } else { class })
}

fn kinship(earlier: &[&Segment], prompt: &Prompt, first: usize) -> Kinship {
    let later = &prompt.segments;
    let now = bag(later.iter());
    let rest = &earlier[first.min(earlier.len())..];
    let behind = bag(later.iter().skip(first));
    let change = first_change(rest, later.get(first..).unwrap_or_default(), &behind);

    // What was said: by the model, by tools, by the user after the first message.
    let said = |segment: &&&Segment| matches!(segment.class, Class::History | Class::LastTurn | Class::Image);
    let of_rest: Vec<_> = rest.iter().filter(said).copied().collect();
    let of_all: Vec<_> = earlier.iter().filter(said).copied().collect();
    let (_, rest_kept) = kept(of_rest.iter().copied(), &behind);
    let (kept_bytes, kept_count) = kept(of_all.iter().copied(), &now);
    let begun = !earlier.get(first).is_none_or(|segment| segment.class.is_head() || segment.class == Class::FirstUser);

    if begun {
        // The same head and the same first words: one conversation. It goes on behind the change, or it does not.
        let shrunk = prompt.bytes() * 10 < bytes(earlier.iter().copied()) * 7;
        return match () {
            () if rest_kept == 0 && rest.len() > 1 => Kinship::Rewound(change),
            () if shrunk && kept_bytes * 2 < bytes(of_all.iter().copied()) => Kinship::Compacted,
            () => Kinship::Changed(change),
        };
    }
    let opening: Vec<_> = earlier.iter().filter(|segment| segment.class == Class::FirstUser).copied().collect();
    let (_, opening_kept) = kept(opening.iter().copied(), &now);
    let same_opening = !opening.is_empty() && opening_kept == opening.len();
    let goes_on = kept_count >= 2 && kept_count * 2 >= of_all.len();
    let alike = head_alike(earlier, later, &now);
    // Of another length, one part of the head is still an edit where nothing of the conversation is missing.
    let edited = kept_count == of_all.len() && head_edited(earlier, later);
    match () {
        () if goes_on && (alike || edited) => return Kinship::Changed(change),
        () if goes_on => return Kinship::Reheaded(change),
        () if same_opening && alike && of_all.len() < 2 => return Kinship::Changed(change),
        // Others may open with the same words.
        () if same_opening && edited => return Kinship::Reheaded(change),
        () if !alike => return Kinship::Stranger,
        () => {}
    }
    let replaced = of_all.len() >= 2 && kept_count * 10 < of_all.len() * 3;
    match () {
        () if replaced && (prompt.summary || same_opening || kept_count >= 1 || moved(&opening, later)) => {
            Kinship::Compacted
        }
        () if same_opening => Kinship::Changed(change),
        // Nothing was said yet that could tell; what grew by one answer behind the same head goes on.
        () if grew_by_an_answer(earlier, later, first) => Kinship::PerhapsChanged(change),
        () if replaced && of_all.len() >= LONG && begins_anew(earlier, later, first) => Kinship::PerhapsCompacted,
        () => Kinship::Stranger,
    }
}

/// What was said in a conversation that a client would compact, in segments.
const LONG: usize = 6;

/// Whether the whole head stayed, and what stands behind it is but the beginning of a much shorter conversation.
fn begins_anew(earlier: &[&Segment], later: &[Segment], first: usize) -> bool {
    let behind = |segments: &[&Segment]| bytes(segments.iter().skip(first).copied());
    let new: Vec<_> = later.iter().collect();
    let heads_end =
        [earlier.get(first).copied(), later.get(first)].iter().all(|it| it.is_some_and(|it| !it.class.is_head()));
    heads_end && super::tree::answers(later) <= 1 && behind(&new) * 2 < behind(earlier)
}

/// Whether a part of the first user message stands behind another one now.
fn moved(opening: &[&Segment], later: &[Segment]) -> bool {
    let behind = later.iter().filter(|segment| segment.class != Class::FirstUser);
    kept(behind, &bag(opening.iter().copied())).1 > 0
}

/// Whether the heads are about the same: half of it in the same words, or as much of it.
fn head_alike(earlier: &[&Segment], later: &[Segment], now: &Bag) -> bool {
    let head = |segment: &&Segment| segment.class.is_head() && segment.class != Class::Header;
    let before: Vec<_> = earlier.iter().copied().filter(head).collect();
    let total = bytes(before.iter().copied());
    let (same, _) = kept(before.iter().copied(), now);
    let after: Vec<_> = later.iter().filter(head).collect();
    let new_total = bytes(after.iter().copied());
    let about = before.len() == after.len() && total.abs_diff(new_total) * 4 <= total.max(new_total);
    total == 0 && new_total == 0 || total > 0 && (same * 2 >= total || about)
}

/// Whether one part of the head is another one, however long, and all others, two at least, stayed: an agent with a task of
/// its own has other tools as well.
fn head_edited(earlier: &[&Segment], later: &[Segment]) -> bool {
    let is_head = |segment: &&Segment| segment.class.is_head() && segment.class != Class::Header;
    let before: Vec<_> = earlier.iter().copied().filter(is_head).map(|segment| segment.digest).collect();
    let after: Vec<_> = later.iter().filter(is_head).map(|segment| segment.digest).collect();
    let front = before.iter().zip(&after).take_while(|(one, other)| one == other).count();
    let back = before.iter().rev().zip(after.iter().rev()).take_while(|(one, other)| one == other).count();
    let stayed = before.len().min(after.len()).min(front + back);
    stayed >= 2 && before.len().max(after.len()) - stayed <= 1
}

/// Whether the whole head stayed, and behind a first message of other words the conversation is one answer further.
fn grew_by_an_answer(earlier: &[&Segment], later: &[Segment], first: usize) -> bool {
    let whole_head = earlier.get(first).is_some_and(|segment| segment.class == Class::FirstUser);
    let before = super::tree::answers(earlier.iter().copied());
    whole_head && super::tree::answers(later) > before && super::tree::answers(later) <= before + 2
}

/// The first change, given what each prompt has from there on.
fn first_change(rest: &[&Segment], new: &[Segment], behind: &Bag) -> Change {
    let at = |segment: &Segment, kind| Change { path: segment.path, class: segment.class, kind };
    let removed = |old: &Segment| Change { class: class_in(rest, 0).unwrap_or(old.class), ..at(old, Kind::Removed) };
    let (old, new_one) = match (rest.first(), new.first()) {
        (Some(old), Some(new_one)) => (*old, new_one),
        (Some(old), None) => return removed(old),
        (None, Some(new_one)) => return at(new_one, Kind::Inserted),
        // Only whole prompts that differ are compared; a change that cannot be is told as an edit at the head.
        (None, None) => {
            return Change {
                path: Path::member(super::segment::Root::Messages),
                class: Class::History,
                kind: Kind::Edited,
            };
        }
    };
    // Texts may occur more than once: what counts is whether there are fewer of the old and more of the new one.
    let before = bag(rest.iter().copied());
    let count = |bag: &Bag, segment: &Segment| bag.get(&segment.digest).copied().unwrap_or(0);
    let gone = count(behind, old) < count(&before, old);
    let came = count(behind, new_one) > count(&before, new_one);
    match (gone, came) {
        (false, false) if left_behind(old, rest, new) => removed(old),
        (false, false) => at(new_one, Kind::Reordered),
        (false, true) => at(new_one, Kind::Inserted),
        (true, false) => removed(old),
        (true, true) if same_place(old, new_one) => at(new_one, Kind::Edited),
        (true, true) if old.class == Class::Header => removed(old),
        (true, true) if new_one.class == Class::Header => at(new_one, Kind::Inserted),
        (true, true) if new_one.path.item > old.path.item => removed(old),
        (true, true) => at(new_one, Kind::Edited),
    }
}

/// Whether a segment that is gone from its place stands only behind everything else that both prompts have: clients
/// take what belongs to the newest message out of the older ones.
fn left_behind(old: &Segment, rest: &[&Segment], new: &[Segment]) -> bool {
    let others = bag(rest.iter().copied().filter(|segment| segment.digest != old.digest));
    let last = new.iter().rposition(|segment| others.contains_key(&segment.digest));
    new.iter().position(|segment| segment.digest == old.digest) > last
}

fn same_place(old: &Segment, new: &Segment) -> bool {
    old.path.root == new.path.root
        && old.path.item == new.path.item
        && (old.class == Class::Header) == (new.class == Class::Header)
}
