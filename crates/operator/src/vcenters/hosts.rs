//! The versions of the ESXi hosts that nodes can run on.

use std::collections::BTreeSet;

use catalog::version::VsphereVersion;
use vsphere::{
    BiosUuid, MoRef,
    inventory::{Host, Object, Tree},
};

/// The oldest host in the clusters that run the VMs with these uuids: vCenter can move a VM to any host of its
/// cluster. `None` if the account does not see the version of any of them.
pub(super) fn oldest(tree: &Tree, uuids: &[BiosUuid]) -> Option<VsphereVersion> {
    let cluster = |uuid: &BiosUuid| -> Option<MoRef> {
        let host = tree.vm_by_bios_uuid(*uuid).found()?.host.clone()?;
        tree.get(&host)?.as_host()?.parent.clone()
    };
    let clusters: BTreeSet<MoRef> = uuids.iter().filter_map(cluster).collect();
    let hosts = tree.objects().filter_map(Object::as_host);
    let hosts = hosts.filter(|host| host.parent.as_ref().is_some_and(|at| clusters.contains(at)));
    hosts.filter_map(|host| version(host)).min()
}

fn version(host: &Host) -> Option<VsphereVersion> {
    let text = |text: &Option<Box<str>>| text.as_deref().unwrap_or_default().to_owned();
    let (version, api, build) = (text(&host.version), text(&host.api_version), text(&host.build));
    VsphereVersion::from_about(&version, &api, &build).ok()
}
