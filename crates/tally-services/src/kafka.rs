//! Apache Kafka without ZooKeeper: one broker or three, each of them also a controller.

use std::path::{Path, PathBuf};

use crate::certificates::CertificateFiles;
use crate::fail::{OrFail, fail};
use crate::ports::{PortTaken, free_port, start_on_free_ports};
use crate::process::ServiceProcess;
use crate::scratch::ScratchDir;
use crate::tool::{MAKE_TARGET, Tool, program};

const VERSION: &str = "4.1.0";

/// Any id will do: a cluster is never joined with another.
const CLUSTER_ID: &str = "VGFsbHlUZXN0Q2x1c3Rlcg";

/// Logged when a broker has joined the cluster and accepts requests. `Transition from STARTING to STARTED` is logged
/// earlier, even if the start then fails.
const STARTED: &str = "Kafka Server started";

/// Settings that make a broker small, quick to start and quick to notice that another one is gone.
const PROPERTIES: &str = "\
process.roles=broker,controller
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLIENT
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=3
transaction.state.log.num.partitions=3
share.coordinator.state.topic.num.partitions=3
log.cleaner.dedupe.buffer.size=4194304
num.network.threads=2
num.io.threads=4
background.threads=2
";

/// How to start [`Kafka`].
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// One or three. With three, topics have three replicas, and two of them acknowledge a write.
    pub brokers: usize,
    /// User and password that clients must give with SASL: PLAIN or SCRAM-SHA-256.
    pub credentials: Option<(String, String)>,
    /// The certificate of the brokers. With it, clients must use TLS.
    pub tls: Option<CertificateFiles>,
    /// Heap of each broker.
    pub heap_mb: usize,
    /// Runs Java with all its JIT compilers, for benchmarks. Slower to start.
    pub optimized: bool,
    /// More environment variables of the brokers, such as `LD_PRELOAD`.
    pub environment: Vec<(&'static str, String)>,
    /// More settings of the brokers, such as `("log.retention.check.interval.ms", "1000")`.
    pub properties: Vec<(String, String)>,
}

impl Default for KafkaOptions {
    fn default() -> KafkaOptions {
        KafkaOptions {
            brokers: 1,
            credentials: None,
            tls: None,
            heap_mb: 256,
            optimized: false,
            environment: Vec::new(),
            properties: Vec::new(),
        }
    }
}

/// A running cluster. A broker's index is its `node.id`, so the leader that a client sees is the one to kill.
pub struct Kafka {
    brokers: Vec<Broker>,
    jars: PathBuf,
    credentials: Option<(String, String)>,
    dir: ScratchDir,
}

struct Broker {
    process: ServiceProcess,
    ports: BrokerPorts,
}

#[derive(Clone, Copy)]
struct BrokerPorts {
    client: u16,
    controller: u16,
}

impl Kafka {
    /// One broker or three, ready.
    pub fn start(brokers: usize) -> Kafka {
        Kafka::start_with(&KafkaOptions { brokers, ..KafkaOptions::default() })
    }

    /// One broker that requires this user and password: `security.protocol=SASL_PLAINTEXT`, `sasl.mechanism=PLAIN`.
    pub fn start_with_password(user: &str, password: &str) -> Kafka {
        let credentials = Some((user.to_owned(), password.to_owned()));
        Kafka::start_with(&KafkaOptions { credentials, ..KafkaOptions::default() })
    }

    /// A cluster with these settings, ready.
    pub fn start_with(settings: &KafkaOptions) -> Kafka {
        if ![1, 3].contains(&settings.brokers) {
            fail(&format!("{} brokers: only 1 and 3 are supported", settings.brokers));
        }
        start_on_free_ports(|| {
            let ports = (0..settings.brokers).map(|_| BrokerPorts { client: free_port(), controller: free_port() });
            Kafka::try_start(settings, &ports.collect::<Vec<_>>())
        })
    }

    fn try_start(settings: &KafkaOptions, ports: &[BrokerPorts]) -> Result<Kafka, PortTaken> {
        let (jars, dir) = (jars(), ScratchDir::new("kafka"));
        let mut brokers = Vec::new();
        let mut formats = Vec::new();
        for (node, own) in ports.iter().enumerate() {
            let data = dir.path().join(format!("data-{node}"));
            let mut properties = properties(settings, ports, node, &data);
            if let Some(files) = &settings.tls {
                let read = |path: &Path| std::fs::read_to_string(path).or_fail("cannot read a certificate");
                let own = dir.write("broker.pem", &(read(&files.key) + &read(&files.certificate)));
                properties += &tls_properties(&own, &files.ca);
            }
            let config = dir.write(&format!("server-{node}.properties"), &properties);
            let format = java(&jars, dir.path(), "warn").args(["kafka.tools.StorageTool", "format", "--cluster-id"]);
            let format = format.args([CLUSTER_ID, "--config"]).arg(&config);
            formats.push(match &settings.credentials {
                None => format,
                Some((user, password)) => {
                    format.args(["--add-scram", &format!("SCRAM-SHA-256=[name={user},password={password}]")])
                }
            });
            let heap = format!("-Xmx{}m", settings.heap_mb);
            let java = if settings.optimized { optimized_java } else { java };
            let broker = java(&jars, dir.path(), "info").args([&heap, "kafka.Kafka"]).arg(&config);
            let broker = settings.environment.iter().fold(broker, |broker, (name, value)| broker.env(name, value));
            let process = ServiceProcess::new(format!("kafka-{node}"), broker, &dir);
            brokers.push(Broker { process, ports: *own });
        }
        std::thread::scope(|scope| {
            let running: Vec<_> = formats.iter().map(|format| scope.spawn(|| format.run())).collect();
            for format in running {
                format.join().unwrap_or_else(|_| Err("panicked".into())).or_fail("cannot format the data of Kafka");
            }
        });
        let kafka = Kafka { brokers, jars, credentials: settings.credentials.clone(), dir };
        kafka.try_start_all()?;
        Ok(kafka)
    }

    fn try_start_all(&self) -> Result<(), PortTaken> {
        self.brokers.iter().for_each(|broker| broker.process.start());
        self.brokers.iter().try_for_each(|broker| broker.process.wait_for_log(STARTED))
    }

    /// Where clients connect: `127.0.0.1:PORT`, separated by commas.
    pub fn bootstrap_servers(&self) -> String {
        let addresses: Vec<String> = self.brokers.iter().map(Broker::address).collect();
        addresses.join(",")
    }

    /// Where clients connect to one broker.
    pub fn address(&self, broker: usize) -> String {
        self.brokers[broker].address()
    }

    /// Sends SIGKILL to a broker.
    pub fn kill(&self, broker: usize) {
        self.brokers[broker].process.kill();
    }

    /// Starts a killed broker again. Returns when it accepts requests; it may still be catching up.
    pub fn restart(&self, broker: usize) {
        self.brokers[broker].process.start();
        self.brokers[broker].process.expect_log(STARTED);
    }

    /// Sends SIGSTOP to a broker: its connections stay open and nobody answers.
    pub fn pause(&self, broker: usize) {
        self.brokers[broker].process.pause();
    }

    /// Sends SIGCONT to a broker.
    pub fn resume(&self, broker: usize) {
        self.brokers[broker].process.resume();
    }

    /// Sends SIGKILL to all brokers. What they have acknowledged is in the page cache and survives.
    pub fn stop_all(&self) {
        self.brokers.iter().for_each(|broker| broker.process.kill());
    }

    /// Starts all brokers again after [`Kafka::stop_all`].
    pub fn start_all(&self) {
        self.brokers.iter().for_each(|broker| broker.process.start());
        self.brokers.iter().for_each(|broker| broker.process.expect_log(STARTED));
    }

    /// Waits until the brokers that run, and no others, are members of the cluster, and every partition has the
    /// replicas it can have: all of them if all brokers run, otherwise enough for a write. Takes some seconds, because
    /// it starts Kafka's own tools.
    pub fn wait_until_ready(&self) {
        let Some(first) = self.brokers.iter().find(|broker| broker.process.is_available()) else {
            fail("no broker is running");
        };
        first.process.wait_until("to see the right members", || {
            let members = self.tool("ClusterTool", &["list-endpoints"], "")?;
            let is_member = |broker: &Broker| members.contains(&format!(" {} ", broker.ports.client));
            let is_right = self.brokers.iter().all(|broker| is_member(broker) == broker.process.is_available());
            if is_right { Ok(()) } else { Err(members) }
        });
        let is_whole = self.brokers.iter().all(|broker| broker.process.is_available());
        let lacking = if is_whole { "--under-replicated-partitions" } else { "--under-min-isr-partitions" };
        first.process.wait_until("to see enough replicas", || {
            let partitions = self.tool("TopicCommand", &["--describe", lacking], "")?;
            if partitions.trim().is_empty() { Ok(()) } else { Err(partitions) }
        });
    }

    /// Runs one of Kafka's command line tools, a class of `org.apache.kafka.tools`, on the brokers that run, with the
    /// right credentials. Returns what it printed; an error is what it printed when it failed.
    pub fn tool(&self, class: &str, args: &[&str], input: &str) -> Result<String, String> {
        let credentials = self.credentials.as_ref();
        self.tool_as(credentials.map(|(user, password)| (&**user, &**password)), class, args, input)
    }

    /// Like [`Kafka::tool`], with these credentials.
    pub fn tool_as(
        &self,
        credentials: Option<(&str, &str)>,
        class: &str,
        args: &[&str],
        input: &str,
    ) -> Result<String, String> {
        let available = self.brokers.iter().filter(|broker| broker.process.is_available());
        let servers: Vec<String> = available.map(Broker::address).collect();
        // Not all tools give the option the same name.
        let option = match class {
            "consumer.ConsoleConsumer" => "--consumer.config",
            "ConsoleProducer" => "--producer.config",
            "ClusterTool" => "--config",
            _ => "--command-config",
        };
        let mut tool = java(&self.jars, self.dir.path(), "warn").arg(format!("org.apache.kafka.tools.{class}"));
        tool = tool.args(args).args(["--bootstrap-server", &servers.join(",")]);
        let config = tempfile::Builder::new().suffix(".properties").tempfile_in(self.dir.path());
        let config = config.or_fail("cannot create a temporary file");
        if let Some((user, password)) = credentials {
            let login = format!("{LOGIN} username=\"{user}\" password=\"{password}\";");
            let properties =
                format!("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n");
            std::fs::write(config.path(), properties).or_fail("cannot write a temporary file");
            tool = tool.arg(option).arg(config.path());
        }
        tool.run_with_input(input)
    }

    /// Process ids of the brokers that run.
    pub fn pids(&self) -> Vec<u32> {
        self.brokers.iter().filter_map(|broker| broker.process.pid()).collect()
    }

    /// The directory of its data and logs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Broker {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.client)
    }
}

const LOGIN: &str = "org.apache.kafka.common.security.plain.PlainLoginModule required";

const SCRAM_LOGIN: &str = "org.apache.kafka.common.security.scram.ScramLoginModule required;";

/// The broker's own key and certificate are in one file. It also verifies the certificates of the other brokers.
fn tls_properties(own: &Path, ca: &Path) -> String {
    let (own, ca) = (own.display(), ca.display());
    format!(
        "ssl.keystore.type=PEM\nssl.keystore.location={own}\nssl.truststore.type=PEM\nssl.truststore.location={ca}\n"
    )
}

fn properties(settings: &KafkaOptions, ports: &[BrokerPorts], node: usize, data: &Path) -> String {
    let BrokerPorts { client, controller } = ports[node];
    let voters: Vec<String> =
        ports.iter().enumerate().map(|(id, ports)| format!("{id}@127.0.0.1:{}", ports.controller)).collect();
    let (replicas, min_isr) = if ports.len() == 1 { (1, 1) } else { (3, 2) };
    let protocol = match (&settings.credentials, &settings.tls) {
        (None, None) => "PLAINTEXT",
        (None, Some(_)) => "SSL",
        (Some(_), None) => "SASL_PLAINTEXT",
        (Some(_), Some(_)) => "SASL_SSL",
    };
    let mut text = PROPERTIES.to_owned();
    let mut set = |name: &str, value: &str| text.push_str(&format!("{name}={value}\n"));
    set("node.id", &node.to_string());
    set("controller.quorum.voters", &voters.join(","));
    set("listeners", &format!("CLIENT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}"));
    set("listener.security.protocol.map", &format!("CLIENT:{protocol},CONTROLLER:PLAINTEXT"));
    set("log.dirs", &data.to_string_lossy());
    for topic in ["offsets.topic", "transaction.state.log", "share.coordinator.state.topic"] {
        set(&format!("{topic}.replication.factor"), &replicas.to_string());
    }
    set("transaction.state.log.min.isr", &min_isr.to_string());
    set("share.coordinator.state.topic.min.isr", &min_isr.to_string());
    set("default.replication.factor", &replicas.to_string());
    set("min.insync.replicas", &min_isr.to_string());
    if let Some((user, password)) = &settings.credentials {
        set("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256");
        set("listener.name.client.scram-sha-256.sasl.jaas.config", SCRAM_LOGIN);
        set("sasl.mechanism.inter.broker.protocol", "PLAIN");
        let login = format!("{LOGIN} username=\"{user}\" password=\"{password}\" user_{user}=\"{password}\";");
        set("listener.name.client.plain.sasl.jaas.config", &login);
    }
    settings.properties.iter().for_each(|(name, value)| set(name, value));
    text
}

/// Java with the first JIT tier only and a serial garbage collector, because it shares few cores.
fn java(jars: &Path, dir: &Path, log_level: &str) -> Tool {
    java_with(&["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"], jars, dir, log_level)
}

/// Java with its default options.
fn optimized_java(jars: &Path, dir: &Path, log_level: &str) -> Tool {
    java_with(&[], jars, dir, log_level)
}

fn java_with(options: &[&str], jars: &Path, dir: &Path, log_level: &str) -> Tool {
    Tool::new(java_program(), dir).args(options).arg("-cp").arg(jars.join("*")).args([
        // A killed broker leaves unpacked libraries in its temporary directory.
        &format!("-Djava.io.tmpdir={}", dir.display()),
        &format!("-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"),
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    ])
}

/// Debian's Java 17 if it is installed, because `java` may be an older one.
fn java_program() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let seventeen = found.filter(|entry| entry.file_name().to_string_lossy().starts_with("java-17-openjdk"));
    let mut programs = seventeen.map(|entry| entry.path().join("bin/java")).filter(|path| path.is_file());
    programs.next().unwrap_or_else(|| program("java"))
}

/// The directory with Kafka's jars.
#[expect(clippy::disallowed_methods, reason = "where tools are is no setting of Tally's")]
fn jars() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    let jars = std::env::var_os("TALLY_KAFKA_JARS").map(PathBuf::from);
    let jars = jars.unwrap_or_else(|| target.join("kafka").join(VERSION));
    if !jars.join(format!("kafka_2.13-{VERSION}.jar")).is_file() {
        fail(&format!("Kafka {VERSION} is not in {}: run `{MAKE_TARGET}`", jars.display()));
    }
    jars
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_taken_port_is_noticed() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let ports = BrokerPorts { client: taken.local_addr().unwrap().port(), controller: free_port() };
        assert_eq!(Kafka::try_start(&KafkaOptions::default(), &[ports]).err(), Some(PortTaken));
    }
}
