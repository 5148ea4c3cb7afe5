//! VDO's checks, its permissions in the cluster and conflicts with other managers.

catalogue! {
    theme: Checks, concerns: NoDriver;
    CHECK_INCOMPLETE = "VDO-1801" {
        title: "Some checks could not run",
        severity: Warning,
        seen: "Cannot tell {question}: {reason}",
        why: "VDO reports the answers as unknown; problems there may go unnoticed.",
        remedy: ["Fix the reason named above; VDO runs the checks again automatically"],
    }
    FINDINGS_LEFT_OUT = "VDO-1802" {
        title: "There are more findings than shown here",
        severity: Info,
        seen: "{count} less severe findings are not shown",
        why: "The status of an object has a limited size.",
        remedy: ["vdoctl doctor --all   lists all of them"],
    }
    PERMISSIONS_MISSING = "VDO-1803" {
        title: "VDO lacks permissions in this cluster",
        severity: Error,
        seen: "VDO has no permission to {verb} {resource}{where}; it needs it for {purpose}",
        why: "VDO cannot check objects that it cannot read, and cannot repair objects that it cannot write.",
        remedy: [
            "kubectl auth can-i {verb} {resource} {scope} --as system:serviceaccount:{namespace}:vdo   answers no",
            "kubectl apply -f install.yaml   applies the roles of this release again; with Helm, helm upgrade does",
        ],
    }
    FOUGHT_OVER = "VDO-1805" {
        title: "Another manager keeps changing an object that VDO manages",
        severity: Warning,
        seen: "{kind} {object}: {manager} changed {field} {times} times within the hour",
        why: "VDO and the other manager overwrite each other's changes, and the driver restarts each time.",
        remedy: [
            "kubectl get {kind} {where}{name} --show-managed-fields -o yaml   shows which manager writes which fields",
            "Remove the object from {manager}, or set mode: Observe for this driver in the VDOConfig",
        ],
    }
    NETWORK_MISSING = "VDO-1806" {
        title: "The network plugin is missing on a node",
        severity: Warning,
        seen: "{node}: {plugin} does not run on it",
        why: "The node does not become ready, and pods that are not on the host's network cannot start there.",
        remedy: ["kubectl get pods --all-namespaces --field-selector spec.nodeName={node}   shows which pods run"],
    }
    PLATFORM_DISAGREES = "VDO-1807" {
        title: "OpenShift and its cloud provider configuration disagree",
        severity: Error,
        seen: "{problem}",
        why: "OpenShift creates VMs in one place, and the cloud provider looks for them in another.",
        remedy: [
            "oc edit infrastructure cluster   shows spec.platformSpec.vsphere",
            "oc edit configmap --namespace openshift-config cloud-provider-config   must name the same vCenters and datacenters",
        ],
    }
}
