//! The drivers as they run: pods, images, configuration, webhooks.

catalogue! {
    CONTROLLER_PENDING = "VDO-1601" {
        title: "A driver's controller finds no node to run on",
        severity: Error,
        seen: "{pod}: {message}",
        why: "Nothing of the driver works without its controller; its node pods then crash too, which misleads.",
        remedy: ["{step}"],
    }
    IMAGE_MOVED = "VDO-1602" {
        title: "A driver's image is taken from a registry that has been shut down",
        severity: Error,
        seen: "{workload} uses {image}",
        why: "gcr.io/cloud-provider-vsphere was deleted in September 2024. Nodes that have the image keep it; every new or restarted one fails with ErrImagePull: Project cloud-provider-vsphere has been deleted.",
        remedy: ["kubectl set image --namespace {namespace} {workload} {container}={successor}", "{advice}"],
        fixable: true,
    }
    IMAGE_NOT_PULLED = "VDO-1603" {
        title: "A driver's image cannot be pulled",
        severity: Error,
        seen: "{image}: {message}",
        why: "Pods that need it do not start.",
        remedy: [
            "On the node: crictl pull {image}   shows the registry's answer",
            "Behind a firewall: mirror it and set images.registry; with a login: name its Secret in images.pullSecrets",
        ],
    }
    POD_CRASHES = "VDO-1604" {
        title: "A driver's container keeps crashing",
        severity: Error,
        seen: "{container} of {pod} ({restarts} restarts) ended with: {line}{meaning}",
        why: "What this container does for the driver is not done while it restarts, and it waits longer after each crash.",
        remedy: ["kubectl logs --namespace {namespace} {pod} --container {container} --previous"],
    }
    CRD_MISSING = "VDO-1605" {
        title: "A custom resource the storage driver needs is not defined",
        severity: Error,
        seen: "There is no CustomResourceDefinition {crd}",
        why: "Upstream it is made by the leader of the syncer, inside the controller. Until then every node pod crashes with: no matches for kind CSINodeTopology. Look at the controller, not at the nodes.",
        remedy: [
            "kubectl get pods --namespace {namespace} --selector app=vsphere-csi-controller   must show a ready pod",
            "kubectl logs --namespace {namespace} deployment/vsphere-csi-controller --container vsphere-syncer --tail 100",
        ],
    }
    TOPOLOGY_NOT_SET = "VDO-1606" {
        title: "The storage driver could not learn where a node is",
        severity: Error,
        seen: "{node}: {message}",
        why: "The node pod waits for the syncer to find the node's VM and zone, and crashes: timed out while waiting for topology labels to be updated. The node gets no volumes.",
        remedy: [
            "kubectl get csinodetopologies {node} -o yaml   status.errorMessage says what the syncer met",
            "kubectl logs --namespace {namespace} deployment/vsphere-csi-controller --container vsphere-syncer --tail 200 | grep {node}",
        ],
    }
    CONFIG_ESCAPES = "VDO-1607" {
        title: "A password or name is not escaped in a driver's configuration",
        severity: Error,
        seen: "{pod}: {line}",
        why: "A backslash or a quote in it ends the value early: the driver exits, or logs in with half of the password and is refused.",
        remedy: [
            "Let VDO write the configuration: it escapes what needs to be",
            "By hand: put the value in double quotes, and write \\\\ for \\ and \\\" for \" in the Secret {secret}",
        ],
    }
    CPI_CONFIG_SHAPE = "VDO-1608" {
        title: "The cloud provider's configuration names no vCenter",
        severity: Error,
        seen: "{pod}: {line}",
        why: "In YAML, vcenter: must stand at the left margin beside global:, not inside it; keys are written internalNetworkSubnetCidr, not internal-network-subnet-cidr. What it does not know it ignores silently.",
        remedy: [
            "kubectl get configmap --namespace {namespace} vsphere-cloud-config -o yaml",
            "Let VDO write the configuration, or move vcenter: to the left margin",
        ],
    }
    FEATURES_STALE = "VDO-1609" {
        title: "The storage driver's feature switches are of another release",
        severity: Error,
        seen: "{configmap}: {differences}",
        why: "The controller exits when it misses a switch it needs: Could not find the multi-vcenter-csi-topology feature state. It happens when only the images are upgraded.",
        remedy: ["Apply the ConfigMap internal-feature-states.csi.vsphere.vmware.com of release {version}", "kubectl rollout restart deployment --namespace {namespace} vsphere-csi-controller"],
        fixable: true,
    }
    WEBHOOK_CERTIFICATE = "VDO-1610" {
        title: "The certificate of a driver's webhook expires",
        severity: Warning,
        seen: "{webhook}: {when}",
        why: "From then on the API server refuses every StorageClass, volume and claim that is made or changed, in the whole cluster: failed calling webhook, x509: certificate has expired. Nothing renews it by itself.",
        remedy: [
            "Let VDO renew it: remediation.webhookCertificates: Fix",
            "By hand: run deploy-vsphere-csi-validation-webhook.sh of your release again",
            "In an emergency: kubectl delete validatingwebhookconfiguration {webhook}",
        ],
        fixable: true,
    }
    WEBHOOK_UNANSWERED = "VDO-1611" {
        title: "Nobody answers for a driver's webhook",
        severity: Error,
        seen: "{webhook}: no pod answers, and it is set to refuse requests then",
        why: "No StorageClass, volume or claim can be made or changed in the whole cluster.",
        remedy: [
            "kubectl get pods --namespace {namespace} --selector app=vsphere-csi-webhook",
            "In an emergency: kubectl delete validatingwebhookconfiguration {webhook}",
        ],
    }
    KUBELET_PATH_WRONG = "VDO-1612" {
        title: "The storage driver is told a wrong kubelet directory",
        severity: Error,
        seen: "It uses {told}, where no kubelet has found it; on this platform kubelet uses {actual}",
        why: "Kubelet does not find the driver, or mounts are made where nobody sees them: plugins_registry is not a directory, globalmount not pre-created.",
        remedy: [
            "On a node: ps -ef | grep kubelet   shows --root-dir; without, it is {actual}",
            "Set storageProvider.customKubeletPath to that",
            "For a driver VDO does not manage: replace {told} at all six places of the DaemonSet vsphere-csi-node",
        ],
    }
    POD_REFUSED = "VDO-1613" {
        title: "The cluster refuses a driver's pods",
        severity: Error,
        seen: "{workload}: {message}",
        why: "None of them starts. The storage driver mounts disks on the host, so its node pods are privileged, which a namespace must allow; quotas, missing accounts and other people's webhooks refuse pods, too.",
        remedy: ["{step}"],
    }
    PORT_IN_USE = "VDO-1614" {
        title: "A port a driver needs on the host is taken",
        severity: Error,
        seen: "{pod}: {line}",
        why: "Node pods use the host's network; another driver's health check, or a second copy, has the port.",
        remedy: [
            "On the node: ss -ltnp | grep {port}   shows who",
            "Give the driver another: --health-port of liveness-probe and its probe in the DaemonSet",
        ],
    }
    TOPOLOGY_UNCONFIGURED = "VDO-1615" {
        title: "The provisioner asks for zones the driver was not told of",
        severity: Error,
        seen: "csi-provisioner {version} passes topology on; the driver's configuration has no topology-categories",
        why: "Every new volume is refused: topology category names not specified in the vsphere config secret. Provisioner 5 does so by default.",
        remedy: [
            "Without zones: --feature-gates=Topology=false for csi-provisioner, or the provisioner of the release, 4.0.1",
            "With zones: set storageProvider.topologyCategories",
        ],
    }
    LEASE_STALE = "VDO-1616" {
        title: "No controller holds a driver's lease",
        severity: Error,
        seen: "{lease}: last renewed {age} ago by {holder}",
        why: "Whoever holds it does the work; nobody does.",
        remedy: [
            "kubectl get pods --namespace {home} --output wide   is a controller running? {holder} names the pod that held it last, or its node",
            "kubectl logs --namespace {home} {workload} --all-containers --tail 100   says whether it can reach the API server",
        ],
    }
    TWO_DRIVERS = "VDO-1617" {
        title: "A second vSphere driver is installed",
        severity: Blocker,
        seen: "{other} runs beside {own}",
        why: "Two drivers with one name answer the same requests: volumes are made twice, nodes are registered by the wrong one. OpenShift refuses to upgrade.",
        remedy: [
            "Decide which one stays; VDO can adopt what is there: adoption: Automatic",
            "On OpenShift on vSphere the platform brings its own: set mode: Observe",
        ],
    }
    NAME_UNRESOLVED = "VDO-1618" {
        title: "The cloud provider cannot resolve the vCenter's name",
        severity: Error,
        seen: "{pod}: {line}",
        why: "It asks the cluster's DNS, whose pods wait for nodes that only the cloud provider can initialise.",
        remedy: [
            "Let it use the node's resolver: kubectl patch daemonset --namespace {namespace} vsphere-cloud-controller-manager --patch '{patch}'",
            "Or name the vCenter by its address",
        ],
    }
    CONFIG_SECRET_MISSING = "VDO-1619" {
        title: "The Secret with a driver's configuration does not exist",
        severity: Error,
        seen: "There is no Secret {secret} in namespace {namespace}",
        why: "Its pods wait in ContainerCreating and say nothing.",
        remedy: ["kubectl get events --namespace {namespace}   shows FailedMount; VDO writes the Secret if it manages the driver, else create it"],
    }
    RELEASE_UNSUITABLE = "VDO-1620" {
        title: "A driver's release does not suit this cluster",
        severity: Warning,
        seen: "{driver} {version}: {reason}",
        why: "Nobody tests this combination; faults in it are not repaired.",
        remedy: ["vdoctl plan   shows the release that fits and what the upgrade would do"],
    }
    ROLLOUT_INCOMPLETE = "VDO-1621" {
        title: "Not all pods of a driver are ready",
        severity: Warning,
        seen: "{workload}: {ready} of {desired} pods are ready{short}",
        why: "Nodes without it get no volumes, or are not initialised.",
        remedy: ["kubectl get pods --namespace {namespace} --output wide   shows which, kubectl describe pod says why"],
    }
    CSIDRIVER_MISSING = "VDO-1622" {
        title: "The storage driver is not registered in the cluster",
        severity: Error,
        seen: "There is no CSIDriver csi.vsphere.vmware.com",
        why: "Kubernetes then does not attach its volumes before it mounts them. ClusterCSIDriver with managementState Removed deletes it again and again on OpenShift.",
        remedy: ["Let VDO install the driver, or apply the CSIDriver object of its release"],
    }
}
