//! An API server for unit tests that gives the same answer to every request.

use kube::Client;
use runtime::tasks::Tasks;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

/// A client whose API server answers with this status and body, as long as the tasks exist.
pub(crate) async fn answering(status: u16, body: &serde_json::Value) -> (Client, Tasks) {
    runtime::kubernetes::install_tls_provider();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let body = body.to_string();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    let mut tasks = Tasks::default();
    tasks.spawn("API server", async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = [0; 4096];
            // The requests of the tests arrive in one piece.
            if connection.read(&mut request).await.unwrap() == 0 {
                continue;
            }
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (Client::try_from(config).unwrap(), tasks)
}
