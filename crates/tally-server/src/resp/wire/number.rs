//! Numbers as the protocol writes them.

/// Digits that fit in every integer without a check.
const SHORT_DIGITS_MAX: usize = 9;
/// Digits and sign of the longest 64-bit integer.
const INTEGER_BYTES_MAX: usize = 20;

/// The number at `from` and where its line ends, if it is one to nine digits without a leading zero in a whole line.
/// Everything else, invalid or just unusual, is left to the caller, which parses the whole line.
#[inline]
pub fn short(input: &[u8], from: usize) -> Option<(usize, usize)> {
    match input.get(from..)? {
        // Nearly all numbers have one or two digits.
        [ones @ b'1'..=b'9', b'\r', _, ..] => Some((value(*ones), from + 3)),
        [tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', _, ..] => Some((value(*tens) * 10 + value(*ones), from + 4)),
        digits => longer(digits).map(|(number, end)| (number, from + end)),
    }
}

#[inline(never)]
fn longer(digits: &[u8]) -> Option<(usize, usize)> {
    let mut number = 0;
    for (at, byte) in digits.iter().enumerate() {
        match byte {
            b'1'..=b'9' if at < SHORT_DIGITS_MAX => number = number * 10 + value(*byte),
            b'0' if at > 0 && at < SHORT_DIGITS_MAX => number *= 10,
            b'\r' if at > 0 && at + 1 < digits.len() => return Some((number, at + 2)),
            _ => return None,
        }
    }
    None
}

/// The value of a byte that is known to be a digit.
#[inline]
fn value(digit: u8) -> usize {
    usize::from(digit - b'0')
}

/// A 64-bit integer as Redis accepts it: no spaces, no plus sign, no leading zeros, no `-0`.
#[inline]
pub fn integer(bytes: &[u8]) -> Option<i64> {
    if bytes.len() > INTEGER_BYTES_MAX {
        return None;
    }
    let (is_negative, digits) = match bytes.split_first()? {
        (b'-', digits) => (true, digits),
        _ => (false, bytes),
    };
    let (&first, rest) = digits.split_first()?;
    if first == b'0' && rest.is_empty() && !is_negative {
        return Some(0);
    }
    if !matches!(first, b'1'..=b'9') {
        return None;
    }
    let mut value = u64::from(first - b'0');
    for &byte in rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    if is_negative { 0_i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}
