//! Raw block volumes.

use std::io::{Read as _, Seek as _, SeekFrom};

use serde_json::json;
use testkit::eventually;

use super::workload::{DEVICE, block_pod};
use crate::cluster::Cluster;

pub(super) async fn a_pod_uses_and_grows_a_raw_block_volume(cluster: &Cluster) {
    cluster.claim("block", "ext4", json!({"volumeMode": "Block"})).await;
    let write = "echo block data >/dev/data; report written";
    assert_eq!(cluster.run(block_pod("block-1", "block", "node-2", write)).await, "written");
    cluster.delete_pod("block-1").await;
    let read = "read line </dev/data; report $line";
    assert_eq!(cluster.run(block_pod("block-2", "block", "node-1", read)).await, "block data");

    cluster.grow("block", "3Gi").await;
    eventually("the pod sees the larger device", 60, async || {
        let path = cluster.in_pod("block-2", DEVICE).await;
        let mut device = std::fs::File::open(path).unwrap();
        let size = device.seek(SeekFrom::End(0)).unwrap();
        let mut start = [0; 10];
        device.rewind().and_then(|()| device.read_exact(&mut start)).unwrap();
        assert_eq!(&start, b"block data");
        if size == 3 << 30 { Ok(()) } else { Err(size) }
    })
    .await;
    cluster.delete_pod("block-2").await;
    cluster.delete_claims(&["block"]).await;
}
