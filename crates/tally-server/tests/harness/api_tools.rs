//! The tools that check the OpenAPI description.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};

/// Where `make api-tools` puts them.
pub fn api_tools() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("api-tools");
    let are_there =
        dir.join("node_modules/puppeteer-core").is_dir() && dir.join("python/openapi_python_client").is_dir();
    assert!(are_there, "no tools in {}: run `make api-tools`", dir.display());
    dir
}
