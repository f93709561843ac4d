//! TLS with real servers: who is trusted, who is refused, and what the refusal says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::LazyLock;

use tally_cluster::postgres::{Pg, PgCertificates, PgError, PgSettings};
use tally_cluster::redis::{Heartbeat, RedisError, RedisSettings, Totals};
use tally_cluster::rpc::{
    ClusterId, LinkSecurity, RpcCallError, RpcClient, RpcError, RpcHandler, RpcRequest, RpcResponse, RpcServer, Secret,
};
use tally_cluster::tls::{ServerCheck, TlsClient, TlsIdentity, TlsServer, TrustedCas};
use tally_core::time::{Millis, Position};
use tally_services::{
    CertificateAuthority, CertificateFiles, ClientCertificates, Postgres, PostgresSettings, RedisCluster, RedisOptions,
};
use tokio::time::{Duration, Instant};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// The authority that issued the certificates of the servers.
static OURS: LazyLock<CertificateAuthority> = LazyLock::new(CertificateAuthority::new);
/// Another one.
static FOREIGN: LazyLock<CertificateAuthority> = LazyLock::new(CertificateAuthority::new);

fn cas(authority: &CertificateAuthority) -> TrustedCas {
    TrustedCas::from_file(&authority.file()).unwrap()
}

fn identity(files: &CertificateFiles) -> TlsIdentity {
    TlsIdentity::from_files(&files.certificate, &files.key).unwrap()
}

/// Connects and asks for the schema, which is absent.
async fn ask_postgres(url: &str, cas: Option<TrustedCas>, identity: Option<TlsIdentity>) -> Result<(), PgError> {
    let settings = PgSettings { certificates: PgCertificates { cas, identity }, ..PgSettings::new(url) };
    match Pg::new(&settings)?.check_schema().await {
        Err(PgError::SchemaAbsent) => Ok(()),
        Err(other) => Err(other),
        Ok(()) => panic!("the database is new"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sslmode_of_postgres_means_what_it_means_for_psql() {
    let certificate = OURS.issue("postgres", "IP:127.0.0.1");
    let settings = PostgresSettings { tls: Some(certificate), ..PostgresSettings::default() };
    let server = Postgres::start_with(&settings);
    let (by_address, by_name) = (server.url(), server.url().replace("127.0.0.1", "localhost"));
    let (ours, foreign) = (Some(cas(&OURS)), Some(cas(&FOREIGN)));
    let unknown = "not signed by a trusted CA";
    for (url, mode, cas, refused) in [
        (&by_address, "", &None, None),
        (&by_address, "disable", &None, None),
        (&by_address, "prefer", &None, None),
        (&by_address, "require", &None, None),
        (&by_address, "require", &foreign, Some(unknown)),
        (&by_name, "verify-ca", &ours, None),
        (&by_name, "verify-ca", &foreign, Some(unknown)),
        (&by_address, "verify-full", &ours, None),
        (&by_address, "verify-full", &foreign, Some(unknown)),
        (&by_address, "verify-full", &None, Some(unknown)),
        (&by_name, "verify-full", &ours, Some("not for localhost; connect to a name that it has")),
    ] {
        let parameter = if mode.is_empty() { String::new() } else { format!("?sslmode={mode}") };
        let asked = ask_postgres(&format!("{url}{parameter}"), cas.clone(), None).await;
        match (asked, refused) {
            (Ok(()), None) => {}
            (Err(error @ PgError::Tls { .. }), Some(expected)) => {
                let text = error.to_string();
                assert!(text.contains(expected) && text.contains("`postgres_ca`"), "{mode}: {text}");
                assert!(!text.contains("secret"), "{text}");
            }
            (asked, _) => panic!("{url} {mode}: {asked:?} instead of {refused:?}"),
        }
    }
    let plain = Postgres::start();
    let refused = ask_postgres(&format!("{}?sslmode=require", plain.url()), None, None).await.unwrap_err();
    assert!(refused.to_string().contains("the server has no TLS; set `ssl = on` there"), "{refused}");
    ask_postgres(&format!("{}?sslmode=prefer", plain.url()), None, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_encrypted_and_postgres_sees_the_certificate_of_the_client() {
    let settings = PostgresSettings {
        tls: Some(OURS.issue("strict-postgres", "IP:127.0.0.1")),
        client_certificates: ClientCertificates::Required,
        ..PostgresSettings::default()
    };
    let server = Postgres::start_with(&settings);
    let url = format!("{}?sslmode=verify-full", server.url());
    let (ours, foreign) = (OURS.issue("client", "DNS:client"), FOREIGN.issue("client", "DNS:client"));
    ask_postgres(&url, Some(cas(&OURS)), Some(identity(&ours))).await.unwrap();
    let refused = ask_postgres(&url, Some(cas(&OURS)), Some(identity(&foreign))).await.unwrap_err();
    assert!(refused.to_string().contains("it refuses the certificate of this client"), "{refused}");
    let refused = ask_postgres(&url, Some(cas(&OURS)), None).await.unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
    // It accepts no connection without TLS.
    let refused = ask_postgres(&format!("{}?sslmode=disable", server.url()), None, None).await.unwrap_err();
    assert!(refused.to_string().contains("no encryption"), "{refused}");
}

fn redis_tls(authority: &CertificateAuthority, identity: Option<&TlsIdentity>) -> Option<TlsClient> {
    Some(TlsClient::new(ServerCheck::NameAndCa(cas(authority)), identity).unwrap())
}

/// Publishes the heartbeats of enough partitions to reach all masters, and reads them back.
async fn use_redis(settings: &RedisSettings) -> Result<(), RedisError> {
    let totals = Totals::connect(settings).await?;
    let heartbeats: Vec<Heartbeat> = (0..32)
        .map(|partition| Heartbeat {
            partition,
            position: Position(1),
            at: Millis(1),
            epoch: 1,
            owner: "worker:1".to_owned(),
            since: Position(0),
            rolled_up_at: Millis(0),
            clock_reset: Position(0),
            standbys: Vec::new(),
        })
        .collect();
    totals.publish_heartbeats(&heartbeats).await?;
    let read = totals.heartbeats(&(0..32).collect::<Vec<_>>()).await?;
    assert_eq!(read.into_iter().flatten().count(), 32);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_redis_that_are_found_through_others_are_checked_too() {
    let certificate = OURS.issue("redis", "IP:127.0.0.1");
    let redis = RedisCluster::start_with(&RedisOptions { password: Some("secret".to_owned()), tls: Some(certificate) });
    let settings = |nodes: &[String], tls: Option<TlsClient>| RedisSettings {
        password: Some("secret".to_owned()),
        tls,
        ..RedisSettings::new(nodes.to_vec())
    };
    let refused = async |nodes: &[String], tls: Option<TlsClient>| {
        let refused = use_redis(&settings(nodes, tls)).await.unwrap_err();
        assert!(!refused.to_string().contains("secret"), "{refused}");
        refused
    };
    // One node is enough to reach all of them, at the addresses that it gives.
    let one = [redis.addresses()[0].clone()];
    use_redis(&settings(&one, redis_tls(&OURS, None))).await.unwrap();
    let foreign = refused(&one, redis_tls(&FOREIGN, None)).await;
    assert!(matches!(foreign, RedisError::Tls { .. }), "{foreign}");
    assert!(foreign.to_string().contains("not signed by a trusted CA") && foreign.to_string().contains("`redis_ca`"));
    let unnamed = [one[0].replace("127.0.0.1", "localhost")];
    let by_name = refused(&unnamed, redis_tls(&OURS, None)).await.to_string();
    assert!(by_name.contains("not for localhost"), "{by_name}");
    let plain = refused(&one, None).await.to_string();
    assert!(plain.contains("whether it needs `redis_tls`"), "{plain}");

    for node in 0..redis.addresses().len() {
        redis.cli(node, &["CONFIG", "SET", "tls-auth-clients", "yes"]).unwrap();
    }
    let anonymous = refused(&one, redis_tls(&OURS, None)).await.to_string();
    assert!(anonymous.contains("it requires a client certificate"), "{anonymous}");
    let client = identity(&OURS.issue("redis-client", "DNS:client"));
    use_redis(&settings(&one, redis_tls(&OURS, Some(&client)))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_without_tls_is_refused_if_tls_is_on() {
    let redis = RedisCluster::start();
    let settings = RedisSettings { tls: redis_tls(&OURS, None), ..RedisSettings::new(redis.addresses()) };
    let refused = use_redis(&settings).await.unwrap_err();
    assert!(matches!(refused, RedisError::Tls { .. }), "{refused}");
    assert!(
        refused.to_string().contains("TLS is on at this port") || refused.to_string().contains("turn TLS on there")
    );
}

/// A worker that answers every request with the same count.
struct Idle;

impl RpcHandler for Idle {
    async fn handle(&self, _: RpcRequest) -> Result<RpcResponse, RpcError> {
        Ok(RpcResponse::Count { counters: 7, at: Millis(1) })
    }
}

fn ours() -> ClusterId {
    ClusterId::new("11111111-1111-1111-1111-111111111111", "tally")
}

fn secret() -> Option<Secret> {
    Some(Secret::new("a secret of sixteen or more letters".replace(' ', "-").as_str()).unwrap())
}

async fn worker(tls: Option<&CertificateFiles>) -> RpcServer {
    let tls = tls.map(|files| TlsServer::of_worker(&identity(files)).unwrap());
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    RpcServer::start(local, LinkSecurity { secret: secret(), tls }, ours(), Idle).await.unwrap()
}

async fn call(address: &str, authority: Option<&CertificateAuthority>) -> Result<RpcResponse, RpcCallError> {
    let tls = authority.map(|authority| TlsClient::to_workers(cas(authority)).unwrap());
    let client = RpcClient::new(LinkSecurity { secret: secret(), tls }, ours());
    client.call(address, &RpcRequest::Count { partition: 0 }, Instant::now() + PATIENCE).await
}

async fn refusal(address: &str, authority: Option<&CertificateAuthority>) -> String {
    let refused = call(address, authority).await.unwrap_err().to_string();
    assert!(!refused.contains("sixteen"), "{refused}");
    refused
}

#[tokio::test(flavor = "multi_thread")]
async fn api_nodes_and_workers_speak_tls() {
    let worker = worker(Some(&OURS.issue("worker", "IP:127.0.0.1,DNS:localhost"))).await;
    let (by_address, by_name) = (worker.address().to_string(), format!("localhost:{}", worker.address().port()));
    for address in [&by_address, &by_name] {
        let answer = call(address, Some(&OURS)).await.unwrap();
        assert!(matches!(answer, RpcResponse::Count { counters: 7, .. }), "{answer:?}");
    }
    let foreign = refusal(&by_address, Some(&FOREIGN)).await;
    assert!(foreign.contains("not signed by a trusted CA") && foreign.contains("`worker_tls_ca`"), "{foreign}");
    let plain = refusal(&by_address, None).await;
    assert!(plain.contains("this worker needs TLS; set `worker_tls_ca`"), "{plain}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_another_name_an_expired_certificate_or_no_tls_is_refused() {
    let elsewhere = worker(Some(&OURS.issue("elsewhere", "DNS:elsewhere"))).await;
    let unnamed = refusal(&elsewhere.address().to_string(), Some(&OURS)).await;
    assert!(unnamed.contains("not for 127.0.0.1"), "{unnamed}");
    let old = worker(Some(&OURS.issue_expired("old", "IP:127.0.0.1"))).await;
    let expired = refusal(&old.address().to_string(), Some(&OURS)).await;
    assert!(expired.contains("its certificate has expired; renew it"), "{expired}");
    let plain = worker(None).await;
    let unencrypted = refusal(&plain.address().to_string(), Some(&OURS)).await;
    assert!(unencrypted.contains("turn TLS on there"), "{unencrypted}");
}

#[test]
fn a_key_of_another_certificate_is_refused_without_showing_it() {
    let (one, other) = (OURS.issue("one", "DNS:one"), OURS.issue("other", "DNS:other"));
    let mixed = TlsIdentity::from_files(&one.certificate, &other.key).unwrap();
    let refused = TlsServer::of_worker(&mixed).err().unwrap().to_string();
    assert!(refused.contains("one.pem cannot be used: its key is not that of the certificate"), "{refused}");
    let no_key = TlsIdentity::from_files(&one.certificate, &one.certificate).err().unwrap().to_string();
    assert!(no_key.contains("has no private key in PEM format"), "{no_key}");
    assert!(!format!("{mixed:?}").contains("BEGIN"));
}
