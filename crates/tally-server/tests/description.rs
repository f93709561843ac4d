//! The description at `/openapi.json`: valid, and as strict as the server is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

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
    for (method, path, operation) in operations(&described()) {
        assert!(!operation["summary"].as_str().unwrap().is_empty(), "{method} {path}");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
        for (status, response) in responses {
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
fn every_reference_leads_somewhere() {
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
fn every_call_names_the_problems_it_can_meet() {
    let api = described();
    for (method, path, operation) in operations(&api).into_iter().filter(|(_, path, _)| path.starts_with("/api/")) {
        let expected: &[&str] =
            if method == "get" { &["400", "500", "503"] } else { &["400", "403", "500", "503", "507"] };
        for status in expected {
            let content = &operation["responses"][status]["content"]["application/problem+json"];
            assert_eq!(content["schema"]["$ref"], "#/components/schemas/ProblemJson", "{method} {path} {status}");
        }
        if method != "get" && !path.contains("batch") {
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
    let key = &schema("BatchItem")["properties"]["key"];
    assert_eq!((&key["minLength"], &key["maxLength"]), (&json!(1), &json!(512)));
    for (_, path, operation) in
        operations(&api).into_iter().filter(|(_, _, operation)| operation["requestBody"].is_object())
    {
        let may_be_empty = path.ends_with("/increment") || path.ends_with("/decrement");
        assert_eq!(operation["requestBody"]["required"], !may_be_empty, "{path}");
    }
}

#[test]
fn parameters_say_what_they_may_be() {
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
    let listing = &api["paths"]["/api/v1/counters"]["get"];
    for (name, explode) in [("keys", false), ("key", true)] {
        let keys = parameter(listing, name);
        assert_eq!((&keys["style"], &keys["explode"]), (&json!("form"), &json!(explode)), "{keys}");
        assert_eq!((&keys["schema"]["type"], &keys["schema"]["items"]["type"]), (&json!("array"), &json!("string")));
    }
}
