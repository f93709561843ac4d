//! Hints: what somebody who mistyped a name probably meant.

/// "did you mean …?" when a known name is close, else the names there are.
pub fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let closest = known
        .clone()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.chars().count() / 4)
        .min();
    match closest {
        Some((_, candidate)) => format!("did you mean `{candidate}`?"),
        None => {
            let names: Vec<_> = known.map(|candidate| format!("`{candidate}`")).collect();
            format!("known are {}", names.join(", "))
        }
    }
}

/// At most `chars_max` characters of what a caller sent, for messages.
pub fn shorten(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_name_is_suggested_and_a_far_one_lists_all() {
        let known = ["memory", "data"];
        assert_eq!(did_you_mean("memroy", known.into_iter()), "did you mean `memory`?");
        assert_eq!(did_you_mean("zzz", known.into_iter()), "known are `memory`, `data`");
    }
}
