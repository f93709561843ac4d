//! The OpenAPI description: what many calls have in common, and what `#[utoipa::path]` cannot express.
//!
//! JSON Schema counts the characters of a string; the server counts bytes. For ASCII both are the same. The
//! descriptions say "bytes".

use std::collections::BTreeMap;

use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::schema::{ArrayItems, KnownFormat, OneOfBuilder, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{
    Components, ContentBuilder, Header, ObjectBuilder, OpenApi, Ref, RefOr, Required, Response, ResponseBuilder, Schema,
};
use utoipa::{IntoParams, IntoResponses, Number};

use super::answer::WriteAnswer;
use super::problem::{Kind, Problem, ProblemJson};

/// The head of the description.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tally",
        description = "A durable counter service. Integers are 64-bit: use a parser that does not round them. Keys are \
            percent-encoded in paths. Errors are `application/problem+json` (RFC 9457) with a stable `type`; \
            `/problems` lists them all. Any request may also get `malformed-request` (400), `invalid-host` (400) or \
            `head-too-large` (431). There is no authentication: any client that can reach the port can make any call.",
    ),
    servers((url = "/", description = "The server that this description came from")),
    // No authentication, in a form that tools understand.
    security(),
    // Referenced by the responses below, which many calls share.
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
    #[param(style = Form, nullable = false, min_items = 1, max_items = 1000)]
    keys: Option<Vec<String>>,
    /// One counter to read; repeat it for more. Cannot be combined with `keys`, `prefix`, `limit` or `cursor`.
    #[param(style = Form, explode, nullable = false, min_items = 1, max_items = 1000)]
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
    /// The `token` of a write: the reading includes that write, or the answer is 503.
    #[param(nullable = false, min_length = 1)]
    token: Option<String>,
    /// Maximum age of the reading, in milliseconds. If it cannot be met, the response is 503.
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
    /// Maximum number of counters per page; 100 by default. Pages with long ledgers have fewer.
    #[param(nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u64>,
}

/// Why a counter is removed.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "only described: `address` reads the query")]
pub struct DeleteQuery {
    /// The reason, for the ledger: 1 to 1024 bytes. Without one the entry says `deleted without a reason`.
    #[param(nullable = false, min_length = 1, max_length = 1024, example = "the post was removed")]
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
/// The problems of a backup.
pub struct BackupProblems;
/// The problems that any request may get.
pub struct AnyProblems;
/// The problem of a path that does not exist.
pub struct Missing;
/// The problem of a call that fails only because of a bug.
pub struct Failed;

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

impl IntoResponses for BackupProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[400, 421, 431, 500, 501, 503, 507])
    }
}

impl IntoResponses for AnyProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[400, 421, 431])
    }
}

impl IntoResponses for Missing {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[404])
    }
}

impl IntoResponses for Failed {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[500])
    }
}

/// References to the problems with these statuses: each is described once, in the components.
fn problems(statuses: &[u16]) -> BTreeMap<String, RefOr<Response>> {
    let described = DESCRIBED.iter().filter(|described| statuses.contains(&described.status()));
    described.map(|one| (one.status().to_string(), Ref::from_response_name(one.name).into())).collect()
}

/// The problems with one status, as the description shows them.
struct DescribedProblem {
    /// The name of the component.
    name: &'static str,
    /// An example.
    kind: Kind,
    /// The detail of the example.
    detail: &'static str,
    /// The value of the example; only a 409 has one.
    value: Option<i64>,
    /// The problems with this status.
    description: &'static str,
}

impl DescribedProblem {
    fn status(&self) -> u16 {
        self.kind.status().as_u16()
    }

    fn response(&self) -> Response {
        let problem = Problem::new(self.kind, self.detail).with_value(self.value);
        let example = serde_json::to_value(problem.json(Some(EXAMPLE_PATH))).ok();
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemJson"))).example(example).build();
        let response =
            ResponseBuilder::new().description(self.description).content("application/problem+json", content);
        match self.status() {
            // Only refusals by the state machine are remembered with the request id.
            409 => response.header("Idempotent-Replayed", replayed()).build(),
            503 => response.header("Retry-After", retry_after()).build(),
            _ => response.build(),
        }
    }
}

/// The header of a replayed answer.
fn replayed() -> Header {
    let mut header = Header::default();
    header.description = Some("`true` if the request id was used before; this repeats the first response".into());
    header
}

/// The header of an answer that says when to try again.
fn retry_after() -> Header {
    let mut header = Header::new(ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).build());
    header.description = Some("Seconds to wait before the next try".into());
    header
}

/// The path in the examples of problems.
const EXAMPLE_PATH: &str = "/api/v1/counters/likes:post:42/increment";

const DESCRIBED: [DescribedProblem; 13] = [
    DescribedProblem {
        name: "InvalidRequest",
        kind: Kind::InvalidAmount,
        detail: "`amount` is 0; it must be an integer from 1 to 9223372036854775807: `increment` adds it, `decrement` \
            subtracts it",
        value: None,
        description: "The request is invalid; `detail` names the part. Nothing changed",
    },
    DescribedProblem {
        name: "OtherOrigin",
        kind: Kind::CrossOrigin,
        detail: "`Origin` and `Host` differ: a page of another site may not change counters; call from your own server, or \
            through the same host and port",
        value: None,
        description: "The request came from a page of another origin. Nothing changed",
    },
    DescribedProblem {
        name: "NotFound",
        kind: Kind::NotFound,
        detail: "there is no such type of problem; `/problems` lists them all",
        value: None,
        description: "There is no such path",
    },
    DescribedProblem {
        name: "BodyTimeout",
        kind: Kind::BodyTimeout,
        detail: "the body did not arrive within 30 s",
        value: None,
        description: "The body took too long to arrive. Nothing changed",
    },
    DescribedProblem {
        name: "Conflict",
        kind: Kind::Bound,
        detail: "the counter holds 98; adding 5 would cross its ceiling of 100",
        value: Some(98),
        description: "The current value does not allow the change: a bound, the range of 64 bits, or `expected`. \
            Nothing changed; `value` is the current value",
    },
    DescribedProblem {
        name: "TooLarge",
        kind: Kind::BodyTooLarge,
        detail: "the body has more than the 16384 bytes allowed for this call",
        value: None,
        description: "The body or the batch is too large. Nothing changed",
    },
    DescribedProblem {
        name: "OtherHost",
        kind: Kind::MisdirectedHost,
        detail: "`Host` is `tally.example`; listening on a loopback address, this server answers to localhost, 127.0.0.1 \
            and [::1]; add another with --allowed-host, TALLY_ALLOWED_HOSTS or `allowed_hosts`",
        value: None,
        description: "The request was sent to a host that is not this server. Nothing changed",
    },
    DescribedProblem {
        name: "RequestIdReused",
        kind: Kind::IdempotencyMismatch,
        detail: "this request id was used before in this namespace, for another key, call, amount, bound, expected \
            value or reason; use a new id for a new request",
        value: None,
        description: "The request id was used before for another key, call, amount, bound, expected value or reason. \
            Nothing changed",
    },
    DescribedProblem {
        name: "HeadTooLarge",
        kind: Kind::HeadTooLarge,
        detail: "request line and headers have more than 16384 bytes or 100 headers",
        value: None,
        description: "Request line and headers have more than 16384 bytes or 100 headers. Nothing changed",
    },
    DescribedProblem {
        name: "ServerFailed",
        kind: Kind::Unreadable,
        detail: "the store could not be read: a counter or its ledger could not be read",
        value: None,
        description: "Stored data could not be read, or the server failed. Nothing changed",
    },
    DescribedProblem {
        name: "NoDataDirectory",
        kind: Kind::NoDataDirectory,
        detail: "a node of a cluster has no data directory",
        value: None,
        description: "The server is a node of a cluster, which has no data directory",
    },
    DescribedProblem {
        name: "Unavailable",
        kind: Kind::Overloaded,
        detail: "too many batches are in progress",
        value: None,
        description: "The server is recovering, closing, overloaded, or stopped because its disk cannot be trusted; or \
            it has no reading as fresh as `token` or `max_staleness_ms` demands. With `outcome: none` nothing changed; \
            with `outcome: unknown` the change may or may not survive: retry with the same request id. `Retry-After` \
            says when",
    },
    DescribedProblem {
        name: "DiskFull",
        kind: Kind::DiskFull,
        detail: "the disk is full; nothing was changed",
        value: None,
        description: "The disk is full. Nothing changed; reads still work",
    },
];

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
    let components = api.components.get_or_insert_with(Components::new);
    let described = DESCRIBED.iter().map(|problem| (problem.name.to_owned(), problem.response().into()));
    components.responses.extend(described);
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

/// Limits each key of a listing to 1 to 512 bytes.
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
