//! Problems: every error a caller can see, as RFC 9457 `application/problem+json`.
//!
//! The slugs in `type` are part of the API: they are never renamed. A handler returns a [`Problem`]; the outermost
//! layer knows the request's path and writes it out as `instance`.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tally_core::outcome::{Outcome, Refusal};
use tally_core::surface::EngineError;
use utoipa::ToSchema;

use crate::admission::Denied;
use crate::service::Failure;

use super::answer::IDEMPOTENT_REPLAYED;

/// Declares every kind of problem with its slug, status and title.
macro_rules! kinds {
    ($($kind:ident = $slug:literal, $status:ident, $title:literal;)*) => {
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
        }
    };
}

kinds! {
    InvalidKey = "invalid-key", BAD_REQUEST, "The key cannot name a counter";
    InvalidJson = "invalid-json", BAD_REQUEST, "The body is not JSON";
    InvalidField = "invalid-field", BAD_REQUEST, "A field has a value it cannot have";
    UnknownField = "unknown-field", BAD_REQUEST, "The body has a field this call does not take";
    UnsupportedField = "unsupported-field", BAD_REQUEST, "The field is not supported yet";
    InvalidAmount = "invalid-amount", BAD_REQUEST, "The amount cannot be counted";
    InvalidReason = "invalid-reason", BAD_REQUEST, "A correction needs a reason";
    InvalidRequestId = "invalid-request-id", BAD_REQUEST, "The request id cannot be used";
    RequestIdConflict = "request-id-conflict", BAD_REQUEST, "Header and body name different request ids";
    InvalidParameter = "invalid-parameter", BAD_REQUEST, "A query parameter has a value it cannot have";
    UnknownParameter = "unknown-parameter", BAD_REQUEST, "The call does not take this query parameter";
    InvalidCursor = "invalid-cursor", BAD_REQUEST, "The cursor was not handed out by this call";
    UnexpectedBody = "unexpected-body", BAD_REQUEST, "The call takes no body";
    UnreadableBody = "unreadable-body", BAD_REQUEST, "The body did not arrive";
    BatchEmpty = "batch-empty", BAD_REQUEST, "The batch has no items";
    BatchTooLarge = "batch-too-large", PAYLOAD_TOO_LARGE, "The batch has too many items";
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, "The body is too large";
    BodyTimeout = "body-timeout", REQUEST_TIMEOUT, "The body took too long to arrive";
    NotFound = "not-found", NOT_FOUND, "There is nothing at this address";
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, "The address does not take this method";
    IdempotencyMismatch = "idempotency-mismatch", UNPROCESSABLE_ENTITY, "The request id was used for something else";
    Overflow = "overflow", CONFLICT, "The value would leave the range of a 64-bit integer";
    Bound = "bound", CONFLICT, "The value would cross its floor or ceiling";
    UnexpectedValue = "unexpected-value", CONFLICT, "The counter does not hold the expected value";
    TooManyConnections = "too-many-connections", SERVICE_UNAVAILABLE, "Too many connections are open";
    Overloaded = "overloaded", SERVICE_UNAVAILABLE, "The server has too much to do";
    Recovering = "recovering", SERVICE_UNAVAILABLE, "The server is replaying its journal";
    Closing = "closing", SERVICE_UNAVAILABLE, "The server is shutting down";
    Poisoned = "poisoned", SERVICE_UNAVAILABLE, "The server stopped after a failed flush";
    OutcomeUnknown = "outcome-unknown", SERVICE_UNAVAILABLE, "Whether the change was made is not known";
    DiskFull = "disk-full", INSUFFICIENT_STORAGE, "There is no room on the disk";
    Unreadable = "unreadable", INTERNAL_SERVER_ERROR, "Stored data could not be read";
    Internal = "internal", INTERNAL_SERVER_ERROR, "The server failed";
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
    pub fn of_outcome(outcome: &Outcome) -> Option<Problem> {
        let value = outcome.value;
        let (kind, detail) = match outcome.refusal? {
            Refusal::Overflow => {
                (Kind::Overflow, format!("the counter holds {value}; the change would leave the range of i64"))
            }
            Refusal::Bound => {
                (Kind::Bound, format!("the counter holds {value}; the change would cross its floor or ceiling"))
            }
            Refusal::NotExpected => {
                (Kind::UnexpectedValue, format!("the counter holds {value}, not what `expected` says"))
            }
            Refusal::PayloadMismatch => (
                Kind::IdempotencyMismatch,
                "this request id was used before with another payload; use a new id for a new request".to_owned(),
            ),
        };
        let value = (kind != Kind::IdempotencyMismatch).then_some(value);
        Some(Problem { value, duplicate: outcome.duplicate, ..Problem::new(kind, detail) })
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
        let body = serde_json::to_vec(&self.json(Some(path))).unwrap_or_default();
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
