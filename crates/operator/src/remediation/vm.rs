//! Remediates VMs.

use std::time::Duration;

use serde_json::Value;
use snafu::{OptionExt, ResultExt};
use vsphere::{
    Client, MoRef,
    vm::{DiskUuidSetting, VmChange},
};

use super::{ChangedSnafu, Error, RefusedSnafu, RepairClients, UnreachableSnafu, VcenterSnafu};

/// The timeout for a reconfiguration of a VM in vCenter.
const WITHIN: Duration = Duration::from_secs(30);

/// A VM in its vCenter.
pub(super) struct VmRepair<'a> {
    session: &'a Client,
    reference: MoRef,
    node: &'a str,
}

impl<'a> VmRepair<'a> {
    pub(super) fn new(
        clients: &'a RepairClients,
        vcenter: &str,
        vm: &str,
        node: &'a str,
    ) -> Result<Self, Error> {
        let session = clients.vcenters.get(vcenter).context(UnreachableSnafu { vcenter })?;
        Ok(Self { session, reference: MoRef::new("VirtualMachine", vm), node })
    }

    /// The current `disk.EnableUUID`; `None` if it already is as VDO writes it.
    pub(super) async fn disk_uuid_to_change(&self) -> Result<Option<DiskUuidSetting>, Error> {
        let now = self.disk_uuid().await?;
        Ok((now != DiskUuidSetting::shown(true)).then_some(now))
    }

    /// Sets `disk.EnableUUID`. The setting takes effect at the VM's next power cycle.
    pub(super) async fn show_disk_uuids(&self) -> Result<(), Error> {
        self.change(&VmChange::default().show_disk_uuids(true)).await
    }

    /// Restores `disk.EnableUUID`, if the VM still has the value that VDO wrote.
    pub(super) async fn restore_disk_uuid(&self, before: &Value) -> Result<(), Error> {
        let Some(before) = previous(before) else {
            let reason = format!(
                "the record does not contain the previous disk.EnableUUID of the VM of {}: set it in vCenter",
                self.node
            );
            return RefusedSnafu { reason }.fail();
        };
        let now = self.disk_uuid().await?;
        if now == before {
            return Ok(());
        }
        if now != DiskUuidSetting::shown(true) {
            let what = "disk.EnableUUID is no longer the value that VDO wrote";
            return ChangedSnafu { object: format!("The VM of {}", self.node), what }.fail();
        }
        self.change(&VmChange::default().disk_uuid_setting(&before)).await
    }

    async fn disk_uuid(&self) -> Result<DiskUuidSetting, Error> {
        self.session.disk_uuid_setting(&self.reference).await.context(VcenterSnafu)
    }

    async fn change(&self, change: &VmChange) -> Result<(), Error> {
        let task = self.session.reconfigure(&self.reference, change).await.context(VcenterSnafu)?;
        task.wait(WITHIN).await.map(drop).context(VcenterSnafu)
    }
}

fn previous(before: &Value) -> Option<DiskUuidSetting> {
    (!before.is_null()).then(|| serde_json::from_value(before.clone()).ok()).flatten()
}

/// Whether vCenter certainly did not change the VM: it answered with a fault, or never received the call.
pub(super) fn is_unchanged(error: &vsphere::Error) -> bool {
    error.fault().is_some() || error.never_reached()
}
