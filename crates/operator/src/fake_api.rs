//! An API server for unit tests.

use kube::Client;
use runtime::tasks::Tasks;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

/// A client whose API server answers every request with this status and body, as long as the tasks exist.
pub(crate) async fn answering(status: u16, body: &serde_json::Value) -> (Client, Tasks) {
    let body = body.clone();
    answering_each(move |_| (status, body.clone())).await
}

/// A client whose API server answers each request with the status and the body for its text, as long as the tasks
/// exist.
pub(crate) async fn answering_each(
    answer: impl Fn(&str) -> (u16, serde_json::Value) + Send + 'static,
) -> (Client, Tasks) {
    runtime::kubernetes::install_tls_provider();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = Tasks::default();
    tasks.spawn("API server", async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = [0; 4096];
            // The requests of the tests arrive in one piece.
            let length = connection.read(&mut request).await.unwrap();
            if length == 0 {
                continue;
            }
            let (status, body) = answer(&String::from_utf8_lossy(&request[..length]));
            let body = body.to_string();
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\nconnection: close\r\n\
                 content-length: {length}\r\n\r\n{body}"
            );
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (Client::try_from(config).unwrap(), tasks)
}
