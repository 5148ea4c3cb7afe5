//! The keys of `csi-vsphere.conf`, section by section. The file has no YAML form.

use super::{
    Global, GuestCluster, Labels, NetPermission, Snapshot, TopologyCategory, VirtualCenter,
};
use crate::keys::{Key, key};

pub(super) const GLOBAL: &[Key<Global>] = &[
    key!(Text cluster_id = "", "cluster-id"),
    key!(Text supervisor_id = "", "supervisor-id"),
    key!(Text cluster_distribution = "", "cluster-distribution"),
    key!(Text vcenter_ip = "", "VCenterIP"),
    key!(Text user = "", "user"),
    key!(Secret password = "", "password"),
    key!(Port port = "", "port"),
    key!(Flag insecure_flag = "", "insecure-flag"),
    key!(Text ca_file = "", "ca-file"),
    key!(Text thumbprint = "", "thumbprint"),
    key!(List datacenters = "", "datacenters"),
    key!(Number cns_register_volumes_cleanup = "", "cnsregistervolumes-cleanup-intervalinmin"),
    key!(Number cns_pvc_protection_cleanup = "", "cnspvcprotection-cleanup-intervalinmin"),
    key!(Number volume_migration_cleanup = "", "volumemigration-cr-cleanup-intervalinmin"),
    key!(Number csi_auth_check = "", "csi-auth-check-intervalinmin"),
    key!(Number cns_volume_operation_request_cleanup = "", "cnsvolumeoperationrequest-cleanup-intervalinmin"),
    key!(Number csi_fetch_preferred_datastores = "", "csi-fetch-preferred-datastores-intervalinmin"),
    key!(Number query_limit = "", "query-limit"),
    key!(Number list_volume_threshold = "", "list-volume-threshold"),
];

pub(super) const VCENTER: &[Key<VirtualCenter>] = &[
    key!(Text user = "", "user"),
    key!(Secret password = "", "password"),
    key!(Port port = "", "port"),
    key!(Flag insecure_flag = "", "insecure-flag"),
    key!(Text ca_file = "", "ca-file"),
    key!(Text thumbprint = "", "thumbprint"),
    key!(List datacenters = "", "datacenters"),
    key!(List target_vsan_file_share_clusters = "", "targetvSANFileShareClusters"),
    key!(List target_vsan_file_share_datastore_urls = "", "targetvSANFileShareDatastoreURLs"),
    key!(Text migration_datastore_url = "", "migration-datastore-url"),
];

pub(super) const SNAPSHOT: &[Key<Snapshot>] = &[
    key!(Number global_max_per_block_volume = "", "global-max-snapshots-per-block-volume"),
    key!(Number granular_max_per_block_volume_vsan = "", "granular-max-snapshots-per-block-volume-vsan"),
    key!(Number granular_max_per_block_volume_vvol = "", "granular-max-snapshots-per-block-volume-vvol"),
];

pub(super) const NET_PERMISSION: &[Key<NetPermission>] = &[
    key!(Text ips = "", "ips"),
    key!(Text permissions = "", "permissions"),
    key!(Flag root_squash = "", "rootsquash"),
];

pub(super) const LABELS: &[Key<Labels>] = &[
    key!(List topology_categories = "", "topology-categories"),
    key!(Text zone = "", "zone"),
    key!(Text region = "", "region"),
];

pub(super) const TOPOLOGY_CATEGORY: &[Key<TopologyCategory>] = &[key!(Text label = "", "label")];

pub(super) const GUEST_CLUSTER: &[Key<GuestCluster>] = &[
    key!(Text endpoint = "", "endpoint"),
    key!(Port port = "", "port"),
    key!(Text cluster_uid = "", "tanzukubernetescluster-uid"),
    key!(Text cluster_name = "", "tanzukubernetescluster-name"),
    key!(Text cluster_distribution = "", "cluster-distribution"),
    key!(Text cluster_api_version = "", "cluster-api-version"),
    key!(Text cluster_kind = "", "cluster-kind"),
];
