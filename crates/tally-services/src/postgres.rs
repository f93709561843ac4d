//! PostgreSQL from Debian's package: one server with its own data directory.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::certificates::CertificateFiles;
use crate::fail::{OrFail, fail};
use crate::ports::{PortTaken, free_port, start_on_free_ports};
use crate::process::ServiceProcess;
use crate::scratch::ScratchDir;
use crate::tool::{MAKE_TARGET, Tool, UserIds, is_root, program};

const INSTALLED: &str = "/usr/lib/postgresql";
const USER: &str = "tally";
const PASSWORD: &str = "secret";

const STARTED: &str = "database system is ready to accept connections";

/// A new data directory takes half of this.
const DISK_MB_MIN: usize = 64;

/// Removes what a killed server leaves behind in the kernel: its System V shared memory segment, whose id is in line 7
/// of `postmaster.pid`, and the file system of its data if that is mounted.
const CLEANUP: &str = r#"ipcrm -m "$(awk 'NR == 7 { print $2 }' "$1/disk/data/postmaster.pid")"; umount -l "$1/disk""#;

/// How to start [`Postgres`].
#[derive(Clone, Debug, Default)]
pub struct PostgresSettings {
    /// Puts the data on a separate disk of this size, which [`Postgres::fill_disk`] fills. It is a tmpfs, which only
    /// root can mount.
    pub disk_mb: Option<usize>,
    /// Offers TLS with this certificate.
    pub tls: Option<CertificateFiles>,
    /// With TLS: whether clients must use TLS and present a certificate of the same authority.
    pub client_certificates: ClientCertificates,
    /// More settings of the server, such as `("max_connections", "10")`.
    pub parameters: Vec<(String, String)>,
}

/// Whether clients must present a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They need none.
    #[default]
    Optional,
    /// They need one.
    Required,
}

/// A server. It runs until it is stopped or killed.
pub struct Postgres {
    process: ServiceProcess,
    port: u16,
    bin: PathBuf,
    has_own_disk: bool,
    dir: ScratchDir,
}

impl Postgres {
    /// A server, ready.
    pub fn start() -> Postgres {
        Postgres::start_with(&PostgresSettings::default())
    }

    /// A server with these settings, ready.
    pub fn start_with(settings: &PostgresSettings) -> Postgres {
        start_on_free_ports(|| Postgres::try_start(settings, free_port()))
    }

    fn try_start(settings: &PostgresSettings, port: u16) -> Result<Postgres, PortTaken> {
        let (bin, dir) = (bin(), ScratchDir::with_cleanup("postgres", CLEANUP));
        let user = unprivileged_user(dir.path());
        let disk = dir.path().join("disk");
        make_dir(&disk, user);
        if let Some(disk_mb) = settings.disk_mb {
            mount(&disk, disk_mb, dir.path());
            own(&disk, user);
        }
        let data = disk.join("data");
        let password = dir.write("password", PASSWORD);
        own(&password, user);
        own(dir.path(), user);
        let initdb = Tool::new(bin.join("initdb"), dir.path()).user(user).arg("-D").arg(&data);
        let initdb = initdb.args(["-U", USER, "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync"]);
        // Small, because it may be on a small disk.
        let initdb = initdb.args(["--wal-segsize=1", "--pwfile"]).arg(&password);
        initdb.run().or_fail("cannot create the data directory of PostgreSQL");

        let mut server = Tool::new(bin.join("postgres"), dir.path()).user(user).arg("-D").arg(&data);
        let socket_dir = dir.path().to_string_lossy().into_owned();
        let port_text = port.to_string();
        let own_parameters = [
            ("listen_addresses", "127.0.0.1"),
            ("port", &port_text),
            ("unix_socket_directories", &socket_dir),
            // Files below the data directory, which are removed with it.
            ("dynamic_shared_memory_type", "mmap"),
            ("shared_buffers", "32MB"),
            ("min_wal_size", "2MB"),
        ];
        let tls = tls_parameters(settings, &dir, user);
        let tls = tls.iter().map(|(name, value)| (*name, &**value));
        let more = settings.parameters.iter().map(|(name, value)| (&**name, &**value));
        for (name, value) in own_parameters.into_iter().chain(tls).chain(more) {
            server = server.arg("-c").arg(format!("{name}={value}"));
        }
        let process = ServiceProcess::new("postgres", server, &dir);
        let postgres = Postgres { process, port, bin, has_own_disk: settings.disk_mb.is_some(), dir };
        postgres.process.start();
        postgres.process.wait_for_log(STARTED)?;
        Ok(postgres)
    }

    /// Where clients connect, with user, password and database.
    pub fn url(&self) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/postgres", self.port)
    }

    /// The directory of its Unix socket.
    pub fn socket_dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its port, over TCP and in the name of the socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops it as an operator would ("fast"): open transactions are rolled back, connections are closed.
    pub fn stop(&self) {
        self.process.end(Signal::INT);
    }

    /// Stops it at once ("immediate"), which leaves the data as a crash would.
    pub fn kill(&self) {
        self.process.end(Signal::QUIT);
    }

    /// Starts it after [`Postgres::stop`] or [`Postgres::kill`], or after it has exited by itself. Returns when it has
    /// recovered.
    pub fn restart(&self) {
        self.process.start();
        self.process.expect_log(STARTED);
    }

    /// Whether its process is running. A full disk may make it exit by itself.
    pub fn is_running(&self) -> bool {
        self.process.pid().is_some()
    }

    /// Waits until it accepts connections, for example after it has restarted itself.
    pub fn wait_until_available(&self) {
        let probe = Tool::new(self.bin.join("pg_isready"), self.dir.path());
        let probe = probe.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        self.process.wait_until("to take connections", || probe.run());
    }

    /// Fills the disk to the last byte. Needs [`PostgresSettings::disk_mb`].
    pub fn fill_disk(&self) {
        let mut file = File::create(self.filler()).or_fail("cannot create a file on the disk");
        // In smaller and smaller chunks, until no byte is free.
        let mut chunk = vec![1; 1 << 20];
        while !chunk.is_empty() {
            if file.write_all(&chunk).is_err() {
                chunk.truncate(chunk.len() / 2);
            }
        }
    }

    /// Removes what [`Postgres::fill_disk`] wrote.
    pub fn free_disk(&self) {
        std::fs::remove_file(self.filler()).or_fail("cannot remove a file from the disk");
    }

    fn filler(&self) -> PathBuf {
        if !self.has_own_disk {
            fail("PostgreSQL has no disk of its own: set `PostgresSettings::disk_mb`");
        }
        self.dir.path().join("disk/filler")
    }

    /// Runs SQL through `psql` and returns the rows, with `|` between the columns. An error is what it printed.
    pub fn psql(&self, sql: &str) -> Result<String, String> {
        self.psql_at(&self.url(), sql)
    }

    /// Like [`Postgres::psql`], in the database of this URL.
    pub fn psql_at(&self, url: &str, sql: &str) -> Result<String, String> {
        let psql = Tool::new(self.bin.join("psql"), self.dir.path()).env("PGCONNECT_TIMEOUT", "10");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, url]).run()
    }

    /// Runs `pgbench` with these options and this script, and returns what it prints.
    pub fn pgbench(&self, options: &[&str], seconds: u64, script: &Path) -> Result<String, String> {
        let pgbench = Tool::new(self.bin.join("pgbench"), self.dir.path()).args(options);
        pgbench.args(["-T", &seconds.to_string(), "-f"]).arg(script).arg(self.url()).run()
    }

    /// The id of its main process while it runs.
    pub fn pids(&self) -> Vec<u32> {
        self.process.pid().into_iter().collect()
    }

    /// The directory of its data and logs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Postgres {
    /// With a signal that the server handles, so that it removes its shared memory and its child processes.
    fn drop(&mut self) {
        if self.is_running() && !std::thread::panicking() {
            self.kill();
        }
    }
}

/// Copies the TLS files and gives them to the server's user, because PostgreSQL refuses keys that others can read.
fn tls_parameters(settings: &PostgresSettings, dir: &ScratchDir, user: Option<UserIds>) -> Vec<(&'static str, String)> {
    let Some(files) = &settings.tls else { return Vec::new() };
    let own_file = |name: &str, text: &str| {
        let path = dir.write(name, text);
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, private).or_fail("cannot protect a file");
        own(&path, user);
        path.to_string_lossy().into_owned()
    };
    let copy = |name: &str, path: &Path| {
        let text = std::fs::read_to_string(path);
        own_file(name, &text.or_fail(&format!("cannot read {}", path.display())))
    };
    let mut parameters = vec![
        ("ssl", "on".to_owned()),
        ("ssl_cert_file", copy("server.pem", &files.certificate)),
        ("ssl_key_file", copy("server.key", &files.key)),
    ];
    if settings.client_certificates == ClientCertificates::Required {
        let only = "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n";
        parameters.extend([("ssl_ca_file", copy("ca.pem", &files.ca)), ("hba_file", own_file("hba", only))]);
    }
    parameters
}

/// The programs of the newest version that is installed.
fn bin() -> PathBuf {
    let installed = std::fs::read_dir(INSTALLED).into_iter().flatten().flatten();
    let versions = installed.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let bins = versions.map(|version| (version, Path::new(INSTALLED).join(version.to_string()).join("bin")));
    let newest = bins.filter(|(_, bin)| bin.join("initdb").is_file()).max();
    newest.map(|(_, bin)| bin).unwrap_or_else(|| {
        fail(&format!("PostgreSQL is not installed below {INSTALLED}: run `{MAKE_TARGET}`"));
    })
}

/// PostgreSQL refuses to run as root, so root runs it as the user of Debian's package.
fn unprivileged_user(dir: &Path) -> Option<UserIds> {
    if !is_root() {
        return None;
    }
    let id = |option| {
        let printed = Tool::new(program("id"), dir).args([option, "postgres"]).run();
        let printed = printed.or_fail(&format!("there is no user `postgres`: run `{MAKE_TARGET}`"));
        printed.trim().parse().or_fail("`id` printed no number")
    };
    Some(UserIds { user: id("-u"), group: id("-g") })
}

fn make_dir(path: &Path, user: Option<UserIds>) {
    std::fs::create_dir(path).or_fail(&format!("cannot create {}", path.display()));
    own(path, user);
}

fn own(path: &Path, user: Option<UserIds>) {
    if let Some(UserIds { user, group }) = user {
        std::os::unix::fs::chown(path, Some(user), Some(group)).or_fail(&format!("cannot chown {}", path.display()));
    }
}

fn mount(disk: &Path, disk_mb: usize, dir: &Path) {
    if disk_mb < DISK_MB_MIN {
        fail(&format!("a disk of {disk_mb} MiB is too small for PostgreSQL: at least {DISK_MB_MIN}"));
    }
    if !is_root() {
        fail("PostgreSQL on a disk of its own needs root, because only root can mount a tmpfs: run this test as root");
    }
    let mount = Tool::new(program("mount"), dir).args(["-t", "tmpfs", "-o", &format!("size={disk_mb}m"), "tmpfs"]);
    mount.arg(disk).run().or_fail("cannot mount a tmpfs, which needs root with the capability CAP_SYS_ADMIN");
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_taken_port_is_noticed() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_eq!(Postgres::try_start(&PostgresSettings::default(), port).err(), Some(PortTaken));
    }
}
