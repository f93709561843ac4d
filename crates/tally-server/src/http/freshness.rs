//! How fresh a reading must be: `token` and `max_staleness_ms` of a query.

use tally_core::outcome::Token;

use super::address::Query;
use super::problem::{Kind, Problem};
use crate::hint::shorten;
use crate::service::{Freshness, Latest};

/// The parameters that every read of named counters takes.
pub const PARAMETERS: [&str; 2] = ["token", "max_staleness_ms"];

/// The freshness that a query asks for.
pub fn freshness(query: &Query<'_>, at: Latest) -> Result<Freshness, Problem> {
    let staleness_max_ms = query.number("max_staleness_ms", 0..=u64::MAX)?;
    let token = query.text("token")?.map(|text| parse_token(&text)).transpose()?;
    Ok(Freshness { at, token, staleness_max_ms })
}

fn parse_token(text: &str) -> Result<Token, Problem> {
    text.parse().map_err(|_| {
        let detail = format!("`token` is `{}`; it must be the `token` of a write, unchanged", shorten(text, 64));
        Problem::new(Kind::InvalidParameter, detail)
    })
}
