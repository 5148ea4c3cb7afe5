//! Datastores, StorageClasses and volumes.

catalogue! {
    theme: Storage, concerns: StorageDriver;
    NO_SHARED_DATASTORE = "VDO-1501" {
        title: "No datastore is mounted on the hosts of all nodes",
        severity: Error,
        seen: "None of {count} datastores is mounted on every host; {best} is on most of them, but not on {missing}",
        why: "Without zones the storage driver uses only datastores that every node can reach, including control plane nodes. It cannot create volumes (no shared datastores found, or: failed to get shared datastores in kubernetes cluster, Error: <nil>).",
        remedy: [
            "Mount {best} on {missing}: vSphere Client, datastore, Mount to Additional Hosts",
            "Or use zones: tag hosts or clusters and set storageProvider.topologyCategories",
        ],
    }
    ZONE_WITHOUT_DATASTORE = "VDO-1502" {
        title: "A zone has no datastore that all its hosts share",
        severity: Error,
        seen: "{zone}: none of its datastores is mounted on all of {hosts}",
        why: "The driver cannot create volumes for pods in that zone: No compatible datastores found for accessibility requirements. Every host of the zone must mount the datastore; local disks do not count.",
        remedy: [
            "Mount a datastore on every host of the zone: vSphere Client, datastore, Mount to Additional Hosts",
            "Or make the zones smaller, so that the hosts of each zone share a datastore",
        ],
    }
    CLASS_DATASTORE_UNKNOWN = "VDO-1503" {
        title: "A StorageClass names a datastore that does not exist",
        severity: Error,
        seen: "{class}: {url} is not the URL of any datastore{hint}",
        why: "The driver cannot create volumes of this class: the datastore specified in the storage class is not accessible to all nodes. The URL must match exactly, including the slash at its end.",
        remedy: [
            "govc object.collect -type s / summary.url   lists the URLs",
            "kubectl get storageclass {class} -o yaml > class.yaml   a StorageClass is immutable, so re-create it; existing volumes are not affected",
            "Correct datastoreurl in class.yaml, then run kubectl delete storageclass {class}   and kubectl create -f class.yaml",
        ],
    }
    CLASS_DATASTORE_UNREACHABLE = "VDO-1504" {
        title: "A StorageClass names a datastore that some nodes cannot reach",
        severity: Error,
        seen: "{class}: {datastore} is not mounted on {hosts}",
        why: "Without zones the driver rejects a datastore that some nodes cannot reach.",
        remedy: ["Mount {datastore} on {hosts}: vSphere Client, datastore, Mount to Additional Hosts"],
    }
    CLASS_POLICY_UNKNOWN = "VDO-1505" {
        title: "A StorageClass names a storage policy that does not exist",
        severity: Error,
        seen: "{class}: {address} has no storage policy {policy}{hint}",
        why: "The driver cannot create volumes of this class. Policy names are case-sensitive.",
        remedy: [
            "govc storage.policy.ls   lists the policies that the account can see",
            "Create the policy {policy}: vSphere Client, Policies and Profiles, VM Storage Policies; or re-create the StorageClass with another policy",
        ],
    }
    CLASS_POLICY_FITS_NOTHING = "VDO-1506" {
        title: "No datastore that all nodes reach satisfies a storage policy",
        severity: Error,
        seen: "{class}: these datastores satisfy the policy {policy}: {datastores}",
        why: "The driver cannot create volumes of this class.",
        remedy: ["vSphere Client, Policies and Profiles, {policy}, Storage Compatibility: tag or configure a datastore that all nodes share so that it satisfies the policy"],
    }
    CLASS_PARAMETER_UNKNOWN = "VDO-1507" {
        title: "A StorageClass has an unknown parameter",
        severity: Error,
        seen: "{class}: it sets {parameters}",
        why: "The driver rejects every volume of this class: invalid parameters. It supports storagepolicyname, datastoreurl and csi.storage.k8s.io/fstype.",
        remedy: [
            "kubectl get storageclass {class} -o yaml > class.yaml   a StorageClass is immutable, so re-create it; existing volumes are not affected",
            "Remove {parameters} from class.yaml, then run kubectl delete storageclass {class}   and kubectl create -f class.yaml",
        ],
    }
    DATASTORE_DOWN = "VDO-1508" {
        title: "A datastore for volumes is unavailable",
        severity: Error,
        seen: "{path} is {state}",
        why: "The driver can neither attach volumes on this datastore nor create new ones.",
        remedy: [
            "govc datastore.info {path}   shows its state; restore access to it",
            "govc datastore.maintenance.exit -ds {path}   if it is in maintenance mode",
        ],
    }
    DATASTORE_FULL = "VDO-1509" {
        title: "A datastore is nearly full",
        severity: Warning,
        seen: "{path}: {free} of {capacity} free",
        why: "Thin-provisioned volumes grow with every write. When the datastore is full, every VM and pod that writes to it stops.",
        remedy: ["Add capacity, move VMs to other datastores, or delete unneeded files: govc datastore.ls -ds {path}"],
    }
    DATASTORE_IN_POD = "VDO-1510" {
        title: "A datastore for volumes is in a datastore cluster",
        severity: Warning,
        seen: "{path} is in {pod}",
        why: "Storage DRS moves disks between datastores. The storage driver does not support that and loses track of moved volumes.",
        remedy: ["vSphere Client, {pod}, Configure: turn off Storage DRS, or set it to manual; or remove {name} from the datastore cluster"],
    }
    FILE_SERVICE_MISSING = "VDO-1511" {
        title: "A claim requests ReadWriteMany, but vSAN file service is off",
        severity: Error,
        seen: "{claim} requests ReadWriteMany; no vSphere cluster has vSAN file service enabled",
        why: "ReadWriteMany volumes are vSAN file shares: no datastores found to create file volume, vSAN file service may be disabled. A block volume can be attached to only one node.",
        remedy: [
            "If one node at a time is enough: re-create the claim with accessModes [ReadWriteOnce]",
            "Otherwise enable it: vSphere Client, cluster, Configure, vSAN, Services, File Service; and set storageProvider.fileVolumes",
        ],
    }
    CLUSTER_ID_SHARED = "VDO-1512" {
        title: "Another cluster uses the same cluster id",
        severity: Blocker,
        seen: "The cluster id {id} is also in use by {others}",
        why: "Every half hour each cluster removes volumes that it does not know from CNS, which are those of the other cluster. vCenter then no longer lists these volumes, and they can no longer be attached (volumeID not found in QueryVolume).",
        remedy: [
            "Stop the storage controller of one of the two now: kubectl scale deployment --namespace {namespace} vsphere-csi-controller --replicas 0",
            "Give the cluster with fewer volumes a new cluster id, then re-register its volumes",
            "If these claims belong to this cluster, for example after a restore: acknowledge the finding with spec.acknowledgements in the VDOConfig, and VDO continues",
        ],
    }
    CLUSTER_ID_TWICE = "VDO-1513" {
        title: "The cluster id is set in two places",
        severity: Error,
        seen: "The driver's Secret contains {configured}; the ConfigMap vsphere-csi-cluster-id contains {generated}",
        why: "The storage controller exits if it finds both.",
        remedy: [
            "The volumes were created under {used}: keep that id",
            "{step}",
        ],
    }
    CLUSTER_ID_CHANGED = "VDO-1514" {
        title: "The volumes were created under another cluster id",
        severity: Blocker,
        seen: "The cluster id is {current}, but the volumes belong to {used}",
        why: "The driver does not find its own volumes (existing volume not found by cns). A re-created cluster gets a new id unless you set the old one.",
        remedy: [
            "Set the old id again: cluster-id = \"{used}\" in the driver's configuration",
            "Keep it with your backups",
        ],
    }
    VOLUME_NOT_IN_CNS = "VDO-1515" {
        title: "vCenter does not know a volume of Kubernetes",
        severity: Error,
        seen: "{volume}{claim}: CNS has no volume {handle} of this cluster",
        why: "The driver can neither attach nor detach it: volumeID not found in QueryVolume, not a CNS volume. The disk itself may still exist.",
        remedy: [
            "govc disk.ls -R -ds DATASTORE   reconciles vCenter's list with the datastore",
            "govc disk.ls -ds DATASTORE {handle}   if it shows the disk, set persistentVolumeReclaimPolicy of {volume} to Retain, delete the PersistentVolume and re-create it with the same handle: the driver registers the volume",
            "If the disk does not exist, restore it from a backup",
        ],
    }
    VOLUMES_BEYOND_THRESHOLD = "VDO-1516" {
        title: "Too many volumes are missing in vCenter",
        severity: Error,
        seen: "{missing} of {count} volumes are missing; the driver tolerates up to {threshold}",
        why: "Beyond that limit ListVolumes fails: difference between number of K8s volumes and CNS volumes is greater than threshold. Kubernetes then no longer notices detached volumes.",
        remedy: [
            "Fix the cause: see the findings about the cluster id and about single volumes",
            "If the difference is expected: raise list-volume-threshold in the driver's configuration",
        ],
    }
    VOLUME_DISK_LOST = "VDO-1517" {
        title: "The disk of a volume is not on the datastore that vCenter expects",
        severity: Error,
        seen: "{volume}{claim}: CNS knows the volume, but the driver does not find its disk on {datastore}",
        why: "Attaching fails: Failed to retrieve datastore for vol, vim.fault.NotFound. Somebody or Storage vMotion moved or deleted the disk, or the datastore was resignatured.",
        remedy: [
            "govc disk.ls -R -ds {datastore}   reconciles vCenter's list with the datastore; repeat this for the datastore that may now hold the disk",
            "If the list then contains the id {handle}, attaching works again; otherwise restore the disk from a backup",
        ],
    }
    DISK_HELD_ELSEWHERE = "VDO-1518" {
        title: "The disk of a volume is attached to another VM",
        severity: Error,
        seen: "{volume}{claim}: Kubernetes expects it on {node}, but vCenter shows it on {vm}",
        why: "Only one VM at a time can hold the disk: The operation is not allowed in the current state. Often the VM of a deleted node, a copy or a backup proxy still holds it.",
        remedy: [
            "Make sure that {vm} no longer uses the disk",
            "govc device.info -json -vm {vm} | grep -o -e '\"name\":\"disk-[^\"]*\"' -e {handle}   shows the names of its disks, and the id of the volume below the name of its disk",
            "If it still holds the disk: govc device.remove -vm {vm} -keep disk-...   keeps the file; never omit -keep",
        ],
    }
    DETACH_STUCK = "VDO-1519" {
        title: "A volume cannot be detached because vCenter does not know it",
        severity: Error,
        seen: "{attachment} on {node}, since {since}: {message}",
        why: "The driver asks CNS about a volume that is not registered and fails every time. The replacement pod waits.",
        remedy: [
            "{proof}",
            "{removal}",
        ],
    }
    ATTACH_FAILS = "VDO-1520" {
        title: "A volume cannot be attached or detached",
        severity: Error,
        seen: "{attachment} on {node}, since {since}: {message}{meaning}",
        why: "The pod, or its replacement on another node, waits in ContainerCreating.",
        remedy: [
            "{question}",
            "kubectl describe volumeattachment {attachment}",
            "vSphere Client, the VM of {node}, Monitor, Tasks: the failed task shows details",
        ],
    }
    SNAPSHOT_LIMIT = "VDO-1521" {
        title: "A volume has reached its snapshot limit",
        severity: Warning,
        seen: "{volume}{claim}: it has {count} snapshots; the limit is {limit}",
        why: "The driver rejects the next snapshot: the number of snapshots on the source volume reaches the configured maximum.",
        remedy: [
            "Delete some: kubectl get volumesnapshots --namespace {namespace}",
            "Or allow more, up to 32: storageProvider.snapshots.maxPerVolume",
        ],
    }
    SNAPSHOTS_HINDER_GROWTH = "VDO-1522" {
        title: "A volume cannot be expanded because it has snapshots",
        severity: Error,
        seen: "{volume}{claim}: it has {count}, but a larger size is requested",
        why: "vSphere does not expand a disk that has snapshots: volume with existing snapshots cannot be expanded.",
        remedy: ["Delete its snapshots: kubectl get volumesnapshots --namespace {namespace}   the driver then retries automatically"],
    }
    SNAPSHOTS_ORPHANED = "VDO-1523" {
        title: "A volume has snapshots that Kubernetes does not know",
        severity: Warning,
        seen: "{volume}{claim}: {cns} in vCenter, {kubernetes} in Kubernetes",
        why: "These snapshots use space, count towards the limit and prevent expansion. Interrupted backup programs leave them behind.",
        remedy: [
            "govc disk.snapshot.ls {handle}   shows them",
            "govc disk.snapshot.rm {handle} SNAPSHOT   for each snapshot that no backup needs any more",
        ],
    }
    DISKS_ORPHANED = "VDO-1524" {
        title: "A datastore has disks that no volume refers to",
        severity: Warning,
        seen: "{path}: {count} disks, for example {names}",
        why: "These disks use space and count towards the limit of 10,000. They remain when the creation of a volume times out, or when you delete a PersistentVolume with the policy Retain: some may hold data that you want.",
        remedy: [
            "govc disk.ls -l -ds {path}   lists the disks with their ids",
            "vdoctl doctor --only VDO-1524 --each   names the orphaned ones",
            "For each disk that nobody needs: govc disk.rm -ds {path} ID   deletes it with its data",
        ],
    }
    CNS_NEARLY_FULL = "VDO-1525" {
        title: "A vCenter has almost reached its volume limit",
        severity: Warning,
        seen: "{address}: {count} of 10000 volumes",
        why: "Beyond the limit, no cluster of this vCenter can create volumes.",
        remedy: ["Delete unneeded volumes, orphaned disks first; or distribute the clusters over several vCenters"],
    }
    METADATA_DOUBLE = "VDO-1526" {
        title: "vCenter has two entries for one claim of a volume",
        severity: Info,
        seen: "{volume}{claim}: its metadata contains one object twice",
        why: "The syncer logs: Duplicated entity for each entity type in one cluster is found. The entry remains from a re-created claim or pod; volumes are not affected.",
        remedy: ["No action is needed; newer releases of the driver clean it up"],
    }
    VOLUME_UNREACHABLE = "VDO-1528" {
        title: "A volume is on an unreachable datastore",
        severity: Error,
        seen: "{volume}{claim}: vCenter cannot reach {datastore}",
        why: "The driver can neither attach nor detach the volume, and pods that use it cannot write. No data is lost: the volume returns with the datastore.",
        remedy: ["govc datastore.info {datastore}   shows its state; check its array or server, its network, and the hosts that mount it"],
    }
    CLAIM_PENDING = "VDO-1527" {
        title: "A claim waits for its volume",
        severity: Warning,
        seen: "{claim}, since {since}: {message}{meaning}",
        why: "Its pod stays Pending.",
        remedy: ["{question}", "kubectl describe pvc --namespace {namespace} {name}"],
    }
}
