//! `vdoctl remove vdo` against a fake API server: dry run, deletion, rejection and signals.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::stage::CommandOutput;

/// A fake API server that handles deletions.
#[derive(Clone, Default)]
struct FakeApiServer(Arc<(Mutex<Deletions>, Condvar)>);

#[derive(Default)]
struct Deletions {
    tried: Vec<String>,
    deleted: Vec<String>,
    /// Rejects the deletion of paths with this suffix: in the dry run, or only in the real deletion.
    refuses: Option<(&'static str, bool)>,
    /// The first real deletion waits while this is set.
    holds: bool,
    waits: bool,
}

impl FakeApiServer {
    fn open(&self) -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let server = server.clone();
                thread::spawn(move || server.serve(&stream.unwrap()));
            }
        });
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "played",
            "clusters": [{"name": "played", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "played", "user": {}}],
            "contexts": [{"name": "played", "context": {"cluster": "played", "user": "played"}}],
        })
        .to_string()
    }

    /// Serves one request per connection.
    fn serve(&self, mut stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        let (mut head, mut length) = (String::new(), 0);
        if reader.read_line(&mut head).unwrap_or_default() == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let path = head.split([' ', '?']).nth(1).unwrap();
        let is_trial = String::from_utf8_lossy(&body).contains("\"dryRun\":[\"All\"]");
        let (code, answer) = if head.starts_with("DELETE ") {
            self.delete(path, is_trial)
        } else if path.ends_with("/deployments/vdo") {
            // This operator is allowed to adopt drivers in another namespace.
            let more = std::collections::BTreeSet::from(["storage".to_owned()]);
            let mut objects = operator::install::objects_with(&more).into_iter();
            (200, objects.find(|object| object.kind() == "Deployment").unwrap().0)
        } else {
            let version = json!({
                "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            });
            (200, version)
        };
        let answer = answer.to_string();
        let head = format!(
            "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        // The client may have closed the connection.
        let _ = stream.write_all((head + &answer).as_bytes());
    }

    fn delete(&self, path: &str, is_trial: bool) -> (u16, serde_json::Value) {
        let (seen, changed) = &*self.0;
        let mut seen = seen.lock().unwrap();
        if let Some((end, in_trial)) = seen.refuses
            && path.ends_with(end)
            && in_trial == is_trial
        {
            let message = format!("{path} is not yours");
            let status = json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 403,
                "reason": "Forbidden", "message": message,
            });
            return (403, status);
        }
        if is_trial {
            seen.tried.push(path.to_owned());
        } else {
            seen.waits = true;
            changed.notify_all();
            seen = changed.wait_while(seen, |seen| seen.holds).unwrap();
            seen.deleted.push(path.to_owned());
        }
        (200, json!({"apiVersion": "v1", "kind": "Status", "status": "Success", "code": 200}))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Deletions) -> T) -> T {
        let seen = look(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
        seen
    }
}

/// Runs `vdoctl remove vdo`; sends `signal` during the first deletion.
fn removing(server: &FakeApiServer, signal: Option<Signal>) -> CommandOutput {
    let folder = testkit::Workdir::new("removal").unwrap();
    let kubeconfig = folder.write("config", server.open()).unwrap();
    server.with(|seen| seen.holds = signal.is_some());
    // The test runner may ignore signals; the child must not.
    let mut child = Command::new("env")
        .args(["--default-signal=HUP,INT,TERM", env!("CARGO_BIN_EXE_vdoctl")])
        .args(["remove", "vdo", "--yes"])
        .env("KUBECONFIG", kubeconfig)
        .env("COLUMNS", "1000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(signal) = signal {
        let (seen, changed) = &*server.0;
        let minute = Duration::from_mins(1);
        let seen = changed.wait_timeout_while(seen.lock().unwrap(), minute, |seen| !seen.waits);
        assert!(seen.unwrap().0.waits, "nothing is deleted");
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
    let mut err = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line == "Interrupted: vdoctl finishes the current change first." {
            server.with(|seen| seen.holds = false);
        }
        err.extend([line.as_str(), "\n"]);
    }
    CommandOutput { code: child.wait().unwrap().code().unwrap_or(-1), out: String::new(), err }
}

#[test]
fn a_rejected_removal_deletes_nothing() {
    let server = FakeApiServer::default();
    server.with(|seen| seen.refuses = Some(("/serviceaccounts/vdo", true)));
    let output = removing(&server, None);
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("failed; nothing was changed"), "{}", output.all());
    assert!(output.err.contains("ask for the permission in the message"), "{}", output.all());
    assert_eq!(server.with(|seen| seen.deleted.clone()), Vec::<String>::new());
}

#[test]
fn a_failed_removal_lists_the_deleted_objects() {
    let server = FakeApiServer::default();
    server.with(|seen| seen.refuses = Some(("/serviceaccounts/vdo", false)));
    let output = removing(&server, None);
    assert_eq!(output.code, 1, "{}", output.all());
    let (tried, deleted) = server.with(|seen| (seen.tried.clone(), seen.deleted.clone()));
    assert!(deleted.len() > 1 && deleted.len() < tried.len(), "{deleted:?} of {tried:?}");
    let text: Vec<&str> = output.err.split_whitespace().filter(|word| *word != "│").collect();
    let text = text.join(" ");
    assert!(text.contains(" Deployment vmware-system-vdo/vdo, "), "{}", output.all());
    assert!(text.contains("ClusterRole vdo are gone"), "{}", output.all());
    assert!(output.err.contains("run the command again"), "{}", output.all());
}

#[test]
fn a_signal_does_not_interrupt_a_removal() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let server = FakeApiServer::default();
        let output = removing(&server, Some(signal));
        assert_eq!(output.code, 0, "{signal:?}: {}", output.all());
        assert!(
            output.err.contains("Interrupted: vdoctl finishes"),
            "{signal:?}: {}",
            output.all()
        );
        let (tried, deleted) = server.with(|seen| (seen.tried.clone(), seen.deleted.clone()));
        assert_eq!(tried, deleted, "{signal:?}");
        let of_storage = deleted.iter().filter(|path| path.contains("/namespaces/storage/"));
        assert_eq!(of_storage.count(), 4, "the Roles there go too: {deleted:?}");
    }
}

#[tokio::test]
async fn fetching_a_manifest_has_a_timeout() {
    // It accepts connections but never responds.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("http://{}/vdo.yaml", silent.local_addr().unwrap());
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_vdoctl"))
        .args(["deploy", "--spec", &address, "--request-timeout", "1", "-o", "yaml"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_mins(1), output).await;
    let output = CommandOutput::from(output.expect("it ends by itself").unwrap());
    assert_eq!(output.code, 1, "{}", output.all());
    assert!(output.err.contains("cannot be fetched"), "{}", output.all());
}
