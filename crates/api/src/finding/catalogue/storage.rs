//! Datastores, StorageClasses and volumes.

catalogue! {
    NO_SHARED_DATASTORE = "VDO-1501" {
        title: "No datastore is mounted on the hosts of all nodes",
        severity: Error,
        seen: "{count} datastores, none on every host; {best} is on the most, it lacks {missing}",
        why: "Without zones the storage driver only uses datastores that every node can reach, control plane nodes too: it cannot create volumes (no shared datastores found, or: failed to get shared datastores in kubernetes cluster, Error: <nil>).",
        remedy: [
            "Mount {best} on {missing}: vSphere Client, datastore, Mount to Additional Hosts",
            "Or use zones: tag hosts or clusters and set storageProvider.topologyCategories",
        ],
    }
    ZONE_WITHOUT_DATASTORE = "VDO-1502" {
        title: "A zone has no datastore that all its hosts share",
        severity: Error,
        seen: "{zone}: none of its datastores is mounted on all of {hosts}",
        why: "The driver cannot create volumes for pods in that zone: No compatible datastores found for accessibility requirements. A datastore must be on every host of the zone; local disks do not count.",
        remedy: [
            "Mount a datastore on every host of the zone: vSphere Client, datastore, Mount to Additional Hosts",
            "Or make the zones smaller, so that each has hosts that share one",
        ],
    }
    CLASS_DATASTORE_UNKNOWN = "VDO-1503" {
        title: "A StorageClass names a datastore that does not exist",
        severity: Error,
        seen: "{class}: {url} is not the URL of any datastore{hint}",
        why: "The driver cannot create volumes of this class: the datastore specified in the storage class is not accessible to all nodes. The URL must be exact, with the slash at its end.",
        remedy: [
            "govc datastore.info -json | grep url   shows the URLs",
            "A StorageClass cannot be changed: kubectl get storageclass {class} -o yaml > class.yaml, kubectl delete storageclass {class}, correct datastoreurl, kubectl create -f class.yaml",
        ],
    }
    CLASS_DATASTORE_UNREACHABLE = "VDO-1504" {
        title: "A StorageClass names a datastore that some nodes cannot reach",
        severity: Error,
        seen: "{class}: {datastore} is not mounted on {hosts}",
        why: "Without zones the driver refuses a datastore that not every node can reach.",
        remedy: ["Mount {datastore} on {hosts}: vSphere Client, datastore, Mount to Additional Hosts"],
    }
    CLASS_POLICY_UNKNOWN = "VDO-1505" {
        title: "A StorageClass names a storage policy that does not exist",
        severity: Error,
        seen: "{class}: {address} has no storage policy {policy}{hint}",
        why: "The driver cannot create volumes of this class. The name must match exactly.",
        remedy: [
            "govc storage.policy.ls   lists those that the account can see",
            "Create the policy {policy}: vSphere Client, Policies and Profiles, VM Storage Policies; or re-create the class with another policy",
        ],
    }
    CLASS_POLICY_FITS_NOTHING = "VDO-1506" {
        title: "No datastore that the nodes can reach satisfies a storage policy",
        severity: Error,
        seen: "{class}: {policy} is satisfied by {datastores}",
        why: "The driver cannot create volumes of this class.",
        remedy: ["vSphere Client, Policies and Profiles, {policy}, Storage Compatibility: tag or configure a datastore that all nodes share so that it satisfies the policy"],
    }
    CLASS_PARAMETER_UNKNOWN = "VDO-1507" {
        title: "A StorageClass has a parameter that the driver does not know",
        severity: Error,
        seen: "{class}: it sets {parameters}",
        why: "The driver refuses every volume of this class: invalid parameters. It knows storagepolicyname, datastoreurl and csi.storage.k8s.io/fstype.",
        remedy: ["kubectl get storageclass {class} -o yaml > class.yaml, kubectl delete storageclass {class}, remove {parameters}, kubectl create -f class.yaml; existing volumes stay as they are"],
    }
    DATASTORE_DOWN = "VDO-1508" {
        title: "A datastore for volumes cannot be used",
        severity: Error,
        seen: "{path} is {state}",
        why: "The driver can neither attach volumes on it nor create new ones.",
        remedy: ["govc datastore.info {path}   then bring it back, or end its maintenance: govc datastore.maintenance.exit -ds {path}"],
    }
    DATASTORE_FULL = "VDO-1509" {
        title: "A datastore is nearly full",
        severity: Warning,
        seen: "{path}: {free} of {capacity} free",
        why: "Thin volumes grow as they are written: when it is full, every VM and pod that writes to it stops.",
        remedy: ["Add capacity, move VMs to another datastore, or delete unused files: govc datastore.ls -ds {name}"],
    }
    DATASTORE_IN_POD = "VDO-1510" {
        title: "A datastore for volumes is in a datastore cluster",
        severity: Warning,
        seen: "{path} is in {pod}",
        why: "Storage DRS moves disks between datastores; the storage driver does not support that and loses track of moved volumes.",
        remedy: ["vSphere Client, {pod}, Configure: turn Storage DRS off, or set it to manual; or remove {name} from it"],
    }
    FILE_SERVICE_MISSING = "VDO-1511" {
        title: "A claim requests many writers, but there is no file service",
        severity: Error,
        seen: "{claim} requests ReadWriteMany; no cluster has the vSAN file service on",
        why: "Volumes that many pods can write are vSAN file shares: no datastores found to create file volume, vSAN file service may be disabled. Block volumes have one writer.",
        remedy: [
            "If one pod at a time is enough: re-create the claim with accessModes [ReadWriteOnce]",
            "Else turn it on: vSphere Client, cluster, Configure, vSAN, Services, File Service; and set storageProvider.fileVolumes",
        ],
    }
    CLUSTER_ID_SHARED = "VDO-1512" {
        title: "Another cluster uses the same cluster id",
        severity: Blocker,
        seen: "The cluster id {id} is also used by {others}",
        why: "Every half hour each of the two clusters removes unknown volumes from CNS, which includes those of the other: they vanish from vCenter and can no longer be attached (volumeID not found in QueryVolume).",
        remedy: [
            "Stop the storage controller of one of the two now: kubectl scale deployment --namespace {namespace} vsphere-csi-controller --replicas 0",
            "Give the one with fewer volumes a new cluster id, then register its volumes again",
            "If these claims belong to this cluster, as after a restore: acknowledge the finding with spec.acknowledgements in the VDOConfig, and VDO continues",
        ],
    }
    CLUSTER_ID_TWICE = "VDO-1513" {
        title: "The cluster id is set in two places",
        severity: Error,
        seen: "The driver's Secret has {configured}, the ConfigMap vsphere-csi-cluster-id has {generated}",
        why: "The storage controller exits when it finds both.",
        remedy: [
            "The volumes use {used}: keep that one",
            "{step}",
        ],
    }
    CLUSTER_ID_CHANGED = "VDO-1514" {
        title: "The volumes belong to another cluster id",
        severity: Blocker,
        seen: "The cluster id is {current}, the volumes belong to {used}",
        why: "The driver does not find its own volumes (existing volume not found by cns). A re-created cluster gets a new id unless you set the old one.",
        remedy: [
            "Set the old id again: cluster-id = \"{used}\" in the driver's configuration",
            "Keep it with your backups",
        ],
    }
    VOLUME_NOT_IN_CNS = "VDO-1515" {
        title: "A volume of Kubernetes is unknown to vCenter",
        severity: Error,
        seen: "{volume}{claim}: CNS has no volume {handle} of this cluster",
        why: "It cannot be attached or detached: volumeID not found in QueryVolume, not a CNS volume. The disk itself may still be there.",
        remedy: [
            "govc disk.ls -R -ds DATASTORE   updates the list of vCenter from the datastore",
            "govc disk.ls -ds DATASTORE {handle}   if the disk is there, set persistentVolumeReclaimPolicy of {volume} to Retain, delete it and create it again with the same handle: the driver registers it",
            "If it is not there, restore it from a backup",
        ],
    }
    VOLUMES_BEYOND_THRESHOLD = "VDO-1516" {
        title: "Too many volumes are missing in vCenter to list them",
        severity: Error,
        seen: "{missing} of {count} volumes are missing; the driver tolerates {threshold}",
        why: "Beyond that its ListVolumes fails as a whole: difference between number of K8s volumes and CNS volumes is greater than threshold. Kubernetes then no longer notices detached volumes.",
        remedy: [
            "Fix the cause: see the findings about the cluster id and about single volumes",
            "If the difference is correct: raise list-volume-threshold in the driver's configuration",
        ],
    }
    VOLUME_DISK_LOST = "VDO-1517" {
        title: "The disk of a volume is not where vCenter looks for it",
        severity: Error,
        seen: "{volume}{claim}: CNS has it, but the driver does not find its disk on {datastore}",
        why: "Attaching fails: Failed to retrieve datastore for vol, vim.fault.NotFound. Somebody or Storage vMotion moved or deleted the disk, or its datastore was re-signatured.",
        remedy: [
            "govc disk.ls -R -ds {datastore}   updates the list of vCenter from the datastore; do the same on the datastore that the disk may have moved to",
            "If it shows up with the id {handle}, attaching works again; otherwise restore it from a backup",
        ],
    }
    DISK_HELD_ELSEWHERE = "VDO-1518" {
        title: "The disk of a volume is attached to another VM",
        severity: Error,
        seen: "{volume}{claim}: Kubernetes attached it to {node}, vCenter to {vm}",
        why: "Only one VM at a time can have it: The operation is not allowed in the current state. A deleted node's VM, a copy or a backup proxy often still has it.",
        remedy: [
            "Make sure that {vm} no longer uses it",
            "govc device.ls -vm {vm}   then govc device.remove -vm {vm} -keep disk-...   keeps the file; never without -keep",
        ],
    }
    DETACH_STUCK = "VDO-1519" {
        title: "A volume cannot be detached because vCenter no longer knows it",
        severity: Error,
        seen: "{attachment} on {node}, for {age}: {message}",
        why: "The driver asks CNS about a volume that is no longer registered and fails forever; the replacement pod waits.",
        remedy: [
            "govc device.ls -vm {vm} | grep {handle}   must show nothing: the disk is not attached",
            "kubectl patch volumeattachment {attachment} --type merge --patch '{patch}'   releases it",
        ],
    }
    ATTACH_FAILS = "VDO-1520" {
        title: "A volume is not attached or detached",
        severity: Error,
        seen: "{attachment} on {node}, for {age}: {message}{meaning}",
        why: "Its pod, or the replacement of its pod, waits in ContainerCreating.",
        remedy: [
            "kubectl describe volumeattachment {attachment}",
            "vSphere Client, the VM of {node}, Monitor, Tasks: the failed task has details",
        ],
    }
    SNAPSHOT_LIMIT = "VDO-1521" {
        title: "A volume has the maximum number of snapshots",
        severity: Warning,
        seen: "{volume}{claim}: {count} snapshots, the limit is {limit}",
        why: "The driver refuses the next one: the number of snapshots on the source volume reaches the configured maximum.",
        remedy: [
            "Delete some: kubectl get volumesnapshots --namespace {namespace}",
            "Or allow more, up to 32: storageProvider.snapshots.maxPerVolume",
        ],
    }
    SNAPSHOTS_HINDER_GROWTH = "VDO-1522" {
        title: "A volume cannot grow because it has snapshots",
        severity: Error,
        seen: "{volume}{claim}: it has {count}, and its claim requests a larger size",
        why: "vSphere does not extend a disk with snapshots: volume with existing snapshots cannot be expanded.",
        remedy: ["Delete its snapshots: kubectl get volumesnapshots --namespace {namespace}   the driver then tries again"],
    }
    SNAPSHOTS_ORPHANED = "VDO-1523" {
        title: "A volume has snapshots that Kubernetes does not know",
        severity: Warning,
        seen: "{volume}{claim}: {cns} in vCenter, {kubernetes} in Kubernetes",
        why: "They take space, count towards the limit and block the expansion of the volume. Interrupted backups leave them behind.",
        remedy: [
            "govc disk.snapshot.ls {handle}   shows them",
            "govc disk.snapshot.rm {handle} SNAPSHOT   for each one that no backup needs",
        ],
    }
    DISKS_ORPHANED = "VDO-1524" {
        title: "No volume refers to some disks",
        severity: Warning,
        seen: "{datastore}: {count} disks, for example {names}",
        why: "They take space and count towards the limit of 10,000. They remain when the creation of a volume times out, and when a PersistentVolume with the policy Retain is deleted: some may contain data that you need.",
        remedy: [
            "govc disk.ls -l -ds {datastore}   shows them; vdoctl doctor --only VDO-1524 --each   names all of them",
            "govc disk.rm -ds {datastore} ID   deletes one, with its data",
        ],
    }
    CNS_NEARLY_FULL = "VDO-1525" {
        title: "A vCenter has nearly the maximum number of volumes",
        severity: Warning,
        seen: "{address}: {count} of 10000 volumes",
        why: "Beyond that, no cluster of this vCenter can create volumes.",
        remedy: ["Delete unused volumes, orphaned disks first; or spread the clusters over several vCenters"],
    }
    METADATA_DOUBLE = "VDO-1526" {
        title: "vCenter has two entries for one claim of a volume",
        severity: Info,
        seen: "{volume}{claim}: its metadata names one object twice",
        why: "The syncer logs: Duplicated entity for each entity type in one cluster is found. It remains from a re-created claim or pod; volumes are not affected.",
        remedy: ["You need not do anything; newer releases of the driver clean it up"],
    }
    VOLUME_UNREACHABLE = "VDO-1528" {
        title: "A volume is on a datastore that vCenter cannot reach",
        severity: Error,
        seen: "{volume}{claim}: vCenter cannot reach {datastore}",
        why: "The driver can neither attach nor detach it, and pods that use it stop writing. No data is lost: it is back when the datastore is.",
        remedy: ["govc datastore.info {datastore}   then restore the datastore: its array or server, its network, or the hosts that mount it"],
    }
    CLAIM_PENDING = "VDO-1527" {
        title: "A claim waits for its volume",
        severity: Warning,
        seen: "{claim}, for {age}: {message}{meaning}",
        why: "Its pod stays Pending.",
        remedy: ["kubectl describe pvc --namespace {namespace} {name}"],
    }
}
