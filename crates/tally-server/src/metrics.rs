//! Metrics of requests, connections, the engine and the process.
//!
//! Recording a request takes two relaxed atomic adds: its latency bucket and the sum. Everything else is computed when
//! the metrics are scraped. A counter key is never a label.

mod format;
mod process;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tally_core::surface::{Metric, MetricValue};

use crate::service::Service;

pub use format::TextFormat;
pub use process::{process_usage, resident_bytes_peak};

/// The kind of a request: the label `verb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Add.
    Increment,
    /// Subtract.
    Decrement,
    /// Add to many.
    BatchIncrement,
    /// Read one.
    Read,
    /// Read one, exactly.
    Exact,
    /// Read many.
    Many,
    /// List by prefix.
    List,
    /// Read with statistics.
    Stats,
    /// Set the value.
    Set,
    /// Reset to zero.
    Reset,
    /// Add as a correction.
    Adjust,
    /// List corrections.
    Ledger,
    /// Remove.
    Delete,
    /// Set or clear an expiry.
    Expire,
    /// Read everything.
    Export,
    /// Import what another server exported.
    Import,
    /// Copy the data directory.
    Backup,
    /// Health, documentation, and unknown paths.
    Other,
}

impl Verb {
    /// Every verb, in order of declaration.
    pub const ALL: [Verb; 18] = [
        Verb::Increment,
        Verb::Decrement,
        Verb::BatchIncrement,
        Verb::Read,
        Verb::Exact,
        Verb::Many,
        Verb::List,
        Verb::Stats,
        Verb::Set,
        Verb::Reset,
        Verb::Adjust,
        Verb::Ledger,
        Verb::Delete,
        Verb::Expire,
        Verb::Export,
        Verb::Import,
        Verb::Backup,
        Verb::Other,
    ];

    fn label(self) -> &'static str {
        match self {
            Verb::Increment => "increment",
            Verb::Decrement => "decrement",
            Verb::BatchIncrement => "batch-increment",
            Verb::Read => "read",
            Verb::Exact => "exact",
            Verb::Many => "many",
            Verb::List => "list",
            Verb::Stats => "stats",
            Verb::Set => "set",
            Verb::Reset => "reset",
            Verb::Adjust => "adjust",
            Verb::Ledger => "ledger",
            Verb::Delete => "delete",
            Verb::Expire => "expire",
            Verb::Export => "export",
            Verb::Import => "import",
            Verb::Backup => "backup",
            Verb::Other => "other",
        }
    }
}

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const VERBS: usize = Verb::ALL.len();

/// Measures the latency of a request.
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring.
    #[allow(clippy::disallowed_methods, reason = "only for latency metrics; no counter depends on it")]
    pub fn start() -> Self {
        Stopwatch(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Upper bounds of the latency buckets.
const BOUNDS_US: [u64; 16] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
];

/// A latency histogram. The last bucket has no upper bound.
#[derive(Default)]
struct LatencyHistogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl LatencyHistogram {
    fn observe(&self, took: Duration, count: u64) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|&bound_us| bound_us * 1_000 < took_ns);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(count, Relaxed);
        }
        self.sum_ns.fetch_add(took_ns.saturating_mul(count), Relaxed);
    }

    fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS_US.iter().map(|&us| us as f64 / 1e6).chain([f64::INFINITY]);
        bounds.zip(self.buckets.iter().map(|bucket| bucket.load(Relaxed))).collect()
    }

    fn sum(&self) -> f64 {
        self.sum_ns.load(Relaxed) as f64 / 1e9
    }
}

/// The metrics of one protocol.
pub struct ProtocolMetrics {
    label: Label,
    requests: [[LatencyHistogram; CLASSES.len()]; VERBS],
    connections_opened: AtomicU64,
    connections_closed: AtomicU64,
    connections_refused: AtomicU64,
}

impl ProtocolMetrics {
    /// All zero; `name` is the label `protocol`.
    pub fn new(name: &'static str) -> Arc<Self> {
        Arc::new(ProtocolMetrics {
            label: ("protocol", name),
            requests: Default::default(),
            connections_opened: AtomicU64::new(0),
            connections_closed: AtomicU64::new(0),
            connections_refused: AtomicU64::new(0),
        })
    }

    /// Records requests that were answered together.
    pub fn requests(&self, verb: Verb, status: u16, count: u64, stopwatch: &Stopwatch) {
        if let Some(latency) = self.latency(verb, status) {
            latency.observe(stopwatch.elapsed(), count);
        }
    }

    /// Requests counted so far.
    #[cfg(test)]
    pub fn count(&self, verb: Verb, status: u16) -> u64 {
        let buckets = self.latency(verb, status).into_iter().flat_map(|latency| &latency.buckets);
        buckets.map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// Connections refused because too many were open.
    pub fn refused(&self) -> u64 {
        self.connections_refused.load(Relaxed)
    }

    fn latency(&self, verb: Verb, status: u16) -> Option<&LatencyHistogram> {
        let class = usize::from(status / 100).saturating_sub(1).min(CLASSES.len() - 1);
        self.requests.get(verb as usize).and_then(|classes| classes.get(class))
    }

    /// Records one request.
    pub fn request(&self, verb: Verb, status: u16, stopwatch: &Stopwatch) {
        self.requests(verb, status, 1, stopwatch);
    }

    /// Counts a connection until the returned guard is dropped.
    pub fn connection(self: &Arc<Self>) -> OpenConnection {
        self.connections_opened.fetch_add(1, Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// Counts a connection refused because too many were open.
    pub fn connection_refused(&self) {
        self.connections_refused.fetch_add(1, Relaxed);
    }

    /// Connections open now.
    pub fn connections(&self) -> u64 {
        self.connections_opened.load(Relaxed).saturating_sub(self.connections_closed.load(Relaxed))
    }

    /// Every series with at least one request, with its labels.
    fn series(&self) -> impl Iterator<Item = ([Label; 3], &LatencyHistogram)> {
        let protocol = self.label;
        let series = Verb::ALL.into_iter().zip(&self.requests).flat_map(move |(verb, classes)| {
            CLASSES
                .into_iter()
                .zip(classes)
                .map(move |(class, latency)| ([protocol, ("verb", verb.label()), ("status", class)], latency))
        });
        series.filter(|(_, latency)| latency.buckets.iter().any(|bucket| bucket.load(Relaxed) > 0))
    }
}

/// Counts as an open connection until dropped.
pub struct OpenConnection(Arc<ProtocolMetrics>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections_closed.fetch_add(1, Relaxed);
    }
}

type Label = (&'static str, &'static str);
const NO_EXEMPLAR: Option<&prometheus_client::metrics::exemplar::Exemplar<[Label; 0], f64>> = None;

/// Collects all metrics on each scrape.
struct Scrape {
    protocols: Arc<[Arc<ProtocolMetrics>]>,
    service: Arc<Service>,
}

/// All metrics as text.
pub fn render(
    protocols: &Arc<[Arc<ProtocolMetrics>]>,
    service: &Arc<Service>,
    format: TextFormat,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape { protocols: Arc::clone(protocols), service: Arc::clone(service) }));
    let mut out = String::with_capacity(16 << 10);
    text::encode(&mut out, &registry)?;
    Ok(format.convert(out))
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        encode_build_info(&mut encoder, self.service.engine_name())?;
        encode_requests(&mut encoder, &self.protocols)?;
        encode_connections(&mut encoder, &self.protocols)?;
        process::encode_process(&mut encoder)?;
        self.service.metrics().iter().try_for_each(|metric| encode_metric(&mut encoder, metric))
    }
}

fn encode_build_info(encoder: &mut DescriptorEncoder<'_>, engine: &str) -> fmt::Result {
    let help = "Version and engine of this build; always 1.";
    let mut info = encoder.encode_descriptor("tally_build", help, None, MetricType::Info)?;
    info.encode_info(&[("version", env!("CARGO_PKG_VERSION")), ("engine", engine)])
}

fn encode_requests(encoder: &mut DescriptorEncoder<'_>, protocols: &[Arc<ProtocolMetrics>]) -> fmt::Result {
    let help = "Requests answered, by protocol, verb and status class.";
    let mut total = encoder.encode_descriptor("tally_requests", help, None, MetricType::Counter)?;
    for (labels, latency) in protocols.iter().flat_map(|protocol| protocol.series()) {
        let count: u64 = latency.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum();
        total.encode_family(&labels)?.encode_counter(&count, NO_EXEMPLAR)?;
    }
    let help = "Time from request head to response, by protocol, verb and status class.";
    let name = "tally_request_duration_seconds";
    let mut durations = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, latency) in protocols.iter().flat_map(|protocol| protocol.series()) {
        let buckets = latency.buckets();
        let count = buckets.iter().map(|&(_, count)| count).sum();
        let mut one = durations.encode_family(&labels)?;
        one.encode_histogram::<[Label; 0]>(latency.sum(), count, &buckets, None)?;
    }
    Ok(())
}

fn encode_connections(encoder: &mut DescriptorEncoder<'_>, protocols: &[Arc<ProtocolMetrics>]) -> fmt::Result {
    let mut open = encoder.encode_descriptor("tally_connections", "Connections open now.", None, MetricType::Gauge)?;
    for protocol in protocols {
        open.encode_family(&[protocol.label])?.encode_gauge(&(protocol.connections() as f64))?;
    }
    let help = "Connections refused because too many were open.";
    let mut refused = encoder.encode_descriptor("tally_connections_refused", help, None, MetricType::Counter)?;
    for protocol in protocols {
        refused.encode_family(&[protocol.label])?.encode_counter(&protocol.refused(), NO_EXEMPLAR)?;
    }
    Ok(())
}

/// Encodes a metric of the engine.
fn encode_metric(encoder: &mut DescriptorEncoder<'_>, metric: &Metric) -> fmt::Result {
    let Metric { name, help, value } = metric;
    // The encoder adds `_total` to counters.
    let (name, kind) = match value {
        MetricValue::Counter(_) | MetricValue::CounterBy { .. } => {
            (name.strip_suffix("_total").unwrap_or(name), MetricType::Counter)
        }
        MetricValue::Gauge(_) => (*name, MetricType::Gauge),
        MetricValue::Histogram { .. } => (*name, MetricType::Histogram),
    };
    let mut encoder: MetricEncoder<'_> = encoder.encode_descriptor(name, help, None, kind)?;
    match value {
        MetricValue::Counter(count) => encoder.encode_counter(count, NO_EXEMPLAR),
        MetricValue::CounterBy { label, counts } => counts.iter().try_for_each(|(word, count)| {
            encoder.encode_family(&[(*label, *word)])?.encode_counter(count, NO_EXEMPLAR)
        }),
        MetricValue::Gauge(gauge) => encoder.encode_gauge(gauge),
        MetricValue::Histogram { buckets, count, sum } => {
            encoder.encode_histogram::<[Label; 0]>(*sum, *count, &to_separate(buckets, *count), None)
        }
    }
}

/// Converts cumulative buckets to the count of each, because the encoder adds them up again. The rest goes to `+Inf`.
fn to_separate(cumulative: &[(f64, u64)], count: u64) -> Vec<(f64, u64)> {
    let mut below = 0;
    let finite = cumulative.iter().filter(|(bound, _)| bound.is_finite());
    let mut buckets: Vec<_> = finite
        .map(|&(bound, upto)| {
            let own = upto.saturating_sub(below);
            below = below.max(upto);
            (bound, own)
        })
        .collect();
    buckets.push((f64::INFINITY, count.saturating_sub(below)));
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cumulative_buckets_become_separate_and_keep_the_overflow() {
        let buckets = to_separate(&[(0.1, 2), (1.0, 5), (f64::INFINITY, 9)], 9);
        assert_eq!(buckets, [(0.1, 2), (1.0, 3), (f64::INFINITY, 4)]);
    }

    #[test]
    fn verbs_are_listed_in_order_of_declaration() {
        for (place, verb) in Verb::ALL.into_iter().enumerate() {
            assert_eq!(verb as usize, place);
        }
    }
}
