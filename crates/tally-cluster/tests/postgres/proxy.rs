//! A proxy in front of PostgreSQL that loses the connection at a commit, or hangs.
#![allow(dead_code, reason = "each test program uses a part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to a commit, or to everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cut {
    /// It passes.
    Never = 0,
    /// It is lost.
    BeforeCommit = 1,
    /// It reaches the server; its result is lost.
    AfterCommit = 2,
    /// Nothing passes, and no connection ends.
    Hang = 3,
}

/// Forwards connections.
pub struct Proxy {
    port: u16,
    cut: Arc<AtomicU8>,
}

impl Proxy {
    /// In front of the server at this port.
    pub async fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, cut) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU8::new(Cut::Never as u8)));
        let proxy = Proxy { port, cut: Arc::clone(&cut) };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                tokio::spawn(forward(client, server, Arc::clone(&cut)));
            }
        });
        proxy
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, cut: Cut) {
        self.cut.store(cut as u8, SeqCst);
    }
}

/// Forwards in both directions until a side closes, or until the cut.
async fn forward(mut client: TcpStream, mut server: TcpStream, cut: Arc<AtomicU8>) {
    let (mut sent, mut received) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut sent) => {
                let Some(bytes) = read.ok().filter(|read| *read > 0).map(|read| &sent[..read]) else { return };
                let is_commit = bytes.windows(6).any(|window| window == b"COMMIT");
                let cut = cut.load(SeqCst);
                if cut == Cut::Hang as u8 {
                    return std::future::pending().await;
                }
                if is_commit && cut == Cut::BeforeCommit as u8 {
                    return;
                }
                server.write_all(bytes).await.unwrap();
                if is_commit && cut == Cut::AfterCommit as u8 {
                    // The server answers after the commit.
                    assert!(server.read(&mut received).await.unwrap() > 0);
                    return;
                }
            }
            read = server.read(&mut received) => {
                let Some(bytes) = read.ok().filter(|read| *read > 0).map(|read| &received[..read]) else { return };
                client.write_all(bytes).await.unwrap();
            }
        }
    }
}
