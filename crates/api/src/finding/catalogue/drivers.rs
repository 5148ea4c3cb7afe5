//! The drivers as they run: pods, images, configuration, webhooks.

catalogue! {
    CONTROLLER_PENDING = "VDO-1601" {
        title: "A driver's controller finds no node to run on",
        severity: Error,
        seen: "{pod}: {message}",
        why: "The driver does not work without its controller. Its node pods then crash too, which is misleading.",
        remedy: ["{step}"],
    }
    IMAGE_MOVED = "VDO-1602" {
        title: "A driver's image comes from a registry that was shut down",
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
        why: "The driver lacks this container while it restarts, and Kubernetes waits longer after each crash.",
        remedy: ["kubectl logs --namespace {namespace} {pod} --container {container} --previous"],
    }
    CRD_MISSING = "VDO-1605" {
        title: "A CRD that the storage driver needs does not exist",
        severity: Error,
        seen: "There is no CustomResourceDefinition {crd}",
        why: "In the upstream driver, the leader of the syncer creates it, inside the controller. Until then every node pod crashes with: no matches for kind CSINodeTopology. Check the controller, not the nodes.",
        remedy: [
            "kubectl get pods --namespace {namespace} --selector app=vsphere-csi-controller   must show a ready pod",
            "kubectl logs --namespace {namespace} deployment/vsphere-csi-controller --container vsphere-syncer --tail 100",
        ],
    }
    TOPOLOGY_NOT_SET = "VDO-1606" {
        title: "The storage driver does not know the zone of a node",
        severity: Error,
        seen: "{node}: {message}",
        why: "The node pod waits for the syncer to find the node's VM and zone, and crashes: timed out while waiting for topology labels to be updated. The node gets no volumes.",
        remedy: [
            "kubectl get csinodetopologies {node} -o yaml   status.errorMessage shows the error of the syncer",
            "kubectl logs --namespace {namespace} deployment/vsphere-csi-controller --container vsphere-syncer --tail 200 | grep {node}",
        ],
    }
    CONFIG_ESCAPES = "VDO-1607" {
        title: "A password or name is not escaped in a driver's configuration",
        severity: Error,
        seen: "{pod}: {line}",
        why: "A backslash or a quote in it ends the value early: the driver exits, or logs in with half of the password, which vCenter refuses.",
        remedy: [
            "Let VDO write the configuration: it escapes the values",
            "By hand: put the value in double quotes, and write \\\\ for \\ and \\\" for \" in the Secret {secret}",
        ],
    }
    CPI_CONFIG_SHAPE = "VDO-1608" {
        title: "The cloud provider's configuration names no vCenter",
        severity: Error,
        seen: "{pod}: {line}",
        why: "In YAML, vcenter: must start at the left margin next to global:, not inside it. Keys are written internalNetworkSubnetCidr, not internal-network-subnet-cidr. The cloud provider ignores unknown keys silently.",
        remedy: [
            "kubectl get configmap --namespace {namespace} vsphere-cloud-config -o yaml",
            "Let VDO write the configuration, or move vcenter: to the left margin",
        ],
    }
    FEATURES_STALE = "VDO-1609" {
        title: "The storage driver's feature switches belong to another release",
        severity: Error,
        seen: "{configmap}: {differences}",
        why: "The controller exits when it lacks a switch: Could not find the multi-vcenter-csi-topology feature state. It happens when only the images are upgraded.",
        remedy: ["Apply the ConfigMap internal-feature-states.csi.vsphere.vmware.com of release {version}", "kubectl rollout restart deployment --namespace {namespace} vsphere-csi-controller"],
        fixable: true,
    }
    WEBHOOK_CERTIFICATE = "VDO-1610" {
        title: "The certificate of a driver's webhook expires",
        severity: Warning,
        seen: "{webhook}: {when}",
        why: "From then on the API server rejects every new or changed StorageClass, volume and claim in the whole cluster: failed calling webhook, x509: certificate has expired. Nothing renews it automatically.",
        remedy: [
            "Let VDO renew it: remediation.webhookCertificates: Fix",
            "By hand: run deploy-vsphere-csi-validation-webhook.sh of your release again",
            "In an emergency: kubectl delete validatingwebhookconfiguration {webhook}",
        ],
        fixable: true,
    }
    WEBHOOK_UNANSWERED = "VDO-1611" {
        title: "No pod answers for a driver's webhook",
        severity: Error,
        seen: "{webhook}: no pod answers, and its failure policy rejects requests then",
        why: "Nobody can create or change a StorageClass, volume or claim in the whole cluster.",
        remedy: [
            "kubectl get pods --namespace {namespace} --selector app=vsphere-csi-webhook",
            "In an emergency: kubectl delete validatingwebhookconfiguration {webhook}",
        ],
    }
    KUBELET_PATH_WRONG = "VDO-1612" {
        title: "The storage driver has a wrong kubelet directory",
        severity: Error,
        seen: "It uses {told}, where no kubelet finds it; on this platform the kubelet uses {actual}",
        why: "The kubelet does not find the driver, or the driver mounts volumes where no pod sees them: plugins_registry is not a directory, globalmount not pre-created.",
        remedy: [
            "On a node: ps -ef | grep kubelet   shows --root-dir; without, it is {actual}",
            "Set storageProvider.customKubeletPath to that",
            "For a driver that VDO does not manage: replace {told} at all six places of the DaemonSet vsphere-csi-node",
        ],
    }
    POD_REFUSED = "VDO-1613" {
        title: "The cluster refuses a driver's pods",
        severity: Error,
        seen: "{workload}: {message}",
        why: "None of them starts. The storage driver mounts disks on the host, so its node pods are privileged, which a namespace must allow; quotas, missing service accounts and admission webhooks reject pods, too.",
        remedy: ["{step}"],
    }
    PORT_IN_USE = "VDO-1614" {
        title: "A host port that a driver needs is in use",
        severity: Error,
        seen: "{pod}: {line}",
        why: "Node pods use the host's network; another driver's health check, or a second copy, uses the port.",
        remedy: [
            "On the node: ss -ltnp | grep {port}   shows the process",
            "Give the driver another port: --health-port of liveness-probe and its probe in the DaemonSet",
        ],
    }
    TOPOLOGY_UNCONFIGURED = "VDO-1615" {
        title: "The provisioner requests zones that the driver does not know",
        severity: Error,
        seen: "csi-provisioner {version} passes topology on; the driver's configuration has no topology-categories",
        why: "The driver refuses every new volume: topology category names not specified in the vsphere config secret. Provisioner 5 does so by default.",
        remedy: [
            "Without zones: --feature-gates=Topology=false for csi-provisioner, or the provisioner of the release, 4.0.1",
            "With zones: set storageProvider.topologyCategories",
        ],
    }
    LEASE_STALE = "VDO-1616" {
        title: "No controller holds a driver's lease",
        severity: Error,
        seen: "{lease}: last renewed {age} ago by {holder}",
        why: "Only the controller that holds the lease works, and none holds it.",
        remedy: [
            "kubectl get pods --namespace {home} --output wide   is a controller running? {holder} names the pod that held it last, or its node",
            "kubectl logs --namespace {home} {workload} --all-containers --tail 100   shows whether it reaches the API server",
        ],
    }
    TWO_DRIVERS = "VDO-1617" {
        title: "A second vSphere driver is installed",
        severity: Blocker,
        seen: "{other} runs alongside {own}",
        why: "Two drivers with one name answer the same requests: they create volumes twice and register nodes with the wrong driver. OpenShift refuses to upgrade.",
        remedy: [
            "Decide which one stays; VDO can adopt an existing driver: adoption: Automatic",
            "OpenShift on vSphere installs its own driver: set mode: Observe",
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
        why: "Its pods wait in ContainerCreating without an error in their logs.",
        remedy: ["kubectl get events --namespace {namespace}   shows FailedMount; VDO writes the Secret if it manages the driver, else create it"],
    }
    RELEASE_UNSUITABLE = "VDO-1620" {
        title: "A driver's release does not suit this cluster",
        severity: Warning,
        seen: "{driver} {version}: {reason}",
        why: "Nobody tests this combination, and its faults are not fixed.",
        remedy: ["vdoctl plan   shows the release that fits and what the upgrade would do"],
    }
    ROLLOUT_INCOMPLETE = "VDO-1621" {
        title: "Not all pods of a driver are ready",
        severity: Warning,
        seen: "{workload}: {ready} of {desired} pods are ready{short}",
        why: "Nodes without it get no volumes, or are not initialised.",
        remedy: ["kubectl get pods --namespace {namespace} --output wide   shows the pods, kubectl describe pod shows the reason"],
    }
    CSIDRIVER_MISSING = "VDO-1622" {
        title: "The storage driver is not registered in the cluster",
        severity: Error,
        seen: "There is no CSIDriver csi.vsphere.vmware.com",
        why: "Kubernetes then mounts its volumes without attaching them first. On OpenShift, a ClusterCSIDriver with managementState Removed deletes it again and again.",
        remedy: ["Let VDO install the driver, or apply the CSIDriver object of its release"],
    }
}
