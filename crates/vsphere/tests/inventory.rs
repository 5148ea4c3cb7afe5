//! Looking at an inventory once: what is read, how it is found, how many calls it takes.

mod common;

use common::{client_of, counted, everything};
use testkit::{Inventory, Vcenter};
use vsphere::inventory::{HostConnection, PowerState, Selection, ToolsRunning, Vm};

#[tokio::test(flavor = "multi_thread")]
async fn everything_asked_for_is_read() {
    let vcenter = Vcenter::start(Inventory::with_vms(3)).await;
    let (client, counter) = counted(&vcenter).await;
    let tree = client.collect(&everything()).await.unwrap();
    assert_eq!(counter.of("RetrievePropertiesEx"), 1);

    let vm = tree.vm_by_name("node-2").found().cloned().expect("node-2");
    println!("{vm:#?}");
    assert_eq!(vm.power, Some(PowerState::On));
    assert_eq!(tree.path_of(&vm.reference).as_deref(), Some("/DC0/vm/node-2"));
}
