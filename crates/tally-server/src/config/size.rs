//! Sizes as people write them: `512MiB`, `2GB`, `1073741824`.

const UNITS: [(&str, u64); 11] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
];

/// A whole number of bytes or of a unit; `None` if it is neither or does not fit.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find_map(|(name, bytes)| Some((text.strip_suffix(name)?, *bytes)));
    let (digits, bytes) = unit.or_else(|| Some((text.strip_suffix('b')?, 1))).unwrap_or((&text, 1));
    let digits = digits.trim_end();
    // `parse` would take a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_numbers_with_or_without_a_unit() {
        assert_eq!(parse("1GiB"), Some(1 << 30));
        assert_eq!(parse("512 mib"), Some(512 << 20));
        assert_eq!(parse("2GB"), Some(2_000_000_000));
        assert_eq!(parse("4096"), Some(4096));
        assert_eq!(parse("64m"), Some(64 << 20));
        assert_eq!(parse("7b"), Some(7));
        for broken in ["", "GiB", "1.5GiB", "-1", "+1", "1 potato", "99999999999TiB"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }
}
