//! The operator: the drivers it manages, its records and its permissions.

catalogue! {
    theme: Operator, concerns: NoDriver;
    VCENTER_NOT_VERIFIED = "VDO-1901" {
        title: "VDO could not verify a vCenter",
        severity: Error,
        seen: "{vcenter} ({config}): {reason}",
        why: "VDO passes credentials and addresses to a driver only after verifying them. Running drivers stay as they are; VDO installs and changes nothing that needs this vCenter.",
        remedy: ["kubectl describe vspherecloudconfig --all-namespaces   shows the result of the last attempt for {config}", "Correct the address, the certificate settings or the Secret; VDO retries automatically"],
    }
    FOREIGN_DRIVER = "VDO-1902" {
        title: "VDO does not manage the installed driver",
        severity: Blocker,
        seen: "{driver} runs in namespace {namespace} as {name} and was not installed by VDO",
        why: "Two drivers in one cluster would work against each other, and VDO does not overwrite a driver whose settings it does not know. VDO leaves the driver unchanged.",
        remedy: [
            "vdoctl adopt   shows what VDO would change, or why VDO cannot adopt the driver; with --yes VDO adopts it with its names and settings (spec.adoption: Automatic does the same)",
            "Or keep it and let VDO only observe it: set mode: Observe for this driver",
            "Only if no volume is attached: uninstall {name} from namespace {namespace} the way it was installed, and keep the Secret with its cluster-id; VDO then installs its own driver",
        ],
    }
    VOLUMES_ATTACHED = "VDO-1904" {
        title: "VDO cannot uninstall the storage driver while volumes are attached",
        severity: Blocker,
        seen: "{count} volumes are attached: {volumes}",
        why: "Without the driver, or without the vCenter of the node's VM, nothing could detach these volumes, and their pods could not move to another node.",
        remedy: ["Scale down the workloads that use these volumes, or move them to other storage", "kubectl get volumeattachments   shows the remaining ones; VDO continues automatically when none is left"],
    }
    UPGRADE_ROLLED_BACK = "VDO-1905" {
        title: "VDO rolled back a release that did not become healthy",
        severity: Error,
        seen: "{driver} {version}: {reason}; {running} runs again",
        why: "VDO rolls back to the previous release if a new one does not become healthy in time. It does not retry until something changes.",
        remedy: ["Fix the cause named above", "Then change the VDOConfig, for example its version field, and VDO retries", "With policy Manual, remove the approval and approve again: kubectl annotate vdoconfig --namespace {namespace} {config} {approval}-"],
    }
    PAUSED = "VDO-1906" {
        title: "VDO is paused",
        severity: Warning,
        seen: "The VDOConfig pauses VDO",
        why: "VDO observes and reports but changes nothing: no repairs, no upgrades, no new credentials.",
        remedy: ["{step}"],
    }
    CLUSTER_ID_IS_ADDRESS = "VDO-1907" {
        title: "The cluster id is the address of a vCenter",
        severity: Warning,
        seen: "The storage driver runs with the cluster id {id}",
        why: "The Go VDO gave this id to every cluster on that vCenter. Two clusters with one id remove each other's volumes from CNS. VDO keeps the id because CNS knows the volumes of this cluster by it.",
        remedy: ["vSphere Client, Monitor, Cloud Native Storage, Container Volumes: filter by the Kubernetes cluster {id}; are all volumes those of this cluster?", "If another cluster has volumes there: stop the storage controller of one of the two before anything else"],
    }
    PREDECESSOR_RUNS = "VDO-1908" {
        title: "The Go VDO is still running",
        severity: Blocker,
        seen: "Deployment {name} in namespace {namespace} is running",
        why: "Two operators would overwrite each other's changes. VDO changes nothing while the other one runs; the drivers keep running.",
        remedy: ["kubectl delete deployment --namespace {namespace} {name}   removes only the operator; its objects and the drivers stay, and VDO adopts them"],
    }
    OBJECT_REFUSED = "VDO-1909" {
        title: "The API server refuses an object of a driver",
        severity: Error,
        seen: "{driver}: {reason}",
        why: "The cluster does not accept an object that VDO applies. Running drivers stay as they are; VDO retries with increasing delays.",
        remedy: ["{step}"],
    }
    DRIVER_UNASKED = "VDO-1910" {
        title: "A driver runs that the VDOConfig does not request",
        severity: Warning,
        seen: "VDO installed {driver}, but VDOConfig {config} has no {section}, or one without a vCenter",
        why: "Nodes or volumes may need the driver, so VDO does not uninstall it because a section is missing. VDO observes it, but neither repairs nor upgrades it.",
        remedy: [
            "To keep it, add spec.{section} to VDOConfig {config} again",
            "To remove it: kubectl patch vdoconfig --namespace {namespace} {config} --type merge --patch {patch}",
        ],
    }
    RECORD_DOUBTFUL = "VDO-1911" {
        title: "VDO's record of a driver is missing or unreadable",
        severity: Blocker,
        seen: "{driver}: {reason}",
        why: "The record lists the objects that VDO manages, the last healthy release, and the driver's names and identity. Without it VDO would have to guess, so it changes nothing; the driver keeps running.",
        remedy: [
            "{step}",
            "{otherwise}",
        ],
    }
    ACCOUNT_OF_PREDECESSOR = "VDO-1912" {
        title: "The operator's service account lacks permissions",
        severity: Blocker,
        seen: "The operator's service account has no permission to {first} ({count} permissions are missing)",
        why: "With the permissions of an earlier VDO, for example after an upgrade of only the image, this release cannot read all objects it needs. It changes and deletes nothing; the drivers keep running.",
        remedy: [
            "kubectl apply --server-side --force-conflicts -f deploy/install.yaml   with the install.yaml of this release, which contains the service account and its permissions",
            "If the permission is missing in the namespace of an adopted driver: vdoctl deploy   grants it there again",
            "If you changed only the image of an earlier VDO: kubectl delete deployment --namespace {namespace} {deployment}   the drivers stay",
        ],
    }
    CLUSTER_ID_UNCLEAR = "VDO-1913" {
        title: "The volumes of this cluster carry more than one cluster id",
        severity: Blocker,
        seen: "The volumes in this cluster were created under {ids}; VDO cannot tell which of them is the id of this cluster",
        why: "VDO does not install a storage driver: under one id the driver would not find the volumes of the other and would remove them from CNS.",
        remedy: [
            "vSphere Client, Monitor, Cloud Native Storage, Container Volumes: find the Kubernetes cluster that most volumes of this cluster belong to",
            "kubectl create secret generic --namespace {namespace} {secret} --from-file=csi-vsphere.conf=FILE   with the correct id in FILE, in two lines: [Global] and cluster-id = ID",
            "VDO reads the id from there and completes the Secret. It then reports each volume under the other id",
        ],
    }
    LOOKALIKES = "VDO-1914" {
        title: "A workload looks like a vSphere driver but is not one",
        severity: Info,
        seen: "{first} looks like a driver or the Go VDO, but its service account lacks the permissions of one ({count} such workloads)",
        why: "Anybody with permission to create workloads in a namespace can give them a driver's name, image and labels. Outside the allowed namespaces VDO counts a workload as a driver only if a ClusterRoleBinding gives its service account the permissions of a driver. VDO ignores this workload.",
        remedy: [
            "If it is a test or a copy, do nothing, or ask the owner of namespace {namespace} why it exists",
            "If it is a driver that you run: vdoctl deploy --driver-namespace {namespace}   allows its namespace, so that VDO can adopt the driver",
        ],
    }
    REMEDIATION_PERMISSION_MISSING = "VDO-1917" {
        title: "The operator lacks the permission for an enabled remediation",
        severity: Warning,
        seen: "{field} is Fix, but the operator's service account has no permission to {verb} {resource}",
        why: "install.yaml does not grant this permission by default because few clusters need it. Without it VDO reports stale entries but does not remove them.",
        remedy: [
            "kubectl create clusterrolebinding {role} --clusterrole {role} --serviceaccount {namespace}:vdo   grants it; VDO continues within a minute",
            "Or set {field} to Propose",
        ],
    }
    UPSTREAM_NEEDED = "VDO-1920" {
        title: "VDO runs the upstream cloud controller because NSX needs it",
        severity: Info,
        seen: "{field} is Rust, but spec.cloudProvider.nsx requests load balancers or routes in NSX",
        why: "VDO's own cloud controller supports neither load balancers nor routes. Services of type LoadBalancer would stay pending and pods unreachable, so VDO runs the upstream one instead.",
        remedy: [
            "No action is needed; set implementation: Upstream to make the choice explicit",
            "To run VDO's own cloud controller, remove nsx from the VDOConfig",
        ],
    }
    STORAGE_DRIVER_KEPT = "VDO-1921" {
        title: "VDO keeps the running storage driver, not the one in the spec",
        severity: Warning,
        seen: "{field} is {wanted}, but the running storage driver is {running}",
        why: "Volumes are attached and mounted through the running driver. VDO does not replace it with the other implementation while it is installed.",
        remedy: [
            "Set {field} to {running} to keep the running driver",
            "To run the other one, first delete the pods that use its volumes, and uninstall it with storageProvider.mode: Removed",
        ],
    }
    RELEASE_NOT_ADOPTABLE = "VDO-1922" {
        title: "VDO cannot adopt the installed driver: its release is unknown",
        severity: Blocker,
        seen: "{driver} runs in namespace {namespace} as {name}; {reason}",
        why: "VDO adopts only releases from the catalog, because it must know which objects and settings they have. VDO leaves the driver unchanged.",
        remedy: [
            "{step}",
            "Or keep it and let VDO only observe it: set mode: Observe for this driver",
        ],
    }
}
