//! Queries a VDO process on its unix socket, from another process in the same container.
//!
//! The kubelet runs this as an exec probe. It needs no port, so two pods on the host network of one node can be
//! probed. It needs no async runtime, because every probe is a new process.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use snafu::{OptionExt as _, ResultExt as _, Snafu};

/// The timeout. Shorter than the timeout of the probes in the manifest.
const ANSWER: Duration = Duration::from_secs(4);

#[derive(Debug, Snafu)]
pub enum Error {
    #[snafu(display("no process answers on the socket {}", path.display()))]
    Connect { path: PathBuf, source: std::io::Error },
    #[snafu(display("the process does not answer on the socket {}", path.display()))]
    Answer { path: PathBuf, source: std::io::Error },
    #[snafu(display("the answer on the socket {} is not HTTP", path.display()))]
    Malformed { path: PathBuf },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub ok: bool,
    pub text: String,
}

pub fn get(socket: &Path, page: &str) -> Result<Answer, Error> {
    request(socket, &format!("GET {page} HTTP/1.0\r\nHost: localhost\r\n\r\n"))
}

pub fn set_log_level(socket: &Path, filter: &str) -> Result<Answer, Error> {
    let length = filter.len();
    request(
        socket,
        &format!(
            "PUT /log-level HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{filter}"
        ),
    )
}

fn request(path: &Path, text: &str) -> Result<Answer, Error> {
    let mut stream = UnixStream::connect(path).context(ConnectSnafu { path })?;
    let mut answer = String::new();
    let mut exchange = || {
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        stream.write_all(text.as_bytes())?;
        stream.read_to_string(&mut answer).map(drop)
    };
    exchange().context(AnswerSnafu { path })?;
    let malformed = MalformedSnafu { path };
    let (head, body) = answer.split_once("\r\n\r\n").context(malformed)?;
    let code = head.split(' ').nth(1).context(malformed)?;
    Ok(Answer { ok: code == "200", text: body.to_owned() })
}
