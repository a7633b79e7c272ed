//! What children say to the log.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::seam::{Clock, Seams, Task};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::protocol::{Level, printable};
use crate::context::Info;
use crate::process::tail::Tail;
use crate::sync::Mutex;

/// Bytes of standard error after which a line is logged although it has not ended.
const LINE: usize = 4 << 10;

/// Logs what a child says of its job.
pub(super) fn job(info: &Info, level: Level, text: &str) {
    let (job, kind, text) = (info.id, &info.kind, printable(text));
    match level {
        Level::Debug => tracing::debug!(target: "mainspring::child", %job, %kind, "{text}"),
        Level::Info => tracing::info!(target: "mainspring::child", %job, %kind, "{text}"),
        Level::Warn => tracing::warn!(target: "mainspring::child", %job, %kind, "{text}"),
        Level::Error => tracing::error!(target: "mainspring::child", %job, %kind, "{text}"),
    }
}

/// A child's standard error: each line is logged, and the end is kept for the failure of a job.
pub(super) struct Stderr {
    tail: Arc<Mutex<Tail>>,
    ended: Option<oneshot::Receiver<()>>,
    reader: Task,
}

impl Stderr {
    pub(super) fn start(stream: pipe::Receiver, seams: &Seams, pool: &str, pid: u32) -> Self {
        let tail = Arc::new(Mutex::new(Tail::new(bounds::CHILD_STDERR_BYTES)));
        let (alive, ended) = oneshot::channel();
        let (kept, pool) = (Arc::clone(&tail), pool.to_owned());
        let reader = seams.spawn.spawn(Box::pin(async move {
            read(stream, &kept, &pool, pid).await;
            drop(alive);
        }));
        Stderr { tail, ended: Some(ended), reader }
    }

    /// Forgets what was said: another job begins.
    pub(super) fn forget(&self) {
        drop(self.tail.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// The end of what was said, when the stream has ended or soon.
    pub(super) async fn finish(&mut self, clock: &dyn Clock, patience: Duration) -> String {
        if let Some(ended) = self.ended.take() {
            tokio::select! {
                biased;
                // Nothing is sent: it is closed at the end.
                _ = ended => {}
                () = clock.sleep(patience) => {}
            }
        }
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).take().0
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        // Somebody who outlived the child may hold the stream open.
        self.reader.abort();
    }
}

async fn read(mut stream: pipe::Receiver, tail: &Mutex<Tail>, pool: &str, pid: u32) {
    let log = |line: &[u8]| {
        let text = printable(String::from_utf8_lossy(line).trim_end());
        tracing::info!(target: "mainspring::child", pool, pid, "{text}");
    };
    let (mut buffer, mut line) = ([0_u8; LINE], Vec::new());
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        tail.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..read]);
        for part in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if part.ends_with(b"\n") || line.len() >= LINE {
                log(&line);
                line.clear();
            }
        }
    }
    if !line.is_empty() {
        log(&line);
    }
}
