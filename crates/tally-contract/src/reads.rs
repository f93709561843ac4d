//! Read-only submissions, and the freshness that a read may ask for.

use tally_core::consistency::Consistency;
use tally_core::event::Field;
use tally_core::outcome::Token;
use tally_core::surface::{Engine, EngineError, ReadOptions};
use tally_core::time::Position;

use crate::{Host, Running, Verdict, block_on};

/// A read-only submission creates no counter.
pub fn a_read_only_submission_sees_acknowledged_writes<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let running = Running::fresh(host)?;
    let written = running.call().add("n", 5).submit()??;
    let events =
        || running.call().read("n", Field::Value).read("none", Field::Value).read("n", Field::Expiry).into_events();
    let options = ReadOptions { at_least: Some(written.token.clone()), ..ReadOptions::new(Consistency::Exact) };
    let reads = block_on(running.engine().read_events(events()?, options.clone()))?;
    let shown: Vec<_> = reads.receipt.outcomes.iter().map(|outcome| (outcome.value, outcome.exists)).collect();
    assert_eq!(shown, [(5, true), (0, false), (-1, true)]);
    if !reads.unflushed.is_empty() {
        block_on(running.engine().durable(reads.receipt.token))?;
        assert!(block_on(running.engine().read_events(events()?, options))?.unflushed.is_empty());
    }
    block_on(running.engine().durable(written.token))?;
    assert_eq!(running.count()?, 1);
    Ok(())
}

/// A read never returns less than its token asks for.
pub fn a_read_with_a_token_from_the_future_is_refused<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let running = Running::fresh(host)?;
    let mut token = running.call().add("n", 5).submit()??.token;
    let read = |token: &Token| {
        let keys = vec![tally_core::key::Key::new("n")?];
        let options = ReadOptions { at_least: Some(token.clone()), ..ReadOptions::new(Consistency::Eventual) };
        Ok::<_, crate::Failure>(block_on(running.engine().read(keys, options)))
    };
    assert_eq!(read(&token)?.map(|readings| readings[0].value), Ok(5));
    let (partition, position) = token.positions().next().ok_or("a write has a token")?;
    token.merge(&Token::new(partition, Position(position.0 + (1 << 40))));
    assert!(matches!(read(&token)?, Err(EngineError::TooStale(_))));
    Ok(())
}
