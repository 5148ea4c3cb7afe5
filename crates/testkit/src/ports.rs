//! Ports that no other process of this or another test run takes.

use std::{
    fs::File,
    net::{Ipv4Addr, TcpListener},
};

use rustix::fs::{FlockOperation, flock};
use snafu::ResultExt;

use crate::{
    error::{Error, FilesSnafu, PortsSnafu},
    paths::cache,
};

/// Below the range for outgoing connections (32768 and up): a client cannot take a port between its reservation and its
/// use.
const FIRST: u16 = 21_000;
const LAST: u16 = 31_999;

/// A reserved port on 127.0.0.1, to listen on or to leave closed. No other test takes it while this value lives. The
/// reservation is a lock on a file, so it ends with the process.
#[derive(Debug)]
pub struct Port {
    pub number: u16,
    _lock: File,
}

impl Port {
    pub fn reserve() -> Result<Self, Error> {
        let folder = cache().join("ports");
        std::fs::create_dir_all(&folder).context(FilesSnafu { path: &folder })?;
        // Parallel runs start their search at different ports.
        let span = LAST - FIRST;
        #[expect(clippy::cast_possible_truncation, reason = "taken modulo the span")]
        let start = (std::process::id().wrapping_mul(397) % u32::from(span)) as u16;
        for step in 0..span {
            let number = FIRST + (start + step) % span;
            let path = folder.join(number.to_string());
            let lock = File::create(&path).context(FilesSnafu { path: &path })?;
            let free = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
                && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok();
            if free {
                return Ok(Self { number, _lock: lock });
            }
        }
        PortsSnafu { from: FIRST, to: LAST }.fail()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_skipped_and_no_port_is_reserved_twice() {
        let first = Port::reserve().unwrap();
        // Another program listens on the next port, without a reservation.
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first.number + 1));
        let ports: Vec<u16> =
            (0..20).map(|_| Port::reserve().unwrap()).map(|port| port.number).collect();
        if taken.is_ok() {
            assert!(!ports.contains(&(first.number + 1)), "{ports:?}");
        }
        assert!(!ports.contains(&first.number), "{ports:?}");
    }
}
