//! Topology: nodes learn their segments from the controller, and several vCenters are one pool of storage.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod common;

use std::sync::Arc;

use common::{GIB, create_request, node};
use csi::{
    configuration::{Category, SnapshotLimits, VcenterSettings},
    controller::{ControllerService, ControllerSettings},
    metrics::Metrics,
    node_set::NodeSet,
    node_topology,
    proto::csi::{
        ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
        DeleteVolumeRequest, ListVolumesRequest, Topology, TopologyRequirement,
        controller_server::Controller as _,
    },
    records::MemoryRecords,
    vcenters::{Intervals, SharedSettings, Supervisor, Vcenters},
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, PostParams},
    core::gvk::GroupVersionKind,
};
use serde_json::json;
use testkit::{ControlPlane, Inventory, Vcenter, Vm, eventually};
use tokio::task::JoinSet;
use tonic::{Code, Request};
use vsphere::{LoginPace, Trust};

const ZONE: &str = "topology.csi.vmware.com/k8s-zone";

fn zone(name: &str) -> Topology {
    Topology { segments: [(ZONE.to_owned(), name.to_owned())].into() }
}

fn categories() -> Vec<Category> {
    vec![Category { name: "k8s-zone".into(), label: ZONE.into() }]
}

/// Connects to vCenters. Keep the supervisor: dropping it disconnects.
async fn connect(all: &[&Vcenter]) -> (Vcenters, Supervisor) {
    let vcenters = Vcenters::default();
    let mut supervisor = Supervisor::new(vcenters.clone());
    let settings = all.iter().map(|vcenter| VcenterSettings {
        name: vcenter.address().to_string().into(),
        user: vcenter.user().to_owned(),
        password: vcenter.password().into(),
        trust: Trust::CaBundle(vcenter.ca_pem()),
        datacenters: Vec::new(),
    });
    let shared = SharedSettings {
        cluster_id: "topology".into(),
        distribution: "".into(),
        with_tags: true,
        user_agent: "vsphere-csi/test".into(),
        intervals: Intervals::default(),
        logins: LoginPace::default(),
        metrics: Metrics::default(),
    };
    supervisor.apply(&settings.collect::<Vec<_>>(), &shared);
    eventually("the vCenters are connected", 60, async || {
        vcenters.all_live().map(drop).map_err(|error| error.to_string())
    })
    .await;
    (vcenters, supervisor)
}

fn service(vcenters: &Vcenters) -> ControllerService {
    let max_snapshots = SnapshotLimits { any: 3, vsan: None, vvol: None };
    let settings = ControllerSettings { categories: categories(), max_snapshots };
    let (records, nodes) = (Arc::new(MemoryRecords::default()), NodeSet::default());
    ControllerService::new(vcenters.clone(), records, nodes, settings, Metrics::default())
}

/// A vCenter that is one zone and has one VM.
fn zone_of(tag: &'static str, vm: usize) -> Inventory {
    Inventory::small().vms([Vm::numbered("node", vm)]).category("k8s-zone", &[(tag, &["/DC0"])])
}

fn preferring(name: &str, at: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![zone("zone-1"), zone("zone-2")],
            preferred: vec![zone(at)],
        }),
        ..create_request(name, GIB)
    }
}

/// A VM was copied to the other vCenter with its uuid: the copy is as good a candidate as the node itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_detached_although_another_vcenter_has_a_copy_of_its_vm() {
    let (one, two) =
        tokio::join!(Vcenter::start(zone_of("zone-1", 1)), Vcenter::start(zone_of("zone-2", 2)));
    let (vcenters, supervisor) = connect(&[&one, &two]).await;
    let service = service(&vcenters);
    let mut attached = Vec::new();
    for (name, at, vm) in [("pvc-1", "zone-1", 1), ("pvc-2", "zone-2", 2)] {
        let response = service.create_volume(Request::new(preferring(name, at))).await.unwrap();
        let publish = ControllerPublishVolumeRequest {
            volume_id: response.into_inner().volume.unwrap().volume_id,
            node_id: node(vm),
            volume_capability: Some(common::mount()),
            ..Default::default()
        };
        service.controller_publish_volume(Request::new(publish.clone())).await.unwrap();
        attached.push(publish);
    }
    let copy = |number| Vm { name: "copy".into(), ..Vm::numbered("node", number) };
    one.add_vms("DC0", [copy(2)]).await;
    two.add_vms("DC0", [copy(1)]).await;
    for publish in attached {
        eventually("the driver knows the copy", 30, async || {
            let again = service.controller_publish_volume(Request::new(publish.clone())).await;
            let refused = again.err().map(|status| status.message().to_owned());
            refused.filter(|text| text.contains("/DC0/vm/copy")).ok_or("not yet")
        })
        .await;
        let detach = ControllerUnpublishVolumeRequest {
            volume_id: publish.volume_id.clone(),
            node_id: publish.node_id,
            ..Default::default()
        };
        // The second call finds nothing to detach.
        for _ in 0..2 {
            let request = Request::new(detach.clone());
            service.controller_unpublish_volume(request).await.unwrap();
        }
        for vcenter in [&one, &two] {
            let truth = vcenter.truth().await["datacenters"][0]["vms"].to_string();
            assert!(!truth.contains(&publish.volume_id), "{truth}");
        }
    }
    supervisor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_are_created_in_the_vcenter_of_their_zone() {
    let (one, two) =
        tokio::join!(Vcenter::start(zone_of("zone-1", 1)), Vcenter::start(zone_of("zone-2", 2)));
    let (vcenters, supervisor) = connect(&[&one, &two]).await;
    let service = service(&vcenters);
    for (name, at, vcenter) in [("pvc-1", "zone-1", &one), ("pvc-2", "zone-2", &two)] {
        vcenter.forget_calls().await;
        let response = service.create_volume(Request::new(preferring(name, at))).await.unwrap();
        let volume = response.into_inner().volume.unwrap();
        assert_eq!(volume.accessible_topology, [zone(at)]);
        assert_eq!(vcenter.calls().await.count("CnsCreateVolume"), 1);
        let publish = |vm: usize| ControllerPublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            node_id: node(vm),
            volume_capability: Some(common::mount()),
            ..Default::default()
        };
        let (own, other) = if at == "zone-1" { (1, 2) } else { (2, 1) };
        let unreachable = service.controller_publish_volume(Request::new(publish(other))).await;
        assert_eq!(unreachable.unwrap_err().code(), Code::FailedPrecondition);
        service.controller_publish_volume(Request::new(publish(own))).await.unwrap();
    }
    let listed = service.list_volumes(Request::new(ListVolumesRequest::default())).await.unwrap();
    assert_eq!(listed.into_inner().entries.len(), 2, "volumes of both vCenters");
    let unknown = DeleteVolumeRequest { volume_id: "no-such-volume".into(), ..Default::default() };
    service.delete_volume(Request::new(unknown)).await.unwrap();
    supervisor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_get_the_topology_of_their_vm_and_a_missing_tag_is_named() {
    let zones: &[(&str, &[&str])] = &[("zone-a", &["/DC0/host/cluster-a"])];
    let vms = [
        Vm { cluster: "cluster-a".into(), ..Vm::numbered("node", 1) },
        Vm { cluster: "cluster-b".into(), ..Vm::numbered("node", 2) },
    ];
    let inventory = Inventory::small().vms(vms).category("k8s-zone", zones);
    let (plane, vcenter) = tokio::join!(ControlPlane::start(), Vcenter::start(inventory));
    let (vcenters, _supervisor) = connect(&[&vcenter]).await;
    let client = plane.client();
    node_topology::install_definition(&client).await.unwrap();
    let kind = GroupVersionKind::gvk("cns.vmware.com", "v1alpha1", "CSINodeTopology");
    let resource = ApiResource::from_gvk_with_plural(&kind, "csinodetopologies");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut tasks = JoinSet::new();
    tasks.spawn(node_topology::follow(client, vcenters, Arc::new(categories)));
    for number in [1, 2] {
        let name = format!("node-{number}");
        let object = DynamicObject::new(&name, &resource)
            .data(json!({"spec": {"nodeID": name, "nodeuuid": node(number)}}));
        eventually("the object is created", 20, async || {
            api.create(&PostParams::default(), &object).await
        })
        .await;
    }
    let status = async |name: &str, wanted: &str| {
        eventually("the topology is known", 30, async || {
            let object = api.get(name).await.map_err(|error| error.to_string())?;
            let status = object.data["status"].clone();
            if status["status"] == wanted { Ok(status) } else { Err(status.to_string()) }
        })
        .await
    };
    let labels = status("node-1", "Success").await["topologyLabels"].clone();
    assert_eq!(labels, json!([{"key": ZONE, "value": "zone-a"}]));
    let error = status("node-2", "Error").await["errorMessage"].to_string();
    assert!(error.contains("node-2") && error.contains("k8s-zone"), "{error}");
    vcenter.attach_tag("k8s-zone", "zone-b", &["/DC0/host/cluster-b"]).await;
    // vCenter does not report new tags: a change of a host makes the driver read them again.
    vcenter.patch_host("/DC0/host/cluster-b/esx-b3", json!({"maintenance": true})).await;
    status("node-2", "Success").await;
}

/// The number of volumes on a node is that of its VM: free slots, without those of disks that an administrator added.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_volume_limit_of_a_node_follows_the_hardware_of_its_vm() {
    let scsi = vec!["pvscsi".to_owned(), "lsilogic".to_owned()];
    let vm = Vm { scsi, ..Vm::numbered("node", 1) };
    let inventory = Inventory::small().vms([vm]);
    let (plane, vcenter) = tokio::join!(ControlPlane::start(), Vcenter::start(inventory));
    let (vcenters, _supervisor) = connect(&[&vcenter]).await;
    let client = plane.client();
    node_topology::install_definition(&client).await.unwrap();
    let kind = GroupVersionKind::gvk("cns.vmware.com", "v1alpha1", "CSINodeTopology");
    let resource = ApiResource::from_gvk_with_plural(&kind, "csinodetopologies");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut tasks = JoinSet::new();
    tasks.spawn(node_topology::follow(client, vcenters, Arc::new(Vec::new)));
    let object = DynamicObject::new("node-1", &resource)
        .data(json!({"spec": {"nodeID": "node-1", "nodeuuid": node(1)}}));
    eventually("the object is created", 20, async || {
        api.create(&PostParams::default(), &object).await
    })
    .await;
    let limit = async |wanted: &str| {
        eventually("the limit is known", 60, async || {
            let object = api.get("node-1").await.map_err(|error| error.to_string())?;
            let annotations = object.metadata.annotations.unwrap_or_default();
            match annotations.get(csi::volume_limit::ANNOTATION) {
                Some(limit) if limit == wanted => Ok(()),
                limit => Err(format!("{limit:?}, wanted {wanted}")),
            }
        })
        .await;
    };
    // Three paravirtual controllers with 64 slots, of which the boot disk has one.
    limit("191").await;
    vcenter.patch_vm("/DC0/vm/node-1", json!({"extraDisks": 3})).await;
    limit("188").await;
    for host in ["a1", "a2", "a3", "b1", "b2", "b3"] {
        let path = format!("/DC0/host/cluster-{}/esx-{host}", &host[..1]);
        vcenter.patch_host(&path, json!({"version": "7.0.3"})).await;
    }
    vcenter.patch_vm("/DC0/vm/node-1", json!({"extraDisks": 2})).await;
    limit("42").await;
}
