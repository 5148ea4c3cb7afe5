//! The Node service: finds, formats and mounts the disks of a node.
//!
//! ```text
//!   kubelet ──► registration            which driver, which socket
//!      │
//!      └──────► service ──► request     the request, validated
//!                  │
//!                  ├──► operations      one at a time per volume
//!                  ├──► vm_uuid, topology       this node
//!                  └──► volumes         stage, publish, expand, stats
//!                          ├──► device      the disk, by its uuid
//!                          ├──► filesystem ──► contents   format only what is empty
//!                          └──► mounting ──► mounts       the kernel's mount table
//!                                  ├──► tool        external tools, with timeouts
//!                                  └──► answering   system calls that may never answer
//! ```

pub mod answering;
pub mod command;
pub mod contents;
pub mod device;
pub mod filesystem;
pub mod identity;
pub mod metrics;
pub mod mounting;
pub mod mounts;
pub mod operations;
pub mod registration;
pub mod request;
pub mod service;
pub mod tool;
pub mod topology;
pub mod vm_uuid;
pub mod volumes;
