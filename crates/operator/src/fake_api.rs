//! API servers for unit tests.

use std::sync::Arc;

use kube::Client;
use runtime::tasks::Tasks;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};

/// A client whose API server answers every request with this status and body, as long as the tasks exist.
pub(crate) async fn answering(status: u16, body: &Value) -> (Client, Tasks) {
    let body = body.clone();
    serving(move |_| std::future::ready((status, body.clone()))).await
}

/// A client whose API server answers each request with the status and body for its first line, as long as the tasks
/// exist.
pub(crate) async fn serving<A>(
    answer: impl Fn(String) -> A + Send + Sync + 'static,
) -> (Client, Tasks)
where
    A: Future<Output = (u16, Value)> + Send + 'static,
{
    runtime::kubernetes::install_tls_provider();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    let mut tasks = Tasks::default();
    tasks.spawn("API server", async move {
        let mut connections = JoinSet::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            let answer = answer.clone();
            connections.spawn(async move {
                let mut request = [0; 4096];
                // The requests of the tests arrive in one piece.
                let length = connection.read(&mut request).await.unwrap();
                if length == 0 {
                    return;
                }
                let request = String::from_utf8_lossy(&request[..length]);
                let line = request.lines().next().unwrap_or_default().to_owned();
                let (status, body) = answer(line).await;
                let body = body.to_string();
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\nconnection: close\r\n\
                     content-length: {length}\r\n\r\n{body}"
                );
                connection.write_all(answer.as_bytes()).await.unwrap();
            });
        }
    });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (Client::try_from(config).unwrap(), tasks)
}
