//! Requests of any kind: no call hangs or panics, and every answer has a code of the specification.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;

use common::Stage;
use csi::proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest,
    ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest,
    DeleteSnapshotRequest, DeleteVolumeRequest, GetCapacityRequest, GetSnapshotRequest,
    ListSnapshotsRequest, ListVolumesRequest, Topology, TopologyRequirement,
    ValidateVolumeCapabilitiesRequest, VolumeCapability, VolumeContentSource,
    controller_server::Controller,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume},
    volume_content_source::{SnapshotSource, Type, VolumeSource},
};
use proptest::{
    collection::{hash_map, vec},
    prelude::*,
    test_runner::{Config, TestRunner},
};
use testkit::Inventory;
use tonic::{Code, Request, Status};

/// Texts that are near to what the driver parses.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("pvc-1".to_owned()),
        Just(common::node(1)),
        Just("a+b".to_owned()),
        Just("after:".to_owned()),
        Just("datastoreurl".to_owned()),
        Just("storagepolicyname".to_owned()),
        Just("vSAN Default Storage Policy".to_owned()),
        "\\PC{0,12}",
        "[a-z+:/-]{0,140}",
    ]
}

fn map() -> impl Strategy<Value = HashMap<String, String>> {
    hash_map(text(), text(), 0..2)
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(-1),
        Just(i64::MAX),
        Just(i64::MIN),
        0..1_i64 << 31,
        any::<i64>()
    ]
}

fn range() -> impl Strategy<Value = Option<CapacityRange>> {
    let range = (number(), number());
    proptest::option::of(
        range.prop_map(|(required_bytes, limit_bytes)| CapacityRange {
            required_bytes,
            limit_bytes,
        }),
    )
}

fn capability() -> impl Strategy<Value = VolumeCapability> {
    let access = prop_oneof![
        Just(None),
        Just(Some(AccessType::Block(BlockVolume {}))),
        text().prop_map(|fs_type| {
            Some(AccessType::Mount(MountVolume { fs_type, ..Default::default() }))
        }),
        Just(Some(AccessType::Mount(MountVolume::default()))),
    ];
    let mode = proptest::option::of((-1..9_i32).prop_map(|mode| AccessMode { mode }));
    (access, mode)
        .prop_map(|(access_type, access_mode)| VolumeCapability { access_mode, access_type })
}

fn source() -> impl Strategy<Value = Option<VolumeContentSource>> {
    let kind = prop_oneof![
        Just(None),
        text().prop_map(|volume_id| Some(Type::Volume(VolumeSource { volume_id }))),
        text().prop_map(|snapshot_id| Some(Type::Snapshot(SnapshotSource { snapshot_id }))),
    ];
    proptest::option::of(kind.prop_map(|r#type| VolumeContentSource { r#type }))
}

fn topology() -> impl Strategy<Value = Topology> {
    map().prop_map(|segments| Topology { segments })
}

#[derive(Clone, Debug)]
struct Parts {
    texts: [String; 3],
    maps: [HashMap<String, String>; 2],
    range: Option<CapacityRange>,
    capabilities: Vec<VolumeCapability>,
    source: Option<VolumeContentSource>,
    topologies: Vec<Topology>,
    entries: i32,
    flag: bool,
}

fn parts() -> impl Strategy<Value = Parts> {
    let texts = [text().boxed(), text().boxed(), text().boxed()];
    let rest =
        (vec(capability(), 0..3), source(), vec(topology(), 0..2), any::<i32>(), any::<bool>());
    (texts, [map().boxed(), map().boxed()], range(), rest).prop_map(|(texts, maps, range, rest)| {
        let (capabilities, source, topologies, entries, flag) = rest;
        Parts { texts, maps, range, capabilities, source, topologies, entries, flag }
    })
}

/// Sends a request of every kind, made of the same parts.
async fn send_all(service: &impl Controller, parts: Parts) -> Vec<(&'static str, Option<Status>)> {
    let Parts { texts: [one, two, three], maps: [map, other], range, .. } = parts.clone();
    let capability = parts.capabilities.first().cloned();
    macro_rules! send {
        ($($method:ident: $request:expr;)*) => {
            vec![$((stringify!($method), service.$method(Request::new($request)).await.err()),)*]
        };
    }
    send! {
        create_volume: CreateVolumeRequest {
            name: one.clone(),
            capacity_range: range,
            volume_capabilities: parts.capabilities.clone(),
            parameters: map.clone(),
            volume_content_source: parts.source.clone(),
            accessibility_requirements: Some(TopologyRequirement {
                requisite: parts.topologies.clone(),
                preferred: Vec::new(),
            }),
            mutable_parameters: other.clone(),
            ..Default::default()
        };
        delete_volume: DeleteVolumeRequest { volume_id: two.clone(), ..Default::default() };
        controller_publish_volume: ControllerPublishVolumeRequest {
            volume_id: one.clone(),
            node_id: two.clone(),
            volume_capability: capability.clone(),
            readonly: parts.flag,
            ..Default::default()
        };
        controller_unpublish_volume: ControllerUnpublishVolumeRequest {
            volume_id: one.clone(), node_id: two.clone(), ..Default::default()
        };
        validate_volume_capabilities: ValidateVolumeCapabilitiesRequest {
            volume_id: one.clone(),
            volume_capabilities: parts.capabilities.clone(),
            ..Default::default()
        };
        list_volumes: ListVolumesRequest { max_entries: parts.entries, starting_token: three.clone() };
        get_capacity: GetCapacityRequest {
            volume_capabilities: parts.capabilities.clone(),
            parameters: map.clone(),
            accessible_topology: parts.topologies.first().cloned(),
        };
        create_snapshot: CreateSnapshotRequest {
            source_volume_id: one.clone(), name: two.clone(), parameters: map.clone(), ..Default::default()
        };
        delete_snapshot: DeleteSnapshotRequest { snapshot_id: one.clone(), ..Default::default() };
        list_snapshots: ListSnapshotsRequest {
            max_entries: parts.entries,
            starting_token: three.clone(),
            source_volume_id: one.clone(),
            snapshot_id: two.clone(),
            ..Default::default()
        };
        get_snapshot: GetSnapshotRequest { snapshot_id: one.clone(), ..Default::default() };
        controller_expand_volume: ControllerExpandVolumeRequest {
            volume_id: one.clone(), capacity_range: range, volume_capability: capability, ..Default::default()
        };
        controller_get_volume: ControllerGetVolumeRequest { volume_id: one.clone() };
        controller_modify_volume: ControllerModifyVolumeRequest {
            volume_id: one, mutable_parameters: other, ..Default::default()
        };
    }
}

#[test]
fn any_request_gets_an_answer_with_a_code_of_the_specification() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stage = runtime.block_on(Stage::with(Inventory::with_vms(1)));
    let mut runner =
        TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&parts(), |parts| {
        for (method, status) in runtime.block_on(send_all(&stage.service, parts)) {
            let Some(status) = status else { continue };
            let allowed = [
                Code::InvalidArgument,
                Code::NotFound,
                Code::AlreadyExists,
                Code::FailedPrecondition,
                Code::OutOfRange,
                Code::ResourceExhausted,
                Code::Aborted,
            ];
            prop_assert!(allowed.contains(&status.code()), "{method}: {status}");
            prop_assert!(status.message().len() > 10, "{method} says why: {status}");
        }
        Ok(())
    });
    outcome.unwrap();
    let volumes = runtime.block_on(stage.volumes());
    assert!(volumes.len() <= 4, "a name is a volume once: {volumes:?}");
}
