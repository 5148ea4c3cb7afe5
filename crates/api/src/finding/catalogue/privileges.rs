//! What the vCenter account may and may not do.

catalogue! {
    PRIVILEGE_ROOT = "VDO-1401" {
        title: "The account cannot see volumes and storage policies",
        severity: Error,
        seen: "{user} lacks {privileges} on the root of {address}",
        why: "vCenter then shows the driver no storage policy and no volume: creating a volume with a policy fails with missing value for required parameter 'profileIds'.",
        remedy: [
            "govc permissions.ls /   shows whether {user} has a role there: an object has one role per user, and a new role replaces the old one, for everything below it too",
            "If it has one: govc role.update -a ROLE {list}   adds privileges to that role and removes none",
            "If it has none: govc role.create CNS-SEARCH-AND-SPBM {list}   then govc permissions.set -principal {user} -role CNS-SEARCH-AND-SPBM -propagate=false /",
        ],
    }
    PRIVILEGE_DATASTORE = "VDO-1402" {
        title: "The account cannot create volumes on a datastore",
        severity: Warning,
        seen: "{user} lacks {privileges} on {path}",
        why: "The driver silently skips such datastores. If none is left, it reports that the datastore is not accessible to all nodes, that createSpecs.datastores is empty, or that there is no shared datastore.",
        remedy: [
            "govc permissions.ls {path}   shows whether {user} has a role there, or inherits one: a new role replaces it on this object",
            "If it has one: govc role.update -a ROLE {list}   adds privileges to that role and removes none",
            "If it has none: govc role.create CNS-DATASTORE {list}   then govc permissions.set -principal {user} -role CNS-DATASTORE -propagate=false {path}",
            "The driver checks its privileges every five minutes",
        ],
    }
    PRIVILEGE_VM = "VDO-1403" {
        title: "The account cannot attach disks to a node's VM",
        severity: Error,
        seen: "{user} lacks {privileges} on {path}",
        why: "The driver cannot attach volumes to that node: NoPermission. Admins often forget nodes that they add later.",
        remedy: [
            "govc permissions.ls {path}   shows whether {user} has a role there, or inherits one: a new role replaces it on this object",
            "If it has one: govc role.update -a ROLE {list}   adds privileges to that role and removes none",
            "If it has none: govc role.create CNS-VM {list}   then govc permissions.set -principal {user} -role CNS-VM -propagate=false {path}",
            "For future nodes, set it once on their folder with -propagate=true",
        ],
    }
    PRIVILEGE_READ = "VDO-1404" {
        title: "The account cannot see an object that the drivers need",
        severity: Error,
        seen: "{user} lacks {privileges} on {path}",
        why: "The drivers walk from the VM over its host up to the root to find datastores and zones; without read access they see nothing: NoPermission, or zones and datastores seem to be missing.",
        remedy: ["govc permissions.set -principal {user} -role ReadOnly -propagate=false {path}"],
    }
    PRIVILEGE_FILE = "VDO-1405" {
        title: "The account cannot create file shares on a cluster",
        severity: Error,
        seen: "{user} lacks {privileges} on {path}",
        why: "Volumes that many pods can write are vSAN file shares. Without this privilege the driver reports that vSAN file service may be disabled.",
        remedy: [
            "govc permissions.ls {path}   shows whether {user} has a role there, or inherits one: a new role replaces it on this object",
            "If it has one: govc role.update -a ROLE {list}   adds privileges to that role and removes none",
            "If it has none: govc role.create CNS-HOST-CONFIG-STORAGE {list}   then govc permissions.set -principal {user} -role CNS-HOST-CONFIG-STORAGE -propagate=false {path}",
        ],
    }
    PRIVILEGE_TASKS = "VDO-1406" {
        title: "The account cannot watch its own tasks",
        severity: Error,
        seen: "{address}: {user} lacks the privilege to watch tasks",
        why: "The driver starts operations and never gets their results.",
        remedy: ["govc permissions.set -principal {user} -role ReadOnly -propagate=false /"],
    }
    PRIVILEGES_SUPERFLUOUS = "VDO-1410" {
        title: "The account has more privileges than the drivers need",
        severity: Info,
        seen: "{user} also holds {privileges} on {path}",
        why: "An attacker with this account has these privileges too.",
        remedy: ["govc permissions.ls {path}   shows which role it comes from; the drivers need only {needed} there"],
    }
}
