//! What crates depend on, read from `Cargo.toml` and `Cargo.lock`.
//!
//! Only the forms used in this tree are parsed: one dependency per line or per table. A line that is neither is
//! reported by [`CrateManifest::parse`] rather than skipped, so a dependency cannot hide in it.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;

/// The parts of a crate's manifest that the rules need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrateManifest {
    /// Path of the file.
    pub file: String,
    /// Name of the package.
    pub name: String,
    /// Dependencies and their lines, without dev-dependencies.
    pub dependencies: Vec<(String, usize)>,
    /// Whether it inherits the lints of the workspace.
    pub inherits_lints: bool,
}

impl CrateManifest {
    /// Reads a manifest.
    pub fn parse(file: &str, text: &str) -> Result<CrateManifest, Finding> {
        let mut manifest = CrateManifest { file: file.into(), ..CrateManifest::default() };
        let mut section = String::new();
        for (line, content) in text.lines().enumerate().map(|(at, content)| (at + 1, content.trim())) {
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            if let Some(header) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = header.trim().to_owned();
                if let Some(name) = table_dependency(&section) {
                    manifest.dependencies.push((name, line));
                }
                continue;
            }
            let Some((key, value)) = content.split_once('=') else {
                if is_dependency_section(&section) {
                    return Err(Finding::new(file, line, "a dependency must stand on one line or in its own table"));
                }
                continue;
            };
            let (key, value) = (key.trim(), value.trim());
            match (section.as_str(), key) {
                ("package", "name") => manifest.name = unquoted(value),
                ("lints", "workspace") => manifest.inherits_lints = value == "true",
                _ if is_dependency_section(&section) => manifest.dependencies.push((dependency(key, value), line)),
                _ if table_dependency(&section).is_some() && key == "package" => {
                    manifest.dependencies.push((unquoted(value), line));
                }
                _ => {}
            }
        }
        Ok(manifest)
    }
}

/// `dependencies`, `build-dependencies` and their `target.….` forms, not `dev-dependencies`.
fn is_dependency_section(section: &str) -> bool {
    let last = section.rsplit('.').next().unwrap_or(section);
    matches!(last, "dependencies" | "build-dependencies") && !section.starts_with("workspace")
}

/// The name in `[dependencies.name]`.
fn table_dependency(section: &str) -> Option<String> {
    let (before, name) = section.rsplit_once('.')?;
    is_dependency_section(before).then(|| unquoted(name))
}

/// The package behind `name.workspace = true`, `name = "1"` or `name = { package = "other", … }`.
fn dependency(key: &str, value: &str) -> String {
    let renamed = value.split_once("package").and_then(|(_, rest)| rest.split('"').nth(1));
    match renamed {
        Some(package) => package.to_owned(),
        None => unquoted(key.split('.').next().unwrap_or(key)),
    }
}

fn unquoted(text: &str) -> String {
    text.trim().trim_matches('"').to_owned()
}

/// The dependencies of every locked package, by name. Versions of one package are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock(BTreeMap<String, BTreeSet<String>>);

impl Lock {
    /// Reads a `Cargo.lock`.
    #[must_use]
    pub fn parse(text: &str) -> Lock {
        let mut packages: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut name = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(value) = line.strip_prefix("name = ") {
                name = unquoted(value);
                packages.entry(name.clone()).or_default();
            } else if line.starts_with('"') {
                let needed = line.trim_matches(|c| c == '"' || c == ',').split(' ').next().unwrap_or_default();
                packages.entry(name.clone()).or_default().insert(needed.to_owned());
            }
        }
        Lock(packages)
    }

    /// Whether a package is locked.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The chain of dependencies from `from` to `wanted`; `None` if there is none. Crates of the workspace are looked
    /// up in `members`, because their locked entries include dev-dependencies.
    #[must_use]
    pub fn chain(&self, members: &[CrateManifest], from: &str, wanted: &str) -> Option<Vec<String>> {
        let mut open = vec![vec![from.to_owned()]];
        let mut seen = BTreeSet::new();
        while let Some(chain) = open.pop() {
            let last = chain.last()?.clone();
            if last == wanted && chain.len() > 1 {
                return Some(chain);
            }
            if seen.insert(last.clone()) {
                open.extend(self.needs(members, &last).into_iter().map(|next| [chain.clone(), vec![next]].concat()));
            }
        }
        None
    }

    fn needs(&self, members: &[CrateManifest], name: &str) -> Vec<String> {
        match members.iter().find(|member| member.name == name) {
            Some(member) => member.dependencies.iter().map(|(name, _)| name.clone()).collect(),
            None => self.0.get(name).into_iter().flatten().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\nc = { version = \"1\" }\n\
        d = { package = \"real\" }\n[dependencies.e]\nversion = \"1\"\n[target.'cfg(unix)'.dependencies]\nf = \"1\"\n\
        [dev-dependencies]\ng = \"1\"\n[lints]\nworkspace = true\n";

    #[test]
    fn every_form_of_a_dependency_is_read() {
        let manifest = CrateManifest::parse("Cargo.toml", MANIFEST).unwrap();
        let names: Vec<_> = manifest.dependencies.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "c", "real", "e", "f"]);
        assert_eq!((manifest.name.as_str(), manifest.inherits_lints), ("a", true));
    }

    #[test]
    fn a_line_that_could_hide_a_dependency_is_reported() {
        let found = CrateManifest::parse("Cargo.toml", "[dependencies]\na = { features = [\n\"x\",\n] }\n");
        assert_eq!(found.unwrap_err().line, 3);
    }

    #[test]
    fn a_dependency_of_a_dependency_is_found() {
        let lock = Lock::parse(
            "[[package]]\nname = \"b\"\ndependencies = [\n \"c 1.0.0\",\n]\n[[package]]\nname = \"c\"\n[[package]]\n\
             name = \"a\"\ndependencies = [\n \"b\",\n \"only-in-tests\",\n]\n",
        );
        let members =
            [CrateManifest::parse("Cargo.toml", "[package]\nname = \"a\"\n[dependencies]\nb = \"1\"\n").unwrap()];
        assert_eq!(lock.chain(&members, "a", "c").unwrap(), ["a", "b", "c"]);
        assert_eq!(lock.chain(&members, "a", "only-in-tests"), None);
    }
}
