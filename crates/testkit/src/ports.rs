//! Ports that nobody else in this run, or in another run on this machine, will take.

use std::{
    fs::File,
    net::{Ipv4Addr, TcpListener},
};

use rustix::fs::{FlockOperation, flock};
use snafu::ResultExt;

use crate::{
    error::{Error, FilesSnafu, PortsSnafu},
    peers::cache,
};

/// Below the range the kernel hands out to outgoing connections (32768 and up): a port chosen here
/// cannot be snatched by a client between being chosen and being listened on.
const FIRST: u16 = 21_000;
const LAST: u16 = 31_999;

/// A reserved port on 127.0.0.1: nobody else listens there for as long as this value lives, whether
/// somebody is given its number or it is to stay silent. The reservation is a lock on a file, so it ends
/// with the process.
#[derive(Debug)]
pub struct Port {
    /// Its number.
    pub number: u16,
    _lock: File,
}

impl Port {
    /// One that is free.
    pub fn reserve() -> Result<Self, Error> {
        let folder = cache().join("ports");
        std::fs::create_dir_all(&folder).context(FilesSnafu { path: &folder })?;
        // Runs side by side start looking at different places.
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
    fn a_port_in_use_is_passed_over_and_no_port_is_given_twice() {
        let first = Port::reserve().unwrap();
        // Somebody else listens on the next one, without having reserved it.
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first.number + 1));
        let ports: Vec<u16> =
            (0..20).map(|_| Port::reserve().unwrap()).map(|port| port.number).collect();
        if taken.is_ok() {
            assert!(!ports.contains(&(first.number + 1)), "{ports:?}");
        }
        assert!(!ports.contains(&first.number), "{ports:?}");
    }
}
