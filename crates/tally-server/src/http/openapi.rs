//! The OpenAPI description: what many calls have in common, and what `#[utoipa::path]` cannot express.
//!
//! JSON Schema counts the characters of a string, the server counts bytes. For ASCII both are the same; the
//! descriptions say "bytes".

use std::collections::BTreeMap;

use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::schema::{ArrayItems, KnownFormat, OneOfBuilder, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{ContentBuilder, Header, OpenApi, Ref, RefOr, Required, Response, ResponseBuilder, Schema};
use utoipa::{IntoParams, IntoResponses, Number};

use super::answer::WriteAnswer;
use super::problem::ProblemJson;

/// The head of the description.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tally",
        description = "A durable counter service. Integers are 64-bit: use a parser that does not round them. Keys are \
            percent-encoded in paths. Errors are `application/problem+json` (RFC 9457) with a stable `type`; \
            `/problems` lists them all. Any request may also get `malformed-request` (400), `invalid-host` (400) or \
            `head-too-large` (431).",
    ),
    // Named by the answers that are described here for many calls at once.
    components(schemas(ProblemJson, WriteAnswer)),
    tags(
        (name = "counters", description = "Count and read"),
        (name = "corrections", description = "Correct a value; every correction is recorded in the ledger"),
        (name = "operations", description = "Health, metrics and problem types"),
    ),
)]
pub struct ApiDescription;

/// The key in a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "only described: `address` reads the path")]
pub struct KeyInPath {
    /// The key: 1 to 512 bytes of UTF-8. Percent-encode everything except letters, digits and `-._~:`; a `/` in a key
    /// is `%2F`. The part before the first `:` is its namespace.
    #[param(min_length = 1, max_length = 512, example = "likes:post:42")]
    key: String,
}

/// The request id in a header.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code, reason = "only described: `idempotency` reads the header")]
pub struct IdInHeader {
    /// A request id of 1 to 255 bytes, quoted or bare: a retry with the same id counts once. Ids belong to the
    /// namespace of the key. Reusing one there for another key, call, amount, bound, expected value or reason is a 422.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 512,
        nullable = false,
        example = "order-7731",
        pattern = r#"^("([^"\\]|\\["\\]){1,255}"|[^"\s](.{0,253}\S)?)$"#
    )]
    idempotency_key: Option<String>,
}

/// Which counters, and how many.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only described: `address` reads the query")]
pub struct ListingQuery {
    /// The counters to read, in this order, separated by commas. A comma within a key is `%2C`. Clients that escape
    /// every comma send `key` instead. Cannot be combined with `key`, `prefix`, `limit` or `cursor`.
    #[param(style = Form, nullable = false, min_items = 1, max_items = 1000,
        example = json!(["likes:post:42", "likes:post:43"]))]
    keys: Option<Vec<String>>,
    /// One counter to read; repeat it for more. Cannot be combined with `keys`, `prefix`, `limit` or `cursor`.
    #[param(style = Form, explode, nullable = false, min_items = 1, max_items = 1000,
        example = json!(["likes:post:42"]))]
    key: Option<Vec<String>>,
    /// Only keys with this prefix.
    #[param(nullable = false, example = "likes:")]
    prefix: Option<String>,
    /// Counters per page; 100 by default.
    #[param(nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u64>,
    /// `next_cursor` of the previous page.
    #[param(nullable = false, max_length = 1024, pattern = "^([0-9A-Fa-f]{2}){1,512}$")]
    cursor: Option<String>,
}

/// How fresh a reading must be.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only described: `freshness` reads the query")]
pub struct FreshnessQuery {
    /// The `token` of a write: the reading includes that write, or the call is answered 503.
    #[param(nullable = false, min_length = 1, example = "50")]
    token: Option<String>,
    /// The most milliseconds by which the reading may be behind. If none is that fresh, the call is answered 503.
    #[param(nullable = false, minimum = 0)]
    max_staleness_ms: Option<u64>,
}

/// Which part of a ledger.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only described: `address` reads the query")]
pub struct LedgerQuery {
    /// Only entries after this number: `next` of the previous page.
    #[param(nullable = false, minimum = 0)]
    after: Option<u64>,
    /// Entries per page; 100 by default.
    #[param(nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u64>,
}

/// Which part of an export.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only described: `address` reads the query")]
pub struct ExportQuery {
    /// `next_cursor` of the previous page.
    #[param(
        nullable = false,
        max_length = 1050,
        pattern = "^(k([0-9a-f]{2}){1,512}(-[0-9]{1,19})?|r[0-9]{1,5}(-[0-9a-f]{32})?)$"
    )]
    cursor: Option<String>,
    /// Most counters of a page; 100 by default. Pages with long ledgers have fewer.
    #[param(nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u64>,
}

/// Why a counter is removed.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only described: `address` reads the query")]
pub struct DeleteQuery {
    /// The reason, for the ledger: 1 to 1024 bytes. Without one the entry says `deleted without a reason`.
    #[param(nullable = false, min_length = 1, max_length = 1024)]
    reason: Option<String>,
}

/// The answer to a successful write.
pub struct WriteAnswered;
/// The problems of a write with a body.
pub struct WriteProblems;
/// The problem of a write that depends on the current value.
pub struct Conflict;
/// The problems of a batch as a whole.
pub struct BatchProblems;
/// The problems of a deletion.
pub struct DeleteProblems;
/// The problems of a read.
pub struct ReadProblems;

impl IntoResponses for WriteAnswered {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("WriteAnswer"))).build();
        let response = ResponseBuilder::new()
            .description("The outcome")
            .content("application/json", content)
            .header("Idempotent-Replayed", replayed());
        BTreeMap::from([("200".to_owned(), response.build().into())])
    }
}

impl IntoResponses for WriteProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[400, 403, 408, 413, 421, 422, 431, 500, 503, 507])
    }
}

impl IntoResponses for Conflict {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[409])
    }
}

impl IntoResponses for BatchProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[400, 403, 408, 413, 421, 431, 500, 503, 507])
    }
}

impl IntoResponses for DeleteProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[400, 403, 421, 422, 431, 500, 503, 507])
    }
}

impl IntoResponses for ReadProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[400, 421, 431, 500, 503])
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
        // Only refusals by the state machine are remembered with the request id.
        409 => response.header("Idempotent-Replayed", replayed()).build(),
        _ => response.build(),
    }
}

/// The header of a replayed answer.
fn replayed() -> Header {
    let mut header = Header::default();
    header.description = Some("`true` if the request id was used before and this is the first answer again".into());
    header
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is invalid; `detail` names the part. Nothing changed",
        403 => "The request came from a page of another origin. Nothing changed",
        408 => "The body took too long to arrive. Nothing changed",
        409 => {
            "The current value does not allow the change: a bound, the range of 64 bits, or `expected`. Nothing changed; \
             `value` is the current value"
        }
        413 => "The body or the batch is too large. Nothing changed",
        421 => "The request was sent to a host that is not this server. Nothing changed",
        422 => {
            "The request id was used before for another key, call, amount, bound, expected value or reason. Nothing \
             changed"
        }
        431 => "Request line and headers have more than 16384 bytes or 100 headers. Nothing changed",
        500 => "Stored data could not be read, or the server failed. Nothing changed",
        503 => {
            "The server is recovering, closing, overloaded, or stopped because its disk cannot be trusted; or it has no \
             reading as fresh as `token` or `max_staleness_ms` asks for. With `outcome: none` nothing changed; with `outcome: unknown` the change may or may not survive: retry with the same \
             request id. `Retry-After` says when"
        }
        507 => "The disk is full. Nothing changed; reads still work",
        _ => "A problem",
    }
}

/// Adds what the attributes cannot express.
pub fn finish(api: &mut OpenApi) {
    for operation in api.paths.paths.values_mut().flat_map(|item| [&mut item.get, &mut item.post]).flatten() {
        // An empty body counts 1.
        if let Some(RefOr::T(body)) = &mut operation.request_body
            && operation.operation_id.as_deref().is_some_and(|id| matches!(id, "increment" | "decrement"))
        {
            body.required = Some(Required::False);
        }
        if let Some(keys) = parameter(operation, "keys") {
            keys.explode = Some(false);
        }
        for name in ["keys", "key"] {
            if let Some(keys) = parameter(operation, name) {
                bound_items(keys);
            }
        }
        for name in ["after", "max_staleness_ms"] {
            if let Some(schema) = parameter(operation, name).and_then(|integer| integer.schema.as_mut()) {
                bound_integer(schema);
            }
        }
    }
    for schema in api.components.iter_mut().flat_map(|components| components.schemas.values_mut()) {
        bound_properties(schema);
    }
    let adjust = api.components.as_mut().and_then(|components| components.schemas.get_mut("Adjust"));
    if let Some(RefOr::T(Schema::Object(adjust))) = adjust
        && let Some(delta) = adjust.properties.get_mut("delta")
    {
        exclude_zero(delta);
    }
}

/// The keys of a listing are keys: 1 to 512 bytes.
fn bound_items(keys: &mut Parameter) {
    if let Some(RefOr::T(Schema::Array(array))) = &mut keys.schema
        && let ArrayItems::RefOrSchema(items) = &mut array.items
        && let RefOr::T(Schema::Object(key)) = &mut **items
    {
        key.min_length = Some(1);
        key.max_length = Some(512);
    }
}

fn bound_properties(schema: &mut RefOr<Schema>) {
    if let RefOr::T(Schema::Object(object)) = schema {
        object.properties.values_mut().for_each(bound_integer);
    }
}

/// `format: int64` bounds nothing by itself. utoipa gives unsigned integers a minimum of 0, and signed ones none.
fn bound_integer(schema: &mut RefOr<Schema>) {
    let RefOr::T(Schema::Object(integer)) = schema else { return };
    let is_int64 = integer.schema_type == SchemaType::Type(Type::Integer)
        && integer.format == Some(SchemaFormat::KnownFormat(KnownFormat::Int64));
    if !is_int64 || integer.maximum.is_some() {
        return;
    }
    let is_unsigned = matches!(integer.minimum, Some(Number::Int(0) | Number::UInt(0) | Number::Float(0.0)));
    integer.maximum = Some(if is_unsigned { Number::UInt(usize::MAX) } else { Number::Int(isize::MAX) });
    integer.minimum.get_or_insert(Number::Int(isize::MIN));
}

/// Splits the range of an integer at 0.
fn exclude_zero(schema: &mut RefOr<Schema>) {
    let RefOr::T(Schema::Object(integer)) = schema else { return };
    let description = integer.description.take();
    let (mut positive, mut negative) = (integer.clone(), integer.clone());
    positive.minimum = Some(Number::Int(1));
    negative.maximum = Some(Number::Int(-1));
    *schema = OneOfBuilder::new().item(positive).item(negative).description(description).into();
}

fn parameter<'a>(operation: &'a mut Operation, name: &str) -> Option<&'a mut Parameter> {
    operation.parameters.as_mut()?.iter_mut().find_map(|parameter| match parameter {
        RefOr::T(parameter) if parameter.name == name => Some(parameter),
        _ => None,
    })
}
