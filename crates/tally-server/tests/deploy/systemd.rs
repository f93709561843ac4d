//! The systemd units: valid, sandboxed, and with settings that the binary accepts.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::{Server, run, tally, write};
use crate::{assert_settings_are_valid, deployed, read, succeed};

const UNITS: [&str; 3] = ["tally.service", "tally-api.service", "tally-worker.service"];

/// `systemd-analyze security` goes from 0, nothing exposed, to 10. The option takes tenths.
const EXPOSURE_MAX: &str = "13";

/// A unit whose binary exists.
fn installed(dir: &TempDir, unit: &str, more: &str) -> std::path::PathBuf {
    let text = read(&deployed("systemd").join(unit));
    let installed = text.replace("/usr/local/bin/tally", env!("CARGO_BIN_EXE_tally"));
    assert_ne!(text, installed);
    write(dir.path().join(unit), &installed.replace("[Install]", &format!("{more}\n[Install]")))
}

/// What `systemd-analyze verify` says of a unit. It also reads others, which may have faults of their own.
fn complaints(unit: &Path) -> Vec<String> {
    let ran = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(unit));
    ran.err.lines().chain(ran.out.lines()).filter(|line| line.contains("tally")).map(str::to_owned).collect()
}

/// The arguments of `ExecStart`, without the program.
fn arguments(unit: &str) -> Vec<String> {
    let text = read(&deployed("systemd").join(unit));
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    line.split(' ').skip(1).map(str::to_owned).collect()
}

/// The settings in `Environment`.
fn environment(unit: &str) -> Vec<(String, String)> {
    let text = read(&deployed("systemd").join(unit));
    let line = text.lines().find_map(|line| line.strip_prefix("Environment=")).unwrap();
    let settings = line.split(' ').map(|setting| setting.split_once('=').unwrap());
    settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn units_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    for unit in UNITS {
        assert_eq!(complaints(&installed(&dir, unit, "")), Vec::<String>::new());
        // The check can fail.
        assert_eq!(complaints(&installed(&dir, unit, "MemoryMax=much")).len(), 1);
    }
}

#[test]
fn units_are_sandboxed() {
    let dir = tempfile::tempdir().unwrap();
    for unit in UNITS {
        let threshold = format!("--threshold={EXPOSURE_MAX}");
        let args = ["security", "--offline=true", "--no-pager", &threshold];
        succeed(Command::new("systemd-analyze").args(args).arg(installed(&dir, unit, "")));
        let exposed = installed(&dir, unit, "PrivateDevices=no\nPrivateUsers=no");
        assert_ne!(run(Command::new("systemd-analyze").args(args).arg(exposed)).code, 0, "the check can fail");
    }
}

/// A flag has precedence over the environment, so the file of settings could not override it.
#[test]
fn the_files_of_settings_override_everything_except_what_a_unit_is_for() {
    for unit in UNITS {
        let flags: Vec<_> = arguments(unit).into_iter().filter(|argument| argument.starts_with('-')).collect();
        assert!(flags.iter().all(|flag| ["--config", "--roles"].contains(&flag.as_str())), "{unit}: {flags:?}");
        let text = read(&deployed("systemd").join(unit));
        let (own, file) = (text.find("\nEnvironment=").unwrap(), text.find("\nEnvironmentFile=").unwrap());
        assert!(own < file, "{unit}: the file comes last, so it wins");
    }
}

#[test]
fn the_server_accepts_the_settings_of_its_unit() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let mut command = tally();
    command.args(arguments("tally.service"));
    command.envs(
        environment("tally.service").into_iter().map(|(name, value)| (name, value.replace("/var/lib/tally", &data))),
    );
    let mut server = Server::start_with({
        command.args(["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
        command
    });
    assert!(server.terminate().success());
}

#[test]
fn cluster_nodes_accept_the_settings_of_their_units() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path().join("tally.toml"), "[cluster]\n");
    for unit in ["tally-api.service", "tally-worker.service"] {
        let mut command = tally();
        let here = dir.path().display().to_string();
        command.args(arguments(unit).iter().map(|argument| argument.replace("%d", &here)));
        command.env("TALLY_RESP", "127.0.0.1:0").envs(environment(unit)).env("TALLY_HTTP", "127.0.0.1:0");
        assert_settings_are_valid(command.env("TALLY_CLUSTER_WORKER", "127.0.0.1:0"));
    }
}
