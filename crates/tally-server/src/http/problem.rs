//! Every error a client can get, as `application/problem+json` (RFC 9457).
//!
//! The slugs in `type` are part of the API and never renamed. A handler returns a [`Problem`]; the server adds the path
//! of the request as `instance`.

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

/// Declares the kinds of problems: slug, status, title, meaning, and what to do next.
macro_rules! kinds {
    ($($kind:ident = $slug:literal, $status:ident, $title:literal, $meaning:literal, $next:literal;)*) => {
        /// A kind of problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $(#[doc = $title] $kind,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// The `type` of the problem.
            pub fn uri(self) -> &'static str {
                match self { $(Kind::$kind => concat!("/problems/", $slug),)* }
            }

            /// A short summary.
            pub fn title(self) -> &'static str {
                match self { $(Kind::$kind => $title,)* }
            }

            /// The HTTP status.
            pub fn status(self) -> StatusCode {
                match self { $(Kind::$kind => StatusCode::$status,)* }
            }

            /// What happened.
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
    InvalidKey = "invalid-key", BAD_REQUEST, "The key is invalid",
        "A key is 1 to 512 bytes long. Over HTTP it must be UTF-8 with valid percent-encoding.",
        "Correct the key; in a path write `/` as `%2F` and `%` as `%25`.";
    InvalidJson = "invalid-json", BAD_REQUEST, "The body is not JSON",
        "The body could not be parsed; `detail` says where the error is.",
        "Send one JSON object, such as `{\"amount\":5}`.";
    InvalidField = "invalid-field", BAD_REQUEST, "A field has an invalid value",
        "A field has the wrong type or a value outside its range; `detail` names it.",
        "Correct the field; integers are written without quotes, fraction or exponent.";
    MissingField = "missing-field", BAD_REQUEST, "A field is missing",
        "The call needs a field that the body does not have; `detail` names it.",
        "Add the field.";
    UnknownField = "unknown-field", BAD_REQUEST, "The body has an unknown field",
        "Unknown fields are refused, because ignoring them would hide mistakes.",
        "Correct the name, or leave the field out; `/docs` lists the fields.";
    UnsupportedField = "unsupported-field", BAD_REQUEST, "The field is not supported yet",
        "The field is reserved for a later version.",
        "Leave it out.";
    InvalidAmount = "invalid-amount", BAD_REQUEST, "The amount is invalid",
        "An amount is an integer from 1 to 9223372036854775807. A `delta` is any 64-bit integer except 0.",
        "Send a positive amount to `increment` or `decrement`.";
    InvalidReason = "invalid-reason", BAD_REQUEST, "A correction needs a reason",
        "Each correction is recorded in the ledger with a reason of 1 to 1024 bytes.",
        "Give a `reason`.";
    InvalidRequestId = "invalid-request-id", BAD_REQUEST, "The request id is invalid",
        "A request id is 1 to 255 bytes long and may be given only once. A batch does not accept it as a header.",
        "Correct it; in a batch, give each item its own `request_id`.";
    RequestIdConflict = "request-id-conflict", BAD_REQUEST, "Header and body have different request ids",
        "`Idempotency-Key` and `request_id` mean the same, so they must be equal.",
        "Send only one of them.";
    InvalidParameter = "invalid-parameter", BAD_REQUEST, "A query parameter has an invalid value",
        "`detail` names the parameter and the values allowed.",
        "Correct the parameter.";
    UnknownParameter = "unknown-parameter", BAD_REQUEST, "The query parameter is unknown",
        "Unknown parameters are refused, because ignoring them would hide mistakes.",
        "Correct the name, or leave the parameter out.";
    InvalidCursor = "invalid-cursor", BAD_REQUEST, "The cursor is invalid",
        "A cursor is the `next_cursor` of the previous page.",
        "Send `next_cursor` unchanged, or leave `cursor` out to start over.";
    UnexpectedBody = "unexpected-body", BAD_REQUEST, "The call takes no body",
        "A body is refused, because ignoring it would hide a mistake.",
        "Leave the body out; a deletion takes its reason as `?reason=`.";
    UnreadableBody = "unreadable-body", BAD_REQUEST, "The body is incomplete",
        "The connection ended, or the body does not match its headers.",
        "Send the request again, with the same request id if it has one.";
    BatchEmpty = "batch-empty", BAD_REQUEST, "The batch has no items",
        "A batch has 1 to 10000 items, an import 1 to 1000.",
        "Send at least one item.";
    BatchTooLarge = "batch-too-large", PAYLOAD_TOO_LARGE, "The batch has too many items",
        "A batch has 1 to 10000 items, an import 1 to 1000. None was applied.",
        "Send several batches.";
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, "The body is too large",
        "A batch or an import takes 16 MiB, any other call 16 KiB.",
        "Send less in one request.";
    BodyTimeout = "body-timeout", REQUEST_TIMEOUT, "The body took too long to arrive",
        "A body must arrive within 30 seconds. Nothing changed.",
        "Send the request again.";
    NotFound = "not-found", NOT_FOUND, "There is no such path",
        "No call has this path.",
        "See `/docs` for every call; a `/` in a key is `%2F`.";
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, "The path does not support this method",
        "The path exists, but not with this method.",
        "Use a method from the `Allow` header.";
    MalformedRequest = "malformed-request", BAD_REQUEST, "The request is not valid HTTP",
        "The request line or a header could not be parsed, or the length of the body is contradictory. Nothing changed, \
         and the connection is closed.",
        "Correct the request; percent-encode spaces and control characters in the URL.";
    HeadTooLarge = "head-too-large", REQUEST_HEADER_FIELDS_TOO_LARGE, "The request line and headers are too large",
        "Request line and headers together have at most 16384 bytes and 100 headers. Nothing changed, and the \
         connection is closed.",
        "Send fewer or shorter headers, or read fewer counters in one call.";
    InvalidHost = "invalid-host", BAD_REQUEST, "The request does not have exactly one `Host`",
        "An HTTP/1.1 request has exactly one `Host` header. Nothing changed.",
        "Send `Host` once.";
    MisdirectedHost = "misdirected-host", MISDIRECTED_REQUEST, "The request was sent to a host that is not this server",
        "On a loopback address the server answers only to its machine's own names and to allowed hosts, as a protection \
         against DNS rebinding. Nothing changed.",
        "Call it as `localhost` or `127.0.0.1`, or start it with `--allowed-host` and the name.";
    CrossOrigin = "cross-origin", FORBIDDEN, "A page from another origin cannot change counters",
        "The `Origin` header names a page that is not this server's own. Nothing changed.",
        "Call Tally from your own server, or serve the page from the same host and port.";
    IdempotencyMismatch = "idempotency-mismatch", UNPROCESSABLE_ENTITY, "The request id was used for something else",
        "A request id belongs to one request. This one was used before in the namespace for another key, call, amount, \
         bound, expected value or reason. Nothing changed.",
        "Use a new id for a new request; to retry the old one, send it unchanged.";
    Overflow = "overflow", CONFLICT, "The value would leave the range of a 64-bit integer",
        "Values are between -9223372036854775808 and 9223372036854775807. Nothing changed; `value` is the current value.",
        "Use a smaller amount, or correct the counter first.";
    ConsistencyTooWeak = "consistency-too-weak", CONFLICT, "The namespace's consistency is too weak for the call",
        "In a cluster, a `best-effort` namespace counts in sub-counters and does not know the value. Bounds, conditions, \
         `adjust` and transactions need it. Nothing changed.",
        "Give the namespace the consistency `eventual` or a stronger one.";
    Bound = "bound", CONFLICT, "The value would cross its floor or ceiling",
        "The change would have crossed the bound it was sent with. Nothing changed; `value` is the current value.",
        "Use a smaller amount, or send `\"on_bound\":\"saturate\"` to apply the part that fits. The refusal is remembered with \
         its request id: use a new one to try again.";
    UnexpectedValue = "unexpected-value", CONFLICT, "The counter does not have the expected value",
        "The value is not the expected one, usually because it changed after you read it. Nothing changed; `value` is the current value.",
        "Check `value`, and retry with it as `expected` and a new request id.";
    InvalidItem = "invalid-item", BAD_REQUEST, "The item does not come from an export",
        "An item must be as `/export` returned it, or a line of an export file; `detail` says what is wrong.",
        "Send items unchanged.";
    ImportConflict = "import-conflict", CONFLICT, "The counter exists with different content",
        "An import does not overwrite a counter unless `replace` is set. Nothing changed.",
        "Check which one is right. To replace the one here, import it again with `replace`.";
    LedgerDiffers = "ledger-differs", CONFLICT, "The counter has a different ledger here",
        "A ledger is extended, never rewritten, even with `replace`. The ledger here must be the beginning of the imported \
         one. Nothing changed.",
        "Import into a server without the counter's ledger, or use another key.";
    TooManyConnections = "too-many-connections", SERVICE_UNAVAILABLE, "Too many connections are open",
        "The limit depends on the file descriptors of the server and is at most 16384 per protocol. Nothing changed.",
        "Close or reuse connections, or raise the server's `ulimit -n`.";
    Overloaded = "overloaded", SERVICE_UNAVAILABLE, "The server is overloaded",
        "Nothing changed.",
        "Retry after the number of seconds in `Retry-After`.";
    Recovering = "recovering", SERVICE_UNAVAILABLE, "The server is starting",
        "After a start the server first replays its journal, or connects to the services of its cluster. Nothing changed.",
        "Retry after the number of seconds in `Retry-After`; `/readyz` says when it is ready.";
    Closing = "closing", SERVICE_UNAVAILABLE, "The server is shutting down",
        "Nothing changed.",
        "Retry when it is back.";
    Poisoned = "poisoned", SERVICE_UNAVAILABLE, "The server stopped because its disk cannot be trusted",
        "A flush failed or stored data is damaged, so nothing more is acknowledged. Nothing changed.",
        "Check the disk and run `tally check` on the data directory. Restart the server only if it finds no damage.";
    OutcomeUnknown = "outcome-unknown", SERVICE_UNAVAILABLE, "The outcome is unknown",
        "The disk or a part of the cluster failed during the change, which may or may not have been made.",
        "Retry with the same request id; without one it may count twice.";
    Unavailable = "unavailable", SERVICE_UNAVAILABLE, "A service that Tally needs does not respond",
        "A part of the cluster cannot be reached, or its queue is full. Nothing changed.",
        "Retry after the number of seconds in `Retry-After`.";
    TooStale = "too-stale", SERVICE_UNAVAILABLE, "No reading is fresh enough",
        "The server has not reached the write that `token` names, or has no reading as fresh as `max_staleness_ms` demands.",
        "Retry after the number of seconds in `Retry-After`, or accept an older reading.";
    NoDataDirectory = "no-data-directory", NOT_IMPLEMENTED, "The server has no data directory",
        "The server is a node of a cluster, whose data is in Kafka and PostgreSQL.",
        "Back up PostgreSQL, as `docs/cluster-operations.md` describes.";
    DiskFull = "disk-full", INSUFFICIENT_STORAGE, "The disk is full",
        "Writes are refused; reads still work. Nothing changed.",
        "Free some space; writes then work again without a restart.";
    Unreadable = "unreadable", INTERNAL_SERVER_ERROR, "Stored data could not be read",
        "A file in the data directory is damaged or cannot be read. Nothing changed.",
        "Stop the server and run `tally check` on the data directory.";
    Internal = "internal", INTERNAL_SERVER_ERROR, "The server failed",
        "This is a bug. Nothing changed.",
        "Report it, with the log around that time.";
}

/// A problem, without the path of its request.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Its kind.
    pub kind: Kind,
    detail: Cow<'static, str>,
    value: Option<i64>,
    duplicate: bool,
    retry_after_s: Option<u32>,
}

/// An error: what is wrong, and what to do.
#[derive(Serialize, ToSchema)]
pub struct ProblemJson<'a> {
    /// A stable name for the kind of problem.
    #[schema(example = "/problems/bound")]
    r#type: &'a str,
    /// A short summary of the type.
    #[schema(example = "The value would cross its floor or ceiling")]
    title: &'a str,
    /// The HTTP status.
    #[schema(example = 409, minimum = 400, maximum = 599)]
    status: u16,
    /// What is wrong with this request, and what to do.
    #[schema(example = "the counter holds 98; adding 5 would cross its ceiling of 100")]
    detail: &'a str,
    /// The path of the request; absent for an item of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "/api/v1/counters/likes:post:42/increment")]
    instance: Option<&'a str>,
    /// The current value, if it is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 98)]
    value: Option<i64>,
    /// `none`: nothing changed. `unknown`: the change may or may not survive; retry with the same request id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    outcome: Option<&'static str>,
    /// `true` if the request id was used before; this repeats the first response.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    duplicate: Option<bool>,
}

/// Appended to the detail of a replayed refusal.
const REFUSED_BEFORE: &str =
    ". This request id was refused before and gets the same answer again; use a new id to try again";

/// The parts of a write that the message of a refusal needs.
#[derive(Clone, Copy)]
pub struct RequestedChange {
    delta: i64,
    bounds: Option<Bounds>,
    expected: Option<i64>,
}

impl RequestedChange {
    /// A plain add.
    pub fn add(delta: i64) -> Self {
        RequestedChange { delta, bounds: None, expected: None }
    }

    /// The parts of an intent.
    pub fn of(intent: &Intent) -> Self {
        let (delta, expected) = match &intent.change {
            Change::Add(delta) => (*delta, None),
            Change::Set { when: Condition::Equals(expected), .. } => (0, Some(*expected)),
            _ => (0, None),
        };
        RequestedChange { delta, bounds: intent.details.as_ref().and_then(|details| details.bounds), expected }
    }

    /// The bound that the change would cross from `value`. A bound only stops movement towards it, so the sign decides.
    fn crossing(&self, value: i64) -> String {
        let amount = self.delta.unsigned_abs();
        match self.bounds {
            Some(Bounds { floor: Some(floor), .. }) if self.delta < 0 && value < floor => {
                format!("that is below its floor of {floor} already, so nothing can be subtracted")
            }
            Some(Bounds { floor: Some(floor), .. }) if self.delta < 0 => {
                format!("subtracting {amount} would cross its floor of {floor}")
            }
            Some(Bounds { ceiling: Some(ceiling), .. }) if self.delta > 0 && value > ceiling => {
                format!("that is above its ceiling of {ceiling} already, so nothing can be added")
            }
            Some(Bounds { ceiling: Some(ceiling), .. }) if self.delta > 0 => {
                format!("adding {amount} would cross its ceiling of {ceiling}")
            }
            _ => "the change would cross its floor or ceiling".to_owned(),
        }
    }
}

impl Problem {
    /// A problem; `detail` says what is wrong and what to do.
    pub fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Problem { kind, detail: detail.into(), value: None, duplicate: false, retry_after_s: None }
    }

    /// The server is overloaded; a retry soon may work.
    pub fn overloaded(detail: &'static str) -> Self {
        Problem::new(Kind::Overloaded, detail).retry_after_s(1)
    }

    /// The same problem, with the current value if that is the reason.
    pub fn with_value(self, value: Option<i64>) -> Self {
        Problem { value, ..self }
    }

    fn retry_after_s(self, seconds: u32) -> Self {
        Problem { retry_after_s: Some(seconds), ..self }
    }

    /// The refusal in an outcome, if there is one.
    pub fn of_outcome(outcome: &Outcome, requested: &RequestedChange) -> Option<Problem> {
        let value = outcome.value;
        let (kind, detail) = match outcome.refusal? {
            Refusal::Overflow => (
                Kind::Overflow,
                format!("the counter holds {value}; the change would leave the range of a 64-bit integer"),
            ),
            Refusal::Bound => (Kind::Bound, format!("the counter holds {value}; {}", requested.crossing(value))),
            Refusal::NotExpected => {
                let expected = requested.expected.map_or_else(String::new, |expected| format!(" {expected}"));
                (Kind::UnexpectedValue, format!("the counter holds {value}, not the expected value{expected}"))
            }
            Refusal::PayloadMismatch => {
                let detail = "this request id was used before in this namespace, for another key, call, amount, \
                    bound, expected value or reason; use a new id for a new request";
                return Some(Problem::new(Kind::IdempotencyMismatch, detail));
            }
            Refusal::BestEffort => {
                return Some(Problem::new(Kind::ConsistencyTooWeak, Refusal::BEST_EFFORT_TEXT));
            }
            Refusal::LedgerDiffers => (Kind::LedgerDiffers, "the counter has a different ledger here".to_owned()),
            Refusal::NoRoom => return Some(Problem::from(Failure::Engine(EngineError::DiskFull))),
        };
        let detail = if outcome.is_duplicate() { detail + REFUSED_BEFORE } else { detail };
        Some(Problem { value: Some(value), duplicate: outcome.is_duplicate(), ..Problem::new(kind, detail) })
    }

    /// The problem as clients see it.
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

    /// The problem without the path of a request, as a line of JSON.
    pub fn to_line(&self) -> String {
        serde_json::to_string(&self.json(None)).unwrap_or_default() + "\n"
    }

    /// What is wrong with the request.
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

/// Carries the problem to the server, which renders it with the path of the request.
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
            Failure::Engine(EngineError::Unavailable(_)) => Problem::new(Kind::Unavailable, detail).retry_after_s(1),
            Failure::Engine(EngineError::Unreadable(_)) => Problem::new(Kind::Unreadable, detail),
            Failure::Engine(EngineError::TooLarge) => Problem::new(Kind::BodyTooLarge, detail),
            Failure::Engine(EngineError::TooStale(_)) => Problem::new(Kind::TooStale, detail).retry_after_s(1),
            Failure::Engine(EngineError::OutcomeUnknown(_)) => {
                let advice = "; with a request id, sending the same request again is safe";
                Problem::new(Kind::OutcomeUnknown, detail + advice).retry_after_s(1)
            }
        }
    }
}
