//! vCenters: reachability, certificates, login and versions.

catalogue! {
    theme: Vcenters, concerns: BothDrivers;
    VCENTER_UNREACHABLE = "VDO-1301" {
        title: "A vCenter is unreachable",
        severity: Error,
        seen: "{address}: {reason}",
        why: "Until the vCenter answers, the drivers cannot create, attach or detach volumes and cannot initialise nodes. Attached volumes stay attached; VDO changes nothing in the meantime.",
        remedy: [
            "kubectl get vspherecloudconfig --all-namespaces   check that {address} is the right address in {config}",
            "On a control plane node: curl -vk https://{authority}/sdk   shows whether DNS, routing and firewall (TCP 443) allow the connection",
        ],
    }
    CERTIFICATE_DISTRUSTED = "VDO-1302" {
        title: "A vCenter's certificate is not trusted",
        severity: Error,
        seen: "{address}: {reason}; its thumbprint is {thumbprint}",
        why: "Either the certificate was renewed, or somebody intercepts the connection. VDO does not log in until you trust the certificate.",
        remedy: [
            "On the vCenter's console: openssl x509 -in /etc/vmware-vpx/ssl/rui.crt -noout -fingerprint -sha256   shows its thumbprint: compare it with the one above",
            "If it is the same: set spec.thumbprint of {config} to it, or better, set spec.caBundle to the certificates from https://{authority}/certs/download.zip",
        ],
    }
    CERTIFICATE_EXPIRING = "VDO-1303" {
        title: "A vCenter's certificate expires soon",
        severity: Warning,
        seen: "{address}: its certificate {when}",
        why: "After that, no driver can connect. A new certificate has a new thumbprint, which the drivers need.",
        remedy: [
            "vSphere Client, Administration, Certificates, Certificate Management: renew the machine SSL certificate",
            "Then set spec.thumbprint of {config} to the new thumbprint; with spec.caBundle no change is needed",
        ],
    }
    CERTIFICATE_OUTDATED = "VDO-1304" {
        title: "The storage driver does not support a vCenter's certificate",
        severity: Error,
        seen: "{address}: storage driver {version} does not accept its certificate: {reason}",
        why: "Since 3.3 the storage driver accepts neither SHA-1 signatures nor RSA keys longer than 8192 bits, so it cannot connect.",
        remedy: ["vSphere Client, Administration, Certificates, Certificate Management: replace the machine SSL certificate with one that uses SHA-256 and RSA 2048 to 8192"],
    }
    LOGIN_REFUSED = "VDO-1305" {
        title: "A vCenter rejects the user name or password",
        severity: Error,
        seen: "{address} rejects {user}: {reason}",
        why: "A restarted driver cannot log in. After a few attempts vCenter locks the account for all its users.",
        remedy: [
            "govc about   with GOVC_URL={address}, GOVC_USERNAME={user} and the password of the Secret {secret} in GOVC_PASSWORD: shows whether vCenter accepts them",
            "kubectl edit secret --namespace {secretnamespace} {secretname}   VDO tests a new password against vCenter before a driver gets it",
            "If the Secret is right and the account in vCenter was wrong or locked: kubectl annotate --overwrite secret --namespace {secretnamespace} {secretname} tried-again=\"$(date +%s)\"   VDO tries again at once; without it, within 30 minutes",
        ],
    }
    ACCOUNT_LOCKED = "VDO-1306" {
        title: "A vCenter account is locked",
        severity: Error,
        seen: "{address}: the account {user} is locked: {reason}",
        why: "Nobody can log in with this account, not even with the right password.",
        remedy: [
            "vSphere Client, Administration, Users and Groups: unlock {user}, or wait until the lockout ends. VDO tries again within 30 minutes",
            "Find the client that uses an old password: vCenter's Failed login events for {user} show its address",
            "To make VDO try again at once: kubectl annotate --overwrite secret --namespace {secretnamespace} {secretname} tried-again=\"$(date +%s)\"",
        ],
    }
    ACCOUNT_UNQUALIFIED = "VDO-1307" {
        title: "A vCenter user name lacks its domain",
        severity: Blocker,
        seen: "{address}: the user name is {user}",
        why: "Since 3.1 the storage driver exits with such a name. Older releases log in but find no usable datastore, because vCenter reports privileges only for user names with a domain.",
        remedy: ["kubectl edit secret --namespace {secretnamespace} {secretname}   set the user name to {user}@vsphere.local, or add the domain of the account"],
    }
    PASSWORD_EXPIRING = "VDO-1308" {
        title: "The password of a vCenter account expires soon",
        severity: Warning,
        seen: "{address}: the password of {user} {when}",
        why: "After that, no driver can log in.",
        remedy: [
            "Set a new password in vCenter and directly afterwards in the Secret {secret}; set the Secret's annotation vdo.vmware.com/password-expires to the new expiry date",
            "For service accounts, turn off password expiry: dir-cli user modify --account NAME --password-never-expires",
        ],
    }
    CLOCK_SKEW = "VDO-1309" {
        title: "A vCenter's clock differs from the cluster's",
        severity: Warning,
        seen: "{address}: its clock is {skew}",
        why: "Certificates appear expired or not yet valid, vCenter rejects tokens, and you cannot correlate events of the cluster and vCenter.",
        remedy: [
            "https://{console}:5480, Time: use the same NTP servers as the nodes",
            "On the nodes: chronyc sources   shows their time servers; or timedatectl",
        ],
    }
    VCENTER_TOO_OLD = "VDO-1310" {
        title: "A vCenter is too old for the storage driver",
        severity: Blocker,
        concerns: StorageDriver,
        seen: "{address} is version {version}; {driver} needs {needed}",
        why: "The driver's controller exits. Since 3.2 the message is misleading: vSAN file service is not supported in one or more vCenter(s).",
        remedy: [
            "Upgrade {address} to {needed} or newer",
            "Until then: {alternative}",
        ],
    }
    VCENTER_TOO_OLD_FOR_FEATURE = "VDO-1311" {
        title: "A requested feature needs a newer vCenter",
        severity: Warning,
        seen: "{address} is version {version}; the minimum for {feature} is {needed}",
        why: "Everything else works, but vCenter rejects requests for this feature.",
        remedy: ["Upgrade {address} to {needed} or newer; {otherwise}"],
    }
    SESSIONS_MANY = "VDO-1312" {
        title: "A vCenter is running out of sessions",
        severity: Warning,
        seen: "{address}: {count} of 2000 sessions are in use, most of them by {agents}",
        why: "When no session is left, vCenter answers every client with 503. A client that does not log out holds its session for half an hour.",
        remedy: [
            "govc session.ls   lists the sessions and their users",
            "govc session.rm ID   ends one",
            "Upgrade the client that leaks sessions; known ones are storage drivers before 3.0.2, old Cluster API releases and backup plugins",
        ],
    }
    SERVICE_DOWN = "VDO-1313" {
        title: "A vCenter service that the drivers need is unavailable",
        severity: Error,
        seen: "{address}: {unit}, the service for {purpose}, reports: {reason}",
        why: "Without this service, the drivers cannot create, attach or place volumes. They need vsan-health even without vSAN.",
        remedy: [
            "https://{console}:5480, Services: start {unit}",
            "Or on the vCenter's console: service-control --start {unit}",
        ],
    }
    DATASTORE_OF_TWO_VCENTERS = "VDO-1314" {
        title: "A datastore belongs to two of the configured vCenters",
        severity: Error,
        seen: "{url} is mounted in {first} and in {second}",
        why: "Each vCenter keeps its own list of the volumes on a datastore and cleans up unknown disks, so volumes may be lost. VMware does not support this setup, even if one of the two has no container volumes.",
        remedy: ["Unmount the datastore from the hosts of one of the vCenters, or keep volumes off it with a storage policy"],
    }
    DATACENTER_MISSING = "VDO-1315" {
        title: "A configured datacenter does not exist",
        severity: Error,
        seen: "{config} names the datacenter {datacenter}; {address} has {known}",
        why: "The drivers search for VMs only in the listed datacenters; they do not see VMs in other ones.",
        remedy: [
            "govc ls /   lists the datacenters that the account can see",
            "Correct spec.datacenters of {config}; if you omit it, the drivers search all datacenters",
        ],
    }
    PASSWORD_WAITS = "VDO-1316" {
        title: "VDO cannot pass the new password of a vCenter account to a driver",
        severity: Error,
        seen: "{driver}: vCenter accepted the new password for {vcenters}, but VDO cannot pass it to the driver: {reason}",
        why: "The driver still logs in with the old password. vCenter rejects it and locks the account after a few attempts, for VDO and every other client of the account.",
        remedy: [
            "If VDO is paused: remove spec.paused and the annotation vdo.vmware.com/paused from the VDOConfig; VDO then passes the password on within seconds",
            "If the Go VDO runs: delete its Deployment, see VDO-1908",
            "If VDO cannot read the Secret: kubectl edit secret --namespace {namespace} {secret}   and correct it",
            "If the driver has the update strategy OnDelete: delete its pods with the command in the message; Kubernetes re-creates them with the new password",
            "If running pods did not restart: fix the pod that the message names; the others then restart with the new password",
        ],
    }
}
