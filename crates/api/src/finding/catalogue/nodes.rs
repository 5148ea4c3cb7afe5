//! Nodes and the VMs they run on.

catalogue! {
    VM_NOT_FOUND = "VDO-1201" {
        title: "No configured vCenter has the VM of a node",
        severity: Error,
        seen: "{node}: no configured vCenter shows a VM with the uuid {uuid}",
        why: "The cloud provider cannot initialise the node, or deletes it once it is not ready; the storage driver cannot attach volumes to it, and its controller may exit because of this one node.",
        remedy: [
            "govc vm.info -vm.uuid {uuid}   with an administrator's account; if that shows a VM, the drivers' account cannot see it: grant it Read-only on the VM and on every folder above it",
            "If it shows the VM in a datacenter that the VsphereCloudConfig does not list, add that datacenter there: neither VDO nor the drivers look elsewhere",
            "If the VM is on a vCenter that VDO does not know, add that vCenter as a VsphereCloudConfig and name it in the VDOConfig",
            "If the node is not a vSphere VM: kubectl label node {node} vdo.vmware.com/vsphere=false   and VDO and its storage driver ignore the node",
            "If the VM is gone for good: kubectl delete node {node}",
        ],
    }
    VM_AMBIGUOUS = "VDO-1202" {
        title: "Several VMs have the uuid of one node",
        severity: Error,
        seen: "{node}: {vms} all have the uuid {uuid}",
        why: "The drivers use the first VM that vCenter returns, and may attach volumes to the wrong VM. It happens when somebody copies the files of a VM, or restores it next to the original.",
        remedy: [
            "Find out which of {vms} is the node, and shut down the other",
            "govc vm.change -vm THE_OTHER -uuid $(uuidgen)   while it is off",
        ],
    }
    DISK_UUID_OFF = "VDO-1203" {
        title: "Disk ids are hidden from a node",
        severity: Error,
        seen: "{node}: disk.EnableUUID is off for its VM {vm}",
        why: "Volumes are attached but the node cannot find them: pods stay in ContainerCreating with the message that the disk is not attached to the node.",
        remedy: [
            "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data",
            "govc vm.power -off {vm}",
            "govc vm.change -vm {vm} -e disk.enableUUID=TRUE",
            "govc vm.power -on {vm}   then kubectl uncordon {node}",
        ],
        fixable: true,
    }
    HARDWARE_TOO_OLD = "VDO-1204" {
        title: "A node VM's hardware version is too old",
        severity: Error,
        seen: "{node}: its VM {vm} has hardware version {version}, the storage driver needs {needed}",
        why: "Attaching a volume fails with DeviceUnsupportedForVmVersion or NotSupported.",
        remedy: [
            "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data   then govc vm.power -off {vm}",
            "govc vm.upgrade -version={needed} -vm {vm}",
            "govc vm.power -on {vm}   then kubectl uncordon {node}",
        ],
    }
    SCSI_SLOTS = "VDO-1205" {
        title: "A node VM has no room for another disk",
        severity: Error,
        seen: "{node}: all {slots} slots of the SCSI controllers of {vm} are in use",
        why: "The next volume fails to attach: missing SCSI controller, or an error without any text at the 60th disk.",
        remedy: [
            "kubectl cordon {node}   keeps new pods off the node; move some pods with volumes to other nodes",
            "A controller has 15 slots, and 64 from ESXi 8.0 on: upgrade the hosts, then set storageProvider.maxVolumesPerNode: 255",
        ],
    }
    SCSI_KIND = "VDO-1206" {
        title: "A node VM has SCSI controllers that volumes cannot use",
        severity: Warning,
        seen: "{node}: {others} of {count} SCSI controllers of {vm} are not paravirtual",
        why: "Volumes use only paravirtual controllers. Each other controller costs 15 slots, but Kubernetes still plans 59 volumes for the node.",
        remedy: ["With the VM off, change the controllers of {vm} to VMware Paravirtual: Edit Settings, SCSI controller, Change Type"],
    }
    VM_SNAPSHOTS = "VDO-1207" {
        title: "A node VM has snapshots",
        severity: Warning,
        seen: "{node}: its VM {vm} has {snapshots}",
        why: "A snapshot of the VM holds the volumes attached to it: attaching, detaching and expanding them fails until it is gone. Image backups of node VMs leave such snapshots.",
        remedy: [
            "govc snapshot.tree -vm {vm}   shows them",
            "govc snapshot.remove -vm {vm} '*'   removes all, merging their content into the disks",
            "Exclude node VMs from image-level backup jobs",
        ],
    }
    TOOLS_NOT_RUNNING = "VDO-1208" {
        title: "VMware Tools do not run in a node VM",
        severity: Error,
        seen: "{node}: VMware Tools are {state} in {vm}",
        why: "vCenter gets the host name and addresses of the guest from VMware Tools. Without them the cloud provider cannot find the node or its addresses.",
        remedy: [
            "On {node}: systemctl enable --now open-vm-tools   (install the package open-vm-tools first where it is missing)",
            "On Talos: add the system extension vmtoolsd-guest-agent to the image of the VM",
        ],
    }
    GUEST_NAME_DIFFERS = "VDO-1209" {
        title: "A node's name differs from its VM's host name",
        severity: Warning,
        seen: "{node}: VMware Tools report the host name {guest}",
        why: "The cloud provider looks for the VM by the node's name, and stores it under the guest's host name. If they differ, it does not initialise the node.",
        remedy: [
            "On the node: hostnamectl set-hostname {node}   and restart VMware Tools",
            "Or let the node join under the name {guest}: kubelet --hostname-override={guest}",
        ],
    }
    GUEST_NAME_SHARED = "VDO-1210" {
        title: "Several VMs have the host name of one node",
        severity: Error,
        seen: "{node}: the host name belongs to {vms}",
        why: "The cloud provider looks for the VM by this name, finds several and stops: Multiple VMs found. It does not initialise the node.",
        remedy: [
            "Give every guest its own host name: on the VM that is not the node, hostnamectl set-hostname OTHER",
            "Old copies of the VM that are off keep their last name: delete them, or power them on once under another name",
        ],
    }
    VM_OUT_OF_SIGHT = "VDO-1211" {
        title: "A node's VM is where the drivers do not look",
        severity: Error,
        seen: "{node}: its VM {vm} is in {place}, but {drivers} only looks in {looked}",
        why: "The driver does not see this VM: the node is not initialised, gets no volumes, and is deleted once it is not ready.",
        remedy: ["Add {place} to {field}"],
    }
    HOST_TOO_OLD = "VDO-1212" {
        title: "A node runs on an ESXi host that is too old",
        severity: Error,
        seen: "{host} runs ESXi {version}, {needed} is needed for {purpose}",
        why: "A feature of vCenter works only on hosts that support it too: attaching fails with NotSupported whenever the VM is on such a host.",
        remedy: [
            "Upgrade {host} to ESXi {needed} or newer",
            "Until then keep node VMs off this host: govc host.maintenance.enter {path}",
        ],
    }
    HOST_UNUSABLE = "VDO-1213" {
        title: "A node's ESXi host is not connected or in maintenance",
        severity: Warning,
        seen: "{host} is {state}",
        why: "Until it is back, storage drivers before 3.6.2 and 3.7.1 find no datastore that all hosts share, and cannot create volumes in its zone.",
        remedy: [
            "govc host.info {path}   shows its state",
            "govc host.maintenance.exit {path}   or reconnect it once the work is done",
        ],
    }
    PROVIDER_ID_FOREIGN = "VDO-1214" {
        title: "A node carries the provider id of another cloud provider",
        severity: Error,
        seen: "{node}: spec.providerID is {id}",
        why: "A provider id can never change. The vSphere cloud provider cannot adopt the node, and may delete it.",
        remedy: [
            "Switch the other provider off first; on k3s: --disable-cloud-controller",
            "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data   then kubectl delete node {node}",
            "Restart kubelet on {node} with --cloud-provider=external; it joins again without a provider id",
        ],
    }
    PROVIDER_ID_WRONG = "VDO-1215" {
        title: "A node's provider id does not name its VM",
        severity: Error,
        seen: "{node}: spec.providerID is {id}, its VM {vm} has the uuid {uuid}",
        why: "The drivers follow the provider id: they look for another VM, or crash on a uuid in the other byte order. It happens when somebody sets --provider-id of the kubelet, and after a new VM replaced the old one under the same node name.",
        remedy: [
            "Remove --provider-id from kubelet's arguments on {node}",
            "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data   then kubectl delete node {node}   and restart kubelet: the cloud provider fills it in",
        ],
    }
    NODE_UNINITIALIZED = "VDO-1216" {
        title: "The cloud provider has not initialised a node",
        severity: Error,
        seen: "{node}: it joined {age} ago and still carries the taint node.cloudprovider.kubernetes.io/uninitialized; {state}",
        why: "Kubernetes schedules no pods on it until the taint is gone.",
        remedy: [
            "kubectl get pods --namespace {namespace} --selector {selector}   should show a running cloud provider",
            "kubectl logs --namespace {namespace} --selector {selector} --tail 200 | grep {node}   shows what it tried",
        ],
    }
    KUBELET_NOT_EXTERNAL = "VDO-1217" {
        title: "A node joined without waiting for the cloud provider",
        severity: Error,
        seen: "{node}: it has neither a provider id nor the taint that asks the cloud provider for one",
        why: "Kubelet runs without --cloud-provider=external, or joined before it had it: the cloud provider ignores the node, which keeps wrong addresses and has no zone.",
        remedy: [
            "On {node}, add --cloud-provider=external to kubelet's arguments (kubeadm: nodeRegistration.kubeletExtraArgs) and restart kubelet",
            "kubectl taint node {node} node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule   makes the cloud provider initialise it now",
        ],
        fixable: true,
    }
    ADDRESS_WRONG = "VDO-1218" {
        title: "The cloud provider picks another address than the kubelet uses",
        severity: Error,
        seen: "{node}: the kubelet uses {wanted}, the cloud provider picks {picked} ({reason})",
        why: "The node is not initialised, or its address changes and connections to its kubelet fail. VMware Tools list interfaces in their own order, those of the network plugin and virtual addresses among them.",
        remedy: [
            "Set the network: cloudProvider.nodes.internalSubnets: [{subnet}]",
            "Or hide the others from VMware Tools on {node}: [guestinfo] exclude-nics=cali*,antrea*,veth*,cni*,flannel*   in /etc/vmware-tools/tools.conf",
        ],
    }
    ADDRESS_NONE = "VDO-1219" {
        title: "No address of a node's VM can be used",
        severity: Error,
        seen: "{node}: {vm} has {addresses}; {reason}",
        why: "Without an address the cloud provider does not initialise the node.",
        remedy: [
            "govc vm.info -json {vm} | grep -A3 ipAddress   shows what VMware Tools report",
            "Correct cloudProvider.nodes, or connect the VM to the network it names",
        ],
    }
    KUBELET_SKEW = "VDO-1220" {
        title: "A node's kubelet does not fit the API server's version",
        severity: Warning,
        seen: "{node}: kubelet {version}, API server {server}",
        why: "Kubernetes supports kubelets up to three minor releases behind the API server, and none ahead of it. VDO selects driver releases for the version of the API server.",
        remedy: ["Upgrade kubelet on {node} to {server}"],
    }
    CSI_NODE_MISSING = "VDO-1221" {
        title: "The storage driver is not registered on a node",
        severity: Error,
        seen: "{node}: its CSINode has no entry for csi.vsphere.vmware.com",
        why: "Pods with volumes cannot start there.",
        remedy: [
            "kubectl get pods --namespace {namespace} --field-selector spec.nodeName={node}   should show vsphere-csi-node running",
            "kubectl logs --namespace {namespace} POD --container node-driver-registrar   shows whether the kubelet accepted it",
        ],
    }
    CSI_NODE_STALE = "VDO-1222" {
        title: "A node is registered for storage under a VM that no longer exists",
        severity: Error,
        seen: "{node}: its CSINode names {id}, {reason}",
        why: "Controller and syncer of the storage driver exit when they do not find the VM of one node: csiNodeAdd failed. The whole cluster can then neither create nor attach volumes.",
        remedy: [
            "If the VM is gone: kubectl delete node {node}",
            "If the VM has a new uuid: kubectl delete csinode {node}   and restart the vsphere-csi-node pod on it, which registers it again",
        ],
        fixable: true,
    }
    NODE_FOREIGN = "VDO-1223" {
        title: "The storage driver runs on a node that is not a vSphere VM",
        severity: Error,
        seen: "{node}: {reason}, and vsphere-csi-node is scheduled on it",
        why: "It registers a VM that vCenter does not know. Controller and syncer of the storage driver then exit, for the whole cluster.",
        remedy: [
            "kubectl label node {node} vdo.vmware.com/vsphere=false   VDO then keeps the driver off the node; in a DaemonSet that VDO does not manage, set a nodeAffinity for a label that only vSphere nodes have",
            "kubectl delete csinode {node}",
        ],
    }
    MULTIPATH = "VDO-1224" {
        title: "multipathd takes VMware disks on a node",
        severity: Error,
        seen: "{node}: multipathd has claimed disks of the vendor VMware",
        why: "The disk then appears as /dev/dm-*: mounting fails because it is busy, expanding a volume fails with: no such file or directory.",
        remedy: [
            "On {node}, in /etc/multipath.conf: blacklist, device, vendor \"VMware\", product \"Virtual disk\"",
            "systemctl restart multipathd   then multipath -F",
        ],
    }
    NODE_HOLDS_VOLUMES = "VDO-1225" {
        title: "A node that is down keeps its volumes",
        severity: Error,
        seen: "{node}: not ready for {age}, still has {count} attached: {volumes}{waits}",
        why: "Kubernetes does not detach volumes from an unreachable node. Pods that need them elsewhere wait with a Multi-Attach error; the finding is an Error once a pod waits.",
        remedy: [
            "Make sure that {node} is really off: {power}",
            "kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute   detaches its volumes",
            "Remove that taint once the node is back",
        ],
    }
    VOLUME_LIMIT_LOWER = "VDO-1226" {
        title: "A node takes fewer volumes than the spec requests",
        severity: Warning,
        seen: "{node}: {actual} volumes, the spec requests {wanted}",
        why: "Since 3.7.1 the storage driver ignores MAX_VOLUMES_PER_NODE: the feature switch high-pv-node-density sets the limit, 59 when off and 255 when on. Pods beyond the limit stay Pending.",
        remedy: [
            "kubectl patch configmap --namespace {namespace} internal-feature-states.csi.vsphere.vmware.com --type merge --patch '{patch}'",
            "kubectl rollout restart daemonset --namespace {namespace} vsphere-csi-node",
        ],
    }
    NODE_DELETION_RISK = "VDO-1227" {
        title: "The cloud provider may delete a node that still exists",
        severity: Blocker,
        seen: "{node}: not ready, and the cloud provider {reason}",
        why: "It deletes Node objects that are not ready and whose VM it does not find, with everything scheduled there. A vCenter or datacenter missing in its configuration, or a lost permission, looks the same to it as a deleted VM.",
        remedy: [
            "kubectl set env --namespace {namespace} daemonset/vsphere-cloud-controller-manager SKIP_NODE_DELETION=true   immediately, if VDO does not manage it",
            "Then make the VM visible to it: see the other findings about {node}",
        ],
    }
    DISK_SLOW = "VDO-1228" {
        title: "The disks of a control plane node are slow",
        severity: Warning,
        seen: "{node}: disk latency is {latency} ms on average",
        why: "etcd needs answers within a few milliseconds; beyond 100 ms leaders change, and the drivers lose their leases.",
        remedy: ["Move {vm} to a faster datastore, or give it a storage policy with more: govc vm.migrate -ds DATASTORE {vm}"],
    }
    CBT_MIXED = "VDO-1229" {
        title: "Changed block tracking is on for some node VMs only",
        severity: Warning,
        seen: "{on} node VMs have it on, {off} have it off: {names}",
        why: "A volume that moves between them loses its record of changed blocks: incremental backups become full ones, or miss data.",
        remedy: ["Set the same value on all VMs; each needs a power cycle: govc vm.change -vm {vm} -e ctkEnabled={value}"],
    }
    VM_OFF = "VDO-1230" {
        title: "A node's VM is not running",
        severity: Error,
        seen: "{node}: its VM {vm} is {state}",
        why: "The node cannot become ready.",
        remedy: ["govc vm.power -on {vm}"],
    }
    DISK_UUID_WAITS = "VDO-1231" {
        title: "A node VM needs a power cycle before it shows disk ids",
        severity: Error,
        seen: "{node}: disk.EnableUUID is set for {vm} but the VM has not been off since",
        why: "The setting takes effect when the VM is powered on; a restart of the guest is not enough.",
        remedy: [
            "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data   then govc vm.power -off {vm}",
            "govc vm.power -on {vm}   then kubectl uncordon {node}",
        ],
    }
    VM_INACCESSIBLE = "VDO-1232" {
        title: "vCenter cannot reach the files of a node's VM",
        severity: Error,
        seen: "{node}: {vm} is inaccessible or orphaned",
        why: "vCenter then forgets the VM's uuid: cloud providers that look for it assume that the VM is deleted.",
        remedy: [
            "Make its datastore accessible again: govc datastore.info   shows the state of each",
            "If somebody moved the VM by hand: remove it from the inventory and register it again with its old uuid",
        ],
    }
    VOLUMES_AT_LIMIT = "VDO-1233" {
        title: "A node has nearly all the volumes it can hold",
        severity: Info,
        seen: "{node}: {count} of {limit} volumes",
        why: "Pods with volumes that only fit there will stay Pending.",
        remedy: ["Add a node, or raise storageProvider.maxVolumesPerNode on vSphere 8 and newer"],
    }
}
