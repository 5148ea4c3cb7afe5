//! The Node service: finds, formats and mounts the disks of a node.
