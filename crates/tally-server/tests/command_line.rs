//! The command line and its configuration: client commands against a running server, precedence, and hints.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use harness::{Ran, Server, run, serve, tally, write};
use serde_json::Value;

fn client(server: &Server, args: &[&str]) -> Ran {
    run(tally().args(args).env("TALLY_SERVER", &server.base))
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("no JSON: {} {}", ran.out, ran.err))
}

#[test]
fn counters_are_changed_and_read_from_the_command_line() {
    let server = Server::start();
    let ran = client(&server, &["incr", "likes:1", "5"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("likes:1") && ran.out.contains('5') && ran.out.contains("+5"), "{}", ran.out);
    assert_eq!(client(&server, &["incr", "likes:1"]).code, 0);
    assert!(client(&server, &["decr", "likes:1", "2"]).out.contains("-2"));
    let got = client(&server, &["get", "likes:1", "never", "odd /,%é key"]);
    assert!(got.out.contains("likes:1") && got.out.contains("does not exist") && got.out.contains("odd /,%é key"));
    let stats = client(&server, &["stats", "likes:1"]);
    assert!(stats.out.contains("maximum") && stats.out.contains('6'), "{}", stats.out);
    assert_eq!(server.value("likes:1"), 4);
}

#[test]
fn json_output_has_every_value() {
    let server = Server::start();
    let ran = client(&server, &["incr", "a/b c", "9007199254740993", "-o", "json"]);
    assert_eq!(json(&ran)["value"], 9_007_199_254_740_993_i64);
    let ran = client(&server, &["get", "a/b c", "x,y", "-o", "json"]);
    let counters = json(&ran)["counters"].clone();
    assert_eq!(
        (&counters[0]["key"], &counters[0]["value"]),
        (&Value::from("a/b c"), &Value::from(9_007_199_254_740_993_i64))
    );
    assert_eq!(counters[1]["key"], "x,y");
    assert_eq!(json(&client(&server, &["stats", "a/b c", "-o", "json"]))["increments"], 9_007_199_254_740_993_i64);
    let flag = run(tally().args(["get", "a/b c", "--output", "json", "--server", &server.base]));
    assert_eq!(json(&flag)["counters"][0]["exists"], true);
    let bare = run(tally().args(["get", "a", "-o", "json", "--server", server.base.strip_prefix("http://").unwrap()]));
    assert_eq!(bare.code, 0, "http:// is optional: {}", bare.err);
}

#[test]
fn counters_are_corrected_and_listed_from_the_command_line() {
    let server = Server::start();
    for key in ["likes:1", "likes:2", "views:1"] {
        assert_eq!(client(&server, &["incr", key, "3"]).code, 0);
    }
    let set = client(&server, &["set", "likes:1", "-5", "--reason", "a & b", "--expected", "3", "--request-id", "s1"]);
    assert_eq!(set.code, 0, "{}", set.err);
    assert!(set.out.contains("-8"), "{}", set.out);
    let refused = client(&server, &["set", "likes:1", "9", "--reason", "no", "--expected", "3"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("not the expected value 3"), "{}", refused.err);
    assert_eq!(client(&server, &["get", "-q", "likes:1", "likes:2"]).out, "-5\n3\n");
    let listed = client(&server, &["list", "likes:"]);
    assert!(listed.out.contains("likes:1") && listed.out.contains("likes:2"), "{}", listed.out);
    assert!(!listed.out.contains("views:1") && listed.err.is_empty(), "{}", listed.out);
    let first = client(&server, &["list", "--limit", "1", "-o", "json"]);
    assert_eq!(json(&first)["counters"].as_array().unwrap().len(), 1);
    assert!(first.err.contains("There are more counters"), "{}", first.err);
    assert_eq!(client(&server, &["delete", "likes:1", "--reason", "gone: 100 % & more"]).code, 0);
    let ledger = client(&server, &["ledger", "likes:1"]);
    assert!(ledger.out.contains("a & b") && ledger.out.contains("gone: 100 % & more"), "{}", ledger.out);
    assert_eq!(json(&client(&server, &["ledger", "likes:1", "-o", "json"]))["entries"][1]["kind"], "delete");
}

#[test]
fn a_listing_of_all_counters_goes_through_all_pages() {
    let server = Server::start();
    let increments: Vec<_> = (0..1_500).map(|i| serde_json::json!({"key": format!("page:{i:04}")})).collect();
    for increments in increments.chunks(500) {
        let body = serde_json::json!({ "increments": increments }).to_string();
        assert_eq!(server.send("POST", "/api/v1/counters/batch-increment", &body).status, 200);
    }
    let all = json(&client(&server, &["list", "page:", "--all", "-o", "json"]));
    let keys: Vec<&str> = all["counters"].as_array().unwrap().iter().map(|c| c["key"].as_str().unwrap()).collect();
    assert_eq!(keys.len(), 1_500);
    assert!(keys.is_sorted() && keys[1_499] == "page:1499");
}

#[test]
fn server_and_output_may_come_before_the_command() {
    let server = Server::start();
    let ran = run(tally().args(["--server", &server.base, "-o", "json", "incr", "a"]));
    assert_eq!(json(&ran)["value"], 1);
    let ran = run(tally().args(["--server", "h", "serve"]));
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--server"), "{}", ran.err);
}

#[test]
fn the_start_says_what_matters() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path().join("tally.toml"), "[namespaces.views]\nconsistency = \"best-effort\"\n");
    let mut command = serve(&dir.path().join("data"));
    let mut child =
        command.arg("--config").arg(&file).args(["--memory", "512MiB"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut said: Vec<String> = Vec::new();
    for line in lines {
        said.push(line);
        if said.last().unwrap().contains("  try") {
            break;
        }
    }
    let said = said.join("\n");
    for expected in ["tally 0.", "512.00 MiB", "views (best-effort)", "all others eventual", "data in"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let pid = rustix::process::Pid::from_child(&child);
    // As when its terminal is closed.
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    assert!(child.wait().unwrap().success(), "SIGHUP drains like SIGTERM");
}

#[test]
fn manual_pages_are_printed_for_tally_and_for_each_command() {
    assert!(run(tally().arg("man")).out.contains(".TH tally 1"));
    let serve = run(tally().args(["man", "serve"])).out;
    assert!(serve.contains("Data directory"), "{serve}");
    let unknown = run(tally().args(["man", "frobnicate"]));
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("frobnicate"), "{}", unknown.err);
    assert_eq!(run(tally().arg("version")).out, run(tally().arg("--version")).out);
}

#[test]
fn a_request_id_counts_once() {
    let server = Server::start();
    let once = client(&server, &["incr", "a", "--request-id", "r1", "-o", "json"]);
    let again = client(&server, &["incr", "a", "--request-id", "r1", "-o", "json"]);
    assert_eq!((json(&once)["duplicate"].clone(), json(&again)["duplicate"].clone()), (false.into(), true.into()));
    assert!(client(&server, &["incr", "a", "--request-id", "r1"]).out.contains("duplicate"));
    let other = client(&server, &["decr", "a", "--request-id", "r1"]);
    assert_eq!(other.code, 1);
    assert!(other.err.contains("request id"), "{}", other.err);
    let program = client(&server, &["decr", "a", "--request-id", "r1", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&program.err).unwrap()["type"], "/problems/idempotency-mismatch");
    assert_eq!(server.value("a"), 1);
}

#[test]
fn failures_say_what_to_do_next() {
    let ran = run(tally().args(["get", "a", "--server", "http://127.0.0.1:1"]));
    assert_eq!(ran.code, 69);
    assert!(ran.err.contains("Is `tally serve` running?") && ran.err.contains("--server"), "{}", ran.err);
    assert!(ran.out.is_empty());
    for wrong in
        [&["incr", "a", "0"][..], &["incr", "a", "-5"], &["incr", "a", "1.5"], &["incr"], &["explode"], &["get"]]
    {
        assert_eq!(run(tally().args(wrong)).code, 2, "{wrong:?}");
    }
    assert!(run(tally().args(["incr", "a", "-5"])).err.contains("tally decr KEY 5"));
    assert!(run(tally().args(["decr", "a", "-5"])).err.contains("tally incr KEY 5"));
    let server = Server::start();
    assert!(client(&server, &["stats", "never"]).out.contains("does not exist"));
    let long = "k".repeat(513);
    let ran = client(&server, &["incr", &long]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("513 bytes"), "{}", ran.err);
}

#[test]
fn every_help_text_has_examples() {
    const COMMANDS: &str =
        "serve incr decr get stats list set delete ledger export import check cluster completions man version";
    for command in COMMANDS.split_whitespace().map(Some).chain([None]) {
        let ran = run(tally().args(command).arg("--help"));
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("Examples:") && ran.out.contains("tally "), "{command:?}: {}", ran.out);
    }
    assert!(run(tally().args(["serve", "--help"])).out.contains("TALLY_MEMORY"));
    assert!(run(tally().arg("--help")).out.starts_with("A durable counter service"));
    assert_eq!(run(tally().args(["help", "--help"])).out, run(tally().arg("help")).out);
    assert!(run(tally().arg("--version")).out.starts_with("tally "));
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(tally().args(["completions", shell]));
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("serve") && ran.out.contains("tally"), "{shell}");
    }
}

#[test]
fn check_accepts_an_intact_directory_and_reports_damage() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_in(dir.path());
    for _ in 0..10 {
        server.send("POST", "/api/v1/counters/a/increment", "");
    }
    server.kill();
    let check = |args: &[&str]| run(tally().arg("check").arg(dir.path()).args(args));
    let sound = check(&["-o", "json"]);
    assert_eq!(sound.code, 0, "{}", sound.err);
    assert_eq!((json(&sound)["sound"].clone(), json(&sound)["batches"].as_u64() >= Some(1)), (true.into(), true));
    assert!(check(&[]).out.contains("batches to replay"));

    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let journal = names.into_iter().find(|path| path.to_string_lossy().contains("journal-")).unwrap();
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes[100] ^= 0xff;
    std::fs::write(&journal, bytes).unwrap();
    let damaged = check(&[]);
    assert_eq!(damaged.code, 65);
    let program = check(&["-o", "json"]);
    assert_eq!((program.code, &json(&program)["sound"]), (65, &Value::from(false)));
    assert!(json(&program)["file"].as_str().unwrap().contains("journal-") && json(&program)["offset"].is_u64());
    assert!(damaged.err.contains("damaged at byte") && damaged.err.contains("journal-"), "{}", damaged.err);
    let nowhere = run(tally().args(["check", "/nonexistent/tally"]));
    assert_eq!(nowhere.code, 1);
    assert!(nowhere.err.contains("/nonexistent/tally does not exist"), "{}", nowhere.err);
}

#[test]
fn a_check_that_cannot_run_says_why_and_is_not_reported_as_damage() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path().join("file"), "");
    let check = |path: &Path, args: &[&str]| run(tally().arg("check").arg(path).args(args));
    let not_a_directory = check(&file, &[]);
    assert_eq!(not_a_directory.code, 1);
    assert!(not_a_directory.err.contains("is not a directory"), "{}", not_a_directory.err);
    let not_ours = check(dir.path(), &[]);
    assert!(not_ours.err.contains("not a data directory of Tally"), "{}", not_ours.err);
    let data = dir.path().join("data");
    let _server = Server::start_in(&data);
    let in_use = check(&data, &[]);
    assert_eq!((in_use.code, in_use.out.as_str()), (1, ""));
    assert!(in_use.err.contains("stop the server first") && !in_use.err.contains("--data"), "{}", in_use.err);
    let program = check(&data, &["-o", "json"]);
    let problem: Value = serde_json::from_str(&program.err).unwrap();
    assert!(problem["detail"].as_str().unwrap().contains("stop the server first"), "{problem}");
}

#[test]
fn an_invalid_server_address_is_refused_with_a_hint() {
    let refused = |server: &str| {
        let ran = run(tally().args(["get", "a", "--server", server]));
        assert_eq!(ran.code, 2, "{}", ran.err);
        ran.err
    };
    assert!(refused("https://localhost:7300").contains("TLS is not supported yet"));
    assert!(refused("http://localhost:7300/api/v1").contains("leave out `/api/v1`"));
    let by_env = run(tally().args(["get", "a"]).env("TALLY_SERVER", "https://localhost"));
    assert_eq!(by_env.code, 2);
}

#[test]
fn json_output_keeps_the_order_of_fields_and_has_errors_as_json() {
    let server = Server::start();
    let written = client(&server, &["incr", "a", "-o", "json"]);
    let read = client(&server, &["get", "a", "-o", "json"]);
    let served = server.send("GET", "/api/v1/counters?keys=a", "");
    let order = |text: &str| text.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    assert!(written.out.starts_with(r#"{"key":"a","value":1,"applied":1,"#), "{}", written.out);
    assert!(order(&served.text).starts_with(&order(&read.out)[..5]), "{}", read.out);
    let unreachable = run(tally().args(["get", "a", "-o", "json", "--server", "127.0.0.1:1"]));
    let problem: Value = serde_json::from_str(&unreachable.err).unwrap();
    assert_eq!((unreachable.code, &problem["server"]), (69, &Value::from("http://127.0.0.1:1")));
}

#[test]
fn with_json_output_usage_errors_are_json() {
    let cases = [
        (&["incr", "a", "-5", "-o", "json"][..], "tally decr KEY 5"),
        (&["get", "-o", "json"], "<KEY>"),
        (&["get", "a", "--sever", "x", "--output=json"], "--server"),
        (&["get", "a", "--server", "https://localhost", "-ojson"], "TLS is not supported yet"),
        (&["check", "--output", "json"], "<DIR>"),
    ];
    for (args, says) in cases {
        let ran = run(tally().args(args));
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}");
        let problem: Value = serde_json::from_str(&ran.err).unwrap_or_else(|_| panic!("no JSON: {}", ran.err));
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(says) && !detail.contains("Usage:"), "{args:?}: {detail}");
        assert!(!problem["title"].as_str().unwrap().is_empty());
    }
    let text = run(tally().args(["get"]));
    assert!(text.err.starts_with("error: ") && text.err.contains("Usage:"), "{}", text.err);
    let help = run(tally().args(["get", "-o", "json", "--help"]));
    assert_eq!(help.code, 0);
    assert!(help.out.contains("Examples:"), "{}", help.out);
}

#[test]
fn an_unknown_tally_variable_logs_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve(dir.path());
    command.env("TALLY_MEMROY", "2GiB").env("TALLY_SEEDS", "9");
    let mut server = Server::start_with(command);
    server.terminate();
    let log = server.log();
    assert!(log.contains("WARN") && log.contains("did you mean `TALLY_MEMORY`?"), "{log}");
    assert!(!log.contains("TALLY_SEEDS"), "{log}");
}

fn refused(command: &mut Command) -> String {
    let ran = run(command);
    assert_ne!(ran.code, 0, "it started: {}", ran.out);
    assert!(ran.out.is_empty(), "it listened: {}", ran.out);
    ran.err
}

#[test]
fn an_address_off_loopback_is_refused_without_insecure() {
    let dir = tempfile::tempdir().unwrap();
    for open in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let error = refused(tally().arg("serve").arg("--data").arg(dir.path()).args(["--http", open]));
        assert!(error.contains("--insecure") && error.contains("authentication"), "{error}");
        assert!(error.contains("127.0.0.1"), "it says what to do instead: {error}");
    }
    let mut command = tally();
    command.arg("serve").arg("--data").arg(dir.path()).args(["--http", "0.0.0.0:0", "--resp", "off", "--insecure"]);
    let mut server = Server::start_with(command);
    assert!(server.base.starts_with("http://0.0.0.0:"), "{}", server.base);
    assert!(server.log().contains("WARN other machines can reach this address"), "{}", server.log());
}

#[test]
fn precedence_is_flag_environment_file_default() {
    const ADDRESSES: &str = "http = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"\n";
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let file = write(at("tally.toml"), &format!("data = {:?}\n{ADDRESSES}log = \"json\"\n", at("from-file")));
    let command = || {
        let mut command = tally();
        command.arg("serve").arg("--config").arg(&file).current_dir(dir.path());
        command
    };
    let mut from_file = Server::start_with(command());
    assert!(at("from-file").is_dir());
    from_file.signal();
    from_file.exit();
    let logged = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let ready = from_file.log().lines().map(logged).find(|line| line["message"] == "ready");
    assert!(ready.expect("the file asks for JSON")["opened_ms"].is_u64());

    let mut with_env = command();
    with_env.env("TALLY_DATA", at("from-env")).env("TALLY_LOG", "text");
    let mut from_env = Server::start_with(with_env);
    assert!(at("from-env").is_dir());
    from_env.terminate();
    assert!(from_env.log().contains("INFO ready"), "{}", from_env.log());

    let mut with_flag = command();
    with_flag.env("TALLY_DATA", at("unused")).arg("--data").arg(at("from-flag"));
    drop(Server::start_with(with_flag));
    assert!(at("from-flag").is_dir() && !at("unused").exists());

    let mut by_env = tally();
    by_env.arg("serve").env("TALLY_CONFIG", &file).current_dir(dir.path());
    drop(Server::start_with(by_env));
}

#[test]
fn an_invalid_setting_stops_the_start_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let with_file = |text: &str| {
        let file = write(dir.path().join("tally.toml"), text);
        refused(serve(&dir.path().join("data")).arg("--config").arg(file))
    };
    let unknown = with_file("memroy = \"1GiB\"\n");
    assert!(unknown.contains("`memroy`") && unknown.contains("did you mean `memory`?"), "{unknown}");
    assert!(unknown.contains("tally.toml"), "{unknown}");
    let nested = with_file("[namespaces.likes]\nconsistncy = \"exact\"\n");
    assert!(nested.contains("namespaces.likes.consistncy") && nested.contains("`consistency`"), "{nested}");
    let value = with_file("[namespaces.likes]\nconsistency = \"exakt\"\n");
    assert!(value.contains("namespaces.likes.consistency") && value.contains("did you mean `exact`?"), "{value}");
    assert!(with_file("log = 5\n").contains("`log`"));
    assert!(with_file("log = \n").contains("TOML"));
    assert!(with_file("memory = \"1MiB\"\n").contains("`1MiB` is below the minimum of 160MiB"));

    let serve = || serve(&dir.path().join("data"));
    assert!(
        refused(serve().args(["--memory", "lots"]))
            .contains("`--memory`: `lots` is not a size; use one such as 512MiB or 2GiB")
    );
    assert!(refused(serve().env("TALLY_MEMORY", "lots")).contains("`TALLY_MEMORY`: `lots`"));
    assert!(refused(serve().args(["--log", "xml"])).contains("text or json"));
    assert!(refused(serve().args(["--log-level", "loud"])).contains("error, warn, info, debug or trace"));
    assert!(refused(serve().args(["--config", "/nonexistent.toml"])).contains("/nonexistent.toml"));
    assert!(refused(tally().args(["serve", "--http", "nonsense"])).contains("127.0.0.1:7300"));
    assert!(refused(tally().args(["serve", "--htp", "127.0.0.1:0"])).contains("--http"));
    assert!(!dir.path().join("data").exists(), "nothing is created before the settings are validated");
}

#[test]
fn an_address_in_use_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let taken = server.base.strip_prefix("http://").unwrap();
    let error = refused(tally().arg("serve").arg("--data").arg(dir.path()).args(["--http", taken]));
    assert!(error.contains(taken) && error.contains("--http"), "{error}");
}
