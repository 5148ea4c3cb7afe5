//! The custom resources that an admin writes: VDOConfigs, VsphereCloudConfigs and Secrets.

catalogue! {
    theme: Configuration, concerns: NoDriver;
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
        remedy: ["kubectl get vspherecloudconfigs --namespace {namespace}   lists the existing objects", "Correct {field}, or create the object {missing}"],
    }
    CREDENTIALS_MISSING = "VDO-1003" {
        title: "The Secret with the vCenter credentials does not exist",
        severity: Blocker,
        seen: "{config} names the Secret {secret}, which does not exist in namespace {namespace}",
        why: "Without user name and password, neither VDO nor the drivers can log in to that vCenter.",
        remedy: ["kubectl create secret generic {secret} --namespace {namespace} --type kubernetes.io/basic-auth --from-literal username=USER@DOMAIN --from-literal password=PASSWORD", "If the Secret is in namespace kube-system: vdoctl deploy   lets VDO read it there"],
    }
    CREDENTIALS_UNUSABLE = "VDO-1004" {
        title: "The Secret with the vCenter credentials cannot be used",
        severity: Blocker,
        seen: "Secret {namespace}/{secret}: {reason}",
        why: "Without user name and password, neither VDO nor the drivers can log in to that vCenter.",
        remedy: ["kubectl edit secret --namespace {namespace} {secret}   and correct the value named above"],
    }
    CREDENTIALS_TRIMMED = "VDO-1005" {
        title: "VDO ignores a line break at the end of the credentials",
        severity: Info,
        seen: "Secret {namespace}/{secret}: the value of {key} ends with a line break",
        why: "`echo` without -n usually leaves it there. VDO and the cloud provider ignore it; another program may not.",
        remedy: ["Create the Secret again without the line break: use printf instead of echo"],
    }
    DRIVER_CONFIG_REFUSED = "VDO-1006" {
        title: "A driver would refuse this configuration",
        severity: Blocker,
        seen: "{driver}: {problem}",
        why: "The driver would exit at startup with this configuration, so VDO keeps the working one.",
        remedy: ["Correct {field} of {config}"],
    }
    TLS_UNVERIFIED = "VDO-1008" {
        title: "VDO does not verify the vCenter's certificate",
        severity: Warning,
        seen: "{config} sets insecure: true",
        why: "Anyone between the cluster and this vCenter can read the password and answer in its place.",
        remedy: ["{step}", "Or set spec.caBundle of {config} to the certificate authority of the vCenter, and remove insecure"],
    }
    ELSEWHERE = "VDO-1009" {
        title: "VDO does not follow objects in this namespace",
        severity: Warning,
        seen: "VDO runs in namespace {operatornamespace} and follows its objects only there; {kind} {namespace}/{name} changes nothing",
        why: "The author of these objects decides where vCenter passwords are sent and which images run privileged on every node. Only people with write access to the operator's namespace may decide that. Running drivers keep running.",
        remedy: ["vdoctl move --from {namespace} --name {name}   shows the VDOConfig and the VsphereCloudConfigs it names, then copies them to namespace {operatornamespace}; it deletes nothing", "Or delete the object, if you do not need it"],
    }
    UNCONFIRMED_CONFIG = "VDO-1010" {
        title: "VDO waits for a confirmation before it follows this VDOConfig",
        severity: Blocker,
        seen: "VDO followed another VDOConfig before {namespace}/{name}; that object no longer exists",
        why: "Deleting one VDOConfig must not activate another, forgotten one. Until you confirm one, VDO changes nothing: the drivers keep running, but VDO neither repairs them nor passes new passwords to them.",
        remedy: ["kubectl annotate vdoconfig --namespace {namespace} {name} --overwrite vdo.vmware.com/follow=true   confirms that VDO follows it", "Or re-create the VDOConfig that VDO followed before, under its old name: kubectl describe configmap --namespace {namespace} vdo-followed   shows the name"],
    }
    WINDOW_UNREADABLE = "VDO-1012" {
        title: "The maintenance window cannot be read",
        severity: Error,
        seen: "spec.upgrades.window: {problem}",
        why: "VDO cannot tell when the window is open, so it starts no upgrade. Running drivers keep running.",
        remedy: ["kubectl edit vdoconfig --namespace {namespace} {config}   correct spec.upgrades.window; a time zone is a name such as Europe/Berlin or UTC"],
    }
    SAME_VCENTER = "VDO-1013" {
        title: "Several VsphereCloudConfigs are for the same vCenter",
        severity: Warning,
        seen: "{names} are for the same vCenter, {address}: {problem}",
        why: "A driver knows each vCenter only once, so it uses the settings of one VsphereCloudConfig and ignores the others. You also have to set a new password or certificate in each; an old password in one of them locks the account.",
        remedy: ["kubectl edit vspherecloudconfig --namespace {namespace} {first}   add the settings of the others that you need", "kubectl patch vdoconfig --namespace {namespace} {config} --type merge --patch {patch}   names only {first}", "kubectl delete vspherecloudconfig --namespace {namespace} {others}   deletes the ones that the VDOConfig no longer names"],
    }
    OTHER_INSTALLATION = "VDO-1011" {
        title: "Another installation of VDO manages this cluster",
        severity: Blocker,
        seen: "The installation of VDO in namespace {owner} manages this cluster; the one in namespace {namespace} changes nothing",
        why: "Two operators would overwrite each other's objects, so one installation owns one Lease in kube-system. An operator of another installation writes nothing and is not ready.",
        remedy: ["kubectl annotate lease --namespace kube-system {lease} --overwrite vdo.vmware.com/owner={namespace}", "Or remove one of the two installations"],
    }
}
