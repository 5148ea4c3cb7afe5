//! From vCenter to the pod: the simulator attaches a volume, and the node has its disk.

use std::{fs, sync::Arc, time::Duration};

use testkit::{Disks, Inventory, Vcenter};
use tonic::Code;
use vsphere::{
    Client, Credentials, Trust,
    cns::{
        AttachSpec, BackingDetails, ContainerCluster, CreateSpec, ExtendSpec, VolumeId,
        VolumeMetadata,
    },
    inventory::{Selection, Vm},
};

use crate::plugin::{MIB, TestNode, Volume};

const SOON: Duration = Duration::from_mins(4);

async fn create(client: &Client, mib: i64) -> VolumeId {
    let cluster = ContainerCluster {
        kind: "KUBERNETES".to_owned(),
        id: "cluster-1".to_owned(),
        user: "administrator@vsphere.local".to_owned(),
        flavor: Some("VANILLA".to_owned()),
        distribution: None,
        delete: None,
    };
    let spec = CreateSpec {
        name: "pvc-1".to_owned(),
        id: None,
        datastores: Vec::new(),
        metadata: VolumeMetadata {
            cluster: Some(cluster),
            entities: Vec::new(),
            clusters: Vec::new(),
        },
        backing: BackingDetails::block(mib),
        policy: None,
        permissions: Vec::new(),
        source: None,
    };
    let created = client.create_volumes(vec![spec]).await.unwrap().wait(SOON).await.unwrap();
    created[0].volume.clone().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and loop devices: make test-nodes"]
async fn a_disk_is_on_the_node_when_the_attach_task_succeeds() {
    let vcenter = Vcenter::start(Inventory::with_vms(2)).await;
    let client = Client::builder(vcenter.address().to_string())
        .trust(Trust::CaBundle(vcenter.ca_pem()))
        .credentials(Credentials::new(vcenter.user(), vcenter.password()))
        .connect()
        .await
        .unwrap();
    let disks = Arc::new(Disks::start());
    disks.follow(&vcenter).await;
    // No node waits for a device.
    let at_once = ["--device-timeout-seconds=0"];
    let one = TestNode::start_with(disks.clone(), &at_once).await;
    let two = TestNode::start_with(disks.clone(), &at_once).await;
    disks.add_vm("node-1", one.dev());
    disks.add_vm("node-2", two.dev());
    let tree = client.collect(&Selection::new().vms(&[Vm::IDENTITY])).await.unwrap();
    let vm = |name: &str| tree.vm_by_name(name).found().unwrap().reference.clone();
    let id = create(&client, 320).await;
    let mut volume = Volume::with("xfs");

    let spec = [AttachSpec { volume: id.clone(), vm: vm("node-1") }];
    let attached = client.attach_volumes(&spec).await.unwrap().wait(SOON).await.unwrap();
    volume.uuid.clone_from(&attached[0].result.as_ref().unwrap().disk_uuid);
    let target = one.mount(&volume).await;
    fs::write(target.join("file"), "data").unwrap();

    let larger = [ExtendSpec { volume: id.clone(), capacity_mib: 640 }];
    let extended = client.extend_volumes(&larger).await.unwrap().wait(SOON).await.unwrap();
    assert!(extended[0].result.is_ok(), "{extended:?}");
    assert_eq!(one.expand(&volume, "a", 640 * MIB).await.unwrap(), 640 * MIB);

    one.unmount(&volume).await;
    let detached = client.detach_volumes(&spec).await.unwrap().wait(SOON).await.unwrap();
    assert!(detached[0].result.is_ok(), "{detached:?}");
    assert_eq!(one.stage(&volume).await.unwrap_err().code(), Code::Unavailable);

    let spec = [AttachSpec { volume: id, vm: vm("node-2") }];
    client.attach_volumes(&spec).await.unwrap().wait(SOON).await.unwrap();
    let target = two.mount(&volume).await;
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "data");
    let stats = two.stats(&volume, &two.target(&volume, "a")).await.unwrap();
    assert!(stats.usage[0].total.cast_unsigned() > 500 * MIB, "{stats:?}");
}
