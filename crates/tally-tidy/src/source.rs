//! Splits a Rust file into views: its code without comments and literals, and its comments.
//!
//! Both views keep every byte in its place, with blanks where the other view has text, so line numbers are the same in
//! both. Each rule searches one view: a banned call named in a comment or in a string is not a call.

/// The views of one file.
#[derive(Clone, Debug)]
pub struct SourceText {
    /// Code, with comments and the contents of literals blanked.
    pub code: String,
    /// Comments, with everything else blanked.
    pub comments: String,
}

/// Which view a byte belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextKind {
    Code,
    Comment,
    Literal,
}

impl SourceText {
    /// Splits a file.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut parts = vec![TextKind::Code; bytes.len()];
        let mut at = 0;
        while at < bytes.len() {
            let (part, end) = piece(bytes, at);
            let end = end.min(bytes.len());
            parts[at..end].fill(part);
            at = end;
        }
        SourceText { code: view(text, &parts, TextKind::Code), comments: view(text, &parts, TextKind::Comment) }
    }

    /// The code that ships: without the items marked `#[cfg(test)]`.
    #[must_use]
    pub fn shipped(&self) -> String {
        const MARK: &str = "#[cfg(test)]";
        let mut shipped = self.code.clone();
        while let Some(start) = shipped.find(MARK) {
            let end = item_end(&shipped, start + MARK.len());
            let blank: String = shipped[start..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
            shipped.replace_range(start..end, &blank);
        }
        shipped
    }
}

/// Whether a file holds nothing but tests.
#[must_use]
pub fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs")
}

/// The line of an offset, from 1.
#[must_use]
pub fn line_at(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// Keeps the bytes of one part and blanks the others. A character is never cut: parts begin and end at ASCII.
fn view(text: &str, parts: &[TextKind], wanted: TextKind) -> String {
    let keep = |(at, c): (usize, char)| match c {
        '\n' => "\n".to_owned(),
        _ if parts[at] == wanted && (wanted == TextKind::Comment || c.is_ascii()) => c.to_string(),
        _ => " ".repeat(c.len_utf8()),
    };
    text.char_indices().map(keep).collect()
}

/// What begins at `at`, and where it ends.
fn piece(bytes: &[u8], at: usize) -> (TextKind, usize) {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return (TextKind::Comment, at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return (TextKind::Comment, at + block_comment_len(rest));
    }
    match rest[0] {
        b'"' => (TextKind::Literal, at + string_len(rest)),
        b'\'' => char_len(rest).map_or((TextKind::Code, at + 1), |len| (TextKind::Literal, at + len)),
        b if is_word(b) => {
            let word = rest.iter().take_while(|&&b| is_word(b)).count();
            let raw = matches!(&rest[..word], b"r" | b"br" | b"cr");
            match raw.then(|| raw_string_len(&rest[word..])).flatten() {
                Some(len) => (TextKind::Literal, at + word + len),
                None => (TextKind::Code, at + word),
            }
        }
        _ => (TextKind::Code, at + 1),
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..(at + 2).min(rest.len())] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_len(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Length of `#"…"#` or `"…"`, given what follows the `r`; `None` for a raw identifier.
fn raw_string_len(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().take_while(|&&b| b == b'#').count();
    (rest.get(hashes) == Some(&b'"')).then_some(())?;
    let close = [b"\"", &rest[..hashes]].concat();
    let body = &rest[hashes + 1..];
    let len = body.windows(close.len()).position(|window| window == close).unwrap_or(body.len());
    Some(hashes + 1 + len + close.len())
}

/// Length of a character literal; `None` for a lifetime.
fn char_len(rest: &[u8]) -> Option<usize> {
    let body = std::str::from_utf8(&rest[1..rest.len().min(12)]);
    let body = match &body {
        Ok(body) => body,
        // The window may cut a character at its end; what comes before is enough.
        Err(error) => std::str::from_utf8(&rest[1..=error.valid_up_to()]).unwrap_or(""),
    };
    let mut chars = body.char_indices();
    match chars.next()?.1 {
        '\\' => chars.skip(1).find(|&(_, c)| c == '\'').map(|(at, _)| at + 2),
        _ => chars.next().filter(|&(_, c)| c == '\'').map(|(at, _)| at + 2),
    }
}

/// Where the item that begins after `start` ends: its `;`, or the brace that closes it.
fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = "let a = \"x \\\" bad\"; // bad\nlet b = r#\"bad \" bad\"#; /* bad /* bad */ bad */ let c = 'b';";
        let source = SourceText::new(text);
        assert!(!source.code.contains("bad"), "{}", source.code);
        assert!(source.code.contains("let c = "));
        assert_eq!(source.comments.matches("bad").count(), 4);
        assert_eq!(source.code.len(), text.len());
    }

    #[test]
    fn lifetimes_characters_and_raw_identifiers_are_told_apart() {
        let source = SourceText::new("fn f<'a>(x: &'a str) { '\\''; 'ü'; b'\"'; r#type; good }");
        assert!(source.code.contains("<'a>"));
        assert!(source.code.contains("type"));
        assert!(source.code.contains("good }"));
    }

    #[test]
    fn test_items_do_not_ship() {
        let source = SourceText::new("a;\n#[cfg(test)]\nmod tests { fn f() { bad } }\nb;\n#[cfg(test)]\nmod bad;\nc;");
        let shipped = source.shipped();
        assert!(!shipped.contains("bad"));
        assert!(shipped.contains("a;") && shipped.contains("b;") && shipped.contains("c;"));
        assert_eq!(line_at(&shipped, shipped.find("b;").unwrap()), 4);
    }
}
