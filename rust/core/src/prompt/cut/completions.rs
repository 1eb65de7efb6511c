//! Completions: one text, or the ids of its tokens. Several prompts in one request are several conversations, whose
//! usage engines report as one sum: of those nothing is told.

use super::Cutter;
use crate::json::{Kind, Value};
use crate::prompt::chain::Voice;

pub(super) fn cut(root: Value<'_>, cutter: &mut Cutter<'_>) {
    let Some(prompt) = root.get("prompt") else { return };
    if let Some(text) = prompt.as_text() {
        return cutter.add_raw(Voice::Bare, &text.bytes());
    }
    let mut items = prompt.items();
    match (items.next(), items.next()) {
        (Some(only), None) if only.kind() == Kind::String => {
            only.as_text().into_iter().for_each(|text| cutter.add_raw(Voice::Bare, &text.bytes()));
        }
        (Some(only), None) if only.kind() == Kind::Array => add_ids(only, cutter),
        (Some(first), _) if first.kind() == Kind::Number => add_ids(prompt, cutter),
        _ => {}
    }
}

/// Ids as four bytes each, so that a place in them is told in tokens.
fn add_ids(ids: Value<'_>, cutter: &mut Cutter<'_>) {
    let id = |id: Value<'_>| std::str::from_utf8(id.raw()).ok()?.parse().ok().map(u32::to_le_bytes);
    let ids: Option<Vec<_>> = ids.items().map(id).collect();
    cutter.add_raw(Voice::Other, &ids.unwrap_or_default().concat());
}
