//! Redis Cluster: three masters and three replicas from Debian's `redis-server`, without persistence.

use std::path::Path;

use crate::certificates::CertificateFiles;
use crate::fail::{OrFail, fail};
use crate::ports::{PortTaken, free_port, start_on_free_ports};
use crate::process::ServiceProcess;
use crate::scratch::ScratchDir;
use crate::tool::{Tool, program};

const NODES: usize = 6;

/// After this time without an answer, a master is replaced by its replica.
const NODE_TIMEOUT_MS: &str = "2000";

const STARTED: &str = "Ready to accept connections";

/// How to start a [`RedisCluster`].
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// The password that clients must send.
    pub password: Option<String>,
    /// Accepts only TLS connections, including those between nodes. Clients need no certificate until
    /// `CONFIG SET tls-auth-clients yes`.
    pub tls: Option<CertificateFiles>,
}

/// A running cluster.
///
/// Nothing is stored on disk: a master that is killed and restarted before its replica takes over comes back empty, and
/// empties its replica.
pub struct RedisCluster {
    nodes: Vec<Node>,
    options: RedisOptions,
    dir: ScratchDir,
}

struct Node {
    process: ServiceProcess,
    ports: NodePorts,
}

#[derive(Clone, Copy)]
struct NodePorts {
    client: u16,
    bus: u16,
}

impl RedisCluster {
    /// Six nodes, ready.
    pub fn start() -> RedisCluster {
        RedisCluster::start_with(&RedisOptions::default())
    }

    /// Six nodes that require this password, ready.
    pub fn start_with_password(password: &str) -> RedisCluster {
        RedisCluster::start_with(&RedisOptions { password: Some(password.to_owned()), tls: None })
    }

    /// Six nodes with these settings, ready.
    pub fn start_with(options: &RedisOptions) -> RedisCluster {
        start_on_free_ports(|| RedisCluster::try_start(options, &free_ports()))
    }

    fn try_start(options: &RedisOptions, ports: &[NodePorts]) -> Result<RedisCluster, PortTaken> {
        let dir = ScratchDir::new("redis");
        let nodes = ports.iter().enumerate().map(|(at, ports)| Node::new(at, *ports, options, &dir)).collect();
        let cluster = RedisCluster { nodes, options: options.clone(), dir };
        cluster.nodes.iter().for_each(|node| node.process.start());
        cluster.nodes.iter().try_for_each(|node| node.process.wait_for_log(STARTED))?;
        let create = cluster.redis_cli().args(["--cluster", "create"]).args(cluster.addresses());
        create.args(["--cluster-replicas", "1", "--cluster-yes"]).run().or_fail("cannot create the Redis cluster");
        cluster.wait_until_ready();
        Ok(cluster)
    }

    /// Where clients connect: `127.0.0.1:PORT` of each node.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.ports.client)).collect()
    }

    /// Sends SIGKILL to a node.
    pub fn kill(&self, node: usize) {
        self.nodes[node].process.kill();
    }

    /// Starts a killed node again. Returns when it has joined the cluster and the cluster is complete.
    pub fn restart(&self, node: usize) {
        self.nodes[node].process.start();
        self.nodes[node].process.expect_log(STARTED);
        self.wait_until_ready();
    }

    /// Sends SIGSTOP to a node: its connections stay open and nobody answers.
    pub fn pause(&self, node: usize) {
        self.nodes[node].process.pause();
    }

    /// Sends SIGCONT to a node.
    pub fn resume(&self, node: usize) {
        self.nodes[node].process.resume();
    }

    /// The nodes that own slots now, as the first node that runs sees it.
    pub fn masters(&self) -> Vec<usize> {
        let view = self.view(self.first_available()).or_fail("cannot read the nodes of the Redis cluster");
        self.masters_in(&view)
    }

    /// Removes all keys.
    pub fn flush_all(&self) {
        for master in self.masters() {
            self.cli(master, &["FLUSHALL"]).or_fail("cannot flush a Redis node");
        }
    }

    /// Waits until all nodes that run know each other and agree on who owns the slots, all slots are served, and every
    /// replica is in sync with its master.
    pub fn wait_until_ready(&self) {
        self.wait_on_each_node("to see a whole cluster", |at| {
            let view = self.view(at)?;
            let mut available = self.nodes.iter().filter(|node| node.process.is_available());
            let knows_all = available.all(|node| view.line(node).is_some_and(is_healthy));
            if !knows_all || self.masters_in(&view) != self.masters() {
                return Err(view.0);
            }
            if self.masters_in(&view).contains(&at) {
                return Ok(());
            }
            let replication = self.cli(at, &["INFO", "replication"])?;
            if replication.contains("master_link_status:up") { Ok(()) } else { Err(replication) }
        });
    }

    /// Waits until every node that runs knows that this one is gone, and all slots are served without it.
    pub fn wait_until_failed_over(&self, node: usize) {
        self.wait_on_each_node(&format!("to see that node {node} is replaced"), |at| {
            let view = self.view(at)?;
            // `fail?` is one node's suspicion, `fail` is the cluster's decision.
            let is_replaced = |line| flags(line).contains(&"fail") && !owns_slots(line);
            if view.line(&self.nodes[node]).is_some_and(is_replaced) { Ok(()) } else { Err(view.0) }
        });
    }

    /// Runs `redis-cli` on one node, with the password. An error reply is an error.
    pub fn cli(&self, node: usize, args: &[&str]) -> Result<String, String> {
        let port = self.nodes[node].ports.client.to_string();
        self.redis_cli().args(["-e", "-p", &port]).args(args).run()
    }

    /// Process ids of the nodes that run.
    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| node.process.pid()).collect()
    }

    /// The directory of its files and logs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn redis_cli(&self) -> Tool {
        let mut tool = Tool::new(program("redis-cli"), self.dir.path());
        if let Some(files) = &self.options.tls {
            tool = tool.arg("--tls").arg("--cacert").arg(&files.ca);
            tool = tool.arg("--cert").arg(&files.certificate).arg("--key").arg(&files.key);
        }
        match &self.options.password {
            Some(password) => tool.env("REDISCLI_AUTH", password),
            None => tool,
        }
    }

    fn first_available(&self) -> usize {
        let first = self.nodes.iter().position(|node| node.process.is_available());
        first.unwrap_or_else(|| fail("no Redis node is running"))
    }

    /// Waits for a condition of each node that runs, and for `cluster_state:ok` on it.
    fn wait_on_each_node(&self, what: &str, condition: impl Fn(usize) -> Result<(), String>) {
        for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.process.is_available()) {
            node.process.wait_until(what, || {
                condition(at)?;
                let info = self.cli(at, &["CLUSTER", "INFO"])?;
                if info.contains("cluster_state:ok") { Ok(()) } else { Err(info) }
            });
        }
    }

    fn masters_in(&self, view: &ClusterView) -> Vec<usize> {
        (0..NODES).filter(|node| view.line(&self.nodes[*node]).is_some_and(is_working_master)).collect()
    }

    fn view(&self, node: usize) -> Result<ClusterView, String> {
        self.cli(node, &["CLUSTER", "NODES"]).map(ClusterView)
    }
}

/// The reply of one node to `CLUSTER NODES`.
struct ClusterView(String);

impl ClusterView {
    /// The line about a node.
    fn line(&self, node: &Node) -> Option<&str> {
        let address = format!(" 127.0.0.1:{}@", node.ports.client);
        self.0.lines().find(|line| line.contains(&address))
    }
}

/// The flags of a node, such as `myself,master` or `slave,fail`.
fn flags(line: &str) -> Vec<&str> {
    line.split(' ').nth(2).unwrap_or_default().split(',').collect()
}

fn is_healthy(line: &str) -> bool {
    !flags(line).iter().any(|flag| ["fail", "fail?", "handshake", "noaddr"].contains(flag))
}

fn owns_slots(line: &str) -> bool {
    // Slots begin with the ninth field.
    line.split(' ').count() > 8
}

fn is_working_master(line: &str) -> bool {
    is_healthy(line) && flags(line).contains(&"master") && owns_slots(line)
}

impl Node {
    fn new(at: usize, ports: NodePorts, options: &RedisOptions, dir: &ScratchDir) -> Node {
        let (client, bus) = (ports.client.to_string(), ports.bus.to_string());
        let mut server = Tool::new(program("redis-server"), dir.path())
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", NODE_TIMEOUT_MS])
            .args(["--cluster-config-file", &format!("nodes-{at}.conf")])
            // A replica may take over however long it has been disconnected from its master.
            .args(["--cluster-replica-validity-factor", "0"])
            .args(["--repl-diskless-sync-delay", "0", "--repl-diskless-load", "swapdb"]);
        server = match &options.tls {
            None => server.args(["--port", &client]),
            Some(files) => server
                .args(["--port", "0", "--tls-port", &client, "--tls-cluster", "yes", "--tls-replication", "yes"])
                .args(["--tls-auth-clients", "no", "--tls-ca-cert-file"])
                .arg(&files.ca)
                .arg("--tls-cert-file")
                .arg(&files.certificate)
                .arg("--tls-key-file")
                .arg(&files.key),
        };
        if let Some(password) = &options.password {
            server = server.args(["--requirepass", password, "--masterauth", password]);
        }
        Node { process: ServiceProcess::new(format!("redis-{at}"), server, dir), ports }
    }
}

fn free_ports() -> Vec<NodePorts> {
    (0..NODES).map(|_| NodePorts { client: free_port(), bus: free_port() }).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_taken_port_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap().port();
        for change in
            [|ports: &mut NodePorts, taken| ports.client = taken, |ports: &mut NodePorts, taken| ports.bus = taken]
        {
            let mut ports = free_ports();
            change(&mut ports[3], taken);
            assert_eq!(RedisCluster::try_start(&RedisOptions::default(), &ports).err(), Some(PortTaken));
        }
    }

    #[test]
    fn a_master_without_slots_or_without_life_is_no_master() {
        let master = "07c37d 127.0.0.1:30004@31004 myself,master - 0 1426238317239 4 connected 0-5460";
        assert!(is_working_master(master));
        assert!(!is_working_master(&master.replace(" 0-5460", "")));
        assert!(!is_working_master(&master.replace("myself,master", "master,fail?")));
        assert!(!is_working_master(&master.replace("master", "slave")));
        let view = ClusterView(master.to_owned());
        let dir = ScratchDir::new("redis");
        let node = |client| Node::new(0, NodePorts { client, bus: 31_004 }, &RedisOptions::default(), &dir);
        assert_eq!((view.line(&node(30_004)), view.line(&node(3000))), (Some(master), None));
    }
}
