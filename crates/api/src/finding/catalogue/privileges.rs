//! What the vCenter account may and may not do.

catalogue! {
    PRIVILEGE_ROOT = "VDO-1401" {
        title: "The account may not see volumes and storage policies",
        severity: Error,
        seen: "{user} lacks {privileges} on the root of {address}",
        why: "vCenter then shows the driver no storage policy and no volume: making a volume by a policy fails with missing value for required parameter 'profileIds'.",
        remedy: [
            "govc permissions.ls /   shows whether {user} has a role there: an object holds one role per user, and a new one takes the place of the old one, for everything below it, too",
            "If it has one: govc role.update -a ROLE {list}   adds to that role, and takes nothing away",
            "If it has none: govc role.create CNS-SEARCH-AND-SPBM {list}   then govc permissions.set -principal {user} -role CNS-SEARCH-AND-SPBM -propagate=false /",
        ],
    }
    PRIVILEGE_DATASTORE = "VDO-1402" {
        title: "The account may not make volumes on a datastore",
        severity: Warning,
        seen: "{user} lacks {privileges} on {path}",
        why: "The driver silently leaves such datastores out: if none is left it says that the datastore is not accessible to all nodes, that createSpecs.datastores is empty, or that there is no shared datastore.",
        remedy: [
            "govc permissions.ls {path}   shows whether {user} has a role there, or one from above: a new one takes its place on this object",
            "If it has one: govc role.update -a ROLE {list}   adds to that role, and takes nothing away",
            "If it has none: govc role.create CNS-DATASTORE {list}   then govc permissions.set -principal {user} -role CNS-DATASTORE -propagate=false {path}",
            "The driver asks for its privileges every five minutes",
        ],
    }
    PRIVILEGE_VM = "VDO-1403" {
        title: "The account may not attach disks to a node's VM",
        severity: Error,
        seen: "{user} lacks {privileges} on {path}",
        why: "Volumes cannot be attached to that node: NoPermission. It is easily forgotten for nodes that were added later.",
        remedy: [
            "govc permissions.ls {path}   shows whether {user} has a role there, or one from above: a new one takes its place on this object",
            "If it has one: govc role.update -a ROLE {list}   adds to that role, and takes nothing away",
            "If it has none: govc role.create CNS-VM {list}   then govc permissions.set -principal {user} -role CNS-VM -propagate=false {path}",
            "For nodes to come, set it once on their folder with -propagate=true",
        ],
    }
    PRIVILEGE_READ = "VDO-1404" {
        title: "The account may not see an object the drivers need to see",
        severity: Error,
        seen: "{user} lacks {privileges} on {path}",
        why: "The drivers walk from the VM over its host up to the root to find datastores and zones; where they may not read they see nothing: NoPermission, or zones and datastores that seem to be missing.",
        remedy: ["govc permissions.set -principal {user} -role ReadOnly -propagate=false {path}"],
    }
    PRIVILEGE_FILE = "VDO-1405" {
        title: "The account may not make file shares on a cluster",
        severity: Error,
        seen: "{user} lacks {privileges} on {path}",
        why: "Volumes many pods can write are vSAN file shares; without this the driver says that vSAN file service may be disabled.",
        remedy: [
            "govc permissions.ls {path}   shows whether {user} has a role there, or one from above: a new one takes its place on this object",
            "If it has one: govc role.update -a ROLE {list}   adds to that role, and takes nothing away",
            "If it has none: govc role.create CNS-HOST-CONFIG-STORAGE {list}   then govc permissions.set -principal {user} -role CNS-HOST-CONFIG-STORAGE -propagate=false {path}",
        ],
    }
    PRIVILEGE_TASKS = "VDO-1406" {
        title: "The account may not watch its own tasks",
        severity: Error,
        seen: "{address}: {user} may not watch tasks",
        why: "The driver starts operations and then never learns how they ended.",
        remedy: ["govc permissions.set -principal {user} -role ReadOnly -propagate=false /"],
    }
    PRIVILEGES_SUPERFLUOUS = "VDO-1410" {
        title: "The account may do more than the drivers need",
        severity: Info,
        seen: "{user} also holds {privileges} on {path}",
        why: "Whoever gets hold of the account can do that too.",
        remedy: ["govc permissions.ls {path}   shows which role it comes from; the drivers need only {needed} there"],
    }
}
