//! Zones and regions: tags in vCenter, labels in Kubernetes.

catalogue! {
    CATEGORY_MISSING = "VDO-1701" {
        title: "A tag category for zones does not exist",
        severity: Error,
        seen: "{address} has no tag category {category}",
        why: "With zones configured, the cloud provider initialises no node, and the storage driver registers no node, before every node has its tags.",
        remedy: [
            "govc tags.category.create -t Datacenter -t ClusterComputeResource -t HostSystem {category}",
            "govc tags.create -c {category} NAME   for each zone, and govc tags.attach -c {category} NAME PATH   to datacenter, cluster or host",
            "Or, without zones: remove cloudProvider.topology and storageProvider.topologyCategories from the VDOConfig",
        ],
    }
    TAG_MISSING = "VDO-1702" {
        title: "A node has no zone or region tag above it",
        severity: Error,
        seen: "{node}: neither {host} nor anything above it has a tag of the category {category}",
        why: "The cloud provider does not initialise the node, and the storage driver does not register it: nodeVM does not have labels for the categories.",
        remedy: [
            "govc tags.attach -c {category} NAME {path}   or on the cluster or datacenter above, for all hosts in it",
            "If there is one: let the account read tags and everything above the VM, with the role ReadOnly",
        ],
    }
    TAG_DOUBLE = "VDO-1703" {
        title: "A node has two tags of one category above it",
        severity: Warning,
        seen: "{node}: {category} is {tags}",
        why: "The cloud provider and the storage driver may choose differently: the pod goes to one zone, its volume to the other.",
        remedy: ["Keep one of them, for example: govc tags.detach -c {category} {tag} {path}"],
    }
    TAG_ON_VM = "VDO-1704" {
        title: "A zone tag is attached to a node's VM itself",
        severity: Warning,
        seen: "{node}: {vm} itself has the tag {tag} of the category {category}",
        why: "The storage driver ignores tags on VMs, on purpose: the VM moves, the zone does not. The cloud provider may follow it, so the two disagree.",
        remedy: ["govc tags.detach -c {category} {tag} {vm}   and attach it to host, cluster or datacenter"],
    }
    ZONE_MOVED = "VDO-1705" {
        title: "A node's VM has moved to another zone",
        severity: Warning,
        seen: "{node}: its label {label} is {labelled}, but its host {host} is in {actual}",
        why: "The drivers write the labels once. Kubernetes places pods and volumes for the old zone, and the new host may not reach volumes of the old zone.",
        remedy: [
            "Move it back: govc vm.migrate -host {place} {vm}   and keep it there with a VM/Host rule",
            "Or let it join again: kubectl drain {node} --ignore-daemonsets --delete-emptydir-data   kubectl delete node {node}   and restart kubelet",
        ],
    }
    ZONE_LABELS_DISAGREE = "VDO-1706" {
        title: "The zone labels of a node contradict each other",
        severity: Error,
        seen: "{node}: {first} and {second}",
        why: "The storage driver's node pod exits with: found conflicting topology labels. Old releases wrote failure-domain.beta labels, new ones topology labels.",
        remedy: [
            "kubectl label node {node} {remove}   removes the old one",
            "Let both drivers use one set of categories: cloudProvider.topology, and nothing in storageProvider.topologyCategories",
        ],
    }
    ZONE_HALF = "VDO-1707" {
        title: "Only one of zone and region is configured",
        severity: Warning,
        seen: "{present} is set, {absent} is not",
        why: "The cloud provider then writes neither label, and the storage driver refuses its configuration.",
        remedy: ["Set both in cloudProvider.topology, or neither"],
    }
    NODE_WITHOUT_ZONE = "VDO-1709" {
        title: "A node is registered for storage without its zone",
        severity: Warning,
        seen: "{node}: its CSINode has no topology keys, although the storage driver uses {categories}",
        why: "The driver registered the node before it knew zones. It then creates volumes without regard to this node, which may be unable to reach them.",
        remedy: ["kubectl delete pod --namespace {namespace} --selector app=vsphere-csi-node --field-selector spec.nodeName={node}   the new pod registers the node again; volumes stay mounted"],
    }
    HOST_GROUP_BROKEN = "VDO-1708" {
        title: "A host group for a zone is wrong",
        severity: Error,
        seen: "Failure domain {domain}, host group {group}: {problem}",
        why: "VMs of that zone can run on hosts of another zone.",
        remedy: ["vSphere Client, cluster, Configure, VM/Host Groups and VM/Host Rules: correct {group}"],
    }
}
