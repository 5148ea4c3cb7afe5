//! The Controller service: volumes and snapshots through CNS.
