//! Numbers as the protocol writes them.

/// Digits that fit in every integer without a check.
const SHORT_DIGITS_MAX: usize = 9;
/// Digits and sign of the longest 64-bit integer.
const INTEGER_BYTES_MAX: usize = 20;

/// The number at `from` and where its line ends, if it is one to nine digits without a leading zero in a whole line.
/// Everything else, wrong or just unusual, is left to whoever reads the line.
#[inline]
pub fn short(input: &[u8], from: usize) -> Option<(usize, usize)> {
    let digits = input.get(from..)?;
    let mut value = 0;
    for (at, &byte) in digits.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let is_whole = byte == b'\r' && at > 0 && at + 1 < digits.len();
            return is_whole.then_some((value, from + at + 2));
        }
        if at == SHORT_DIGITS_MAX || (at == 0 && digit == 0) {
            return None;
        }
        value = value * 10 + usize::from(digit);
    }
    None
}

/// A whole 64-bit integer, the way Redis reads one: no blanks, no plus sign, no leading zeros, no `-0`.
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
