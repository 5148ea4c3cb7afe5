//! Nodes and the VMs they run on.

catalogue! {
    theme: Nodes, concerns: CloudProvider;
    VM_NOT_FOUND = "VDO-1201" {
        title: "A node's VM is in none of the configured vCenters",
        severity: Error,
        seen: "{node}: no configured vCenter shows a VM with the uuid {uuid}",
        why: "The cloud provider cannot initialise the node, and deletes it if it becomes not ready. The storage driver cannot attach volumes to it, and its controller may exit because of this one node.",
        remedy: [
            "govc find / -type m -config.uuid {uuid}   with an administrator's account; if that shows a VM, the drivers' account lacks the privilege to see it: grant it Read-only on the VM and on every folder above it",
            "If the VM is in a datacenter that the VsphereCloudConfig does not list, add that datacenter: VDO and the drivers search only the listed ones",
            "If the VM is on another vCenter, create a VsphereCloudConfig for that vCenter and name it in the VDOConfig",
            "If the node is not a vSphere VM: kubectl label node {node} vdo.vmware.com/vsphere=false   excludes it from VDO's checks and from the storage driver that VDO installs",
            "If the VM was deleted: kubectl delete node {node}",
        ],
    }
    VM_AMBIGUOUS = "VDO-1202" {
        title: "Several VMs have the uuid of one node",
        severity: Error,
        seen: "{node}: {vms} all have the uuid {uuid}",
        why: "The drivers use the first VM that vCenter returns, so volumes may be attached to the wrong VM. The cause is usually a VM copied by its files, or restored next to the original.",
        remedy: [
            "Find out which of {vms} is the node, and shut down the other one",
            "govc vm.change -vm THE_OTHER -uuid $(uuidgen)   while that VM is off",
        ],
    }
    DISK_UUID_OFF = "VDO-1203" {
        title: "Disk ids are hidden from a node",
        severity: Error,
        seen: "{node}: disk.EnableUUID is off on its VM {vm}",
        why: "vCenter attaches volumes, but the node cannot find the disks. Pods stay in ContainerCreating, and their events report that the disk is not attached to the node.",
        remedy: [
            "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data && govc vm.power -off {vm} && kubectl wait --for=condition=Ready=Unknown node/{node} --timeout=5m",
            "govc vm.change -vm {vm} -e disk.enableUUID=TRUE   needs the privilege VirtualMachine.Config.AdvancedConfig",
            "govc vm.power -on {vm}",
            "kubectl wait --for=condition=Ready node/{node} --timeout=15m && kubectl uncordon {node}",
        ],
        fixable: true,
    }
    HARDWARE_TOO_OLD = "VDO-1204" {
        title: "A node VM's hardware version is too old",
        severity: Error,
        seen: "{node}: its VM {vm} has hardware version {version}; the storage driver needs {needed}",
        why: "Attaching a volume fails with DeviceUnsupportedForVmVersion or NotSupported.",
        remedy: [
            "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data && govc vm.power -off {vm} && kubectl wait --for=condition=Ready=Unknown node/{node} --timeout=5m",
            "govc vm.upgrade -version={needed} -vm {vm}",
            "govc vm.power -on {vm}",
            "kubectl wait --for=condition=Ready node/{node} --timeout=15m && kubectl uncordon {node}",
        ],
        fixable: true,
    }
    SCSI_SLOTS = "VDO-1205" {
        title: "A node VM has no free SCSI slot for another disk",
        severity: Error,
        seen: "{node}: all {slots} slots on the SCSI controllers of {vm} are in use",
        why: "The next volume fails to attach with: missing SCSI controller. The 60th disk fails with an error without text.",
        remedy: [
            "kubectl cordon {node}   keeps new pods away; move some pods with volumes to other nodes",
            "A controller has 15 slots, or 64 since ESXi 8.0: upgrade the hosts, then set storageProvider.maxVolumesPerNode: 255",
        ],
    }
    SCSI_KIND = "VDO-1206" {
        title: "A node VM has SCSI controllers that volumes cannot use",
        severity: Warning,
        seen: "{node}: {others} of {count} SCSI controllers of {vm} are not paravirtual",
        why: "The storage driver uses only paravirtual controllers. Each other controller costs 15 slots, while Kubernetes still schedules up to 59 volumes to the node.",
        remedy: ["With the VM off, change the controllers of {vm} to VMware Paravirtual: Edit Settings, SCSI controller, Change Type"],
        fixable: true,
    }
    VM_SNAPSHOTS = "VDO-1207" {
        title: "A node VM has snapshots",
        severity: Warning,
        seen: "{node}: its VM {vm} has {snapshots}",
        why: "A VM snapshot locks the attached volumes: attaching, detaching and expanding them fails until the snapshot is removed. Image-level backups of node VMs leave such snapshots.",
        remedy: [
            "govc snapshot.tree -vm {vm}   shows them",
            "govc snapshot.remove -vm {vm} '*'   removes all and merges their content into the disks",
            "Exclude node VMs from image-level backup jobs",
        ],
    }
    TOOLS_NOT_RUNNING = "VDO-1208" {
        title: "VMware Tools is not running in a node VM",
        severity: Error,
        seen: "{node}: VMware Tools is {state} in {vm}",
        why: "VMware Tools reports the guest's host name and addresses to vCenter. Without them the cloud provider can neither find the node nor set its addresses.",
        remedy: [
            "On {node}: systemctl enable --now open-vm-tools   (install the package open-vm-tools first if it is missing)",
            "On Talos: add the system extension vmtoolsd-guest-agent to the node's image",
        ],
    }
    GUEST_NAME_DIFFERS = "VDO-1209" {
        title: "A node's name differs from its VM's host name",
        severity: Warning,
        seen: "{node}: VMware Tools reports the host name {guest}",
        why: "The cloud provider stores VMs by the guest's host name and looks them up by the node's name. If the names differ, it does not initialise the node.",
        remedy: [
            "On the node: hostnamectl set-hostname {node}   and restart VMware Tools",
            "Or let the node join under the name {guest}: kubelet --hostname-override={guest}",
        ],
    }
    GUEST_NAME_SHARED = "VDO-1210" {
        title: "Several VMs have the host name of one node",
        severity: Error,
        seen: "{node}: the host name belongs to {vms}",
        why: "The cloud provider looks up the VM by this name and fails with: Multiple VMs found. It does not initialise the node.",
        remedy: [
            "Give every guest its own host name: on the VM that is not the node, hostnamectl set-hostname OTHER",
            "Powered-off copies keep their last host name: delete them, or power them on once with another host name",
        ],
    }
    VM_OUT_OF_SIGHT = "VDO-1211" {
        title: "A node's VM is outside the vCenters and datacenters of the drivers",
        severity: Error,
        seen: "{node}: its VM {vm} is in {place}, but {drivers} searches only {looked}",
        why: "The driver cannot see this VM. The node is not initialised and gets no volumes, and the cloud provider deletes it if it becomes not ready.",
        remedy: ["Add {place} to {field}"],
    }
    HOST_TOO_OLD = "VDO-1212" {
        title: "A node runs on an ESXi host that is too old",
        severity: Error,
        seen: "{host} runs ESXi {version}; the minimum for {purpose} is {needed}",
        why: "vCenter's storage features need support in the ESXi host as well. Attaching fails with NotSupported while the VM runs on such a host.",
        remedy: [
            "Upgrade {host} to ESXi {needed} or newer",
            "Until then keep node VMs off this host: govc host.maintenance.enter {path}",
        ],
    }
    HOST_UNUSABLE = "VDO-1213" {
        title: "A node's ESXi host is disconnected or in maintenance mode",
        severity: Warning,
        seen: "{host} is {state}",
        why: "Until the host returns, storage drivers before 3.6.2 and 3.7.1 find no datastore that all hosts share, and cannot create volumes in its zone.",
        remedy: [
            "govc host.info {path}   shows its state",
            "{step}",
        ],
    }
    PROVIDER_ID_FOREIGN = "VDO-1214" {
        title: "A node has the provider id of another cloud provider",
        severity: Error,
        seen: "{node}: spec.providerID is {id}",
        why: "A provider id is immutable. The vSphere cloud provider cannot manage the node, and may delete it.",
        remedy: [
            "Disable the other cloud provider first; on k3s: --disable-cloud-controller",
            "Then move the pods away: kubectl drain {node} --ignore-daemonsets --delete-emptydir-data",
            "If the drain succeeded: kubectl delete node {node}   and restart the kubelet on {node} with --cloud-provider=external; it joins again without a provider id",
            "Wait for it: kubectl wait --for=condition=Ready node/{node} --timeout=15m",
        ],
    }
    PROVIDER_ID_WRONG = "VDO-1215" {
        title: "A node's provider id does not name its VM",
        severity: Error,
        seen: "{node}: spec.providerID is {id}, but its VM {vm} has the uuid {uuid}",
        why: "The drivers use the provider id: they look for another VM, or crash on a uuid in the other byte order. Typical causes are a --provider-id argument of the kubelet, and a VM replaced under the same node name.",
        remedy: [
            "Remove --provider-id from the kubelet's arguments on {node}",
            "Then move the pods away: kubectl drain {node} --ignore-daemonsets --delete-emptydir-data",
            "If the drain succeeded: kubectl delete node {node}   and restart the kubelet on {node}; the cloud provider sets the right id",
            "Wait for it: kubectl wait --for=condition=Ready node/{node} --timeout=15m",
        ],
    }
    NODE_UNINITIALIZED = "VDO-1216" {
        title: "The cloud provider has not initialised a node",
        severity: Error,
        seen: "{node}: it joined at {joined} and still has the taint node.cloudprovider.kubernetes.io/uninitialized; {state}",
        why: "Kubernetes schedules no pods to the node until the cloud provider removes that taint.",
        remedy: [
            "kubectl get --namespace {namespace} {workload}   must show a ready cloud provider",
            "kubectl logs --namespace {namespace} {workload} --tail 200 | grep {node}   shows its attempts",
        ],
    }
    KUBELET_NOT_EXTERNAL = "VDO-1217" {
        title: "A node joined without asking for the cloud provider",
        severity: Error,
        seen: "{node}: it has neither a provider id nor the taint that requests one from the cloud provider",
        why: "The kubelet runs without --cloud-provider=external, or joined before it was set. The cloud provider ignores the node, so the node keeps wrong addresses and has no zone.",
        remedy: [
            "On {node}, add --cloud-provider=external to the kubelet's arguments (kubeadm: nodeRegistration.kubeletExtraArgs) and restart the kubelet",
            "kubectl taint node {node} node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule   makes the cloud provider initialise it now",
        ],
        fixable: true,
    }
    ADDRESS_WRONG = "VDO-1218" {
        title: "The cloud provider would choose another address than the kubelet uses",
        severity: Error,
        seen: "{node}: the kubelet uses {wanted}, but the cloud provider chooses {picked} ({reason})",
        why: "The node is not initialised, or its address changes and connections to its kubelet fail. VMware Tools lists interfaces in its own order and includes virtual addresses and those of the network plugin.",
        remedy: [
            "{step}",
            "If the VM has the kubelet's address, you can instead hide the other interfaces from VMware Tools on {node}: [guestinfo] exclude-nics=cali*,antrea*,veth*,cni*,flannel*   in /etc/vmware-tools/tools.conf",
        ],
    }
    ADDRESS_NONE = "VDO-1219" {
        title: "A node's VM has no usable address",
        severity: Error,
        seen: "{node}: {vm} has {addresses}; {reason}",
        why: "Without an address the cloud provider does not initialise the node.",
        remedy: [
            "govc vm.info -json {vm} | grep -A3 ipAddress   shows the addresses that VMware Tools reports",
            "Correct cloudProvider.nodes, or connect the VM to the network it names",
        ],
    }
    KUBELET_SKEW = "VDO-1220" {
        title: "A node's kubelet version does not fit the API server's version",
        severity: Warning,
        seen: "{node}: kubelet {version}, API server {server}",
        why: "Kubernetes supports kubelets up to three minor releases older than the API server, and none newer. VDO chooses driver releases for the API server's version.",
        remedy: ["Upgrade the kubelet on {node} to {server}"],
    }
    CSI_NODE_MISSING = "VDO-1221" {
        title: "The storage driver is not registered on a node",
        severity: Error,
        seen: "{node}: its CSINode has no entry for csi.vsphere.vmware.com",
        why: "Pods with volumes cannot start there.",
        remedy: [
            "kubectl get pods --namespace {namespace} --field-selector spec.nodeName={node}   must show vsphere-csi-node running",
            "kubectl logs --namespace {namespace} POD --container node-driver-registrar   shows whether the kubelet accepted the registration",
        ],
    }
    CSI_NODE_STALE = "VDO-1222" {
        title: "A node's storage registration names a VM that does not exist",
        severity: Error,
        seen: "{node}: its CSINode names {id}, {reason}",
        why: "The storage driver's controller and syncer exit when they do not find the VM of a single node: csiNodeAdd failed. No volume can then be created or attached anywhere in the cluster.",
        remedy: [
            "{step}",
            "{otherwise}",
        ],
        fixable: true,
    }
    NODE_FOREIGN = "VDO-1223" {
        title: "The storage driver runs on a node that is not a vSphere VM",
        severity: Error,
        seen: "{node}: {reason}, and vsphere-csi-node is scheduled on it",
        why: "The driver registers a node that vCenter does not know. The storage driver's controller and syncer then exit, which stops storage for the whole cluster.",
        remedy: [
            "kubectl label node {node} vdo.vmware.com/vsphere=false   VDO then keeps the driver off the node; for a DaemonSet not managed by VDO, add a nodeAffinity with a label that only vSphere nodes have",
            "kubectl patch csinode {node} --type json --patch {patch}   removes only the registration of the vSphere driver",
        ],
    }
    MULTIPATH = "VDO-1224" {
        title: "multipathd claims VMware disks on a node",
        severity: Warning,
        seen: "{node}: according to an Event in namespace {namespace}, multipathd has claimed disks of the vendor VMware",
        why: "The disk then appears as /dev/dm-*. Mounting fails because the disk is busy; expanding a volume fails with: no such file or directory.",
        remedy: [
            "On {node}, in /etc/multipath.conf: blacklist, device, vendor \"VMware\", product \"Virtual disk\"",
            "Then on {node}: systemctl restart multipathd   and multipath -F",
        ],
    }
    NODE_HOLDS_VOLUMES = "VDO-1225" {
        title: "A node that is down keeps its volumes",
        severity: Error,
        seen: "{node}: not ready since {since}, but still has {count} attached: {volumes}{waits}",
        why: "Kubernetes does not detach volumes from an unreachable node: replacement pods on other nodes wait with a Multi-Attach error. The severity is Error as soon as one pod waits.",
        remedy: [
            "{power}",
            "{taint}",
            "When {node} is ready again: kubectl taint node {node} node.kubernetes.io/out-of-service-   removes the taint",
        ],
    }
    VOLUME_LIMIT_LOWER = "VDO-1226" {
        title: "A node accepts fewer volumes than requested",
        severity: Warning,
        seen: "{node}: it accepts {actual} volumes; {wanted} are requested",
        why: "Since 3.7.1 the storage driver ignores MAX_VOLUMES_PER_NODE. The feature switch high-pv-node-density sets the limit: 59 if off, 255 if on. Pods beyond the limit stay Pending.",
        remedy: [
            "kubectl patch configmap --namespace {namespace} internal-feature-states.csi.vsphere.vmware.com --type merge --patch {patch}",
            "kubectl rollout restart daemonset --namespace {namespace} vsphere-csi-node",
        ],
    }
    NODE_DELETION_RISK = "VDO-1227" {
        title: "The cloud provider may delete a node whose VM still exists",
        severity: Blocker,
        seen: "{node}: not ready, and the cloud provider {reason}",
        why: "The cloud provider deletes a Node that is not ready if it does not find the VM, and all pods on it. A vCenter or datacenter missing in its configuration, or a lost privilege, looks to it like a deleted VM.",
        remedy: [
            "kubectl set env --namespace {namespace} {workload} SKIP_NODE_DELETION=true   immediately, if VDO does not manage the cloud provider",
            "Then make the VM visible to the cloud provider: see the other findings about {node}",
        ],
    }
    DISK_SLOW = "VDO-1228" {
        title: "The disks of a control plane node are slow",
        severity: Warning,
        seen: "{node}: disk latency is {latency} ms on average",
        why: "etcd needs disk latencies of a few milliseconds. Above 100 ms, etcd changes leaders and the drivers lose their leases.",
        remedy: ["Move {vm} to a faster datastore, or assign a faster storage policy: govc vm.migrate -ds DATASTORE {vm}"],
    }
    CBT_MIXED = "VDO-1229" {
        title: "Changed block tracking is on for only some node VMs",
        severity: Warning,
        seen: "{on} node VMs have it on, {off} have it off: {names}",
        why: "A volume that moves between these VMs loses its record of changed blocks. Incremental backups become full backups, or miss data.",
        remedy: ["Set the same value on all VMs; each needs a power cycle: govc vm.change -vm {vm} -e ctkEnabled={value}"],
        fixable: true,
    }
    VM_OFF = "VDO-1230" {
        title: "A node's VM is not running",
        severity: Error,
        seen: "{node}: its VM {vm} is {state}",
        why: "The node cannot become ready.",
        remedy: ["govc vm.power -on {vm}"],
    }
    DISK_UUID_WAITS = "VDO-1231" {
        title: "A node VM needs a power cycle to show disk ids",
        severity: Error,
        seen: "{node}: disk.EnableUUID is set on {vm}, but the VM has not been powered off since",
        why: "The setting takes effect when the VM powers on; a restart of the guest is not enough.",
        remedy: [
            "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data && govc vm.power -off {vm} && kubectl wait --for=condition=Ready=Unknown node/{node} --timeout=5m",
            "govc vm.power -on {vm}",
            "kubectl wait --for=condition=Ready node/{node} --timeout=15m && kubectl uncordon {node}",
        ],
        fixable: true,
    }
    VM_INACCESSIBLE = "VDO-1232" {
        title: "vCenter cannot reach the files of a node's VM",
        severity: Error,
        seen: "{node}: {vm} is inaccessible or orphaned",
        why: "vCenter no longer knows the VM's uuid, so cloud providers conclude that the VM was deleted.",
        remedy: [
            "Bring its datastore back: govc find / -type s -summary.accessible false   lists the inaccessible datastores",
            "If somebody moved the VM's files: remove the VM from the inventory and re-register it with its old uuid",
        ],
    }
    VOLUMES_AT_LIMIT = "VDO-1233" {
        title: "A node has almost reached its volume limit",
        severity: Info,
        seen: "{node}: {count} of {limit} volumes",
        why: "Beyond the limit, pods with volumes that must run on this node stay Pending.",
        remedy: ["Add a node, or raise storageProvider.maxVolumesPerNode on vSphere 8 and newer"],
    }
}
