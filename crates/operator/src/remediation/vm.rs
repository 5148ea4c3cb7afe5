//! Remediates VMs.

use std::time::Duration;

use snafu::{OptionExt, ResultExt};
use vsphere::{MoRef, vm::VmChange};

use super::{Error, RepairClients, UnreachableSnafu, VcenterSnafu};

/// The timeout for a reconfiguration of a VM in vCenter.
const WITHIN: Duration = Duration::from_secs(30);

/// Sets `disk.EnableUUID`. The setting takes effect at the VM's next power cycle.
pub(super) async fn show_disk_uuids(
    clients: &RepairClients,
    vcenter: &str,
    vm: &str,
    show: bool,
) -> Result<(), Error> {
    let session = clients.vcenters.get(vcenter).context(UnreachableSnafu { vcenter })?;
    let reference = MoRef::new("VirtualMachine", vm);
    let change = VmChange::default().show_disk_uuids(show);
    let task = session.reconfigure(&reference, &change).await.context(VcenterSnafu)?;
    task.wait(WITHIN).await.map(drop).context(VcenterSnafu)
}
