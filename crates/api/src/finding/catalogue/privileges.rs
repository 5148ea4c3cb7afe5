//! Privileges of the vCenter account.

catalogue! {
    theme: Privileges, concerns: StorageDriver;
    PRIVILEGE_ROOT = "VDO-1401" {
        title: "The account lacks the privilege to see volumes and storage policies",
        severity: Error,
        seen: "{user} lacks {privileges} on the root of {address}",
        why: "vCenter shows the driver neither storage policies nor volumes. Creating a volume with a policy fails with: missing value for required parameter 'profileIds'.",
        remedy: [
            "govc permissions.ls /   shows whether {user} has a role there: an object holds one role per user, and a new role replaces the old one, also for everything below it",
            "If it has one: govc role.update -a ROLE {list}   adds the privileges to that role and removes none",
            "If it has none: govc role.create CNS-SEARCH-AND-SPBM {list}   then govc permissions.set -principal {user} -role CNS-SEARCH-AND-SPBM -propagate=false /",
        ],
    }
    PRIVILEGE_DATASTORE = "VDO-1402" {
        title: "The account lacks the privilege to create volumes on a datastore",
        severity: Warning,
        seen: "{user} lacks {privileges} on {path}",
        why: "The driver silently skips such datastores. If none is left, it reports that the datastore is not accessible to all nodes, that createSpecs.datastores is empty, or that there is no shared datastore.",
        remedy: [
            "govc permissions.ls {path}   shows whether {user} has a role there, or inherits one: a new role replaces it on this object",
            "If it has one: govc role.update -a ROLE {list}   adds the privileges to that role and removes none",
            "If it has none: govc role.create CNS-DATASTORE {list}   then govc permissions.set -principal {user} -role CNS-DATASTORE -propagate=false {path}",
            "The driver reads its privileges every five minutes",
        ],
    }
    PRIVILEGE_VM = "VDO-1403" {
        title: "The account lacks the privilege to attach disks to a node's VM",
        severity: Error,
        seen: "{user} lacks {privileges} on {path}",
        why: "The driver cannot attach volumes to that node: NoPermission. The privilege is often missing for nodes that were added later.",
        remedy: [
            "govc permissions.ls {path}   shows whether {user} has a role there, or inherits one: a new role replaces it on this object",
            "If it has one: govc role.update -a ROLE {list}   adds the privileges to that role and removes none",
            "If it has none: govc role.create CNS-VM {list}   then govc permissions.set -principal {user} -role CNS-VM -propagate=false {path}",
            "For future nodes, set the permission once on their folder with -propagate=true",
        ],
    }
    PRIVILEGE_READ = "VDO-1404" {
        title: "The account lacks the privilege to see an object the drivers need",
        severity: Error,
        seen: "{user} lacks {privileges} on {path}",
        why: "To find datastores and zones, the drivers read every object from the VM over its host up to the root. Without the privilege they fail with NoPermission, or zones and datastores seem to be missing.",
        remedy: ["govc permissions.set -principal {user} -role ReadOnly -propagate=false {path}"],
    }
    PRIVILEGE_FILE = "VDO-1405" {
        title: "The account lacks the privilege to create file shares on a cluster",
        severity: Error,
        seen: "{user} lacks {privileges} on {path}",
        why: "ReadWriteMany volumes are vSAN file shares. Without this privilege the driver reports that vSAN file service may be disabled.",
        remedy: [
            "govc permissions.ls {path}   shows whether {user} has a role there, or inherits one: a new role replaces it on this object",
            "If it has one: govc role.update -a ROLE {list}   adds the privileges to that role and removes none",
            "If it has none: govc role.create CNS-HOST-CONFIG-STORAGE {list}   then govc permissions.set -principal {user} -role CNS-HOST-CONFIG-STORAGE -propagate=false {path}",
        ],
    }
    PRIVILEGE_TASKS = "VDO-1406" {
        title: "The account lacks the privilege to watch its own tasks",
        severity: Error,
        seen: "{address}: {user} lacks the privilege to watch tasks",
        why: "The driver starts operations but never learns their results.",
        remedy: ["govc permissions.set -principal {user} -role ReadOnly -propagate=false /"],
    }
    PRIVILEGES_SUPERFLUOUS = "VDO-1410" {
        title: "The account has more privileges than the drivers need",
        severity: Info,
        seen: "{user} also has {privileges} on {path}",
        why: "An attacker who obtains the account's password gets these privileges, too.",
        remedy: ["govc permissions.ls {path}   shows the role that grants them; the drivers need only {needed} there"],
    }
}
