//! Sends commands to the nodes that own their keys: one pipeline per node, redirections followed, lost nodes replaced.
//!
//! The routing of the client library (`redis::cluster_async`, 1.8) is not used. When a master dies while many commands
//! wait for it, its refresh of the slots never ends and every later call times out; and while it refreshes, commands
//! for healthy nodes wait as well. It does not split a pipeline by node either.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::stream::{self, FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use redis::cluster_routing::Slot;
use redis::{Cmd, ErrorKind, Pipeline, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use super::generation::Generations;
use super::limits::{
    HEDGE_AFTER, PIPELINE_COMMANDS_MAX, PIPELINES_MAX, RECONNECT_PAUSE, RETRIES_MAX, RETRY_FOR, RETRY_PAUSE_MIN,
    TOPOLOGY_AGE_MAX, TOPOLOGY_TIMEOUT,
};
use super::link::{NodeLink, NodeSecurity};
use super::scripts::{KeyCommand, ScriptForm, ScriptHashes};
use super::topology::{Topology, redirected_to};

/// Why a command that must not be run twice has no answer.
#[derive(Debug)]
pub enum OnceError {
    /// It was not run.
    NotRun(redis::RedisError),
    /// It may have been run.
    Unknown(redis::RedisError),
}

/// The nodes, and which of them owns which slots.
pub struct ClusterRouter {
    /// The configured nodes.
    seeds: Vec<String>,
    security: NodeSecurity,
    links: Mutex<HashMap<String, Arc<NodeLink>>>,
    topology: Mutex<KnownTopology>,
    /// Held while the topology is fetched, so that calls share the result.
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct KnownTopology {
    latest: Arc<Topology>,
    asked_at: Option<Instant>,
    /// Whether an answer has contradicted it.
    is_outdated: bool,
    /// The node that gave it.
    source: String,
    /// When the topology of a node last proved wrong.
    wrong_at: HashMap<String, Instant>,
    failure: Option<TopologyFailure>,
}

/// Why the topology could not be fetched.
struct TopologyFailure {
    /// Calls fail without another attempt before this.
    retry_at: Instant,
    error: redis::RedisError,
}

/// A command that has no answer yet.
struct PendingCommand {
    /// Its place among the commands of the call.
    place: usize,
    slot: Slot,
    redirect: Option<Redirect>,
}

/// Where a node said that a key is.
struct Redirect {
    address: String,
    /// Whether to send `ASKING` first, because the slot is being migrated.
    asking: bool,
}

/// Where commands are sent, and whether with `ASKING`; no address if nobody owns their slots.
type Destination = (Option<String>, bool);

/// The result of one pipeline.
#[derive(Default)]
struct PipelineResult {
    answers: Vec<(usize, Value)>,
    /// Commands to send again.
    pending: Vec<PendingCommand>,
    /// Why they have to be sent again.
    error: Option<redis::RedisError>,
}

impl ClusterRouter {
    /// Does not connect yet.
    pub fn new(seeds: Vec<String>, security: NodeSecurity) -> ClusterRouter {
        let topology = Mutex::new(KnownTopology { is_outdated: true, ..KnownTopology::default() });
        ClusterRouter { seeds, security, links: Mutex::default(), topology, refreshing: tokio::sync::Mutex::default() }
    }

    /// Runs commands and returns their answers in the same order. None of the answers is an error. Commands of nodes
    /// that answered are not sent again when others failed. Also returns the topology by which they were sent, if
    /// nothing had to be sent again.
    pub async fn run(
        &self,
        commands: &[KeyCommand],
        hashes: &ScriptHashes,
    ) -> RedisResult<(Vec<Value>, Option<Arc<Topology>>)> {
        let started = Instant::now();
        let mut answers = vec![Value::Nil; commands.len()];
        let pending = |(place, command): (usize, &KeyCommand)| PendingCommand {
            place,
            slot: Slot::for_key(&command.key),
            redirect: None,
        };
        let mut waiting: Vec<PendingCommand> = commands.iter().enumerate().map(pending).collect();
        let mut pause = RETRY_PAUSE_MIN;
        let mut sent_by = None;
        for retry in 0.. {
            let topology = self.topology().await?;
            let sent = self.send_all(std::mem::take(&mut waiting), &topology, commands, hashes).await?;
            sent.answers.into_iter().for_each(|(place, answer)| answers[place] = answer);
            waiting = sent.pending;
            let Some(error) = sent.error else {
                sent_by = (retry == 0).then_some(topology);
                break;
            };
            self.forget(&topology);
            if retry == RETRIES_MAX || started.elapsed() + pause > RETRY_FOR {
                return Err(error);
            }
            tracing::debug!(%error, commands = waiting.len(), "Redis commands are sent again");
            if retry > 0 {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
        Ok((answers, sent_by))
    }

    /// Runs a command that must not be run twice. It is sent again only if a node refused it or no connection could be
    /// made.
    pub async fn run_once(&self, command: KeyCommand, hashes: &ScriptHashes) -> Result<Value, OnceError> {
        let started = Instant::now();
        let slot = Slot::for_key(&command.key);
        let commands = [command];
        let mut redirect = None;
        let mut pause = RETRY_PAUSE_MIN;
        // A node that has not run the script yet refuses its hash.
        let mut form = ScriptForm::Hash(hashes);
        for retry in 0.. {
            let topology = self.topology().await.map_err(OnceError::NotRun)?;
            let (address, asking) = match &redirect {
                Some(Redirect { address, asking }) => (Some(address.clone()), *asking),
                None => (topology.owner(slot).map(str::to_owned), false),
            };
            let refused = match address {
                None => (ErrorKind::Server(ServerErrorKind::ClusterDown), "nobody owns a slot").into(),
                Some(address) => match self.send_once(&address, asking, &commands[0], form).await {
                    Ok(answer) => return Ok(answer),
                    Err(OnceError::NotRun(error)) => {
                        redirect = Redirect::of(&error, &address);
                        error
                    }
                    Err(unknown) => return Err(unknown),
                },
            };
            if refused.kind() == ErrorKind::Server(ServerErrorKind::NoScript) {
                form = ScriptForm::Text;
            } else {
                self.forget(&topology);
            }
            if !may_pass(&refused) || retry == RETRIES_MAX || started.elapsed() + pause > RETRY_FOR {
                return Err(OnceError::NotRun(refused));
            }
            if retry > 0 {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
        // Not reached: the loop ends only by returning.
        Err(OnceError::NotRun((ErrorKind::Client, "no attempt was made").into()))
    }

    async fn send_once(
        &self,
        address: &str,
        asking: bool,
        command: &KeyCommand,
        form: ScriptForm<'_>,
    ) -> Result<Value, OnceError> {
        let link = self.link(address).map_err(OnceError::NotRun)?;
        link.ready().await.map_err(OnceError::NotRun)?;
        let mut pipeline = Pipeline::with_capacity(2);
        if asking {
            pipeline.add_command(redis::cmd("ASKING"));
        }
        pipeline.add_command(command.command(form));
        let count = if asking { 2 } else { 1 };
        let mut answers = link.send(&pipeline, count).await.map_err(OnceError::Unknown)?;
        let answer = answers.pop().ok_or_else(|| OnceError::Unknown((ErrorKind::Client, "no answer").into()))?;
        answer.extract_error().inspect_err(|error| note_down(&link, error)).map_err(OnceError::NotRun)
    }

    /// Runs a command on the first node that answers.
    pub async fn ask_any(&self, command: &Cmd) -> RedisResult<Value> {
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.add_command(command.clone());
        self.ask_nodes(&pipeline, 1, |mut answers, _| Ok(answers.remove(0))).await
    }

    /// Sends commands to the nodes in turn and returns the first answers that `parse` accepts. A silent node delays the next
    /// one by [`HEDGE_AFTER`].
    async fn ask_nodes<T>(
        &self,
        pipeline: &Pipeline,
        count: usize,
        parse: impl Fn(Vec<Value>, &str) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let mut unasked = self.nodes_to_ask()?.into_iter();
        let mut asked = FuturesUnordered::new();
        let mut last_error = (ErrorKind::InvalidClientConfig, "no nodes are given").into();
        loop {
            let newest = match unasked.next() {
                Some(address) => {
                    let link = self.link(&address)?;
                    let sending = Arc::clone(&link);
                    asked.push(async move { (sending.send(pipeline, count).await, address) });
                    Some(link)
                }
                None if asked.is_empty() => return Err(last_error),
                None => None,
            };
            let answered = match newest.filter(|_| unasked.len() > 0) {
                None => asked.next().await,
                Some(link) => match tokio::time::timeout(HEDGE_AFTER, asked.next()).await {
                    Ok(answered) => answered,
                    Err(_) => {
                        // Here, because its call may be dropped before it fails.
                        link.note_down();
                        continue;
                    }
                },
            };
            let Some((answers, address)) = answered else { continue };
            let answers = answers.and_then(|answers| answers.into_iter().map(Value::extract_error).collect());
            match answers.and_then(|answers| parse(answers, &address)) {
                Ok(parsed) => return Ok(parsed),
                Err(error) => last_error = error,
            }
        }
    }

    /// All nodes. Those that failed or whose topology proved wrong come last, the latest of them at the very end, so
    /// that a node that was slow once and one that keeps giving a wrong topology take turns.
    fn nodes_to_ask(&self) -> RedisResult<Vec<String>> {
        let (latest, wrong_at) = {
            let known = self.topology.lock();
            (Arc::clone(&known.latest), known.wrong_at.clone())
        };
        let mut nodes: Vec<String> = latest.nodes().map(str::to_owned).chain(self.seeds.iter().cloned()).collect();
        nodes.sort();
        nodes.dedup();
        let links: RedisResult<Vec<_>> = nodes.iter().map(|node| self.link(node)).collect();
        let rank = |(link, node): (Arc<NodeLink>, String)| (link.failed_at().max(wrong_at.get(&node).copied()), node);
        let mut ranked: Vec<_> = links?.into_iter().zip(nodes).map(rank).collect();
        ranked.sort();
        Ok(ranked.into_iter().map(|(.., node)| node).collect())
    }

    fn link(&self, address: &str) -> RedisResult<Arc<NodeLink>> {
        let mut links = self.links.lock();
        if let Some(link) = links.get(address) {
            return Ok(Arc::clone(link));
        }
        let link = Arc::new(NodeLink::new(address, &self.security)?);
        links.insert(address.to_owned(), Arc::clone(&link));
        Ok(link)
    }

    fn current_topology(&self) -> Option<Arc<Topology>> {
        let known = self.topology.lock();
        (!known.is_outdated).then(|| Arc::clone(&known.latest))
    }

    /// The known topology, fetched again if it is outdated. Calls that wait for the same attempt share its result.
    pub async fn topology(&self) -> RedisResult<Arc<Topology>> {
        if let Some(current) = self.current_topology() {
            return Ok(current);
        }
        let waiting_since = Instant::now();
        let _refreshing = self.refreshing.lock().await;
        match self.current_topology() {
            Some(current) => Ok(current),
            None => self.ask_topology(waiting_since).await,
        }
    }

    /// The topology, fetched again if it is too old. Calls in flight are not delayed.
    pub async fn recent_topology(&self) -> RedisResult<Arc<Topology>> {
        let waiting_since = Instant::now();
        let _refreshing = self.refreshing.lock().await;
        let is_recent = |asked_at: Instant| asked_at.elapsed() < TOPOLOGY_AGE_MAX;
        match self.current_topology() {
            Some(current) if self.topology.lock().asked_at.is_some_and(is_recent) => Ok(current),
            _ => self.ask_topology(waiting_since).await,
        }
    }

    /// Fetches the topology, unless that has failed since `waiting_since` or just before.
    async fn ask_topology(&self, waiting_since: Instant) -> RedisResult<Arc<Topology>> {
        if let Some(failure) = &self.topology.lock().failure
            && waiting_since < failure.retry_at
        {
            return Err(failure.error.clone());
        }
        let mut pipeline = Pipeline::with_capacity(2);
        for what in ["SLOTS", "NODES"] {
            pipeline.cmd("CLUSTER").arg(what);
        }
        let began = Instant::now();
        let asked = tokio::time::timeout(TOPOLOGY_TIMEOUT, self.ask_nodes(&pipeline, 2, parse_topology)).await;
        let silent = || Err((ErrorKind::Io, "no node answered in time").into());
        let mut known = self.topology.lock();
        match asked.unwrap_or_else(|_| silent()) {
            Ok((latest, source)) => {
                let latest = Arc::new(latest);
                let is_known = |node: &String| latest.has_node(node) || self.seeds.contains(node);
                known.latest = Arc::clone(&latest);
                known.asked_at = Some(Instant::now());
                known.is_outdated = false;
                known.source = source;
                known.wrong_at.retain(|node, _| is_known(node));
                known.failure = None;
                drop(known);
                self.links.lock().retain(|address, _| is_known(address));
                Ok(latest)
            }
            Err(error) => {
                // Backs off for as long as the attempt took, so that at most half of the time is spent waiting for silent nodes.
                let pause = began.elapsed().clamp(RECONNECT_PAUSE, TOPOLOGY_TIMEOUT);
                known.failure = Some(TopologyFailure { retry_at: Instant::now() + pause, error: error.clone() });
                Err(error)
            }
        }
    }

    /// Makes the next call fetch the topology, unless that has already been done.
    fn forget(&self, topology: &Arc<Topology>) {
        let mut known = self.topology.lock();
        if Arc::ptr_eq(&known.latest, topology) {
            known.is_outdated = true;
            let source = known.source.clone();
            known.wrong_at.insert(source, Instant::now());
        }
    }

    /// Sends each command once.
    async fn send_all(
        &self,
        waiting: Vec<PendingCommand>,
        topology: &Topology,
        commands: &[KeyCommand],
        hashes: &ScriptHashes,
    ) -> RedisResult<PipelineResult> {
        let pipelines = by_destination(waiting, topology)
            .into_iter()
            .map(|(destination, pending)| self.send(destination, pending, commands, hashes));
        let mut sent = stream::iter(pipelines).buffer_unordered(PIPELINES_MAX);
        let mut all = PipelineResult::default();
        while let Some(sent) = sent.next().await {
            let sent = sent?;
            all.answers.extend(sent.answers);
            all.pending.extend(sent.pending);
            all.error = sent.error.or(all.error);
        }
        Ok(all)
    }

    /// Sends commands to one node in one pipeline. Fails if an answer is an error that a retry cannot fix.
    async fn send(
        &self,
        (address, asking): Destination,
        mut pending: Vec<PendingCommand>,
        commands: &[KeyCommand],
        hashes: &ScriptHashes,
    ) -> RedisResult<PipelineResult> {
        let Some(address) = address else {
            let error = (ErrorKind::Server(ServerErrorKind::ClusterDown), "nobody owns a slot").into();
            return Ok(PipelineResult { pending, error: Some(error), ..PipelineResult::default() });
        };
        let mut pipeline = Pipeline::with_capacity(2 * pending.len());
        // The first command makes the node cache the script for the others.
        let mut form = ScriptForm::Text;
        for command in &pending {
            if asking {
                pipeline.add_command(redis::cmd("ASKING"));
            }
            pipeline.add_command(commands[command.place].command(form));
            form = ScriptForm::Hash(hashes);
        }
        let per_command = if asking { 2 } else { 1 };
        let link = self.link(&address)?;
        let answered = match link.send(&pipeline, per_command * pending.len()).await {
            Ok(answered) => answered,
            Err(error) => {
                pending.iter_mut().for_each(|command| command.redirect = None);
                return Ok(PipelineResult { pending, error: Some(error), ..PipelineResult::default() });
            }
        };
        let mut sent = PipelineResult::default();
        for (command, answer) in
            pending.into_iter().zip(answered.into_iter().skip(per_command - 1).step_by(per_command))
        {
            match answer.extract_error().inspect_err(|error| note_down(&link, error)) {
                Ok(answer) => sent.answers.push((command.place, answer)),
                Err(error) if is_temporary(error.kind()) => {
                    sent.pending.push(PendingCommand { redirect: Redirect::of(&error, &address), ..command });
                    sent.error = Some(error);
                }
                // Another application's list or hash, which counts as malformed like an empty value.
                Err(error) if error.code() == Some("WRONGTYPE") => {
                    sent.answers.push((command.place, Value::BulkString(Vec::new())));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

/// The topology in the answers to `CLUSTER SLOTS` and `CLUSTER NODES`, with the node that gave it. A node that was removed
/// from the cluster, or has lost its configuration, knows no owners.
fn parse_topology(mut answers: Vec<Value>, asked: &str) -> RedisResult<(Topology, String)> {
    let nodes: String = redis::from_redis_value(answers.pop().unwrap_or(Value::Nil))?;
    let slots = answers.pop().unwrap_or(Value::Nil);
    let mut topology = Topology::parse(&slots, asked);
    if !topology.has_owners() {
        return Err((ErrorKind::Server(ServerErrorKind::ClusterDown), "no node knows the owners of slots").into());
    }
    topology.generations = Generations::parse(&slots, &nodes);
    Ok((topology, asked.to_owned()))
}

/// Commands for one node, at most as many as a pipeline may have.
fn by_destination(waiting: Vec<PendingCommand>, topology: &Topology) -> Vec<(Destination, Vec<PendingCommand>)> {
    let mut full = Vec::new();
    let mut filling: BTreeMap<Destination, Vec<PendingCommand>> = BTreeMap::new();
    for command in waiting {
        let destination = match &command.redirect {
            Some(redirect) => (Some(redirect.address.clone()), redirect.asking),
            None => (topology.owner(command.slot).map(str::to_owned), false),
        };
        let pipeline = filling.entry(destination.clone()).or_default();
        pipeline.push(command);
        if pipeline.len() == PIPELINE_COMMANDS_MAX {
            full.push((destination, std::mem::take(pipeline)));
        }
    }
    full.extend(filling.into_iter().filter(|(_, pipeline)| !pipeline.is_empty()));
    full
}

impl Redirect {
    fn of(error: &redis::RedisError, asked: &str) -> Option<Redirect> {
        let (address, _) = error.redirect_node()?;
        let asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        Some(Redirect { address: redirected_to(address, asked)?, asking })
    }
}

/// A node that reports that the cluster is down is the last to be asked for the topology.
fn note_down(link: &NodeLink, error: &redis::RedisError) {
    if error.kind() == ErrorKind::Server(ServerErrorKind::ClusterDown) {
        link.note_down();
    }
}

/// Whether a command that was not run may be run later or elsewhere: the node refused it for now, or could not be
/// reached.
fn may_pass(error: &redis::RedisError) -> bool {
    is_temporary(error.kind()) || error.kind() == ErrorKind::Io
}

/// Whether a command may succeed later or on another node.
fn is_temporary(kind: ErrorKind) -> bool {
    use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, NoScript, ReadOnly, TryAgain};
    matches!(
        kind,
        ErrorKind::Server(Ask | BusyLoading | ClusterDown | MasterDown | Moved | NoScript | ReadOnly | TryAgain)
    )
}

#[cfg(test)]
mod tests;
