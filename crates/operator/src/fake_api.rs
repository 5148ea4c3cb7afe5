//! API servers for unit tests.

use std::sync::Arc;

use kube::Client;
use runtime::tasks::Tasks;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// A client whose API server answers every request with this status and body, as long as the tasks exist.
pub(crate) async fn answering(status: u16, body: &Value) -> (Client, Tasks) {
    let body = body.clone();
    serving(move |_| std::future::ready((status, body.clone()))).await
}

/// A client whose API server answers each request with the status and body for its text, as long as the tasks exist.
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
                let request = read(&mut connection).await;
                if request.is_empty() {
                    return;
                }
                let (status, body) = answer(request).await;
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

/// Reads a request with its body. The connection would break if it closed before.
async fn read(connection: &mut TcpStream) -> String {
    let mut request = Vec::new();
    loop {
        let mut part = [0; 4096];
        let length = connection.read(&mut part).await.unwrap();
        request.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let is_complete = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let announced = head.to_ascii_lowercase();
            let mut lines = announced.lines();
            let announced = lines.find_map(|line| line.strip_prefix("content-length: "));
            body.len() >= announced.and_then(|length| length.parse().ok()).unwrap_or(0)
        });
        if length == 0 || is_complete {
            return text;
        }
    }
}
