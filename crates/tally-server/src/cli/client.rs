//! The HTTP client of the command line, with errors that say what to do next.

use std::fmt;
use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use ureq::http::{Request, Response};
use ureq::{Agent, Body};

use super::args::{ClientArgs, Output};
use super::server::ServerUrl;
use super::{EXIT_FAILED, EXIT_UNAVAILABLE, output};
use crate::limits::CLIENT_WAIT_MAX;

/// Calls one server.
pub struct ApiClient {
    agent: Agent,
    base: String,
    output: Output,
}

/// The server's answer. The text is kept, so that JSON output has the fields in their original order.
#[derive(Debug)]
pub struct Answer {
    /// The body.
    pub text: String,
    /// The body, parsed.
    pub value: Value,
}

/// Why a call failed.
#[derive(Debug)]
pub enum CallError {
    /// The server could not be reached.
    Unreachable {
        /// Its address.
        base: String,
        /// The cause.
        why: String,
    },
    /// The server answered with a problem.
    Refused {
        /// The problem.
        problem: Answer,
    },
    /// The answer does not look like that of a Tally server.
    InvalidAnswer(String),
}

impl Answer {
    /// An answer assembled from several.
    pub fn of(value: &impl serde::Serialize) -> Result<Answer, CallError> {
        let invalid = |error: serde_json::Error| CallError::InvalidAnswer(error.to_string());
        let text = serde_json::to_string(value).map_err(invalid)?;
        let value = serde_json::from_str(&text).map_err(invalid)?;
        Ok(Answer { text, value })
    }
}

impl ApiClient {
    /// A client of the server in the arguments.
    pub fn new(args: &ClientArgs) -> Self {
        ApiClient::with_wait(&args.server, args.output, CLIENT_WAIT_MAX)
    }

    /// A client that waits this long for each answer.
    pub fn with_wait(server: &ServerUrl, output: Output, wait: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(wait))
            .proxy(None)
            .user_agent(concat!("tally/", env!("CARGO_PKG_VERSION")))
            .build();
        ApiClient { agent: config.into(), base: server.0.clone(), output }
    }

    /// A client for streamed answers: no total timeout, but `wait` limits the response head and each read.
    pub fn for_stream(args: &ClientArgs, wait: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CLIENT_WAIT_MAX))
            .timeout_recv_response(Some(wait))
            .timeout_per_read(Some(wait))
            .proxy(None)
            .user_agent(concat!("tally/", env!("CARGO_PKG_VERSION")))
            .build();
        ApiClient { agent: config.into(), base: args.server.0.clone(), output: args.output }
    }

    /// Sends a GET whose answer is a stream. Returns its length and the stream.
    pub fn stream(&self, path: &str) -> Result<(u64, impl Read + use<>), CallError> {
        let unreachable = |why: String| CallError::Unreachable { base: self.base.clone(), why };
        let request = Request::get(self.url(path)).body(()).map_err(|error| unreachable(error.to_string()))?;
        let response = self.agent.run(request).map_err(|error| unreachable(error.to_string()))?;
        if !response.status().is_success() {
            parse_answer(response)?;
            return Err(CallError::InvalidAnswer("an answer without content".to_owned()));
        }
        let body = response.into_body();
        Ok((body.content_length().unwrap_or_default(), body.into_reader()))
    }

    /// Sends a GET.
    pub fn get(&self, path: &str) -> Result<Answer, CallError> {
        self.call(Request::get(self.url(path)).body(String::new()))
    }

    /// Sends a POST.
    pub fn post(&self, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.post_text(path, body.to_string())
    }

    /// Sends a POST with a body that is JSON already.
    pub fn post_text(&self, path: &str, body: String) -> Result<Answer, CallError> {
        self.call(Request::post(self.url(path)).header("content-type", "application/json").body(body))
    }

    /// Sends a PUT.
    pub fn put(&self, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.call(Request::put(self.url(path)).header("content-type", "application/json").body(body.to_string()))
    }

    /// Sends a DELETE.
    pub fn delete(&self, path: &str) -> Result<Answer, CallError> {
        self.call(Request::delete(self.url(path)).body(String::new()))
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/v1{path}", self.base)
    }

    fn call(&self, request: Result<Request<String>, ureq::http::Error>) -> Result<Answer, CallError> {
        let unreachable = |why: String| CallError::Unreachable { base: self.base.clone(), why };
        let request = request.map_err(|error| unreachable(error.to_string()))?;
        let answered = match request.method().as_str() {
            "GET" | "DELETE" => self.agent.run(request.map(|_| ())),
            _ => self.agent.run(request),
        };
        let response = answered.map_err(|error| unreachable(error.to_string()))?;
        parse_answer(response)
    }

    /// Prints the answer or the error, and returns the exit code.
    pub fn finish(
        &self,
        answer: Result<Answer, CallError>,
        table: impl FnOnce(&Value) -> Vec<Vec<String>>,
    ) -> ExitCode {
        match (answer, self.output) {
            (Ok(answer), Output::Json) => output::json(&answer.text.trim_end()),
            (Ok(answer), Output::Table) => output::table(&table(&answer.value)),
            (Err(error), output) => return fail(&error, output),
        }
        ExitCode::SUCCESS
    }
}

fn parse_answer(mut response: Response<Body>) -> Result<Answer, CallError> {
    let text = response.body_mut().read_to_string();
    let text = text.map_err(|error| CallError::InvalidAnswer(format!("the answer is incomplete: {error}")))?;
    let not_tally = || CallError::InvalidAnswer(format!("the answer ({}) is not JSON", response.status()));
    let value: Value = serde_json::from_str(&text).map_err(|_| not_tally())?;
    let answer = Answer { text, value };
    if response.status().is_success() { Ok(answer) } else { Err(CallError::Refused { problem: answer }) }
}

/// Prints the error, and returns the exit code.
pub fn fail(error: &CallError, output: Output) -> ExitCode {
    match (error, output) {
        (CallError::Refused { problem }, Output::Json) => output::error_json(&problem.text.trim_end()),
        (CallError::Unreachable { base, why }, Output::Json) => {
            output::error_json(&json!({ "title": "Cannot reach the server", "detail": why, "server": base }));
        }
        (CallError::InvalidAnswer(why), Output::Json) => {
            output::error_json(&json!({ "title": "Not a Tally server", "detail": why }));
        }
        (_, Output::Table) => output::error(error),
    }
    match error {
        CallError::Unreachable { .. } => ExitCode::from(EXIT_UNAVAILABLE),
        CallError::Refused { .. } | CallError::InvalidAnswer(_) => ExitCode::from(EXIT_FAILED),
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unreachable { base, why } => write!(
                f,
                "cannot reach {base}: {why}\nIs `tally serve` running? Set another address with --server or TALLY_SERVER."
            ),
            CallError::InvalidAnswer(why) => {
                write!(f, "{why}\nIs that a Tally server? Set another address with --server or TALLY_SERVER.")
            }
            CallError::Refused { problem } => {
                let problem = &problem.value;
                let text = |field: &str| problem.get(field).and_then(Value::as_str).unwrap_or("unknown");
                write!(f, "{}: {}", text("title"), text("detail"))?;
                if problem.get("outcome").and_then(Value::as_str) == Some("unknown") {
                    write!(f, "\nRetry with the same --request-id; without one it may count twice.")?;
                }
                Ok(())
            }
        }
    }
}

/// Every ASCII character of a key that is percent-encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b':').remove(b'.');

/// A key as a path segment or a query value.
pub fn encode_key(key: &str) -> String {
    match key {
        // Unencoded, these path segments mean the current and the parent directory.
        "." | ".." => key.replace('.', "%2E"),
        _ => utf8_percent_encode(key, ENCODED).to_string(),
    }
}

/// Any text as a query value.
pub fn encode_value(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters_in_keys_are_encoded() {
        assert_eq!(encode_key("likes:post.42"), "likes:post.42");
        assert_eq!(encode_key("a/b,c%d é?"), "a%2Fb%2Cc%25d%20%C3%A9%3F");
        assert_eq!(encode_key(".."), "%2E%2E");
    }
}
