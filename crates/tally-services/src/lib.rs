//! Real services on loopback with throw-away data, for tests and benchmarks: [`Kafka`], [`RedisCluster`], [`Postgres`].
//!
//! ```no_run
//! use tally_services::{Kafka, Postgres, RedisCluster};
//!
//! let kafka = Kafka::start(3);
//! let redis = RedisCluster::start();
//! let postgres = Postgres::start();
//! println!("{} {:?} {}", kafka.bootstrap_servers(), redis.addresses(), postgres.url());
//!
//! kafka.kill(1);
//! kafka.restart(1);
//! kafka.wait_until_ready();
//! postgres.kill();
//! postgres.restart();
//! ```
//!
//! - A function that starts something returns once it is ready. Faults return once the process is gone; use these to
//!   wait until the other nodes have reacted: [`Kafka::wait_until_ready`], [`RedisCluster::wait_until_failed_over`].
//! - Failures panic, with the end of the service's log. A missing program panics with the `make` target that installs
//!   it.
//! - All methods take `&self`, so one thread can inject faults while others use the service.
//! - Ports are free when a service starts, and stay the same across restarts.
//! - Dropping a service kills its processes and removes its data. When the test process is killed, its services die
//!   with it and their data is removed, too: see `process.rs` and `scratch.rs`.
//!
//! `cargo run -p tally-services -- kafka=3 redis postgres` starts services by hand until standard input ends.

mod certificates;
mod fail;
mod kafka;
mod ports;
mod postgres;
mod process;
mod redis_cluster;
mod scratch;
mod tool;

pub use certificates::{CertificateAuthority, CertificateFiles};
pub use fail::wait_for;
pub use kafka::{Kafka, KafkaOptions};
pub use postgres::{ClientCertificates, Postgres, PostgresSettings};
pub use redis_cluster::{RedisCluster, RedisOptions};
