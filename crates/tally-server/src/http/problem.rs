//! Problems: every error a caller can see, as RFC 9457 `application/problem+json`.
//!
//! The slugs in `type` are part of the API: they are never renamed. A handler returns a [`Problem`]; the outermost
//! layer knows the request's path and writes it out as `instance`.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tally_core::event::{Bounds, Change, Condition};
use tally_core::outcome::{Outcome, Refusal};
use tally_core::surface::EngineError;
use utoipa::ToSchema;

use crate::admission::Denied;
use crate::service::{Failure, Intent};

use super::answer::IDEMPOTENT_REPLAYED;

/// Declares every kind of problem with its slug, status and title, what it means and what to do next.
macro_rules! kinds {
    ($($kind:ident = $slug:literal, $status:ident, $title:literal, $meaning:literal, $next:literal;)*) => {
        /// What kind of problem it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $(#[doc = $title] $kind,)* }

        impl Kind {
            /// Every kind there is.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// The `type` of the problem.
            pub fn uri(self) -> &'static str {
                match self { $(Kind::$kind => concat!("/problems/", $slug),)* }
            }

            /// What it means, in a few words.
            pub fn title(self) -> &'static str {
                match self { $(Kind::$kind => $title,)* }
            }

            /// The status it is answered with.
            pub fn status(self) -> StatusCode {
                match self { $(Kind::$kind => StatusCode::$status,)* }
            }

            /// What it means, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Kind::$kind => $meaning,)* }
            }

            /// What to do about it.
            pub fn next(self) -> &'static str {
                match self { $(Kind::$kind => $next,)* }
            }
        }
    };
}

kinds! {
    InvalidKey = "invalid-key", BAD_REQUEST, "The key cannot name a counter",
        "A key has 1 to 512 bytes and, over HTTP, is UTF-8 with its percent-encoding intact.",
        "Correct the key; in a path write `/` as `%2F` and `%` as `%25`.";
    InvalidJson = "invalid-json", BAD_REQUEST, "The body is not JSON",
        "The body could not be parsed; `detail` says where it stops being JSON.",
        "Send one JSON object, such as `{\"amount\":5}`.";
    InvalidField = "invalid-field", BAD_REQUEST, "A field has a value it cannot have",
        "A field has the wrong type or a value outside its range; `detail` names it.",
        "Correct the field; integers are written without quotes, fraction or exponent.";
    MissingField = "missing-field", BAD_REQUEST, "A field is missing",
        "The call needs a field that the body does not have; `detail` names it.",
        "Add the field.";
    UnknownField = "unknown-field", BAD_REQUEST, "The body has a field this call does not take",
        "A field that did nothing would look as if it did, so it is refused.",
        "Correct the name, or leave the field out; `/docs` lists those there are.";
    UnsupportedField = "unsupported-field", BAD_REQUEST, "The field is not supported yet",
        "The field is reserved for a later version.",
        "Leave it out.";
    InvalidAmount = "invalid-amount", BAD_REQUEST, "The amount cannot be counted",
        "An amount is an integer from 1 to 9223372036854775807; the call says which way. A `delta` is any but 0.",
        "Send a positive amount to `increment` or `decrement`.";
    InvalidReason = "invalid-reason", BAD_REQUEST, "A correction needs a reason",
        "Each correction is kept in the counter's ledger with a reason of 1 to 1024 bytes.",
        "Say why in `reason`.";
    InvalidRequestId = "invalid-request-id", BAD_REQUEST, "The request id cannot be used",
        "A request id has 1 to 255 bytes, is given once, and stands in a place the call reads.",
        "Correct it; a batch takes one `request_id` for each item.";
    RequestIdConflict = "request-id-conflict", BAD_REQUEST, "Header and body name different request ids",
        "`Idempotency-Key` and `request_id` are two places for the same thing.",
        "Send one of them, or both the same.";
    InvalidParameter = "invalid-parameter", BAD_REQUEST, "A query parameter has a value it cannot have",
        "`detail` names the parameter and what it may be.",
        "Correct the parameter.";
    UnknownParameter = "unknown-parameter", BAD_REQUEST, "The call does not take this query parameter",
        "A parameter that did nothing would look as if it did, so it is refused.",
        "Correct the name, or leave the parameter out.";
    InvalidCursor = "invalid-cursor", BAD_REQUEST, "The cursor was not handed out by this call",
        "A cursor is what the page before said in `next_cursor`.",
        "Send `next_cursor` as it is, or leave `cursor` out to begin again.";
    UnexpectedBody = "unexpected-body", BAD_REQUEST, "The call takes no body",
        "A body that did nothing would look as if it did, so it is refused.",
        "Leave the body out; a deletion takes its reason as `?reason=`.";
    UnreadableBody = "unreadable-body", BAD_REQUEST, "The body did not arrive",
        "The connection broke, or the body was not sent as its headers say.",
        "Send the request again, under the same request id if it has one.";
    BatchEmpty = "batch-empty", BAD_REQUEST, "The batch has no items",
        "A batch has 1 to 10000 items.",
        "Put at least one item into `increments`.";
    BatchTooLarge = "batch-too-large", PAYLOAD_TOO_LARGE, "The batch has too many items",
        "A batch has 1 to 10000 items. None of these was applied.",
        "Send several batches.";
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, "The body is too large",
        "A call about one counter takes 16 KiB, a batch 16 MiB.",
        "Send less, or in parts.";
    BodyTimeout = "body-timeout", REQUEST_TIMEOUT, "The body took too long to arrive",
        "A body must arrive within 30 seconds. Nothing changed.",
        "Send the request again.";
    NotFound = "not-found", NOT_FOUND, "There is nothing at this address",
        "No call has this path.",
        "See `/docs` for the calls there are; a `/` in a key is `%2F`.";
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, "The address does not take this method",
        "The path is right and the method is not.",
        "Use a method that the `Allow` header names.";
    MisdirectedHost = "misdirected-host", MISDIRECTED_REQUEST, "The request was sent to a host that is not this server",
        "On a loopback address the server answers to names of its own machine and to those it is told of, so that no \
         page can reach it by renaming it. Nothing changed.",
        "Call it as `localhost` or `127.0.0.1`, or start it with `--allowed-host` and the name.";
    CrossOrigin = "cross-origin", FORBIDDEN, "A page of another origin may not change counters",
        "A browser says in `Origin` which page sent the request, and it is none of this server's. Nothing changed.",
        "Call Tally from your own server, or serve the page from the same host and port.";
    IdempotencyMismatch = "idempotency-mismatch", UNPROCESSABLE_ENTITY, "The request id was used for something else",
        "A request id belongs to one request: in its namespace it was used before for another key, call, \
         amount, bound, expected value or reason. Nothing changed.",
        "Use a new id for a new request; to repeat the old one, send it exactly as before.";
    Overflow = "overflow", CONFLICT, "The value would leave the range of a 64-bit integer",
        "A value lies between -9223372036854775808 and 9223372036854775807. Nothing changed; `value` is what stands.",
        "Count less, or correct the counter first.";
    Bound = "bound", CONFLICT, "The value would cross its floor or ceiling",
        "The change named a bound and would have crossed it. Nothing changed; `value` is what stands.",
        "Ask for less, or send `\"on_bound\":\"saturate\"` to take the part that fits. Under a request id \
         the refusal is remembered: use a new id to try again.";
    UnexpectedValue = "unexpected-value", CONFLICT, "The counter does not hold the expected value",
        "Somebody else changed the counter since it was read. Nothing changed; `value` is what stands.",
        "Look at `value`, decide again, and send it as `expected`, under a new request id.";
    TooManyConnections = "too-many-connections", SERVICE_UNAVAILABLE, "Too many connections are open",
        "The server keeps as many connections as its file descriptors allow, at most 16384 of each protocol. \
         Nothing changed.",
        "Close some, or reuse them; raise `ulimit -n` of the server.";
    Overloaded = "overloaded", SERVICE_UNAVAILABLE, "The server has too much to do",
        "Nothing changed.",
        "Try again after the seconds in `Retry-After`.";
    Recovering = "recovering", SERVICE_UNAVAILABLE, "The server is replaying its journal",
        "After a start the server first recovers what was acknowledged. Nothing changed.",
        "Try again after the seconds in `Retry-After`; `/readyz` says when it is done.";
    Closing = "closing", SERVICE_UNAVAILABLE, "The server is shutting down",
        "Nothing changed.",
        "Try again once it is back.";
    Poisoned = "poisoned", SERVICE_UNAVAILABLE, "The server stopped since its disk cannot be trusted",
        "A flush failed or stored data was found damaged, and nothing is acknowledged on such a disk. Nothing changed.",
        "Look after the disk, run `tally check` on the data directory, and restart the server.";
    OutcomeUnknown = "outcome-unknown", SERVICE_UNAVAILABLE, "Whether the change was made is not known",
        "The change was under way when the disk failed: it may or may not survive.",
        "Send the request again under the same request id; without one it may count twice.";
    DiskFull = "disk-full", INSUFFICIENT_STORAGE, "There is no room on the disk",
        "Writes are refused before they happen, and reads go on. Nothing changed.",
        "Make room; writes are taken again by themselves.";
    Unreadable = "unreadable", INTERNAL_SERVER_ERROR, "Stored data could not be read",
        "A file of the data directory is damaged or cannot be read. Nothing changed.",
        "Stop the server and run `tally check` on its data directory.";
    Internal = "internal", INTERNAL_SERVER_ERROR, "The server failed",
        "This should not happen. Nothing changed.",
        "Report it, with the log around that time.";
}

/// One problem, before it knows where it happened.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What kind it is.
    pub kind: Kind,
    detail: Cow<'static, str>,
    value: Option<i64>,
    duplicate: bool,
    retry_after_s: Option<u32>,
}

/// A problem as callers see it.
#[derive(Serialize, ToSchema)]
pub struct ProblemJson<'a> {
    /// A stable name for the kind of problem.
    #[schema(example = "/problems/invalid-amount")]
    r#type: &'a str,
    /// What the kind means, in a few words.
    title: &'a str,
    /// The HTTP status.
    #[schema(example = 400)]
    status: u16,
    /// What is wrong here, and what to do about it.
    detail: &'a str,
    /// The path of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    /// The current value, when it is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<i64>,
    /// `none`: nothing changed. `unknown`: the change may or may not survive; retry with the same request id.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    /// Whether this is the first answer to the request id again.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
}

/// What a refusal that is repeated says besides.
const REFUSED_BEFORE: &str =
    ". This request id was refused before; the first answer is repeated; use a new id to try again";

/// What a write asked for, as far as its refusal has to say.
#[derive(Clone, Copy)]
pub struct Asked {
    delta: i64,
    bounds: Option<Bounds>,
    expected: Option<i64>,
}

impl Asked {
    /// What an intent asks for.
    pub fn of(intent: &Intent) -> Self {
        let (delta, expected) = match &intent.change {
            Change::Add(delta) => (*delta, None),
            Change::Set { when: Condition::Equals(expected), .. } => (0, Some(*expected)),
            _ => (0, None),
        };
        Asked { delta, bounds: intent.details.as_ref().and_then(|details| details.bounds), expected }
    }

    /// Which bound the change would cross, from `value`. A bound stops movement towards it alone, so the direction says
    /// which.
    fn crossing(&self, value: i64) -> String {
        let amount = self.delta.unsigned_abs();
        match self.bounds {
            Some(Bounds { floor: Some(floor), .. }) if self.delta < 0 && value < floor => {
                format!("that is below its floor of {floor} already, and nothing can be taken away")
            }
            Some(Bounds { floor: Some(floor), .. }) if self.delta < 0 => {
                format!("taking away {amount} would cross its floor of {floor}")
            }
            Some(Bounds { ceiling: Some(ceiling), .. }) if self.delta > 0 && value > ceiling => {
                format!("that is above its ceiling of {ceiling} already, and nothing can be added")
            }
            Some(Bounds { ceiling: Some(ceiling), .. }) if self.delta > 0 => {
                format!("adding {amount} would cross its ceiling of {ceiling}")
            }
            _ => "the change would cross its floor or ceiling".to_owned(),
        }
    }
}

impl Problem {
    /// A problem with what is wrong and what to do about it.
    pub fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Problem { kind, detail: detail.into(), value: None, duplicate: false, retry_after_s: None }
    }

    /// Too much to do at the moment: nothing changed, and trying again soon may help.
    pub fn overloaded(detail: &'static str) -> Self {
        Problem::new(Kind::Overloaded, detail).retry_after_s(1)
    }

    fn retry_after_s(self, seconds: u32) -> Self {
        Problem { retry_after_s: Some(seconds), ..self }
    }

    /// The refusal an outcome carries, if it carries one.
    pub fn of_outcome(outcome: &Outcome, asked: &Asked) -> Option<Problem> {
        let value = outcome.value;
        let (kind, detail) = match outcome.refusal? {
            Refusal::Overflow => (
                Kind::Overflow,
                format!("the counter holds {value}; the change would leave the range of a 64-bit integer"),
            ),
            Refusal::Bound => (Kind::Bound, format!("the counter holds {value}; {}", asked.crossing(value))),
            Refusal::NotExpected => {
                let expected = asked.expected.map_or_else(|| "what".to_owned(), |expected| format!("{expected} as"));
                (Kind::UnexpectedValue, format!("the counter holds {value}, not {expected} `expected` says"))
            }
            Refusal::PayloadMismatch => {
                let detail = "this request id was used before in this namespace, for another key, call, amount, \
                    bound, expected value or reason; use a new id for a new request";
                return Some(Problem::new(Kind::IdempotencyMismatch, detail));
            }
        };
        let detail = if outcome.duplicate { detail + REFUSED_BEFORE } else { detail };
        Some(Problem { value: Some(value), duplicate: outcome.duplicate, ..Problem::new(kind, detail) })
    }

    /// The problem as callers see it.
    pub fn json<'a>(&'a self, instance: Option<&'a str>) -> ProblemJson<'a> {
        let outcome = match self.kind {
            Kind::OutcomeUnknown => Some("unknown"),
            kind if kind.status().is_server_error() => Some("none"),
            _ => None,
        };
        ProblemJson {
            r#type: self.kind.uri(),
            title: self.kind.title(),
            status: self.kind.status().as_u16(),
            detail: &self.detail,
            instance,
            value: self.value,
            outcome,
            duplicate: self.duplicate.then_some(true),
        }
    }

    /// What is wrong here.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The answer to a request for `path`.
    pub fn render(&self, path: &str) -> Response {
        let mut body = serde_json::to_vec(&self.json(Some(path))).unwrap_or_default();
        body.push(b'\n');
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.kind.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.duplicate {
            headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }
}

/// Carries the problem to the outermost layer, which renders it.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.kind.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let kind = match denied {
            Denied::Key(_) => Kind::InvalidKey,
            Denied::RequestId(_) => Kind::InvalidRequestId,
            Denied::Amount(_) | Denied::DeltaZero => Kind::InvalidAmount,
            Denied::ReasonEmpty | Denied::ReasonTooLong(_) => Kind::InvalidReason,
            Denied::BoundsCrossed { .. } | Denied::BoundMissing => Kind::InvalidField,
            Denied::BatchEmpty => Kind::BatchEmpty,
            Denied::BatchTooLarge(_) => Kind::BatchTooLarge,
            Denied::TooManyKeys(_) | Denied::Limit(_) => Kind::InvalidParameter,
        };
        Problem::new(kind, denied.to_string())
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let detail = failure.to_string();
        match failure {
            Failure::Recovering => Problem::new(Kind::Recovering, detail).retry_after_s(1),
            Failure::Engine(EngineError::DiskFull) => Problem::new(Kind::DiskFull, detail),
            Failure::Engine(EngineError::Poisoned(_)) => Problem::new(Kind::Poisoned, detail).retry_after_s(5),
            Failure::Engine(EngineError::Closing) => Problem::new(Kind::Closing, detail).retry_after_s(1),
            Failure::Engine(EngineError::Unreadable(_)) => Problem::new(Kind::Unreadable, detail),
            Failure::Engine(EngineError::OutcomeUnknown(_)) => {
                let advice = "; with a request id, sending the same request again is safe";
                Problem::new(Kind::OutcomeUnknown, detail + advice).retry_after_s(1)
            }
        }
    }
}
