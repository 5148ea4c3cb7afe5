//! The running drivers: pods, images, configuration, webhooks.

catalogue! {
    theme: Drivers, concerns: BothDrivers;
    CONTROLLER_PENDING = "VDO-1601" {
        title: "No node can run a driver's controller",
        severity: Error,
        seen: "{pod}: {message}",
        why: "The driver does not work without its controller. Its node pods then crash as well, but they are not the cause.",
        remedy: ["{step}"],
    }
    IMAGE_MOVED = "VDO-1602" {
        title: "A driver's image comes from a registry that was shut down",
        severity: Error,
        seen: "{workload} uses {image}",
        why: "gcr.io/cloud-provider-vsphere was deleted in September 2024. Nodes that already have the image keep it; every new node fails with ErrImagePull: Project cloud-provider-vsphere has been deleted.",
        remedy: ["{step}", "{advice}"],
        fixable: true,
    }
    IMAGE_NOT_PULLED = "VDO-1603" {
        title: "A driver's image cannot be pulled",
        severity: Error,
        seen: "{image}: {message}{meaning}",
        why: "Pods that need the image do not start.",
        remedy: [
            "On the node: crictl pull {image}   shows the registry's response",
            "Behind a firewall: mirror the image and set images.registry; for a private registry: name its Secret in images.pullSecrets",
        ],
    }
    POD_CRASHES = "VDO-1604" {
        title: "A driver's container keeps crashing",
        severity: Error,
        seen: "{pod}: its container {container} ({restarts} restarts) exited with: {line}{meaning}",
        why: "The driver lacks this container's function while it restarts, and Kubernetes waits longer after each crash.",
        remedy: [
            "{question}",
            "kubectl logs --namespace {namespace} {pod} --container {container} --previous",
        ],
    }
    CRD_MISSING = "VDO-1605" {
        title: "A custom resource definition of the storage driver is missing",
        severity: Error,
        seen: "CustomResourceDefinition {crd} does not exist",
        why: "The syncer in the controller creates it when it becomes the leader. Until then every node pod crashes with: no matches for kind CSINodeTopology. Check the controller, not the nodes.",
        remedy: [
            "kubectl get pods --namespace {namespace} --selector app=vsphere-csi-controller   must show a ready pod",
            "kubectl logs --namespace {namespace} deployment/vsphere-csi-controller --container vsphere-syncer --tail 100",
        ],
    }
    TOPOLOGY_NOT_SET = "VDO-1606" {
        title: "The storage driver could not determine a node's topology",
        severity: Error,
        seen: "{node}: {message}",
        why: "The node pod waits until the syncer finds the node's VM and zone, then crashes: timed out while waiting for topology labels to be updated. The node gets no volumes.",
        remedy: [
            "kubectl get csinodetopologies {node} -o yaml   status.errorMessage contains the syncer's error",
            "kubectl logs --namespace {namespace} deployment/vsphere-csi-controller --container vsphere-syncer --tail 200 | grep {node}",
        ],
    }
    CONFIG_ESCAPES = "VDO-1607" {
        title: "A password or name in a driver's configuration is not escaped",
        severity: Error,
        seen: "{pod}: {line}",
        why: "A backslash or quote ends the value early. The driver exits, or logs in with an incomplete password, which vCenter rejects.",
        remedy: [
            "Let VDO write the configuration: it escapes special characters",
            "Manually: put the value in double quotes, and write \\\\ for \\ and \\\" for \" in the Secret {secret}",
        ],
    }
    CPI_CONFIG_SHAPE = "VDO-1608" {
        title: "The cloud provider's configuration names no vCenter",
        severity: Error,
        seen: "{pod}: {line}",
        why: "In YAML, vcenter: must be at the top level next to global:, not inside it. Keys use camelCase: internalNetworkSubnetCidr, not internal-network-subnet-cidr. The cloud provider silently ignores unknown keys.",
        remedy: [
            "kubectl get configmap --namespace {namespace} vsphere-cloud-config -o yaml",
            "Let VDO write the configuration, or move vcenter: to the top level",
        ],
    }
    FEATURES_STALE = "VDO-1609" {
        title: "The storage driver's feature switches belong to another release",
        severity: Error,
        seen: "{configmap}: {differences}",
        why: "The controller exits if a switch is missing: Could not find the multi-vcenter-csi-topology feature state. The cause is usually an upgrade of only the images.",
        remedy: ["Apply the ConfigMap internal-feature-states.csi.vsphere.vmware.com of release {version}", "kubectl rollout restart deployment --namespace {namespace} vsphere-csi-controller"],
        fixable: true,
    }
    WEBHOOK_CERTIFICATE = "VDO-1610" {
        title: "The certificate of a driver's webhook expires",
        severity: Warning,
        seen: "{webhook}: {when}",
        why: "After that, the API server rejects every new or changed StorageClass, volume and claim in the whole cluster: failed calling webhook, x509: certificate has expired. Nothing renews the certificate automatically.",
        remedy: [
            "Let VDO renew it: remediation.webhookCertificates: Fix",
            "Manually: run deploy-vsphere-csi-validation-webhook.sh of your release again",
            "In an emergency: kubectl delete validatingwebhookconfiguration {webhook}",
        ],
        fixable: true,
    }
    WEBHOOK_UNANSWERED = "VDO-1611" {
        title: "A driver's webhook does not answer",
        severity: Error,
        seen: "{webhook}: no pod serves it, and its failure policy rejects requests",
        why: "Nobody can create or change a StorageClass, volume or claim in the whole cluster.",
        remedy: [
            "kubectl get pods --namespace {namespace} --selector app=vsphere-csi-webhook",
            "In an emergency: kubectl delete validatingwebhookconfiguration {webhook}",
        ],
    }
    KUBELET_PATH_WRONG = "VDO-1612" {
        title: "The storage driver uses a wrong kubelet directory",
        severity: Error,
        seen: "The driver uses {used}, where no kubelet has found it; on this platform the kubelet uses {actual}",
        why: "The kubelet does not find the driver, or the driver mounts volumes where pods do not see them: plugins_registry is not a directory, globalmount not pre-created.",
        remedy: [
            "On a node: ps -ef | grep kubelet   shows --root-dir; without this argument the directory is {actual}",
            "Set storageProvider.customKubeletPath to that directory",
            "For a driver not managed by VDO: replace {used} in all six places of the DaemonSet vsphere-csi-node",
        ],
    }
    POD_REFUSED = "VDO-1613" {
        title: "The cluster rejects a driver's pods",
        severity: Error,
        seen: "{workload}: {message}",
        why: "None of these pods starts. The storage driver's node pods mount disks on the host, so their namespace must allow privileged pods. Quotas, missing service accounts and admission webhooks can also reject pods.",
        remedy: ["{step}"],
    }
    PORT_IN_USE = "VDO-1614" {
        title: "A host port that a driver needs is in use",
        severity: Error,
        seen: "{pod}: {line}",
        why: "Node pods use the host's network. The health check of another driver, or a second copy of this driver, uses the port.",
        remedy: [
            "On the node: ss -ltnp | grep {port}   shows the process",
            "Use another port for the driver: set --health-port of liveness-probe and its probe in the DaemonSet",
        ],
    }
    TOPOLOGY_UNCONFIGURED = "VDO-1615" {
        title: "The provisioner requests zones, but the driver has none configured",
        severity: Error,
        seen: "csi-provisioner {version} passes topology to the driver, whose configuration has no topology-categories",
        why: "The driver rejects every new volume: topology category names not specified in the vsphere config secret. The provisioner passes topology by default since release 5.",
        remedy: [
            "Without zones: set --feature-gates=Topology=false for csi-provisioner, or use provisioner 4.0.1 of the driver's release",
            "With zones: set storageProvider.topologyCategories",
        ],
    }
    LEASE_STALE = "VDO-1616" {
        title: "No controller holds a driver's lease",
        severity: Error,
        seen: "{lease}: last renewed at {renewed} by {holder}",
        why: "Only the holder of the lease works, so this part of the driver is stopped.",
        remedy: [
            "kubectl get pods --namespace {drivernamespace} --output wide   shows whether a controller runs; {holder} names the last holder's pod or its node",
            "kubectl logs --namespace {drivernamespace} {workload} --all-containers --tail 100   shows whether it reaches the API server",
        ],
    }
    TWO_DRIVERS = "VDO-1617" {
        title: "A second vSphere driver is installed",
        severity: Blocker,
        seen: "{other} runs next to {own}",
        why: "Two drivers with one name answer the same requests: they create volumes twice, and the wrong one registers nodes. OpenShift refuses to upgrade.",
        remedy: [
            "Decide which driver to keep; VDO can adopt an existing one: adoption: Automatic",
            "OpenShift on vSphere includes its own driver: set mode: Observe",
        ],
    }
    NAME_UNRESOLVED = "VDO-1618" {
        title: "The cloud provider cannot resolve the vCenter's name",
        severity: Error,
        seen: "{pod}: {line}{doubt}",
        why: "The cloud provider uses the cluster's DNS, whose pods wait for nodes that only the cloud provider can initialise.",
        remedy: [
            "{question}",
            "kubectl patch --namespace {namespace} {workload} --patch {patch}   lets it use the node's resolver",
            "Or set the vCenter's IP address instead of its name",
        ],
    }
    CONFIG_SECRET_MISSING = "VDO-1619" {
        title: "The Secret with a driver's configuration does not exist",
        severity: Error,
        seen: "Secret {secret} does not exist in namespace {namespace}",
        why: "The driver's pods wait in ContainerCreating without logs.",
        remedy: ["kubectl get events --namespace {namespace}   shows FailedMount; VDO creates the Secret if it manages the driver, otherwise create it yourself"],
    }
    RELEASE_UNSUITABLE = "VDO-1620" {
        title: "A driver's release does not fit this cluster",
        severity: Warning,
        seen: "{driver} {version}: {reason}",
        why: "Nobody tests this combination, and bugs in it are not fixed.",
        remedy: ["vdoctl plan   shows the release that fits and the steps of the upgrade"],
    }
    ROLLOUT_INCOMPLETE = "VDO-1621" {
        title: "Not all pods of a driver are ready",
        severity: Warning,
        seen: "{workload}: {ready} of {desired} pods are ready{short}",
        why: "Nodes without a ready pod get no volumes, or are not initialised.",
        remedy: ["kubectl get pods --namespace {namespace} --output wide   shows which pods are not ready; kubectl describe pod shows the reason"],
    }
    CSIDRIVER_MISSING = "VDO-1622" {
        title: "The storage driver is not registered in the cluster",
        severity: Error,
        seen: "CSIDriver csi.vsphere.vmware.com does not exist",
        why: "Without it, Kubernetes does not attach volumes before it mounts them. On OpenShift, a ClusterCSIDriver with managementState Removed deletes it repeatedly.",
        remedy: ["Let VDO install the driver, or apply the CSIDriver object of its release"],
    }
    ACCOUNT_LACKS_PERMISSIONS = "VDO-1623" {
        title: "A driver's service account lacks permissions",
        severity: Error,
        seen: "{account}, the account of {workload}, lacks {permissions}: {roles}",
        why: "The API server rejects these requests of the driver: forbidden. Volumes are not created or attached, or nodes are not initialised, although every pod is ready.",
        remedy: ["{create}", "{bind}", "kubectl auth can-i {verb} {resource} --all-namespaces --as {user}   must answer yes"],
    }
    FIELDS_ADDED = "VDO-1624" {
        title: "Somebody added fields to a driver's workload",
        severity: Warning,
        seen: "{workload}: {manager} added {fields}",
        why: "VDO reverts changes of the fields that it sets, and leaves other fields as they are. An added field can keep the driver's pods from running: a scheduler, a proxy, a volume.",
        remedy: ["{step}", "To keep such a setting, set it in spec.overrides of the VDOConfig"],
    }
}
