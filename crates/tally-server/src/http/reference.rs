//! What the description at `/openapi.json` says of calls alike: their parameters, and the problems they may meet.
//!
//! A handler names these in its `#[utoipa::path]`; what the attributes cannot express is set right in [`finish`].

use std::collections::BTreeMap;

use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Required, Response, ResponseBuilder};
use utoipa::{IntoParams, IntoResponses};

/// The counter a path names.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "only described: `address` reads the path")]
pub struct KeyInPath {
    /// The key: 1 to 512 bytes of UTF-8. Percent-encode whatever is not a letter, a digit or one of `-._~:`; a `/` in
    /// a key is `%2F`. What stands before the first `:` is its namespace.
    #[param(min_length = 1, max_length = 512, example = "likes:post:42")]
    key: String,
}

/// The request id a header names.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code, reason = "only described: `idempotency` reads the header")]
pub struct IdInHeader {
    /// Names the request, so that sending it again counts once: 1 to 255 bytes, quoted or bare. An id belongs to the
    /// namespace of the key; the same id for another key, call, amount,
    /// bound, expected value or reason there is refused with 422.
    #[param(rename = "Idempotency-Key", min_length = 1, nullable = false, example = "order-7731")]
    idempotency_key: Option<String>,
}

/// Which counters, and how many.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only described: `address` reads the query")]
pub struct ListingQuery {
    /// The counters to read, in this order: split at the commas as sent, so a comma within a key is `%2C`. Encoders
    /// that escape every comma send `key` instead. Goes with no other parameter.
    #[param(style = Form, nullable = false, min_items = 1, max_items = 1000,
        example = json!(["likes:post:42", "likes:post:43"]))]
    keys: Option<Vec<String>>,
    /// One counter to read, commas and all; give it once for each. Goes with no other parameter.
    #[param(style = Form, explode, nullable = false, min_items = 1, max_items = 1000,
        example = json!(["likes:post:42"]))]
    key: Option<Vec<String>>,
    /// Only keys that begin so.
    #[param(nullable = false, example = "likes:")]
    prefix: Option<String>,
    /// How many counters a page has; 100 when left out.
    #[param(nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u64>,
    /// `next_cursor` of the page before, as it is.
    #[param(nullable = false)]
    cursor: Option<String>,
}

/// Which part of a ledger.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only described: `address` reads the query")]
pub struct LedgerQuery {
    /// Only entries after the one with this number: `next` of the page before.
    #[param(nullable = false, minimum = 0)]
    after: Option<u64>,
    /// How many entries a page has; 100 when left out.
    #[param(nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u64>,
}

/// Why a counter is removed.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only described: `address` reads the query")]
pub struct DeleteQuery {
    /// Why, for the ledger. Optional: without it the entry says `deleted without a reason`.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    reason: Option<String>,
}

/// What a write that went well is answered with.
pub struct WriteAnswered;
/// What a write with a body may meet.
pub struct WriteProblems;
/// What a write that depends on the value that stands there may meet besides.
pub struct Conflict;
/// What a batch as a whole may meet.
pub struct BatchProblems;
/// What a deletion may meet.
pub struct DeleteProblems;
/// What a read may meet.
pub struct ReadProblems;

impl IntoResponses for WriteAnswered {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("WriteAnswer"))).build();
        let response = ResponseBuilder::new()
            .description("What became of it")
            .content("application/json", content)
            .header("Idempotent-Replayed", replayed());
        BTreeMap::from([("200".to_owned(), response.build().into())])
    }
}

impl IntoResponses for WriteProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[400, 403, 408, 413, 421, 422, 500, 503, 507])
    }
}

impl IntoResponses for Conflict {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[409])
    }
}

impl IntoResponses for BatchProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[400, 403, 408, 413, 421, 500, 503, 507])
    }
}

impl IntoResponses for DeleteProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[400, 403, 421, 422, 500, 503, 507])
    }
}

impl IntoResponses for ReadProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[400, 421, 500, 503])
    }
}

fn problems(statuses: &[u16]) -> BTreeMap<String, RefOr<Response>> {
    statuses.iter().map(|status| (status.to_string(), problem(*status).into())).collect()
}

fn problem(status: u16) -> Response {
    let schema = Ref::from_schema_name("ProblemJson");
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response = ResponseBuilder::new().description(meaning(status)).content("application/problem+json", content);
    match status {
        // Only what an event was refused for is remembered with its request id.
        409 => response.header("Idempotent-Replayed", replayed()).build(),
        _ => response.build(),
    }
}

/// Says that an answer is the first one again.
fn replayed() -> utoipa::openapi::Header {
    let mut header = utoipa::openapi::Header::default();
    header.description = Some("`true` when the request id was seen before and this is the first answer again".into());
    header
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request cannot be understood or asks for what cannot be; `detail` says which part. Nothing changed",
        403 => "A page of another origin sent the request. Nothing changed",
        408 => "The body took too long to arrive. Nothing changed",
        409 => {
            "The value that stands there does not allow it: a bound, the range of 64 bits, or `expected`. Nothing \
             changed, and `value` is the value that stands"
        }
        413 => "The body or the batch is too large. Nothing changed",
        421 => "The request was sent to a host that is not this server. Nothing changed",
        422 => {
            "The request id was used before for another key, call, amount, bound, expected value or reason. Nothing \
             changed"
        }
        500 => "Stored data could not be read, or the server failed. Nothing changed",
        503 => {
            "The server recovers, closes, has too much to do or stopped since its disk cannot be trusted. With \
             `outcome: none` nothing changed; with `outcome: unknown` the change may or may not survive: send it again \
             under the same request id. `Retry-After` says when"
        }
        507 => "The disk is full. Nothing changed, and reads go on",
        _ => "A problem",
    }
}

/// Sets right what the attributes cannot express.
pub fn finish(api: &mut OpenApi) {
    for operation in api.paths.paths.values_mut().flat_map(|item| [&mut item.get, &mut item.post]).flatten() {
        // Both count 1 when the body is empty.
        if let Some(RefOr::T(body)) = &mut operation.request_body
            && operation.operation_id.as_deref().is_some_and(|id| matches!(id, "increment" | "decrement"))
        {
            body.required = Some(Required::False);
        }
        if let Some(keys) = parameter(operation, "keys") {
            keys.explode = Some(false);
        }
    }
}

fn parameter<'a>(operation: &'a mut Operation, name: &str) -> Option<&'a mut Parameter> {
    operation.parameters.as_mut()?.iter_mut().find_map(|parameter| match parameter {
        RefOr::T(parameter) if parameter.name == name => Some(parameter),
        _ => None,
    })
}
