//! Hints for error messages: suggestions for a misspelt name, and shortened input.

/// Names with more bytes are not compared with known ones, which takes time in proportion to the length.
const NAME_BYTES_MAX: usize = 64;

/// "did you mean …?" if a known name is similar, otherwise all known names.
pub fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let closest = known
        .clone()
        .filter(|_| name.len() <= NAME_BYTES_MAX)
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.chars().count() / 4)
        .min();
    match closest {
        Some((_, candidate)) => format!("did you mean `{candidate}`?"),
        None => {
            let names: Vec<_> = known.map(|candidate| format!("`{candidate}`")).collect();
            format!("use one of {}", names.join(", "))
        }
    }
}

/// At most `chars_max` characters of user input, for messages.
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
    fn a_similar_name_is_suggested_otherwise_all_are_listed() {
        let known = ["memory", "data"];
        assert_eq!(did_you_mean("memroy", known.into_iter()), "did you mean `memory`?");
        assert_eq!(did_you_mean("zzz", known.into_iter()), "use one of `memory`, `data`");
        let long = "m".repeat(1_000) + "emory";
        assert_eq!(did_you_mean(&long, known.into_iter()), "use one of `memory`, `data`");
    }
}
