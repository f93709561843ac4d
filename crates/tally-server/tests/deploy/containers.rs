//! The image, the compose file and the Kubernetes manifests.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Server, run, tally, write};
use crate::{assert_settings_are_valid, deployed, python, python_packages, read, succeed, yaml, yaml_files};

/// The oldest Kubernetes that the manifests are for, and the newest with a known schema.
const KUBERNETES_VERSIONS: [&str; 2] = ["1.30", "1.37"];

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn names(value: &Value) -> BTreeSet<&str> {
    value.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default()
}

#[test]
fn the_dockerfile_passes_the_linter() {
    let linter = python_packages().join("bin/hadolint");
    succeed(
        Command::new(&linter).args(["--no-color", "--failure-threshold", "info"]).arg(deployed("docker/Dockerfile")),
    );
}

#[test]
fn the_dockerfile_copies_what_is_not_ignored_and_builds_with_a_known_compiler() {
    let dockerfile = read(&deployed("docker/Dockerfile"));
    let ignored = read(&deployed("docker/Dockerfile.dockerignore"));
    let kept: BTreeSet<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let copies =
        dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|copy| !copy.starts_with("--from"));
    let copied: BTreeSet<&str> = copies.flat_map(|copy| copy.rsplit_once(' ').unwrap().0.split(' ')).collect();
    assert_eq!(copied, kept);
    let manifest = read(&deployed("../Cargo.toml"));
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(dockerfile.contains(&format!("FROM rust:{rust}-")), "the workspace needs Rust {rust}");
}

/// `distroless/cc` has the C library and libgcc.
#[test]
fn the_binary_links_only_what_the_base_image_has() {
    let linked = succeed(Command::new("ldd").arg(env!("CARGO_BIN_EXE_tally")));
    let known = ["linux-vdso", "libc.so", "libm.so", "libgcc_s.so", "libpthread.so", "libdl.so", "librt.so", "/lib"];
    for line in linked.lines() {
        assert!(known.iter().any(|known| line.trim_start().starts_with(known)), "{line}");
    }
}

#[test]
fn the_health_check_says_whether_the_server_answers() {
    let dockerfile = read(&deployed("docker/Dockerfile"));
    let check = dockerfile.lines().skip_while(|line| !line.starts_with("HEALTHCHECK")).nth(1).unwrap();
    let check: Value = serde_json::from_str(check.trim().strip_prefix("CMD ").unwrap()).unwrap();
    let server = Server::start();
    let health = |base: &str| run(tally().args(&texts(&check)[1..]).env("TALLY_SERVER", base)).code;
    assert_eq!(health(&server.base), 0);
    assert_ne!(health("http://127.0.0.1:1"), 0);
}

#[test]
fn the_compose_file_is_valid() {
    let schema = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"];
    succeed(python(&schema).arg(deployed("compose.yaml")));
    let dir = tempfile::tempdir().unwrap();
    let misspelled = read(&deployed("compose.yaml")).replace("depends_on:", "depend_on:");
    assert_ne!(
        run(python(&schema).arg(write(dir.path().join("compose.yaml"), &misspelled))).code,
        0,
        "the check can fail"
    );
}

#[test]
fn whatever_the_compose_file_names_is_there() {
    let compose = &yaml(&deployed("compose.yaml"))[0];
    let services = compose["services"].as_object().unwrap();
    for (name, service) in services {
        for (needed, wait) in service["depends_on"].as_object().into_iter().flatten() {
            let needed = services.get(needed).unwrap_or_else(|| panic!("{name} needs {needed}"));
            // The image of Tally has a health check of its own.
            let has_check = needed["healthcheck"].is_object() || needed["image"] == "tally";
            assert!(wait["condition"] != "service_healthy" || has_check, "{name}: nothing checks {needed}");
        }
        let networks = &service["networks"];
        let used = networks.as_array().map_or_else(|| names(networks), |_| texts(networks).into_iter().collect());
        assert_eq!(used, names(&compose["networks"]), "{name}");
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let source = volume.as_str().unwrap().split(':').next().unwrap();
            match source.strip_prefix("./") {
                Some(path) => drop(deployed(path)),
                None => assert!(names(&compose["volumes"]).contains(source), "{name}: {source}"),
            }
        }
    }
    let conf = read(&deployed("nginx/tally.conf"));
    for line in conf.lines().filter_map(|line| line.trim().strip_prefix("server ")).filter(|line| line.contains(':')) {
        let node = line.split(':').next().unwrap();
        assert!(services[node]["command"].as_array().unwrap().contains(&"api".into()), "{node} is no API node");
    }
}

#[test]
fn tally_takes_the_flags_and_variables_of_the_compose_file() {
    let compose = &yaml(&deployed("compose.yaml"))[0];
    let services = compose["services"].as_object().unwrap().values().filter(|service| service["image"] == "tally");
    let mut started = 0;
    for service in services {
        let mut command = tally();
        command.args(texts(&service["command"]));
        for (name, value) in service["environment"].as_object().unwrap() {
            command.env(name, value.as_str().unwrap());
        }
        command.env("TALLY_HTTP", "127.0.0.1:0").env("TALLY_RESP", "127.0.0.1:0");
        assert_settings_are_valid(&mut command);
        started += 1;
    }
    assert_eq!(started, 5, "init, two API nodes and two workers");
}

/// The files that `kubectl apply -k` applies.
fn applied() -> Vec<String> {
    let kustomization = &yaml(&deployed("kubernetes/kustomization.yaml"))[0];
    texts(&kustomization["resources"]).into_iter().map(str::to_owned).collect()
}

fn manifests() -> Vec<Value> {
    yaml_files(&applied().iter().map(|file| deployed("kubernetes").join(file)).collect::<Vec<_>>())
}

fn of_kind<'a>(manifests: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let found: Vec<_> = manifests.iter().filter(|manifest| manifest["kind"] == kind).collect();
    assert!(!found.is_empty(), "no {kind}");
    found
}

#[test]
fn manifests_are_valid_and_all_of_them_are_applied() {
    let mut applied = BTreeSet::from_iter(applied());
    // Not applied: the list itself, and the template of a secret.
    applied.extend(["kustomization.yaml".to_owned(), "secret.yaml".to_owned()]);
    let files = std::fs::read_dir(deployed("kubernetes")).unwrap();
    let files: BTreeSet<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(applied, files);
    let checked = files.iter().filter(|file| *file != "kustomization.yaml");
    let checked: Vec<_> = checked.map(|file| deployed("kubernetes").join(file)).collect();
    let resources = yaml_files(&checked).len();
    for version in KUBERNETES_VERSIONS {
        let said = succeed(python(&["-m", "kubernetes_validate", "--strict", "-k", version]).args(&checked));
        assert_eq!(said.matches(" passed for resource ").count(), resources, "{said}");
    }
    let dir = tempfile::tempdir().unwrap();
    let misspelled = read(&deployed("kubernetes/api.yaml")).replace("readinessProbe", "readyProbe");
    let misspelled = write(dir.path().join("api.yaml"), &misspelled);
    assert_ne!(run(python(&["-m", "kubernetes_validate", "--strict"]).arg(misspelled)).code, 0, "the check can fail");
}

#[test]
fn manifests_select_each_other() {
    let manifests = manifests();
    let pods: Vec<&Value> = ["Deployment", "StatefulSet", "Job"]
        .iter()
        .flat_map(|kind| of_kind(&manifests, kind))
        .map(|workload| {
            let template = &workload["spec"]["template"];
            if workload["kind"] != "Job" {
                assert_eq!(workload["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
            }
            template
        })
        .collect();
    let selected = |labels: &Value| -> Vec<&&Value> {
        let labels = labels.as_object().unwrap();
        let has = |pod: &&&Value| labels.iter().all(|(name, value)| pod["metadata"]["labels"][name] == *value);
        let found: Vec<_> = pods.iter().filter(has).collect();
        assert!(!found.is_empty(), "{labels:?} selects nothing");
        found
    };
    for service in of_kind(&manifests, "Service") {
        for pod in selected(&service["spec"]["selector"]) {
            let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
            for port in service["spec"]["ports"].as_array().unwrap() {
                assert!(ports.iter().any(|open| open["name"] == port["targetPort"]), "{port}");
            }
        }
    }
    for kind in ["PodDisruptionBudget", "NetworkPolicy"] {
        for manifest in of_kind(&manifests, kind) {
            let spec = &manifest["spec"];
            let selector = if kind == "NetworkPolicy" { &spec["podSelector"] } else { &spec["selector"] };
            selected(&selector["matchLabels"]);
        }
    }
    let scaled = &of_kind(&manifests, "HorizontalPodAutoscaler")[0]["spec"]["scaleTargetRef"]["name"];
    assert_eq!(*scaled, of_kind(&manifests, "Deployment")[0]["metadata"]["name"]);
}

#[test]
fn tally_takes_the_flags_and_settings_of_the_manifests() {
    let manifests = manifests();
    let dir = tempfile::tempdir().unwrap();
    let settings = of_kind(&manifests, "ConfigMap")[0]["data"]["tally.toml"].as_str().unwrap();
    write(dir.path().join("tally.toml"), settings);
    let secret = &yaml(&deployed("kubernetes/secret.yaml"))[0]["stringData"];
    for workload in ["Deployment", "StatefulSet", "Job"].iter().flat_map(|kind| of_kind(&manifests, kind)) {
        let container = &workload["spec"]["template"]["spec"]["containers"][0];
        let mut command = tally();
        let here = dir.path().display().to_string();
        command.args(texts(&container["args"]).iter().map(|argument| argument.replace("/etc/tally", &here)));
        for (name, value) in secret.as_object().unwrap() {
            command.env(name, value.as_str().unwrap());
        }
        let variables = container["env"].as_array().into_iter().flatten();
        for variable in variables.filter(|variable| variable["value"].is_string()) {
            command.env(variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap());
        }
        command.env("TALLY_HTTP", "127.0.0.1:0").env("TALLY_RESP", "127.0.0.1:0");
        assert_settings_are_valid(command.env("TALLY_CLUSTER_WORKER", "127.0.0.1:0"));
    }
}
