//! Kafka over TLS, and the mechanisms of SASL that need it. Run with `--features kafka-tls`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::LazyLock;
use std::time::Duration;

use tally_cluster::kafka::{Appender, KafkaLogin, KafkaSettings, KafkaTls, Tailer, TopicError, topic};
use tally_core::time::Position;
use tally_services::{CertificateAuthority, Kafka, KafkaOptions, wait_for};

static AUTHORITY: LazyLock<CertificateAuthority> = LazyLock::new(CertificateAuthority::new);

static KAFKA: LazyLock<Kafka> = LazyLock::new(|| {
    eprintln!("starting Kafka with TLS on loopback");
    Kafka::start_with(&KafkaOptions {
        credentials: Some(("tally".to_owned(), "secret".to_owned())),
        tls: Some(AUTHORITY.issue("broker", "IP:127.0.0.1")),
        ..KafkaOptions::default()
    })
});

fn settings(topic: &str, mechanism: &str) -> KafkaSettings {
    KafkaSettings {
        brokers: KAFKA.bootstrap_servers(),
        topic: topic.to_owned(),
        login: Some(KafkaLogin {
            user: "tally".to_owned(),
            password: "secret".to_owned(),
            mechanism: mechanism.to_owned(),
        }),
        tls: Some(KafkaTls { ca_file: Some(AUTHORITY.file().to_string_lossy().into_owned()) }),
    }
}

async fn create(settings: &KafkaSettings) -> Result<topic::Created, TopicError> {
    topic::create(settings, topic::NewJournal { partitions: 1, replication: 1, retention_ms: 3_600_000 }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_appended_and_read_over_tls_with_each_mechanism() {
    for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
        let settings = settings(&format!("over-{mechanism}"), mechanism);
        create(&settings).await.unwrap();
        let appender = Appender::new(&settings).unwrap();
        let appended = appender.append(0, b"batch").unwrap().await.unwrap();
        assert_eq!(appended.end, Position(1));
        let read = tokio::task::spawn_blocking(move || {
            let mut tail = Tailer::new(&settings).unwrap().open(0, Position(0)).unwrap();
            wait_for("the record", || match tail.next(Duration::from_millis(100)) {
                Ok(Some(record)) => Ok(record.batch),
                other => Err(format!("{other:?}")),
            })
        });
        assert_eq!(read.await.unwrap(), b"batch", "{mechanism}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_named_over_tls() {
    for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
        let mut wrong = settings("refused", mechanism);
        wrong.login.as_mut().unwrap().password = "wrong".to_owned();
        let refused = create(&wrong).await.unwrap_err();
        assert!(matches!(refused, TopicError::Credentials(_)), "{mechanism}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_certificate_is_not_trusted_is_named() {
    let other = CertificateAuthority::new();
    let mut wrong = settings("untrusted", "PLAIN");
    wrong.tls = Some(KafkaTls { ca_file: Some(other.file().to_string_lossy().into_owned()) });
    let refused = create(&wrong).await.unwrap_err().to_string();
    assert!(refused.contains("certificate"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_tls_is_refused() {
    let plain = KafkaSettings { tls: None, ..settings("plain", "PLAIN") };
    let refused = create(&plain).await.unwrap_err().to_string();
    assert!(refused.contains("cannot be reached"), "{refused}");
}
