//! Starts services by hand: `cargo run -p tally-services -- kafka=3 redis postgres`. They stop when standard input is
//! closed.

use std::io::Read;
use std::process::ExitCode;

use tally_services::{Kafka, Postgres, RedisCluster};

enum Started {
    Kafka(Kafka),
    Redis(RedisCluster),
    Postgres(Postgres),
}

impl Started {
    fn parse(name: &str) -> Option<Started> {
        match name {
            "kafka" => Some(Started::Kafka(Kafka::start(1))),
            "kafka=3" => Some(Started::Kafka(Kafka::start(3))),
            "redis" => Some(Started::Redis(RedisCluster::start())),
            "postgres" => Some(Started::Postgres(Postgres::start())),
            _ => None,
        }
    }

    /// Name, where clients connect, and where its data is.
    fn describe(&self) -> String {
        match self {
            Started::Kafka(kafka) => format!("kafka\t{}\t{}", kafka.bootstrap_servers(), kafka.dir().display()),
            Started::Redis(redis) => format!("redis\t{}\t{}", redis.addresses().join(","), redis.dir().display()),
            Started::Postgres(postgres) => format!("postgres\t{}\t{}", postgres.url(), postgres.dir().display()),
        }
    }
}

fn main() -> ExitCode {
    let mut services = Vec::new();
    for name in std::env::args().skip(1) {
        let Some(service) = Started::parse(&name) else {
            eprintln!("`{name}` is not a service; use kafka, kafka=3, redis or postgres");
            return ExitCode::from(2);
        };
        println!("{}", service.describe());
        services.push(service);
    }
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    ExitCode::SUCCESS
}
