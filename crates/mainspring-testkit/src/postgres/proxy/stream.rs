//! Either kind of socket, usable by two threads at once.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

use crate::postgres::endpoint::{Endpoint, SocketKind};

/// One connection, to a client or to a server.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// A TCP connection that does not wait to collect small messages.
    pub(super) fn tcp(stream: TcpStream) -> Stream {
        // Slower without it, and right all the same.
        let _set = stream.set_nodelay(true);
        Stream::Tcp(stream)
    }

    /// Connects to a server.
    pub(super) fn connect(endpoint: &Endpoint) -> io::Result<Stream> {
        match &endpoint.host {
            SocketKind::Socket(dir) => UnixStream::connect(endpoint.socket_file(dir)).map(Stream::Unix),
            SocketKind::Tcp(name) => TcpStream::connect((name.as_str(), endpoint.port)).map(Stream::tcp),
        }
    }

    /// Adds what has arrived to a buffer, and waits for it; false at the end of the stream.
    pub(super) fn read_more(&self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        // As much as a client or server writes at once.
        let mut chunk = [0; 16 * 1024];
        let read = match self {
            Stream::Tcp(stream) => (&mut &*stream).read(&mut chunk)?,
            Stream::Unix(stream) => (&mut &*stream).read(&mut chunk)?,
        };
        buffer.extend_from_slice(&chunk[..read]);
        Ok(read > 0)
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => (&mut &*stream).write_all(bytes),
            Stream::Unix(stream) => (&mut &*stream).write_all(bytes),
        }
    }

    /// Ends one direction or both. The other side may have done so before.
    pub(super) fn shut(&self, how: Shutdown) {
        let _shut = match self {
            Stream::Tcp(stream) => stream.shutdown(how),
            Stream::Unix(stream) => stream.shutdown(how),
        };
    }
}
