//! vCenters: reachable, trusted, letting us in, fit for the drivers.

catalogue! {
    VCENTER_UNREACHABLE = "VDO-1301" {
        title: "A vCenter cannot be reached",
        severity: Error,
        seen: "{address}: {reason}",
        why: "Volumes cannot be made, attached or detached and nodes cannot be initialised until it answers. What is attached stays attached; VDO changes nothing meanwhile.",
        remedy: [
            "kubectl get vspherecloudconfig --all-namespaces   {config} names {address}: is that right?",
            "From a control plane node: curl -vk https://{address}/sdk   shows whether name, route and firewall (TCP 443) let it through",
        ],
    }
    CERTIFICATE_DISTRUSTED = "VDO-1302" {
        title: "A vCenter's certificate is not trusted",
        severity: Error,
        seen: "{address}: {reason}; its thumbprint is {thumbprint}",
        why: "Either the certificate was renewed, or somebody stands between the cluster and vCenter. Nobody logs in before that is clear.",
        remedy: [
            "On the vCenter's console compare the thumbprint: openssl x509 -in /etc/vmware-vpx/ssl/rui.crt -noout -fingerprint -sha256",
            "If it is the same: set spec.thumbprint of {config} to it, or better spec.caBundle to the certificates from https://{address}/certs/download.zip",
        ],
    }
    CERTIFICATE_EXPIRING = "VDO-1303" {
        title: "A vCenter's certificate expires soon",
        severity: Warning,
        seen: "{address}: its certificate {when}",
        why: "From then on no driver can connect; a new certificate also has a new thumbprint, which must be told to the drivers.",
        remedy: [
            "vSphere Client, Administration, Certificates, Certificate Management: renew the machine SSL certificate",
            "Then set spec.thumbprint of {config} to the new one; with spec.caBundle there is nothing to do",
        ],
    }
    CERTIFICATE_OUTDATED = "VDO-1304" {
        title: "The storage driver refuses a vCenter's kind of certificate",
        severity: Error,
        seen: "{address}: of its certificate, {reason}; storage driver {version} does not accept that",
        why: "Since 3.3 the storage driver accepts neither SHA-1 signatures nor RSA keys beyond 8192 bits: it cannot connect.",
        remedy: ["vSphere Client, Administration, Certificates, Certificate Management: replace the machine SSL certificate by one with SHA-256 and RSA 2048 to 8192"],
    }
    LOGIN_REFUSED = "VDO-1305" {
        title: "A vCenter refuses user name or password",
        severity: Error,
        seen: "{address} refuses {user}: {reason}",
        why: "Drivers that restart cannot log in. After a few tries vCenter locks the account, for everybody who uses it.",
        remedy: [
            "GOVC_URL={address} GOVC_USERNAME={user} GOVC_PASSWORD=... govc about   with the password from the Secret {secret} shows whether it is right",
            "kubectl edit secret --namespace {secretnamespace} {secretname}   VDO proves a new password against vCenter before a driver sees it",
            "Where the Secret was right and vCenter was put right: kubectl annotate --overwrite secret --namespace {secretnamespace} {secretname} tried-again=yes   VDO tries a refused login again only when its Secret is written",
        ],
    }
    ACCOUNT_LOCKED = "VDO-1306" {
        title: "A vCenter account is locked",
        severity: Error,
        seen: "{address}: {user} is locked: {reason}",
        why: "Nobody can log in with it, not even with the right password.",
        remedy: [
            "vSphere Client, Administration, Users and Groups: unlock {user}, or wait until the lockout ends",
            "Find who logs in with an old password: the vCenter's events of the kind Failed login, user {user}, show the address",
        ],
    }
    ACCOUNT_UNQUALIFIED = "VDO-1307" {
        title: "A vCenter user name lacks its domain",
        severity: Blocker,
        seen: "{address}: the user name is {user}",
        why: "The storage driver since 3.1 exits with such a name; older ones log in but find no datastore they may use, because vCenter answers questions about privileges only for full names.",
        remedy: ["kubectl edit secret --namespace {secretnamespace} {secretname}   and write the user as {user}@vsphere.local, or with the domain it belongs to"],
    }
    PASSWORD_EXPIRING = "VDO-1308" {
        title: "The password of a vCenter account expires soon",
        severity: Warning,
        seen: "{address}: the password of {user} {when}",
        why: "From then on no driver can log in.",
        remedy: [
            "Set a new password in vCenter, and in the Secret {secret} right after, with its end in the annotation vdo.vmware.com/password-expires of that Secret",
            "For service accounts, turn expiry off: dir-cli user modify --account NAME --password-never-expires",
        ],
    }
    CLOCK_SKEW = "VDO-1309" {
        title: "A vCenter's clock differs from the cluster's",
        severity: Warning,
        seen: "{address}: its clock is {skew}",
        why: "Certificates look expired or not yet valid, tokens are refused, and events of both sides cannot be put in order.",
        remedy: [
            "https://{address}:5480, Time: use the same NTP servers as the nodes",
            "On the nodes: chronyc sources   or timedatectl",
        ],
    }
    VCENTER_TOO_OLD = "VDO-1310" {
        title: "A vCenter is too old for the storage driver",
        severity: Blocker,
        seen: "{address} is {version}; {driver} needs {needed}",
        why: "The driver's controller exits. Since 3.2 it does so with a misleading message: vSAN file service is not supported in one or more vCenter(s).",
        remedy: [
            "Upgrade {address} to {needed} or newer",
            "Until then: {alternative}",
        ],
    }
    VCENTER_TOO_OLD_FOR_FEATURE = "VDO-1311" {
        title: "A feature asked for needs a newer vCenter",
        severity: Warning,
        seen: "{address} is {version}; for {feature} it takes {needed}",
        why: "Everything else works; requests for this are refused.",
        remedy: ["Upgrade {address} to {needed} or newer; {otherwise}"],
    }
    SESSIONS_MANY = "VDO-1312" {
        title: "A vCenter is running out of sessions",
        severity: Warning,
        seen: "{address}: {count} sessions of 2000, most of them by {agents}",
        why: "When they run out vCenter answers 503 to everybody. Clients that log in without logging out hold them for half an hour each.",
        remedy: [
            "govc session.ls   shows who holds them",
            "govc session.rm ID   ends one",
            "Upgrade the client that leaks: storage drivers before 3.0.2, old Cluster API and backup plugins are known to",
        ],
    }
    SERVICE_DOWN = "VDO-1313" {
        title: "A service of vCenter that the drivers need does not answer",
        severity: Error,
        seen: "{address}: {purpose} is served by {unit}, which says: {reason}",
        why: "Without it volumes cannot be made, attached or placed. vsan-health is needed even where there is no vSAN.",
        remedy: [
            "https://{address}:5480, Services: start {unit}",
            "Or on the vCenter's console: service-control --start {unit}   service-control --status {unit}",
        ],
    }
    DATASTORE_OF_TWO_VCENTERS = "VDO-1314" {
        title: "A datastore belongs to two of the configured vCenters",
        severity: Error,
        seen: "{url} is mounted in {first} and in {second}",
        why: "Each vCenter keeps its own list of the volumes on a datastore and cleans up what it does not know: volumes may be lost. This is not supported, even if one of the two has no container volumes.",
        remedy: ["Unmount the datastore from the hosts of one of the vCenters, or keep volumes off it by a storage policy"],
    }
    DATACENTER_MISSING = "VDO-1315" {
        title: "A configured datacenter does not exist",
        severity: Error,
        seen: "{config} names the datacenter {datacenter}; {address} has {known}",
        why: "The drivers look for VMs in the named datacenters only; those elsewhere do not exist for them.",
        remedy: [
            "govc ls /   lists them, as far as the account may see",
            "Correct spec.datacenters of {config}; left out, all are looked at",
        ],
    }
    PASSWORD_WAITS = "VDO-1316" {
        title: "A driver does not get the new password of a vCenter account",
        severity: Error,
        seen: "{driver}: vCenter accepted the new password for {vcenters}, and the driver does not get it: {reason}",
        why: "The driver logs in with the password before. vCenter refuses that and locks the account after a few attempts, for VDO and for everything else that uses it.",
        remedy: [
            "If VDO is paused: remove spec.paused and the annotation vdo.vmware.com/paused from the VDOConfig; VDO then hands the password on within seconds",
            "If the Go VDO runs: delete its Deployment, as its own finding says",
            "If the Secret is not understood: kubectl edit secret --namespace {namespace} {secret}   corrects it",
        ],
    }
}
