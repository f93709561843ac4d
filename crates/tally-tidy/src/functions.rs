//! The functions of a piece of code: their names, and where they start and end.

/// One function with its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Offset of the keyword `fn`.
    pub start: usize,
    /// Offset after the closing brace.
    pub end: usize,
}

/// Every function with a body in `code`, which must be free of comments and literals. One that contains another comes
/// before it.
#[must_use]
pub fn functions(code: &str) -> Vec<Function> {
    code.match_indices("fn").filter_map(|(start, _)| function_at(code, start)).collect()
}

/// The innermost function around an offset.
#[must_use]
pub fn enclosing(functions: &[Function], offset: usize) -> Option<&Function> {
    functions.iter().rfind(|function| (function.start..function.end).contains(&offset))
}

fn function_at(code: &str, start: usize) -> Option<Function> {
    let rest = code[start..].strip_prefix("fn")?;
    let is_keyword = !code[..start].ends_with(is_word) && rest.starts_with(char::is_whitespace);
    // `fn(u8)` is a type.
    let name: String = rest.trim_start().chars().take_while(|c| is_word(*c)).collect();
    (is_keyword && !name.is_empty()).then_some(())?;
    let end = body_end(code, start)?;
    Some(Function { name, start, end })
}

/// Where the body of a function ends; `None` if it has no body. A brace within the brackets of the signature, such as
/// in `[u8; { N }]`, does not open the body.
fn body_end(code: &str, start: usize) -> Option<usize> {
    let (mut brackets, mut braces) = (0usize, 0usize);
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' if braces == 0 => brackets += 1,
            b')' | b']' if braces == 0 => brackets = brackets.saturating_sub(1),
            b';' if braces == 0 && brackets == 0 => return None,
            b'{' if brackets == 0 => braces += 1,
            b'}' if brackets == 0 => {
                braces = braces.saturating_sub(1);
                if braces == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_function_is_found() {
        let code =
            "trait T { fn bare(&self); }\nfn outer(f: fn(u8)) -> [u8; { 1 }] {\n  fn inner() { here }\n  there\n}";
        let functions = functions(code);
        let names: Vec<_> = functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["outer", "inner"], "neither a type nor a declaration has a body");
        let around = |text: &str| enclosing(&functions, code.find(text).unwrap()).map(|function| &*function.name);
        assert_eq!((around("here }"), around("there\n"), around("trait")), (Some("inner"), Some("outer"), None));
    }
}
