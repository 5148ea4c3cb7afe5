//! Zones and regions: tags in vCenter, labels in Kubernetes.

catalogue! {
    theme: Zones, concerns: BothDrivers;
    CATEGORY_MISSING = "VDO-1701" {
        title: "A tag category for zones does not exist",
        severity: Error,
        seen: "{address} has no tag category {category}",
        why: "With zones configured, the cloud provider does not initialise a node, and the storage driver does not register it, before the node has its tags.",
        remedy: [
            "govc tags.category.create -t Datacenter -t ClusterComputeResource -t HostSystem {category}",
            "govc tags.create -c {category} NAME   for each zone",
            "govc tags.attach -c {category} NAME PATH   for each zone, on its datacenter, cluster or host",
            "If you do not need zones: remove cloudProvider.topology and storageProvider.topologyCategories from the VDOConfig",
        ],
    }
    TAG_MISSING = "VDO-1702" {
        title: "A node has no zone or region tag above it",
        severity: Error,
        seen: "{node}: neither {host} nor anything above it has a tag of the category {category}",
        why: "The cloud provider does not initialise the node, and the storage driver does not register it: nodeVM does not have labels for the categories.",
        remedy: [
            "govc tags.attach -c {category} NAME {path}   or attach it to the cluster or datacenter, for all hosts in it",
            "If such a tag exists: grant the account the role ReadOnly on every object above the VM",
        ],
    }
    TAG_DOUBLE = "VDO-1703" {
        title: "A node has two tags of one category above it",
        severity: Warning,
        seen: "{node}: {category} is {tags}",
        why: "The cloud provider and the storage driver may choose different tags: the pod then runs in one zone, and its volume is in the other.",
        remedy: ["Keep only one, for example: govc tags.detach -c {category} {tag} {path}"],
    }
    TAG_ON_VM = "VDO-1704" {
        title: "A zone tag is attached to a node's VM itself",
        severity: Warning,
        seen: "{node}: {vm} itself has the tag {tag} of the category {category}",
        why: "The storage driver ignores tags on VMs because a VM can move to another zone. The cloud provider may use the tag, so the two drivers disagree.",
        remedy: ["govc tags.detach -c {category} {tag} {vm}   then attach the tag to the host, cluster or datacenter"],
    }
    ZONE_MOVED = "VDO-1705" {
        title: "A node's VM has moved to another zone",
        severity: Warning,
        seen: "{node}: its label {label} is {labelled}, but its host {host} is in {actual}",
        why: "The drivers write the labels once and never update them. Kubernetes still places pods and volumes for the old zone, whose volumes the new host may not reach.",
        remedy: [
            "govc vm.migrate -host {place} {vm}   moves it back to a host in {labelled}; keep it there with a VM/Host rule",
            "Or let it join again: drain it, run kubectl delete node {node}   and restart the kubelet",
        ],
    }
    ZONE_LABELS_DISAGREE = "VDO-1706" {
        title: "The zone labels of a node contradict each other",
        severity: Error,
        seen: "{node}: {first} and {second}",
        why: "The storage driver's node pod exits with: found conflicting topology labels. Old releases write failure-domain.beta labels, new releases topology labels.",
        remedy: [
            "kubectl label node {node} {remove}   removes the old label",
            "Let both drivers use the same categories: set cloudProvider.topology and omit storageProvider.topologyCategories",
        ],
    }
    ZONE_HALF = "VDO-1707" {
        title: "Only one of zone and region is configured",
        severity: Warning,
        seen: "{present} is set, {absent} is not",
        why: "The cloud provider then writes neither label, and the storage driver rejects its configuration.",
        remedy: ["Set both in cloudProvider.topology, or neither"],
    }
    NODE_WITHOUT_ZONE = "VDO-1709" {
        title: "A node is registered for storage without its zone",
        severity: Warning,
        seen: "{node}: its CSINode has no topology keys, but the storage driver is configured with {categories}",
        why: "The driver registered the node before zones were configured. It creates volumes without regard to the node's zone, so the node may not reach them.",
        remedy: ["kubectl delete pod --namespace {namespace} --selector app=vsphere-csi-node --field-selector spec.nodeName={node}   the new pod re-registers the node; volumes stay mounted"],
    }
    HOST_GROUP_BROKEN = "VDO-1708" {
        title: "The host group of a zone has a problem",
        severity: Error,
        seen: "Failure domain {domain}, host group {group}: {problem}",
        why: "VMs of that zone may run on hosts of another zone.",
        remedy: ["vSphere Client, cluster, Configure, VM/Host Groups and VM/Host Rules: correct {group}"],
    }
}
