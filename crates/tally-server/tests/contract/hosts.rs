//! Servers for the suite. An embedded engine is a process of its own for each behaviour. A cluster takes seconds to start, so
//! all behaviours share one, each with keys of its own.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock, PoisonError};

use tally_contract::{Ability, EngineClient, Failure, Host, Verdict};
use tally_core::key::Key;
use tally_core::outcome::Token;
use tempfile::TempDir;

use crate::harness::{Server, wait_for};
use crate::place::TestCluster;

/// Where a server listens.
pub struct ServerAddress {
    /// `http://127.0.0.1:PORT`.
    pub http: String,
    /// `127.0.0.1:PORT`.
    pub redis: String,
}

impl ServerAddress {
    pub fn of(server: &Server) -> ServerAddress {
        ServerAddress { http: server.base.clone(), redis: server.redis.clone() }
    }

    /// Starts a server that runs until this process ends.
    fn of_new(command: &Command) -> ServerAddress {
        let mut killed = Command::new("setpriv");
        killed.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
        for (name, _) in command.get_envs() {
            killed.env_remove(name);
        }
        killed.current_dir(command.get_current_dir().unwrap());
        let (say, started) = channel();
        // The signal is sent when the thread that started the process ends.
        std::thread::spawn(move || {
            let server = Server::start_with(killed);
            say.send(ServerAddress::of(&server)).unwrap();
            loop {
                std::thread::park();
            }
        });
        started.recv().unwrap()
    }
}

/// A client of a server over one protocol.
pub trait ProtocolClient: EngineClient + Send {
    /// What the protocol cannot express.
    const LACKS: &'static [Ability];
    /// What behaviours also cannot do on a shared cluster.
    const LACKS_IN_CLUSTER: &'static [Ability];

    /// A client of a server that others use too. Its keys begin with `prefix`.
    fn to(address: &ServerAddress, prefix: String) -> Self;

    /// A client with a server of its own.
    fn owning(server: Server) -> Self;

    /// Where its writes since the last call are in the journal, as far as the protocol says.
    fn take_written(&self) -> Token;

    /// Its own server.
    fn server(&self) -> Option<&Mutex<Server>>;
}

/// A server with the embedded engine for each behaviour.
pub struct OnEmbedded<C>(PhantomData<fn() -> C>);

impl<C> OnEmbedded<C> {
    pub fn new() -> OnEmbedded<C> {
        OnEmbedded(PhantomData)
    }
}

impl<C: ProtocolClient> Host for OnEmbedded<C> {
    type Engine = C;
    type Data = TempDir;

    fn prepare(&self) -> Result<TempDir, Failure> {
        Ok(tempfile::tempdir()?)
    }

    fn start(&self, data: &TempDir) -> Result<C, Failure> {
        Ok(C::owning(Server::start_in(&data.path().join("data"))))
    }

    fn stop(&self, client: &C) -> Verdict {
        let server = client.server().ok_or("the server of others is not stopped")?;
        let status = server.lock().unwrap_or_else(PoisonError::into_inner).terminate();
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}").into()) }
    }

    fn lacks(&self) -> Vec<Ability> {
        C::LACKS.to_vec()
    }
}

/// Maximum number of behaviours, of both protocols together, that use the cluster.
const NAMESPACES: usize = 256;

/// The cluster that all behaviours share.
struct SharedCluster {
    cluster: TestCluster,
    api: ServerAddress,
    used: AtomicUsize,
}

impl SharedCluster {
    fn get() -> &'static SharedCluster {
        static SHARED: OnceLock<SharedCluster> = OnceLock::new();
        SHARED.get_or_init(|| {
            let exact = |number: usize| format!("[namespaces.c{number}]\nconsistency = \"exact\"\n");
            let cluster = TestCluster::new(&(0..NAMESPACES).map(exact).collect::<String>());
            ServerAddress::of_new(&cluster.command("worker"));
            let api = ServerAddress::of_new(&cluster.command("api"));
            cluster.wait_until_hosted();
            SharedCluster { cluster, api, used: AtomicUsize::new(0) }
        })
    }
}

/// An API node of the shared cluster.
pub struct OnCluster<C>(PhantomData<fn() -> C>);

impl<C> OnCluster<C> {
    pub fn new() -> OnCluster<C> {
        OnCluster(PhantomData)
    }
}

impl<C: ProtocolClient> Host for OnCluster<C> {
    type Engine = C;
    /// What its keys begin with: a namespace with the consistency `exact`, and a tag that keeps them on one partition.
    type Data = String;

    fn prepare(&self) -> Result<String, Failure> {
        let number = SharedCluster::get().used.fetch_add(1, Ordering::Relaxed);
        if number >= NAMESPACES { Err("raise NAMESPACES".into()) } else { Ok(format!("c{number}:{{c{number}}}")) }
    }

    fn start(&self, prefix: &String) -> Result<C, Failure> {
        Ok(C::to(&SharedCluster::get().api, prefix.clone()))
    }

    fn stop(&self, _: &C) -> Verdict {
        Err("the cluster is shared".into())
    }

    fn sync_listings(&self, client: &C) -> Verdict {
        let written = client.take_written();
        if written.positions().next().is_none() {
            return Ok(());
        }
        wait_for("PostgreSQL to have what was written", || {
            let mut stored = BTreeMap::new();
            for row in SharedCluster::get().cluster.sql("SELECT partition, position FROM partitions").lines() {
                let (partition, position) = row.split_once('|').unwrap();
                stored.insert(partition.parse::<u32>().unwrap(), position.parse::<u64>().unwrap());
            }
            let has_all = written.positions().all(|(partition, position)| stored[&partition] >= position.0);
            if has_all { Ok(()) } else { Err(format!("{stored:?}, not {written}")) }
        });
        Ok(())
    }

    fn stored_key(&self, prefix: &String, key: &Key) -> Result<Key, Failure> {
        Ok(Key::new([prefix.as_bytes(), key.as_bytes()].concat())?)
    }

    fn lacks(&self) -> Vec<Ability> {
        [C::LACKS, C::LACKS_IN_CLUSTER].concat()
    }
}
