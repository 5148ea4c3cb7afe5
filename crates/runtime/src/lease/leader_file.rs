//! The file in which a leader leaves its identity for the next process of its pod.
//!
//! A process that dies keeps the Lease until it expires. If its container restarts, the next process can prove that
//! the holder is dead, and need not wait: it has the lock of the file, which the kernel released when the holder died.
//! An orderly end clears the file, so that another pod gets its turn.

use std::{
    fs::File,
    io::{Read, Seek, Write},
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

/// How long a process that resumed a Lease leads before its own crash counts as the first one again. A process
/// that keeps crashing must not keep the Lease from the other pods.
pub const RESUME_AGAIN: Duration = Duration::from_mins(30);

/// The file, locked by this process until it ends. It must outlive the container and belong to one pod, as those in
/// `/dev/shm` of a pod do.
#[derive(Debug)]
pub struct LeaderFile {
    file: Mutex<Option<File>>,
    crashed: Option<String>,
}

impl LeaderFile {
    /// Opens and locks the file, and clears it.
    ///
    /// # Errors
    /// `WouldBlock` if another process has locked the file, or the error of the file system.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let mut file =
            File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        file.try_lock()?;
        let mut text = String::new();
        // A damaged file proves nothing.
        let crashed = file.read_to_string(&mut text).ok().map(|_| text);
        file.set_len(0)?;
        let crashed = crashed.filter(|identity| !identity.is_empty());
        Ok(Self { file: Mutex::new(Some(file)), crashed })
    }

    /// The identity of the leader that crashed in this pod. No process has it any more.
    pub fn crashed(&self) -> Option<&str> {
        self.crashed.as_deref()
    }

    /// Keeps the identity of the leader in the file until `stop` is cancelled. `again` is [`RESUME_AGAIN`].
    pub async fn keep(&self, identity: &str, again: Duration, stop: CancellationToken) {
        let pause = if self.crashed.is_some() { again } else { Duration::ZERO };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {
                self.write(identity);
                stop.cancelled().await;
            }
        }
        self.clear();
    }

    fn write(&self, identity: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = file.as_mut()
            && let Err(error) = file.rewind().and_then(|()| file.write_all(identity.as_bytes()))
        {
            tracing::warn!(%error, "after a crash, this pod waits until the lease expires");
        }
    }

    /// Clears the file for good: this process ends in an orderly way, or no longer leads.
    pub fn clear(&self) {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(file) = file
            && let Err(error) = file.set_len(0)
        {
            tracing::warn!(%error, "cannot clear the file of the leader");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("lease-{:016x}", rand::random::<u64>()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn open(&self) -> std::io::Result<LeaderFile> {
            LeaderFile::open(&self.0.join("vdo.leader"))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// Leads with `file` until `stop` is cancelled or, without it, until a crash.
    async fn lead(file: &LeaderFile, identity: &str, time: Duration, stop: bool) {
        let token = CancellationToken::new();
        let lead = async {
            tokio::time::sleep(time).await;
            if stop {
                token.cancel();
                std::future::pending::<()>().await;
            }
        };
        tokio::select! { () = file.keep(identity, RESUME_AGAIN, token.clone()) => {}, () = lead => {} }
    }

    #[tokio::test(start_paused = true)]
    async fn a_crash_leaves_the_identity_and_an_orderly_end_does_not() {
        let folder = Folder::new();
        let (second, hour) = (Duration::from_secs(1), Duration::from_hours(1));
        let first = folder.open().unwrap();
        assert_eq!(first.crashed(), None);
        lead(&first, "first", second, false).await;
        let locked = folder.open().map(drop).unwrap_err();
        assert_eq!(locked.kind(), std::io::ErrorKind::WouldBlock, "it still runs");
        drop(first);

        let resumed = folder.open().unwrap();
        assert_eq!(resumed.crashed(), Some("first"));
        lead(&resumed, "second", second, false).await;
        drop(resumed);
        let crashed_twice = folder.open().unwrap();
        assert_eq!(crashed_twice.crashed(), None, "the other pod gets its turn");
        lead(&crashed_twice, "third", second, false).await;
        drop(crashed_twice);

        let resumed = folder.open().unwrap();
        assert_eq!(resumed.crashed(), Some("third"));
        lead(&resumed, "fourth", hour, false).await;
        drop(resumed);
        let resumed = folder.open().unwrap();
        assert_eq!(resumed.crashed(), Some("fourth"), "it led for long enough");
        lead(&resumed, "fifth", hour, true).await;
        drop(resumed);
        assert_eq!(folder.open().unwrap().crashed(), None, "an orderly end");
    }
}
