//! The commands of README and the book that start a sandbox. The tests of the sandbox run each of them; those of the book
//! check that there is no other.

pub(crate) const MADE: [&str; 10] = [
    "make sandbox",
    "make sandbox ARGS=--once",
    "make sandbox ARGS=\"--once --simulated\"",
    "make sandbox ARGS=\"break --list\"",
    "make sandbox ARGS=\"break disk-uuid\"",
    "make sandbox ARGS=\"break all\"",
    "make sandbox ARGS=upgrade",
    "make sandbox ARGS=\"--cpi upstream\"",
    "make sandbox ARGS=\"--with crash --timeout 20\"",
    "make sandbox ARGS=--bare",
];
