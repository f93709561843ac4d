//! Sizes: `512MiB`, `2GB`, `64m`, `1073741824`.
//!
//! `KB`, `MB` and `GB` are powers of 1000; `KiB`, `MiB`, `GiB` and a bare letter are powers of 1024. Case is ignored.

/// The number of bytes; `None` if the text is not a size or does not fit 64 bits.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let config = parse_size::Config::new();
    let is_bare = !text.ends_with(['b', 'B']);
    let config = if is_bare { config.with_binary() } else { config.with_decimal() };
    config.parse_size(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gb_is_decimal_and_gib_is_binary() {
        assert_eq!(parse("1GB"), Some(1_000_000_000));
        assert_eq!(parse("1GiB"), Some(1 << 30));
        assert_eq!(parse("1kb"), Some(1_000));
        assert_eq!(parse("1kib"), Some(1 << 10));
        assert_eq!(parse("1TB"), Some(1_000_000_000_000));
        assert_eq!(parse("1TiB"), Some(1 << 40));
    }

    #[test]
    fn a_bare_letter_is_binary_and_a_bare_number_is_bytes() {
        assert_eq!(parse("64m"), Some(64 << 20));
        assert_eq!(parse("2G "), Some(2 << 30));
        assert_eq!(parse("4096"), Some(4096));
        assert_eq!(parse("7b"), Some(7));
    }

    #[test]
    fn spaces_and_fractions_are_accepted() {
        assert_eq!(parse("512 mib"), Some(512 << 20));
        assert_eq!(parse("1.5GiB"), Some(3 << 29));
    }

    #[test]
    fn text_that_is_not_a_size_is_refused() {
        for text in ["", " ", "GiB", "-1", "+1", "1 potato", "1GiBs", "1ZiB", "NaN", "inf", "0x10"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_size_over_64_bits_is_refused() {
        assert_eq!(parse("18446744073709551615"), Some(u64::MAX));
        for text in ["18446744073709551616", "16EiB", "99999999999TiB", "1e400"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
