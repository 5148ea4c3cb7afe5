//! VDO itself, and what it may do in the cluster.

catalogue! {
    CHECK_INCOMPLETE = "VDO-1801" {
        title: "Some checks could not run",
        severity: Warning,
        seen: "Cannot tell {question}: {reason}",
        why: "What is not looked at is not known to be well.",
        remedy: ["Cure the reason given; the checks run again by themselves"],
    }
    FINDINGS_LEFT_OUT = "VDO-1802" {
        title: "There are more findings than are shown here",
        severity: Info,
        seen: "{count} more, less important than those shown",
        why: "The status of an object has a limited size.",
        remedy: ["vdoctl doctor --all   lists all of them"],
    }
    RIGHTS_MISSING = "VDO-1803" {
        title: "VDO lacks rights in this cluster",
        severity: Error,
        seen: "VDO may not {verb} {resource}{where}, needed for {purpose}",
        why: "What it may not read it cannot check; what it may not write it cannot mend.",
        remedy: [
            "kubectl auth can-i {verb} {resource} --as system:serviceaccount:{namespace}:vdo   shows it",
            "Apply the roles of this release again: kubectl apply -f install.yaml   or helm upgrade",
        ],
    }
    FOUGHT_OVER = "VDO-1805" {
        title: "Somebody else keeps changing what VDO manages",
        severity: Warning,
        seen: "{kind} {object}: {manager} changed {field} {times} times within the hour",
        why: "Both put back what the other wrote; the driver restarts each time.",
        remedy: [
            "kubectl get {kind} {where}{name} --show-managed-fields -o yaml   shows who writes what",
            "Take the object out of {manager}, or set mode: Observe for this driver in the VDOConfig",
        ],
    }
    NETWORK_MISSING = "VDO-1806" {
        title: "The network plugin is missing on a node",
        severity: Warning,
        seen: "{node}: {plugin} does not run there",
        why: "The node does not become ready, and pods that are not on the host's network cannot start there.",
        remedy: ["kubectl get pods --all-namespaces --field-selector spec.nodeName={node}   shows what runs and what does not"],
    }
    PLATFORM_DISAGREES = "VDO-1807" {
        title: "OpenShift and its cloud provider configuration disagree",
        severity: Error,
        seen: "{problem}",
        why: "Machines are made in one place and looked for in another.",
        remedy: [
            "oc edit infrastructure cluster   shows spec.platformSpec.vsphere",
            "oc edit configmap --namespace openshift-config cloud-provider-config   must name the same vCenters and datacenters",
        ],
    }
}
