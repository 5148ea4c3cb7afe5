//! Each fault of the proxy, from the view of a client.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{io::ErrorKind, time::Duration};

use testkit::FaultProxy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};

/// A server that echoes everything.
async fn echo() -> (std::net::SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    (address, tasks)
}

async fn say(stream: &mut TcpStream, text: &str) -> std::io::Result<String> {
    stream.write_all(text.as_bytes()).await?;
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8(answer).unwrap())
}

#[tokio::test]
async fn a_healthy_proxy_forwards_and_delay_holds_data_back() {
    let (server, _tasks) = echo().await;
    let proxy = FaultProxy::before(server).await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(say(&mut stream, "hello").await.unwrap(), "hello");

    proxy.delay(Duration::from_millis(200));
    let began = Instant::now();
    assert_eq!(say(&mut stream, "later").await.unwrap(), "later");
    // Both directions. This asserts the requested delay, not the speed of the computer.
    assert!(began.elapsed() >= Duration::from_millis(400));
}

#[tokio::test]
async fn a_black_hole_swallows_until_it_heals() {
    let (server, _tasks) = echo().await;
    let proxy = FaultProxy::before(server).await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(say(&mut stream, "hello").await.unwrap(), "hello");

    proxy.black_hole();
    stream.write_all(b"anybody?").await.unwrap();
    let mut answer = [0; 8];
    let silence = timeout(Duration::from_millis(300), stream.read_exact(&mut answer)).await;
    assert!(silence.is_err(), "nothing must pass");

    proxy.heal();
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"anybody?");
}

#[tokio::test]
async fn a_black_hole_holds_back_what_a_delay_holds() {
    let (server, _tasks) = echo().await;
    let proxy = FaultProxy::before(server).await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(say(&mut stream, "hello").await.unwrap(), "hello");

    proxy.delay(Duration::from_millis(500));
    stream.write_all(b"anybody?").await.unwrap();
    // The first direction's delay is over, the second one's has begun.
    tokio::time::sleep(Duration::from_millis(750)).await;
    proxy.black_hole();
    let mut answer = [0; 8];
    let silence = timeout(Duration::from_millis(700), stream.read_exact(&mut answer)).await;
    assert!(silence.is_err(), "nothing must pass");

    proxy.heal();
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"anybody?");
}

#[tokio::test]
async fn cut_closes_and_reset_resets_all_connections() {
    let (server, _tasks) = echo().await;
    let proxy = FaultProxy::before(server).await;
    let mut old = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(say(&mut old, "hello").await.unwrap(), "hello");

    proxy.cut();
    assert_eq!(old.read(&mut [0; 1]).await.unwrap(), 0, "a clean close");
    let mut new = TcpStream::connect(proxy.address()).await.unwrap();
    assert!(say(&mut new, "hello").await.is_err());

    proxy.heal();
    let mut open = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(say(&mut open, "hello").await.unwrap(), "hello");
    proxy.reset();
    let reset = open.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn half_an_answer_forwards_half_of_the_response() {
    let (server, _tasks) = echo().await;
    let proxy = FaultProxy::before(server).await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(say(&mut stream, "before").await.unwrap(), "before");
    proxy.half_an_answer(3);
    stream.write_all(b"hello").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"hel");
}
