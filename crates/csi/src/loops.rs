//! The loops that do the work of the upstream sidecars and of the Go driver's syncer.
