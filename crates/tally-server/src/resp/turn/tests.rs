//! A turn's replies go to the connection that sent the commands, even if something went wrong.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;

use tally_core::batch::Events;
use tally_core::event::{Change, Field};
use tally_core::key::KeyRef;
use tally_core::outcome::{Outcome, Reads, Receipt, Refusal, Token};
use tally_core::time::Millis;

use super::submit::Phases;
use super::*;
use crate::metrics::ProtocolMetrics;

/// Collects the replies of each connection.
#[derive(Default)]
struct Replies(RefCell<Vec<Vec<u8>>>);

impl ReplySink for Replies {
    fn answer(&self, connection: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let mut replies = self.0.borrow_mut();
        let len = replies.len().max(connection + 1);
        replies.resize(len, Vec::new());
        write(&mut replies[connection]);
    }
}

impl Replies {
    fn of(&self, connection: usize) -> String {
        String::from_utf8_lossy(&self.0.borrow()[connection]).into_owned()
    }
}

/// A turn to which each connection has added this many events and plans, all in one submission.
fn turn_of(connections: &[(usize, usize)]) -> Turn {
    let mut turn = Turn::default();
    let (events, consistency) = (Events::new(0), Consistency::Exact);
    turn.writes.push(TurnSubmission { events, consistency, continues: false });
    for (number, (events, plans)) in connections.iter().enumerate() {
        turn.begin(number, ProtocolVersion::V2);
        turn.take_from(OutcomeSource::Write(0));
        (0..*events).for_each(|_| turn.writes[0].events.add(KeyRef::new(b"a").unwrap(), 1));
        (0..*plans).for_each(|_| turn.plan(ReplyPlan::Value));
        turn.count(("incr", Verb::Increment), CommandStatus::Accepted, 1);
        turn.end();
    }
    turn
}

fn outcomes(count: i64) -> Vec<Outcome> {
    (1..=count).map(|value| Outcome { value, ..Outcome::EMPTY }).collect()
}

fn answered(turn: &Turn, outcomes: &[Outcome]) -> Replies {
    let replies = Replies::default();
    for share in &turn.shares {
        turn.answer(share, Ok(outcomes), &replies);
    }
    replies
}

#[test]
fn each_connection_gets_its_own_outcomes() {
    let turn = turn_of(&[(2, 2), (1, 1), (2, 2)]);
    let replies = answered(&turn, &outcomes(5));
    assert_eq!([0, 1, 2].map(|number| replies.of(number)), [":1\r\n:2\r\n", ":3\r\n", ":4\r\n:5\r\n"]);
}

#[test]
fn a_wrong_number_of_outcomes_is_an_error_only_for_its_own_share() {
    for planned in [1, 3] {
        let turn = turn_of(&[(1, 1), (2, planned), (1, 1)]);
        let replies = answered(&turn, &outcomes(4));
        assert_eq!((replies.of(0), replies.of(2)), (":1\r\n".into(), ":4\r\n".into()), "{planned} plans");
        let wrong = replies.of(1);
        assert_eq!(wrong.matches("-UNKNOWN ").count(), planned, "{wrong}");
        assert!(!wrong.contains(':') || wrong.lines().all(|line| line.starts_with("-UNKNOWN ")), "{wrong}");
    }
}

#[test]
fn missing_outcomes_are_never_filled_with_those_of_others() {
    let turn = turn_of(&[(2, 2), (2, 2)]);
    let replies = answered(&turn, &outcomes(3));
    assert_eq!(replies.of(0), ":1\r\n:2\r\n");
    assert_eq!(replies.of(1).matches("-UNKNOWN ").count(), 2);
}

#[test]
fn a_refusal_because_the_disk_is_full_is_an_error_only_for_its_own_command() {
    let turn = turn_of(&[(2, 2)]);
    let mut outcomes = outcomes(2);
    outcomes[0].refusal = Some(Refusal::NoRoom);
    let replies = answered(&turn, &outcomes).of(0);
    assert!(replies.starts_with("-MISCONF ") && replies.ends_with("\r\n:2\r\n"), "{replies}");
}

#[test]
fn replies_stay_in_order_when_an_earlier_read_waits_for_a_flush() {
    let mut turn = Turn::default();
    turn.reads.push(TurnSubmission { events: Events::new(0), consistency: Consistency::Exact, continues: false });
    for number in [0, 1] {
        turn.begin(number, ProtocolVersion::V2);
        turn.take_from(OutcomeSource::Read(0));
        let read = Change::Read(Field::Value);
        turn.reads[0].events.push(KeyRef::new(b"a").unwrap(), read, None, None);
        turn.plan(ReplyPlan::Text);
        // As after `HELLO 3`: a new share begins.
        turn.set_version(ProtocolVersion::V3);
        turn.reply(ProtocolVersion::V3, |reply| reply.ok());
        turn.end();
    }
    let receipt = Receipt { outcomes: outcomes(2), as_of: Millis(0), token: Token::default() };
    let reads = [Ok(Reads { receipt, unflushed: vec![0] })];
    let phases = Phases::of(&turn.shares, &reads);
    let connections = |shares: &[&Share]| shares.iter().map(|share| share.connection).collect::<Vec<_>>();
    assert_eq!(connections(&phases.waiting), [0, 0]);
    assert_eq!(connections(&phases.ready), [1, 1]);
}

#[test]
fn commands_are_in_the_metrics_before_their_replies_are_written() {
    struct Checks<'a>(&'a ProtocolMetrics, RefCell<Vec<u64>>);
    impl ReplySink for Checks<'_> {
        fn answer(&self, _: usize, _: impl FnOnce(&mut Vec<u8>)) {
            self.1.borrow_mut().push(self.0.count(Verb::Increment, CommandStatus::Accepted.http()));
        }
    }
    let metrics = ProtocolMetrics::new("resp");
    let sink = Checks(&metrics, RefCell::default());
    let turn = turn_of(&[(1, 1), (1, 1)]);
    let outcomes = outcomes(2);
    let shares: Vec<_> = turn.shares.iter().map(|share| (share, Ok(outcomes.as_slice()))).collect();
    turn.answer_all(&shares, &metrics, &sink);
    assert_eq!(*sink.1.borrow(), [2, 2]);
}
