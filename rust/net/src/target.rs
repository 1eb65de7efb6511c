//! What a request's target says beside its path.

/// The name in `/v1/models/NAME`, which may have slashes in it.
pub(crate) fn model(target: &str) -> String {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    decoded(path.strip_prefix("/v1/models/").unwrap_or_default())
}

/// A part of a path with its %XX decoded; what is no such escape stays.
fn decoded(part: &str) -> String {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| u8::try_from(char::from(*byte).to_digit(16)?).ok());
    let mut out = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [first, behind @ ..] = rest {
        if let (b'%', Some(high), Some(low)) = (first, digit(behind.first()), digit(behind.get(1))) {
            out.push(high << 4 | low);
            rest = behind.get(2..).unwrap_or_default();
        } else {
            out.push(*first);
            rest = behind;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_name_is_read_as_it_was_meant() {
        for (target, name) in [
            ("/v1/models/tiny", "tiny"),
            ("/v1/models/org/tiny?limit=1", "org/tiny"),
            ("/v1/models/org%2Ftiny%20b%3A1", "org/tiny b:1"),
            ("/v1/models/50%", "50%"),
            ("/v1/models/%zz%4", "%zz%4"),
            ("/v1/models/%C3%A9", "\u{e9}"),
            ("/v1/models/%FF", "\u{fffd}"),
            ("/v1/models/", ""),
            ("/v1/models", ""),
        ] {
            assert_eq!(model(target), name, "{target}");
        }
    }
}
