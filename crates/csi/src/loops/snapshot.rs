//! The snapshot loop: what csi-snapshotter does. The snapshot-controller of Kubernetes creates and binds the objects.

pub mod objects;
