//! A real nginx with `deploy/nginx/tally.conf`, on addresses of its own.

#![allow(dead_code, reason = "only the tests of the load balancer use it")]

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::wait::wait_for;

/// The file as it is shipped.
pub const CONF: &str = include_str!("../../../../deploy/nginx/tally.conf");

/// Loopback addresses that nobody else uses, so that ports can be the usual ones and stay free over a restart.
pub struct Loopback(u32);

impl Loopback {
    /// A random block of addresses.
    pub fn choose() -> Loopback {
        // Not 127.0.x.x, which other programs use.
        let random = RandomState::new().build_hasher().finish() as u32;
        Loopback(0x7f01_0000 + ((random % 0xfe_0000) & !0xf))
    }

    /// The address with this number, up to 14.
    pub fn address(&self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.0 + number)
    }
}

/// A running nginx. Dropping it ends it.
pub struct Nginx {
    child: Child,
    /// `http://127.x.y.z:7300`.
    pub base: String,
    /// `127.x.y.z:7379`.
    pub redis: String,
    _dir: TempDir,
}

impl Nginx {
    /// Starts nginx at an address in front of two nodes. `change` may alter the file.
    pub fn start(at: Ipv4Addr, nodes: [Ipv4Addr; 2], change: impl FnOnce(String) -> String) -> Nginx {
        let dir = tempfile::tempdir().unwrap();
        let mut conf = CONF.to_owned();
        for (from, to) in [
            ("server api-1:", format!("server {}:", nodes[0])),
            ("server api-2:", format!("server {}:", nodes[1])),
            ("listen ", format!("listen {at}:")),
            // By default, these are directories that only root may write to.
            ("\nhttp {", format!("\nhttp {{\n{}", temporary_paths(dir.path()))),
        ] {
            assert!(conf.contains(from), "`{from}` is not in tally.conf");
            conf = conf.replace(from, &to);
        }
        let file = super::write(dir.path().join("nginx.conf"), &change(conf));
        let log = std::fs::File::create(dir.path().join("nginx.log")).unwrap();
        // Not a daemon. Without `user root`, an nginx that is started as root would run as a user that cannot access
        // the directory.
        let main = format!("daemon off; user root; pid {}/nginx.pid;", dir.path().display());
        let mut command = Command::new(program());
        command.arg("-c").arg(&file).args(["-e", "stderr", "-g", &main]);
        let child = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        let (base, redis) = (format!("http://{at}:7300"), format!("{at}:7379"));
        let mut nginx = Nginx { child, base, redis, _dir: dir };
        nginx.wait_until_listening();
        nginx
    }

    fn wait_until_listening(&mut self) {
        let http = self.base.trim_start_matches("http://").to_owned();
        wait_for("nginx to listen", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("nginx ended with {status}:\n{}", self.log());
            }
            TcpStream::connect(&http).and_then(|_| TcpStream::connect(&self.redis))
        });
    }

    /// What nginx has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self._dir.path().join("nginx.log")).unwrap()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM, so that the master ends its workers.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Debian keeps it in a directory that is not in every user's `PATH`.
pub fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.push("/usr/sbin".into());
    let found = places.into_iter().map(|dir| dir.join("nginx")).find(|path| path.is_file());
    found.expect("`nginx` is not installed: run `make deploy-tools`")
}

fn temporary_paths(dir: &Path) -> String {
    let kinds = ["client_body", "proxy", "fastcgi", "scgi", "uwsgi"];
    kinds.map(|kind| format!("{kind}_temp_path {}/{kind};\n", dir.display())).concat()
}
