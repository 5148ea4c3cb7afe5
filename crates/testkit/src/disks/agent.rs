//! The simulator calls this socket: one line of JSON in, one line out.

use std::{
    future::Future,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use serde::Deserialize;
use serde_json::json;
use snafu::ResultExt as _;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    task::JoinSet,
};

use super::State;
use crate::error::{Error, FilesSnafu};

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "event")]
    kind: Kind,
    vm: String,
    disk: String,
    bytes: u64,
    /// Of a copy: the disk or snapshot that has the data.
    #[serde(default)]
    from: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Attach,
    Detach,
    Extend,
    Copy,
}

pub(super) fn serve(
    socket: &Path,
    state: Arc<Mutex<State>>,
) -> Result<impl Future<Output = ()> + use<>, Error> {
    let listener = UnixListener::bind(socket).context(FilesSnafu { path: socket })?;
    Ok(async move {
        let mut calls = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            while calls.try_join_next().is_some() {}
            calls.spawn(answer(stream, state.clone()));
        }
    })
}

async fn answer(stream: UnixStream, state: Arc<Mutex<State>>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    if stream.read_line(&mut line).await.is_err() {
        return;
    }
    let done = match serde_json::from_str::<Event>(&line) {
        Ok(event) => tokio::task::spawn_blocking(move || apply(&event, &state)).await,
        Err(error) => Ok(Err(error.to_string())),
    };
    let answer = match done {
        Ok(Ok(())) => json!({}),
        Ok(Err(error)) => json!({ "error": error }),
        Err(error) => json!({ "error": error.to_string() }),
    };
    let _ = stream.write_all(format!("{answer}\n").as_bytes()).await;
}

fn apply(event: &Event, state: &Mutex<State>) -> Result<(), String> {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let done = match event.kind {
        Kind::Attach => state.attach(&event.vm, &event.disk, event.bytes),
        Kind::Detach => {
            // An old VM must not take the disk away from the new one.
            if state.attached.get(&event.disk).is_some_and(|disk| disk.vm == event.vm) {
                state.detach(&event.disk);
            }
            Ok(())
        }
        Kind::Extend if state.vms.contains_key(&event.vm) => state.extend(&event.disk, event.bytes),
        Kind::Extend => Ok(()),
        Kind::Copy => state.copy(&event.from, &event.disk),
    };
    done.map_err(|error| error.full_text())
}
