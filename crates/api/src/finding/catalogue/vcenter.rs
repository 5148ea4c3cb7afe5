//! vCenters: reachable, trusted, letting us in, fit for the drivers.

catalogue! {
    VCENTER_UNREACHABLE = "VDO-1301" {
        title: "A vCenter cannot be reached",
        severity: Error,
        seen: "{address}: {reason}",
        why: "Until it answers, the drivers cannot create, attach or detach volumes and cannot initialise nodes. Attached volumes stay attached; VDO changes nothing meanwhile.",
        remedy: [
            "kubectl get vspherecloudconfig --all-namespaces   {config} names {address}: is that right?",
            "From a control plane node: curl -vk https://{address}/sdk   tests name, route and firewall (TCP 443)",
        ],
    }
    CERTIFICATE_DISTRUSTED = "VDO-1302" {
        title: "A vCenter's certificate is not trusted",
        severity: Error,
        seen: "{address}: {reason}; its thumbprint is {thumbprint}",
        why: "Either the certificate is new, or somebody intercepts the connection. VDO does not log in before that is clear.",
        remedy: [
            "On the vCenter's console compare the thumbprint: openssl x509 -in /etc/vmware-vpx/ssl/rui.crt -noout -fingerprint -sha256",
            "If it is the same: set spec.thumbprint of {config} to it, or better spec.caBundle to the certificates from https://{address}/certs/download.zip",
        ],
    }
    CERTIFICATE_EXPIRING = "VDO-1303" {
        title: "A vCenter's certificate expires soon",
        severity: Warning,
        seen: "{address}: its certificate {when}",
        why: "From then on no driver can connect. A new certificate also has a new thumbprint, which the drivers must know.",
        remedy: [
            "vSphere Client, Administration, Certificates, Certificate Management: renew the machine SSL certificate",
            "Then set spec.thumbprint of {config} to the new one; with spec.caBundle there is nothing to do",
        ],
    }
    CERTIFICATE_OUTDATED = "VDO-1304" {
        title: "The storage driver does not accept a vCenter's certificate",
        severity: Error,
        seen: "{address}: storage driver {version} does not accept its certificate: {reason}",
        why: "Since 3.3 the storage driver accepts neither SHA-1 signatures nor RSA keys beyond 8192 bits: it cannot connect.",
        remedy: ["vSphere Client, Administration, Certificates, Certificate Management: replace the machine SSL certificate by one with SHA-256 and RSA 2048 to 8192"],
    }
    LOGIN_REFUSED = "VDO-1305" {
        title: "A vCenter refuses user name or password",
        severity: Error,
        seen: "{address} refuses {user}: {reason}",
        why: "Drivers that restart cannot log in. After a few attempts vCenter locks the account for everything that uses it.",
        remedy: [
            "GOVC_URL={address} GOVC_USERNAME={user} GOVC_PASSWORD=... govc about   with the password from the Secret {secret} shows whether it is correct",
            "kubectl edit secret --namespace {secretnamespace} {secretname}   VDO verifies a new password with vCenter before a driver gets it",
            "If the Secret is correct and you fixed vCenter: kubectl annotate --overwrite secret --namespace {secretnamespace} {secretname} tried-again=yes   VDO repeats a refused login only when its Secret changes",
        ],
    }
    ACCOUNT_LOCKED = "VDO-1306" {
        title: "A vCenter account is locked",
        severity: Error,
        seen: "{address}: {user} is locked: {reason}",
        why: "No login with it works, not even with the correct password.",
        remedy: [
            "vSphere Client, Administration, Users and Groups: unlock {user}, or wait until the lockout ends",
            "Find who logs in with an old password: the vCenter's events of the kind Failed login, user {user}, show the address",
        ],
    }
    ACCOUNT_UNQUALIFIED = "VDO-1307" {
        title: "A vCenter user name lacks its domain",
        severity: Blocker,
        seen: "{address}: the user name is {user}",
        why: "The storage driver since 3.1 exits with such a name; older ones log in but find no datastore, because vCenter reports privileges only for full names.",
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
        why: "Certificates look expired or not yet valid, vCenter refuses tokens, and the events of both sides have no common order.",
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
        title: "A requested feature needs a newer vCenter",
        severity: Warning,
        seen: "{address} is {version}; {feature} needs {needed}",
        why: "Everything else works; the driver refuses requests for this feature.",
        remedy: ["Upgrade {address} to {needed} or newer; {otherwise}"],
    }
    SESSIONS_MANY = "VDO-1312" {
        title: "A vCenter is running out of sessions",
        severity: Warning,
        seen: "{address}: {count} sessions of 2000, most of them by {agents}",
        why: "When they run out, vCenter answers every request with 503. Clients that do not log out hold a session for half an hour.",
        remedy: [
            "govc session.ls   shows their owners",
            "govc session.rm ID   ends one",
            "Upgrade the client that leaks sessions: storage drivers before 3.0.2, old Cluster API and backup plugins do",
        ],
    }
    SERVICE_DOWN = "VDO-1313" {
        title: "A service of vCenter that the drivers need does not answer",
        severity: Error,
        seen: "{address}: {unit} serves {purpose} and reports: {reason}",
        why: "Without it the driver cannot create, attach or place volumes. It needs vsan-health even without vSAN.",
        remedy: [
            "https://{address}:5480, Services: start {unit}",
            "Or on the vCenter's console: service-control --start {unit}   service-control --status {unit}",
        ],
    }
    DATASTORE_OF_TWO_VCENTERS = "VDO-1314" {
        title: "A datastore belongs to two of the configured vCenters",
        severity: Error,
        seen: "{url} is mounted in {first} and in {second}",
        why: "Each vCenter keeps its own list of the volumes on a datastore and cleans up volumes that it does not know: you can lose volumes. This is not supported, even if one of the two has no container volumes.",
        remedy: ["Unmount the datastore from the hosts of one of the vCenters, or keep volumes off it by a storage policy"],
    }
    DATACENTER_MISSING = "VDO-1315" {
        title: "A configured datacenter does not exist",
        severity: Error,
        seen: "{config} names the datacenter {datacenter}; {address} has {known}",
        why: "The drivers look for VMs in the named datacenters only; they do not find VMs elsewhere.",
        remedy: [
            "govc ls /   lists those that the account can see",
            "Correct spec.datacenters of {config}, or omit it to use all datacenters",
        ],
    }
    PASSWORD_WAITS = "VDO-1316" {
        title: "A driver does not get the new password of a vCenter account",
        severity: Error,
        seen: "{driver}: vCenter accepted the new password for {vcenters}, and the driver does not get it: {reason}",
        why: "The driver logs in with the old password. vCenter refuses it and locks the account after a few attempts, for VDO and for everything else that uses it.",
        remedy: [
            "If VDO is paused: remove spec.paused and the annotation vdo.vmware.com/paused from the VDOConfig; VDO then passes the password on within seconds",
            "If the Go VDO runs: delete its Deployment: see VDO-1908",
            "If VDO cannot read the Secret: kubectl edit secret --namespace {namespace} {secret}   corrects it",
        ],
    }
}
