//! The description at `/openapi.json`: valid, and as strict as the server is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::collections::BTreeSet;

use harness::Server;
use serde_json::{Value, json};

fn described() -> Value {
    Server::start().send("GET", "/openapi.json", "").json
}

/// Every operation: method, path and description.
fn operations(api: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = api["paths"].as_object().unwrap();
    let all = paths.iter().flat_map(|(path, item)| {
        item.as_object().unwrap().iter().map(move |(method, operation)| (method.as_str(), path.as_str(), operation))
    });
    all.collect()
}

fn parameter<'a>(operation: &'a Value, name: &str) -> &'a Value {
    let parameters = operation["parameters"].as_array().unwrap();
    parameters.iter().find(|parameter| parameter["name"] == name).unwrap_or_else(|| panic!("no {name}: {operation}"))
}

#[test]
fn every_answer_is_described() {
    let api = described();
    for (method, path, operation) in operations(&api) {
        assert!(!operation["summary"].as_str().unwrap().is_empty(), "{method} {path}");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
        for (status, response) in responses {
            let response = followed(&api, response);
            let description = response["description"].as_str().unwrap_or_default();
            assert!(!description.is_empty(), "{method} {path} {status}");
            for header in response["headers"].as_object().into_iter().flatten() {
                assert!(header.1["schema"].is_object(), "{method} {path} {status} {}", header.0);
            }
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(!parameter["description"].as_str().unwrap().is_empty(), "{method} {path} {parameter}");
        }
    }
}

/// Every `$ref` below a value.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn every_reference_resolves() {
    let api = described();
    let mut found = Vec::new();
    references(&api, &mut found);
    assert!(found.len() > 50);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(api.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

#[test]
fn every_call_lists_its_problems() {
    let api = described();
    for (method, path, operation) in operations(&api).into_iter().filter(|(_, path, _)| path.starts_with("/api/")) {
        let expected: &[&str] = match method {
            "get" => &["400", "421", "431", "500", "503"],
            _ => &["400", "403", "421", "431", "500", "503", "507"],
        };
        for status in expected {
            let content = &followed(&api, &operation["responses"][status])["content"]["application/problem+json"];
            assert_eq!(content["schema"]["$ref"], "#/components/schemas/ProblemJson", "{method} {path} {status}");
        }
        // The items of a batch have ids of their own, and an import needs none.
        if method != "get" && !path.contains("batch") && path != "/api/v1/import" {
            let header = &operation["responses"]["200"]["headers"]["Idempotent-Replayed"];
            assert!(header["schema"].is_object() && header["description"].is_string(), "{method} {path}");
            assert!(operation["responses"]["422"].is_object(), "{method} {path}");
        }
    }
}

#[test]
fn bodies_are_as_strict_as_the_server() {
    let api = described();
    let schema = |name: &str| api["components"]["schemas"][name].clone();
    for name in ["Amount", "SetValue", "Reset", "Adjust", "BatchIncrement", "BatchItem"] {
        assert_eq!(schema(name)["additionalProperties"], false, "{name}");
    }
    for name in ["Amount", "SetValue", "Reset", "Adjust", "BatchItem"] {
        let id = &schema(name)["properties"]["request_id"];
        assert_eq!((&id["minLength"], &id["maxLength"]), (&json!(1), &json!(255)), "{name}");
    }
    for name in ["Amount", "BatchItem"] {
        let schema = schema(name);
        let amount = &schema["properties"]["amount"];
        assert_eq!((&amount["minimum"], &amount["type"]), (&json!(1), &json!("integer")), "{name}: null is refused");
        assert!(!schema["required"].as_array().into_iter().flatten().any(|field| field == "amount"), "{name}");
    }
    let set = schema("SetValue");
    assert_eq!(set["required"], json!(["value", "reason"]));
    assert_eq!(set["properties"]["expected"]["type"], "integer", "null is refused");
    let (least, most) = (json!(i64::MIN), json!(i64::MAX));
    for (name, field) in
        [("Amount", "floor"), ("BatchItem", "ceiling"), ("SetValue", "value"), ("SetValue", "expected")]
    {
        let schema = schema(name);
        let integer = &schema["properties"][field];
        assert_eq!((&integer["minimum"], &integer["maximum"]), (&least, &most), "{name} {field}");
    }
    assert_eq!(schema("Amount")["properties"]["amount"]["maximum"], most);
    let delta = schema("Adjust")["properties"]["delta"]["oneOf"].clone();
    let range = |part: &Value| (part["type"].clone(), part["minimum"].clone(), part["maximum"].clone());
    let expected = [(json!("integer"), json!(1), most), (json!("integer"), least, json!(-1))];
    assert_eq!(delta.as_array().unwrap().iter().map(range).collect::<Vec<_>>(), expected, "0 is refused");
    let key = &schema("BatchItem")["properties"]["key"];
    assert_eq!((&key["minLength"], &key["maxLength"]), (&json!(1), &json!(512)));
    for (_, path, operation) in
        operations(&api).into_iter().filter(|(_, _, operation)| operation["requestBody"].is_object())
    {
        let may_be_empty = path.ends_with("/increment") || path.ends_with("/decrement");
        assert_eq!(operation["requestBody"]["required"], !may_be_empty, "{path}");
    }
}

/// Whether a schema accepts `null`.
fn may_be_null(schema: &Value) -> bool {
    let is_null = |kind: &Value| kind == "null";
    let types = schema["type"].as_array().is_some_and(|types| types.iter().any(is_null)) || is_null(&schema["type"]);
    types || ["oneOf", "anyOf"].iter().any(|of| schema[of].as_array().into_iter().flatten().any(may_be_null))
}

#[test]
fn no_field_of_a_body_may_be_null() {
    let api = described();
    let mut seen = 0;
    for (method, path, operation) in operations(&api) {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if schema.is_null() {
            continue;
        }
        let mut bodies = vec![followed(&api, schema)];
        while let Some(body) = bodies.pop() {
            // Items of an import are any objects: each is refused on its own.
            for (name, field) in body["properties"].as_object().into_iter().flatten() {
                assert!(!may_be_null(field), "{method} {path}: {name} {field}");
                seen += 1;
                if field["type"] == "array" {
                    bodies.push(followed(&api, &field["items"]));
                }
            }
        }
    }
    assert!(seen > 20, "only {seen} fields");
}

/// The schema of a value, with its reference followed.
fn followed<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    reference.map_or(schema, |pointer| api.pointer(pointer).unwrap())
}

/// The properties of an object and the names of the required ones, collected from the parts of `allOf`.
fn fields<'a>(api: &'a Value, schema: &'a Value) -> (Vec<(&'a String, &'a Value)>, Vec<&'a str>) {
    let schema = followed(api, schema);
    let parts = schema["allOf"].as_array();
    let mut parts: Vec<_> = parts.into_iter().flatten().map(|part| followed(api, part)).collect();
    parts.push(schema);
    let properties = parts.iter().flat_map(|part| part["properties"].as_object().into_iter().flatten());
    let required = parts.iter().flat_map(|part| part["required"].as_array().into_iter().flatten());
    (properties.collect(), required.map(|name| name.as_str().unwrap()).collect())
}

/// Asserts that every field of an answer is described as required, and every null field as nullable.
fn assert_described(api: &Value, schema: &Value, answer: &Value) {
    let (properties, required) = fields(api, schema);
    for (name, value) in answer.as_object().unwrap() {
        // Best-effort increments of a cluster have no token.
        let is_optional = name == "token";
        assert!(
            is_optional || required.contains(&name.as_str()),
            "`{name}` is always present, but only {required:?} are required"
        );
        let (_, property) = properties.iter().find(|(known, _)| *known == name).unwrap();
        let nullable = property["type"].as_array().is_some_and(|types| types.contains(&json!("null")));
        assert!(nullable || !value.is_null(), "`{name}` is null, but not described as nullable: {property}");
    }
}

#[test]
fn fields_that_are_always_present_are_required_even_if_nullable() {
    let server = Server::start();
    let api = server.send("GET", "/openapi.json", "").json;
    server.send("PUT", "/api/v1/counters/a", r#"{"value":1,"reason":"r"}"#);
    let answered = |method: &str, described: &str, path: &str, body: &str| {
        let answer = server.send(method, &format!("/api/v1/counters{path}"), body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let operation = &api["paths"][format!("/api/v1/counters{described}")][method.to_lowercase()];
        let schema = operation["responses"]["200"]["content"]["application/json"]["schema"].clone();
        assert_described(&api, &schema, &answer.json);
        answer.json
    };
    assert!(answered("GET", "/{key}", "/nobody", "")["created_at"].is_null());
    answered("GET", "/{key}/exact", "/a/exact", "");
    answered("GET", "/{key}/stats", "/nobody/stats", "");
    answered("POST", "/{key}/increment", "/a/increment", "");
    assert!(answered("GET", "/{key}/ledger", "/a/ledger", "")["next"].is_null());
    let listed = answered("GET", "", "?keys=nobody", "");
    assert!(listed["next_cursor"].is_null());
    assert_described(&api, &json!({ "$ref": "#/components/schemas/ReadAnswer" }), &listed["counters"][0]);
    let batch = answered("POST", "/batch-increment", "/batch-increment", r#"{"increments":[{"key":"a"},{}]}"#);
    assert!(batch["results"][1]["key"].is_null());
    let results = &api["components"]["schemas"]["BatchAnswer"]["properties"]["results"];
    let kinds = followed(&api, &results["items"])["oneOf"].as_array().unwrap();
    for (kind, result) in kinds.iter().zip(batch["results"].as_array().unwrap()) {
        assert_described(&api, kind, result);
    }
}

#[test]
fn parameters_have_their_limits() {
    let api = described();
    for (method, path, operation) in operations(&api) {
        if path.contains("{key}") {
            let key = parameter(operation, "key");
            assert_eq!((&key["in"], &key["required"]), (&json!("path"), &json!(true)), "{method} {path}");
            assert_eq!((&key["schema"]["minLength"], &key["schema"]["maxLength"]), (&json!(1), &json!(512)));
            if method != "get" {
                let id = parameter(operation, "Idempotency-Key");
                assert_eq!((&id["in"], &id["required"]), (&json!("header"), &json!(false)), "{method} {path}");
                assert_eq!((&id["schema"]["type"], &id["schema"]["minLength"]), (&json!("string"), &json!(1)));
            }
        }
    }
    for path in ["/api/v1/counters", "/api/v1/counters/{key}/ledger"] {
        let limit = &parameter(&api["paths"][path]["get"], "limit")["schema"];
        assert_eq!((&limit["minimum"], &limit["maximum"]), (&json!(1), &json!(1000)), "{path}");
    }
    let after = &parameter(&api["paths"]["/api/v1/counters/{key}/ledger"]["get"], "after")["schema"];
    assert_eq!((&after["minimum"], &after["maximum"]), (&json!(0), &json!(u64::MAX)));
    for path in ["", "/{key}", "/{key}/exact", "/{key}/stats"] {
        let read = &api["paths"][format!("/api/v1/counters{path}")]["get"];
        let token = parameter(read, "token");
        assert_eq!((&token["in"], &token["required"]), (&json!("query"), &json!(false)), "{path}");
        assert_eq!((&token["schema"]["type"], &token["schema"]["minLength"]), (&json!("string"), &json!(1)), "{path}");
        let staleness = &parameter(read, "max_staleness_ms")["schema"];
        assert_eq!((&staleness["minimum"], &staleness["maximum"]), (&json!(0), &json!(u64::MAX)), "{path}");
    }
    let listing = &api["paths"]["/api/v1/counters"]["get"];
    for (name, explode) in [("keys", false), ("key", true)] {
        let keys = parameter(listing, name);
        assert_eq!((&keys["style"], &keys["explode"]), (&json!("form"), &json!(explode)), "{keys}");
        assert_eq!((&keys["schema"]["type"], &keys["schema"]["items"]["type"]), (&json!("array"), &json!("string")));
        let item = &keys["schema"]["items"];
        assert_eq!((&item["minLength"], &item["maxLength"]), (&json!(1), &json!(512)), "{name}");
    }
}

#[test]
fn each_problem_is_described_once_with_an_example_that_is_like_the_real_ones() {
    let server = Server::start();
    let api = server.send("GET", "/openapi.json", "").json;
    let mut used = BTreeSet::new();
    for (method, path, operation) in operations(&api) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            // `/readyz` says more than that the server is not available.
            if !status.starts_with('2') && (path, status.as_str()) != ("/readyz", "503") {
                let reference = response["$ref"].as_str().unwrap_or_else(|| panic!("{method} {path} {status}"));
                used.insert((status.clone(), reference.to_owned()));
            }
        }
    }
    assert_eq!(used.iter().map(|(status, _)| status).collect::<BTreeSet<_>>().len(), used.len(), "{used:?}");
    assert_eq!(used.len(), api["components"]["responses"].as_object().unwrap().len(), "{used:?}");
    let kinds = server.send("GET", "/problems", "").json["problems"].as_array().unwrap().clone();
    for (status, reference) in &used {
        let content = &api.pointer(&reference[1..]).unwrap()["content"]["application/problem+json"];
        assert_eq!(content["schema"]["$ref"], "#/components/schemas/ProblemJson");
        let example = &content["example"];
        let kind = kinds.iter().find(|kind| kind["type"] == example["type"]).unwrap();
        assert_eq!((&example["title"], &example["status"]), (&kind["title"], &kind["status"]));
        assert_eq!(example["status"].to_string(), *status);
    }
    let refused = server.send("POST", "/api/v1/counters/likes:post:42/increment", r#"{"amount":0}"#);
    assert_eq!(
        refused.json,
        api["components"]["responses"]["InvalidRequest"]["content"]["application/problem+json"]["example"]
    );
}

#[test]
fn the_description_names_its_server_and_says_that_there_is_no_authentication() {
    let api = described();
    assert_eq!(api["servers"][0]["url"], "/");
    assert_eq!((&api["security"], &api["components"]["securitySchemes"]), (&json!([]), &Value::Null));
    assert!(api["info"]["description"].as_str().unwrap().contains("no authentication"));
}

/// The path and the query of a call, with the values that a form shows at first.
fn prefilled(path: &str, operation: &Value) -> String {
    let (mut path, mut query) = (path.to_owned(), Vec::new());
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap();
        let shown = [&parameter["example"], &parameter["schema"]["example"], &parameter["schema"]["default"]];
        let Some(value) = shown.into_iter().find(|value| !value.is_null()) else { continue };
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned).replace(' ', "%20");
        match parameter["in"].as_str().unwrap() {
            "path" => path = path.replace(&format!("{{{name}}}"), &value),
            "query" => query.push(format!("{name}={value}")),
            place => panic!("{path}: an example for {name} in the {place}"),
        }
    }
    if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
}

#[test]
fn every_example_works_in_the_order_of_the_page_and_backwards() {
    let api = described();
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for (method, path, operation) in operations(&api) {
        let body = match &operation["requestBody"]["content"]["application/json"] {
            Value::Null => String::new(),
            content => content["example"].as_object().map(|_| content["example"].to_string()).expect(path),
        };
        calls.push((method.to_uppercase(), prefilled(path, operation), body));
    }
    assert!(calls.iter().all(|(_, path, _)| !path.contains('{')), "{calls:?}");
    for _ in 0..2 {
        let server = Server::start();
        for (method, path, body) in &calls {
            let answer = server.send(method, path, body);
            assert_eq!(answer.status, 200, "{method} {path} {body}: {}", answer.text);
            assert!(answer.json["failed"].as_array().is_none_or(Vec::is_empty), "{}", answer.text);
        }
        calls.reverse();
    }
}
