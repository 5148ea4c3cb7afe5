//! Every finding, by code.
//!
//! | codes | theme |
//! |---|---|
//! | `VDO-10xx` | the objects an admin writes |
//! | `VDO-11xx` | the catalog and the choice of releases |
//! | `VDO-12xx` | nodes and their VMs |
//! | `VDO-13xx` | vCenters |
//! | `VDO-14xx` | privileges of the vCenter account |
//! | `VDO-15xx` | datastores, StorageClasses and volumes |
//! | `VDO-16xx` | the drivers as they run |
//! | `VDO-17xx` | zones and regions |
//! | `VDO-18xx` | permissions of VDO, and conflicts with other controllers |
//! | `VDO-19xx` | the operator itself |

use super::Definition;

/// Declares the definitions of a theme as constants and lists them in `OWN`; `also` re-exports those of
/// other themes.
macro_rules! catalogue {
    ($([also $($theme:ident),+])? $($name:ident = $code:literal {
        title: $title:literal,
        severity: $severity:ident,
        seen: $seen:literal,
        why: $why:literal,
        remedy: [$($step:literal),+ $(,)?]
        $(, fixable: $fixable:literal)? $(,)?
    })+) => {
        /// The definitions by name.
        pub mod codes {
            use crate::finding::{Definition, Severity};
            $($(pub use super::$theme::codes::*;)+)?
            $(
                #[doc = concat!("`", $code, "`: ", $title)]
                pub const $name: &Definition = &Definition {
                    code: $code,
                    title: $title,
                    severity: Severity::$severity,
                    seen: $seen,
                    why: $why,
                    remedy: &[$($step),+],
                    fixable: false $(|| $fixable)?,
                };
            )+
        }

        /// The definitions of this theme.
        pub(super) const OWN: &[&crate::finding::Definition] = &[$(codes::$name),+];
    };
}

mod drivers;
mod nodes;
mod operator;
mod privileges;
mod storage;
mod vcenter;
mod zones;

const THEMES: [&[&Definition]; 8] = [
    OWN,
    nodes::OWN,
    vcenter::OWN,
    privileges::OWN,
    storage::OWN,
    drivers::OWN,
    zones::OWN,
    operator::OWN,
];

const COUNT: usize = {
    let (mut count, mut theme) = (0, 0);
    while theme < THEMES.len() {
        count += THEMES[theme].len();
        theme += 1;
    }
    count
};

/// All definitions, ordered by code.
pub const CATALOGUE: &[&Definition] = &sorted(joined());

const fn joined() -> [&'static Definition; COUNT] {
    let mut all = [THEMES[0][0]; COUNT];
    let (mut place, mut theme) = (0, 0);
    while theme < THEMES.len() {
        let mut at = 0;
        while at < THEMES[theme].len() {
            all[place] = THEMES[theme][at];
            place += 1;
            at += 1;
        }
        theme += 1;
    }
    all
}

/// Insertion sort, because the themes are nearly in order.
const fn sorted(mut all: [&'static Definition; COUNT]) -> [&'static Definition; COUNT] {
    let mut end = 1;
    while end < all.len() {
        let mut at = end;
        while at > 0 && number(all[at]) < number(all[at - 1]) {
            let lower = all[at];
            all[at] = all[at - 1];
            all[at - 1] = lower;
            at -= 1;
        }
        end += 1;
    }
    all
}

const fn number(definition: &Definition) -> u32 {
    let code = definition.code.as_bytes();
    let (mut value, mut at) = (0, 0);
    while at < code.len() {
        if code[at].is_ascii_digit() {
            value = value * 10 + (code[at] - b'0') as u32;
        }
        at += 1;
    }
    value
}

catalogue! {
    [also nodes, vcenter, privileges, storage, drivers, zones, operator]
    SEVERAL_CONFIGS = "VDO-1001" {
        title: "There is more than one VDOConfig",
        severity: Blocker,
        seen: "Namespace {namespace} has {count} VDOConfigs: {names}; VDO follows {followed}",
        why: "A cluster has one cloud provider and one storage driver. Two objects with different specs would undo each other, so VDO follows the one it has recorded and ignores the others.",
        remedy: ["Copy the settings you need into {followed}", "kubectl delete vdoconfig --namespace {namespace} {others}   deletes the VDOConfigs that VDO does not follow", "To follow another one instead: annotate it with vdo.vmware.com/follow=true, then delete {followed}; its drivers stay unless its deletionPolicy is Remove"],
    }
    CONFIG_MISSING = "VDO-1002" {
        title: "A VsphereCloudConfig does not exist",
        severity: Blocker,
        seen: "{field} of {config} names {missing}, which does not exist in namespace {namespace}",
        why: "Without it VDO does not know how to reach that vCenter, so nothing that depends on it can be installed or changed.",
        remedy: ["kubectl get vspherecloudconfigs --namespace {namespace}   shows those that exist", "Correct {field}, or create the object {missing}"],
    }
    CREDENTIALS_MISSING = "VDO-1003" {
        title: "The Secret with the vCenter credentials does not exist",
        severity: Blocker,
        seen: "{config} names the Secret {secret}, which does not exist in namespace kube-system",
        why: "Without user and password nobody can log in to that vCenter: neither VDO nor the drivers.",
        remedy: ["kubectl create secret generic {secret} --namespace kube-system --type kubernetes.io/basic-auth --from-literal username=USER@DOMAIN --from-literal password=PASSWORD"],
    }
    CREDENTIALS_UNUSABLE = "VDO-1004" {
        title: "The Secret with the vCenter credentials cannot be used",
        severity: Blocker,
        seen: "Secret kube-system/{secret}: {reason}",
        why: "Without user and password nobody can log in to that vCenter: neither VDO nor the drivers.",
        remedy: ["kubectl edit secret --namespace kube-system {secret}   and correct it as described above"],
    }
    CREDENTIALS_TRIMMED = "VDO-1005" {
        title: "A line break at the end of the credentials was cut off",
        severity: Info,
        seen: "Secret kube-system/{secret} ends {key} with a line break",
        why: "It is nearly always left by `echo` without -n. VDO ignores it, as the cloud provider does; another program may reject it.",
        remedy: ["Create the Secret again with kubectl create secret, or with printf instead of echo"],
    }
    DRIVER_CONFIG_REFUSED = "VDO-1006" {
        title: "A driver would refuse this configuration",
        severity: Blocker,
        seen: "{driver}: {problem}",
        why: "The driver exits when it starts with such a configuration, so VDO keeps the one that works.",
        remedy: ["Correct {field} of {config} as described above"],
    }
    DRIVER_CONFIG_DOUBTFUL = "VDO-1007" {
        title: "A driver would misunderstand this configuration",
        severity: Warning,
        seen: "{driver}: {problem}",
        why: "The driver starts with it and fails, or silently does less, later.",
        remedy: ["Correct {field} of {config} as described above"],
    }
    TLS_UNVERIFIED = "VDO-1008" {
        title: "The vCenter's certificate is not verified",
        severity: Warning,
        seen: "{config} sets insecure: true for {vcenter}",
        why: "Anyone on the network path between the cluster and the vCenter can read the password and answer in its place.",
        remedy: ["kubectl patch vspherecloudconfig --namespace {namespace} {name} --type merge --patch '{patch}'   trusts exactly the certificate it shows now"],
    }
    ELSEWHERE = "VDO-1009" {
        title: "VDO does not follow objects in this namespace",
        severity: Warning,
        seen: "VDO runs in namespace {home} and follows its objects only there; {kind} {namespace}/{name} changes nothing",
        why: "The author of these objects decides where vCenter passwords are sent and which images run privileged on every node. Only people with write access to the operator's namespace may decide that. The drivers that run keep running.",
        remedy: ["vdoctl move --from {namespace} --name {name}   copies the VDOConfig and the VsphereCloudConfigs it names to namespace {home}, shows them first, and deletes nothing", "Or delete the object, if you do not need it"],
    }
    UNCONFIRMED_CONFIG = "VDO-1010" {
        title: "VDO waits for a confirmation before it follows this VDOConfig",
        severity: Blocker,
        seen: "VDO followed another VDOConfig before {namespace}/{name}; that one is gone",
        why: "A VDOConfig that somebody forgot must not take effect because another one was deleted. Until you confirm one, VDO changes nothing: the drivers keep running as they are, but VDO neither repairs them nor gives them new passwords.",
        remedy: ["kubectl annotate vdoconfig --namespace {namespace} {name} --overwrite vdo.vmware.com/follow=true   if VDO is to follow it", "Else create the VDOConfig that VDO followed before again under its old name: kubectl describe configmap --namespace {namespace} vdo-followed   shows the name"],
    }
    OTHER_INSTALLATION = "VDO-1011" {
        title: "Another installation of VDO manages this cluster",
        severity: Blocker,
        seen: "The installation of VDO in namespace {owner} manages this cluster; the one in namespace {namespace} changes nothing",
        why: "Two operators would overwrite each other's objects, so one installation owns a Lease in kube-system. An operator of another installation writes nothing and is not ready.",
        remedy: ["kubectl annotate lease --namespace kube-system {lease} --overwrite vdo.vmware.com/owner={namespace}", "Or remove one of the two installations"],
    }
    CATALOG_UNREACHABLE = "VDO-1101" {
        title: "The catalog cannot be fetched",
        severity: Warning,
        seen: "{url}: {reason}. VDO keeps the catalog with {current}",
        why: "VDO keeps the catalog it has, so newer releases stay unknown.",
        remedy: ["Make {url} reachable from the VDO pod (proxy, firewall, certificate)", "Without a network: put the catalog into a ConfigMap and name it in spec.bundle"],
    }
    CATALOG_UNREADABLE = "VDO-1102" {
        title: "The catalog cannot be read",
        severity: Warning,
        seen: "{source}: {reason}. VDO keeps the catalog with {current}",
        why: "VDO keeps the catalog it has, so newer releases stay unknown.",
        remedy: ["vdoctl catalog check FILE   names the place", "Correct it, or point spec.matrixURL at a good one"],
    }
    CATALOG_UNTRUSTED = "VDO-1103" {
        title: "The signature of the catalog is not valid",
        severity: Error,
        seen: "{source}: {reason}. VDO keeps the catalog with {current}",
        why: "Somebody may have changed the catalog on its way, so VDO ignores it and keeps the one it has.",
        remedy: ["Fetch it again from its publisher", "If you signed it yourself, put your public key into spec.publicKey"],
    }
    CATALOG_ROLLED_BACK = "VDO-1104" {
        title: "The catalog is older than the one in use",
        severity: Warning,
        seen: "{source} has serial {offered}, the one in use {current}",
        why: "An old catalog can hide a release that was withdrawn. VDO never goes back.",
        remedy: ["Publish the catalog again with a serial above {current}"],
    }
    CATALOG_EXPIRED = "VDO-1105" {
        title: "The catalog has expired",
        severity: Warning,
        seen: "The catalog from {source} was good until {expiry}",
        why: "The catalog may be out of date: its publisher may have withdrawn releases since.",
        remedy: ["Make a newer one reachable: see spec.matrixURL and spec.bundle of the CompatibilityConfig", "Without a network: upgrade VDO, which carries a newer one"],
    }
    CATALOG_TOO_NEW = "VDO-1106" {
        title: "The catalog is written for a newer VDO",
        severity: Warning,
        seen: "{source} has schema {schema}, this VDO reads up to {known}",
        why: "If VDO read only a part of the catalog, it could select a wrong release. VDO keeps the catalog it has.",
        remedy: ["Upgrade VDO"],
    }
    CATALOG_TOO_LARGE = "VDO-1107" {
        title: "The catalog is too large",
        severity: Warning,
        seen: "{source} is larger than {limit}",
        why: "No catalog is that large, so this is another file or an attack. VDO keeps the catalog it has.",
        remedy: ["Check what spec.matrixURL points at"],
    }
    NOTHING_FITS = "VDO-1110" {
        title: "No driver release fits this cluster",
        severity: Error,
        seen: "{driver}: {reason}",
        why: "The running driver keeps running, but VDO cannot select a release, and nobody has tested this combination.",
        remedy: ["vdoctl plan --all   shows for each release why it does not fit", "Upgrade the component that stands in the way, or set version to install a release anyway"],
    }
    KUBERNETES_UNKNOWN = "VDO-1111" {
        title: "Kubernetes is newer than the catalog knows",
        severity: Warning,
        seen: "Kubernetes is {version}, the catalog knows up to {known}",
        why: "VDO keeps the last release that is known to work; it will most likely work here too.",
        remedy: ["Make a newer catalog reachable, or upgrade VDO"],
    }
    VSPHERE_UNKNOWN = "VDO-1112" {
        title: "vSphere is newer than the catalog knows",
        severity: Warning,
        seen: "{vcenter} is {version}, the catalog knows up to {known}",
        why: "VDO keeps the last release that is known to work; it will most likely work here too.",
        remedy: ["Make a newer catalog reachable, or upgrade VDO"],
    }
    RELEASE_KNOWN_BAD = "VDO-1113" {
        title: "This driver release has a known fault here",
        severity: Blocker,
        seen: "{driver} {version}: {reason}",
        why: "The fault is known to occur in this combination, so VDO does not install the release.",
        remedy: ["{advice}"],
    }
    VERSION_UNKNOWN = "VDO-1114" {
        title: "The requested release is not in the catalog",
        severity: Blocker,
        seen: "{field} is {version}; the catalog knows {known}",
        why: "Without its entry VDO has neither its manifest nor its images.",
        remedy: ["Set {field} to a release in the catalog, or omit it and let VDO select one", "Make a catalog available that lists the release"],
    }
    DOWNGRADE_REFUSED = "VDO-1115" {
        title: "The requested release is older than the running one",
        severity: Blocker,
        seen: "{driver} runs {running}, {field} requests {version}",
        why: "An older release may be unable to read the state of a newer one, so VDO never downgrades.",
        remedy: ["Set {field} to {running} or newer"],
    }
    RELEASE_NOT_LISTED = "VDO-1116" {
        title: "The catalog does not list the release that runs",
        severity: Warning,
        seen: "{driver} {version} runs, and the catalog in use (serial {serial}) does not list it",
        why: "VDO repairs the driver and passes new passwords on from its record. It cannot tell whether the release has a known fault or fits a newer Kubernetes or vSphere.",
        remedy: ["Make a catalog available that lists it: see spec.matrixURL and spec.bundle of the CompatibilityConfig", "vdoctl plan   shows whether a listed release can take its place"],
    }
    VCENTER_NOT_VERIFIED = "VDO-1901" {
        title: "A vCenter could not be verified",
        severity: Error,
        seen: "{vcenter} ({config}): {reason}",
        why: "A driver gets credentials and addresses only after VDO verified them. Running drivers stay as they are; VDO installs and changes nothing that needs this vCenter.",
        remedy: ["kubectl describe vspherecloudconfig --all-namespaces   shows the last connection of {config}", "Correct the address, the thumbprint or CA bundle, or the Secret; VDO then tries again"],
    }
    FOREIGN_DRIVER = "VDO-1902" {
        title: "VDO did not install this driver",
        severity: Blocker,
        seen: "{driver} runs in namespace {namespace} as {name} and was not installed by VDO",
        why: "Two drivers in one cluster would work against each other, and VDO must not overwrite settings that it does not know. VDO leaves the driver as it is.",
        remedy: [
            "vdoctl adopt   shows what VDO would change, or why it cannot adopt the driver; with --yes VDO adopts the driver with its names and settings (spec.adoption: Automatic does the same)",
            "Or keep it and let VDO watch it: set mode: Observe for this driver",
            "Only where no volume is attached: remove {name} from namespace {namespace} the way it was installed, and keep the Secret with its cluster-id; VDO then installs its own",
        ],
    }
    VOLUMES_ATTACHED = "VDO-1904" {
        title: "VDO cannot remove the storage driver while volumes are attached",
        severity: Blocker,
        seen: "{count} volumes are attached: {volumes}",
        why: "Without the driver, or without the vCenter its node lives in, nothing could detach these volumes, and the pods that use them could not move.",
        remedy: ["Scale down the workloads that use these volumes, or move them to other storage", "kubectl get volumeattachments   shows when none is left; VDO then continues"],
    }
    UPGRADE_ROLLED_BACK = "VDO-1905" {
        title: "A release did not become healthy, and VDO rolled it back",
        severity: Error,
        seen: "{driver} {version}: {reason}; {running} runs",
        why: "VDO rolls back to the previous release when a new one does not become healthy in time. VDO does not try it again until something changes.",
        remedy: ["Fix the reason above", "Then change the VDOConfig, for example its version field, and VDO tries again", "Under policy Manual remove the approval and give it again: kubectl annotate vdoconfig --all {approval}-"],
    }
    PAUSED = "VDO-1906" {
        title: "VDO is paused",
        severity: Warning,
        seen: "the VDOConfig sets paused",
        why: "VDO observes and reports, and changes nothing: no repair, no upgrade, no new credentials.",
        remedy: ["kubectl annotate vdoconfig --all vdo.vmware.com/paused-   or remove spec.paused"],
    }
    CLUSTER_ID_IS_ADDRESS = "VDO-1907" {
        title: "The cluster id is the address of a vCenter",
        severity: Warning,
        seen: "The storage driver runs with the cluster id {id}",
        why: "The Go VDO gave this id to every cluster on that vCenter. Two clusters with one id remove each other's volumes from CNS. VDO keeps the id, because the volumes of this cluster use it.",
        remedy: ["vSphere Client, Monitor, Cloud Native Storage, Container Volumes: filter by the Kubernetes cluster {id}; are all volumes those of this cluster?", "If another cluster has volumes there: stop the storage controller of one of the two before anything else"],
    }
    PREDECESSOR_RUNS = "VDO-1908" {
        title: "The Go VDO still runs",
        severity: Blocker,
        seen: "Deployment {name} in namespace {namespace} runs",
        why: "Two operators would write the same objects in turn. VDO changes nothing while the other one runs; the drivers keep running.",
        remedy: ["kubectl delete deployment --namespace {namespace} {name}   removes only the operator; its objects and the drivers stay, and VDO adopts them"],
    }
    OBJECT_REFUSED = "VDO-1909" {
        title: "The API server refuses an object of a driver",
        severity: Error,
        seen: "{driver}: {reason}",
        why: "A quota, an admission webhook or a namespace that is being deleted rejects it. Running drivers stay as they are; VDO tries again with growing pauses.",
        remedy: ["Fix the cause in the answer: raise the quota, let the webhook pass the objects of VDO, or let the deletion of the namespace finish"],
    }
    DRIVER_UNASKED = "VDO-1910" {
        title: "A driver runs that the VDOConfig does not request",
        severity: Warning,
        seen: "{driver} was installed by VDO; VDOConfig {config} has no {section}, or one without a vCenter",
        why: "A missing section is no request to remove a driver that nodes or volumes need. VDO observes the driver, and neither repairs nor upgrades it.",
        remedy: [
            "To keep it, write spec.{section} into VDOConfig {config} again",
            "To remove it: kubectl patch vdoconfig --namespace {namespace} {config} --type merge --patch '{patch}'",
        ],
    }
    RECORD_DOUBTFUL = "VDO-1911" {
        title: "The record of a driver is missing or unreadable",
        severity: Blocker,
        seen: "{driver}: {reason}",
        why: "The record lists the objects of VDO, the last healthy release, and the names and cluster id of the driver. Without it VDO would have to guess, so it changes nothing; the driver keeps running.",
        remedy: [
            "kubectl get configmap --namespace {namespace} {record} -o yaml   shows the record; restore a copy if you have one",
            "If you cannot fix it: kubectl delete configmap --namespace {namespace} {record}   and VDO re-creates it from the running driver",
        ],
    }
    ACCOUNT_OF_PREDECESSOR = "VDO-1912" {
        title: "The service account of the operator lacks permissions",
        severity: Blocker,
        seen: "the service account of VDO has no permission to {first} ({count} permissions are missing)",
        why: "With the permissions of an earlier VDO, as after a change of only the image, this one cannot read the objects that it needs. It changes and deletes nothing; the drivers keep running.",
        remedy: [
            "kubectl apply --server-side --force-conflicts -f deploy/install.yaml   of this release, which contains its service account and permissions",
            "If the permission is missing in the namespace of an adopted driver: vdoctl deploy   grants it there",
            "Then kubectl delete deployment --namespace {namespace} {deployment}   if only the image of an earlier VDO was changed; the drivers stay",
        ],
    }
    CLUSTER_ID_UNCLEAR = "VDO-1913" {
        title: "The volumes of this cluster carry more than one cluster id",
        severity: Blocker,
        seen: "The volumes of this cluster were created under {ids}, and VDO cannot tell which of them belongs to this cluster",
        why: "VDO installs no storage driver: under one id it would not find the volumes of the other, and would remove them from CNS.",
        remedy: [
            "vSphere Client, Monitor, Cloud Native Storage, Container Volumes: see which Kubernetes cluster most volumes of this cluster are in",
            "kubectl create secret generic --namespace {namespace} {secret} --from-file=csi-vsphere.conf=FILE   with the correct id in FILE, as two lines: [Global] and cluster-id = ID",
            "VDO reads it there and completes the Secret. VDO then reports volumes under the other id one by one",
        ],
    }
    LOOKALIKES = "VDO-1914" {
        title: "A workload looks like a vSphere driver but is not one",
        severity: Info,
        seen: "{count} found, the first is {first}: it looks like a driver or the Go VDO, but its service account lacks the permissions of one",
        why: "Anyone with permission to create workloads in a namespace can give them a driver's name, image and labels. Outside the allowed namespaces VDO counts a workload as a driver only if a ClusterRoleBinding gives its service account the permissions of a driver. This one changes nothing.",
        remedy: [
            "If it is a test or a copy, you need not do anything; ask the owner of namespace {namespace} why it is there",
            "If it is a driver that you run: vdoctl deploy --driver-namespace {namespace}   makes its namespace an allowed one, and VDO can adopt it",
        ],
    }
    REMEDIATION_RIGHT_MISSING = "VDO-1917" {
        title: "The operator lacks the permission for a remediation that is on",
        severity: Warning,
        seen: "{field} is Fix, but the operator has no permission to {verb} {resource}",
        why: "install.yaml grants this permission only on request, because few clusters need it. Without it VDO reports stale entries and removes none.",
        remedy: [
            "kubectl create clusterrolebinding {role} --clusterrole {role} --serviceaccount {namespace}:vdo   grants it; VDO continues within a minute",
            "Or set {field} to Propose",
        ],
    }
    UPSTREAM_NEEDED = "VDO-1920" {
        title: "NSX needs the upstream cloud controller, so VDO runs that one",
        severity: Info,
        seen: "{field} is Rust, and spec.cloudProvider.nsx requests load balancers or routes in NSX",
        why: "This project's cloud controller serves no load balancers and no routes. Without them Services of type LoadBalancer would stay pending and pods unreachable, so the upstream one runs instead.",
        remedy: [
            "You need not do anything; set implementation: Upstream to make it explicit",
            "To run this project's cloud controller, remove nsx from the VDOConfig",
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_ordered_and_well_formed() {
        let codes: Vec<&str> = CATALOGUE.iter().map(|d| d.code).collect();
        assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:?}");
        for code in codes {
            let digits = code.strip_prefix("VDO-").unwrap();
            assert!(digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit()), "{code}");
        }
    }

    #[test]
    fn every_text_is_complete() {
        for definition in CATALOGUE {
            let code = definition.code;
            assert!(definition.title.len() <= 72, "{code}: the title is too long for one line");
            assert!(!definition.title.ends_with('.') && !definition.title.contains('{'), "{code}");
            assert!(definition.why.ends_with('.'), "{code}: why is a sentence");
            assert!(!definition.why.contains('{'), "{code}: alerts show why without values");
            assert!(!definition.remedy.is_empty(), "{code}: there is always something to do");
        }
    }
}
