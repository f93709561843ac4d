//! `deploy/dist.sh`, which `make dist` runs: a tarball, a Debian package and checksums.

use std::process::Command;

use super::{deployed, read, succeed};

#[test]
fn a_binary_is_packed_with_units_manual_pages_and_completions() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("dist");
    // Like a release: packing the debug information takes a minute.
    let binary = dir.path().join("tally");
    succeed(Command::new("strip").arg("-o").arg(&binary).arg(env!("CARGO_BIN_EXE_tally")));
    succeed(Command::new(deployed("dist.sh")).arg(&binary).arg(&out));
    let sums = read(&out.join("SHA256SUMS"));
    let names: Vec<&str> = sums.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(names.len(), 2, "{sums}");
    succeed(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&out));
    let version = succeed(Command::new(&binary).arg("version"));

    let unpacked = dir.path().join("tarball");
    std::fs::create_dir(&unpacked).unwrap();
    succeed(
        Command::new("tar").arg("-xzf").arg(out.join(names[0])).args(["--strip-components=1", "-C"]).arg(&unpacked),
    );
    assert_eq!(succeed(Command::new(unpacked.join("bin/tally")).arg("version")), version);
    for file in ["README.md", "LICENSE", "CHANGELOG.md", "systemd/tally.service", "completions/tally.bash"] {
        assert!(!read(&unpacked.join(file)).is_empty(), "{file}");
    }
    for command in ["serve", "backup", "cluster", "version"] {
        let page = read(&unpacked.join(format!("man/man1/tally-{command}.1")));
        assert!(page.contains(&format!("tally-{command}")) && page.contains(".TH"), "{page}");
    }
    let page = read(&unpacked.join("man/man1/tally-serve.1"));
    assert!(page.contains(".TH") && page.contains("Data directory"), "{page}");

    let package = out.join(names[1]);
    let installed = dir.path().join("package");
    succeed(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&installed));
    assert_eq!(succeed(Command::new(installed.join("usr/bin/tally")).arg("version")), version);
    let unit = read(&installed.join("lib/systemd/system/tally.service"));
    assert!(unit.contains("ExecStart=/usr/bin/tally serve") && !unit.contains("/usr/local"), "{unit}");
    let control = succeed(Command::new("dpkg-deb").arg("-f").arg(&package));
    assert!(control.contains("Package: tally") && control.contains("Depends: libc6"), "{control}");
}

#[test]
fn packing_what_is_no_binary_is_refused_with_the_usage() {
    let ran = super::run(Command::new(deployed("dist.sh")).args(["/nowhere", "/tmp"]));
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("usage:"), "{}", ran.err);
}
