//! The client: one call to a server, with errors that say what to do next.

use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};
use ureq::http::{Request, Response};
use ureq::{Agent, Body};

use super::args::{ClientArgs, Output};
use super::{EXIT_FAILED, EXIT_UNAVAILABLE, output};
use crate::limits::CLIENT_WAIT_MAX;

/// A server to talk to.
pub struct Client {
    agent: Agent,
    base: String,
    output: Output,
}

/// What a server answered. The text is kept: programs get the fields in the order they were served.
#[derive(Debug)]
pub struct Answer {
    /// As served.
    pub text: String,
    /// As read.
    pub value: Value,
}

/// Why a call did not succeed.
#[derive(Debug)]
pub enum CallError {
    /// No server answered.
    Unreachable {
        /// Where it should have been.
        base: String,
        /// Why not.
        why: String,
    },
    /// The server answered that it will not.
    Refused {
        /// The problem it answered with.
        problem: Answer,
    },
    /// The answer makes no sense.
    Unintelligible(String),
}

impl Client {
    /// A client of the server named in the arguments.
    pub fn new(args: &ClientArgs) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(CLIENT_WAIT_MAX))
            .proxy(None)
            .user_agent(concat!("tally/", env!("CARGO_PKG_VERSION")))
            .build();
        Client { agent: config.into(), base: args.server.0.clone(), output: args.output }
    }

    /// Reads.
    pub fn get(&self, path: &str) -> Result<Answer, CallError> {
        self.call(Request::get(self.url(path)).body(String::new()))
    }

    /// Writes.
    pub fn post(&self, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.call(Request::post(self.url(path)).header("content-type", "application/json").body(body.to_string()))
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/v1{path}", self.base)
    }

    fn call(&self, request: Result<Request<String>, ureq::http::Error>) -> Result<Answer, CallError> {
        let unreachable = |why: String| CallError::Unreachable { base: self.base.clone(), why };
        let request = request.map_err(|error| unreachable(error.to_string()))?;
        let answered = match request.method().as_str() {
            "GET" => self.agent.run(request.map(|_| ())),
            _ => self.agent.run(request),
        };
        let response = answered.map_err(|error| unreachable(error.to_string()))?;
        understand(response)
    }

    /// Shows an answer, or why there is none, and gives the exit code.
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

fn understand(mut response: Response<Body>) -> Result<Answer, CallError> {
    let text = response.body_mut().read_to_string();
    let text = text.map_err(|error| CallError::Unintelligible(format!("the answer broke off: {error}")))?;
    let not_tally =
        || CallError::Unintelligible(format!("the server answered {}, not as Tally does", response.status()));
    let value: Value = serde_json::from_str(&text).map_err(|_| not_tally())?;
    let answer = Answer { text, value };
    if response.status().is_success() { Ok(answer) } else { Err(CallError::Refused { problem: answer }) }
}

fn fail(error: &CallError, output: Output) -> ExitCode {
    match (error, output) {
        (CallError::Refused { problem }, Output::Json) => output::error_json(&problem.text.trim_end()),
        (CallError::Unreachable { base, why }, Output::Json) => {
            output::error_json(&json!({ "title": "No server answered", "detail": why, "server": base }));
        }
        (CallError::Unintelligible(why), Output::Json) => {
            output::error_json(&json!({ "title": "The answer makes no sense", "detail": why }));
        }
        (_, Output::Table) => output::error(error),
    }
    match error {
        CallError::Unreachable { .. } => ExitCode::from(EXIT_UNAVAILABLE),
        CallError::Refused { .. } | CallError::Unintelligible(_) => ExitCode::from(EXIT_FAILED),
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Unreachable { base, why } => write!(
                f,
                "no server answered at {base}: {why}\nIs `tally serve` running? Name another with --server or TALLY_SERVER."
            ),
            CallError::Unintelligible(why) => {
                write!(f, "{why}\nIs that address a Tally server? Name another with --server or TALLY_SERVER.")
            }
            CallError::Refused { problem } => {
                let problem = &problem.value;
                let text = |field: &str| problem.get(field).and_then(Value::as_str).unwrap_or("unknown");
                write!(f, "{}: {}", text("title"), text("detail"))?;
                if problem.get("outcome").and_then(Value::as_str) == Some("unknown") {
                    write!(f, "\nSend it again with the same --request-id; without one it may count twice.")?;
                }
                Ok(())
            }
        }
    }
}

/// A key as a path segment or a query value.
pub fn encode_key(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~' | b':' | b'.');
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    // A segment of dots alone would be taken for a step up the path.
    if matches!(key, "." | "..") { key.replace('.', "%2E") } else { key.bytes().map(encode).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_so_that_nothing_in_them_ends_a_segment_or_a_list() {
        assert_eq!(encode_key("likes:post.42"), "likes:post.42");
        assert_eq!(encode_key("a/b,c%d é?"), "a%2Fb%2Cc%25d%20%C3%A9%3F");
        assert_eq!(encode_key(".."), "%2E%2E");
    }
}
