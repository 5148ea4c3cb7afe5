//! A part of a file as the body of a request.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::{sync::mpsc, task::spawn_blocking};

/// The size of the pieces.
const PIECE: usize = 256 << 10;

/// The blob to send.
#[derive(Clone, Debug)]
pub(crate) struct FilePart {
    pub(crate) path: PathBuf,
    pub(crate) at: u64,
    pub(crate) size: u64,
    /// How many bytes were sent.
    pub(crate) sent: Arc<AtomicU64>,
}

impl FilePart {
    /// A body that reads the file while it is sent.
    pub(crate) fn body(&self) -> reqwest::Body {
        let (sender, receiver) = mpsc::channel(4);
        let part = self.clone();
        part.sent.store(0, Ordering::Relaxed);
        spawn_blocking(move || {
            if let Err(error) = part.read(&sender) {
                // Without a receiver the request has ended already.
                let _ = sender.blocking_send(Err(error));
            }
        });
        reqwest::Body::wrap(FileBody { receiver, left: self.size, sent: self.sent.clone() })
    }

    fn read(&self, sender: &mpsc::Sender<io::Result<Bytes>>) -> io::Result<()> {
        let file = File::open(&self.path)?;
        let mut at = self.at;
        while at < self.at + self.size {
            let wanted = usize::try_from(self.at + self.size - at).unwrap_or(PIECE).min(PIECE);
            let mut piece = vec![0; wanted];
            file.read_exact_at(&mut piece, at)?;
            at += wanted as u64;
            if sender.blocking_send(Ok(piece.into())).is_err() {
                break;
            }
        }
        Ok(())
    }
}

struct FileBody {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
    sent: Arc<AtomicU64>,
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.receiver.poll_recv(context).map(|piece| {
            let piece = piece?;
            Some(piece.map(|bytes| {
                self.left -= bytes.len() as u64;
                self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Frame::data(bytes)
            }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
