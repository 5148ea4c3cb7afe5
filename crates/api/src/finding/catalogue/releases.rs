//! The catalog and the choice of releases.

catalogue! {
    theme: Releases, concerns: NoDriver;
    CATALOG_UNREACHABLE = "VDO-1101" {
        title: "VDO cannot fetch the catalog",
        severity: Warning,
        seen: "{url}: {reason}",
        why: "VDO keeps using its current catalog and does not learn about newer releases.",
        remedy: ["Make {url} reachable from the VDO pod (proxy, firewall, certificate)", "If the registry requires credentials: name a Secret with them in spec.pullSecret of the CompatibilityConfig", "In an air-gapped cluster: put the catalog into a ConfigMap and name it in spec.bundle"],
    }
    CATALOG_UNREADABLE = "VDO-1102" {
        title: "VDO cannot read the catalog",
        severity: Warning,
        seen: "{source}: {reason}",
        why: "VDO keeps using its current catalog.",
        remedy: ["vdoctl catalog check FILE   shows the position of the error", "Correct the file, or point spec.matrixURL to a valid catalog"],
    }
    CATALOG_UNTRUSTED = "VDO-1103" {
        title: "The catalog's signature is not valid",
        severity: Error,
        seen: "{source}: {reason}",
        why: "Somebody may have changed the catalog in transit. VDO rejects it and keeps using its current one.",
        remedy: ["Fetch it again from its publisher", "If you signed it yourself, put your public key into spec.publicKey"],
    }
    CATALOG_ROLLED_BACK = "VDO-1104" {
        title: "The catalog is older than the one in use",
        severity: Warning,
        seen: "{source}: {reason}; the catalog in use has serial {current}",
        why: "An old catalog can still list a withdrawn release, so VDO never switches to an older catalog.",
        remedy: ["Publish the catalog again with a serial above {current}"],
    }
    CATALOG_EXPIRED = "VDO-1105" {
        title: "The catalog has expired",
        severity: Warning,
        seen: "The catalog from {source} expired on {expiry}",
        why: "Its content may be out of date: releases may have been withdrawn since.",
        remedy: ["Provide a newer catalog: see spec.matrixURL and spec.bundle of the CompatibilityConfig", "In an air-gapped cluster: upgrade VDO, which includes a newer catalog"],
    }
    CATALOG_TOO_NEW = "VDO-1106" {
        title: "The catalog requires a newer VDO",
        severity: Warning,
        seen: "{source} has schema {schema}; this VDO supports schemas up to {known}",
        why: "A partly understood catalog could lead to a wrong choice, so VDO keeps using its current one.",
        remedy: ["Upgrade VDO"],
    }
    CATALOG_TOO_LARGE = "VDO-1107" {
        title: "The catalog is too large",
        severity: Warning,
        seen: "{source} is larger than {limit}",
        why: "No valid catalog is that large: the file is something else, or an attack. VDO keeps using its current catalog.",
        remedy: ["Check where spec.matrixURL points to"],
    }
    NOTHING_FITS = "VDO-1110" {
        title: "No driver release fits this cluster",
        severity: Error,
        seen: "{driver}: {reason}",
        why: "Running drivers keep running, but VDO cannot choose a release automatically: nobody has tested this combination.",
        remedy: ["vdoctl plan --all   shows for each release why it does not fit", "Upgrade the component it names, or set version to install a release anyway"],
    }
    KUBERNETES_UNKNOWN = "VDO-1111" {
        title: "Kubernetes is newer than the catalog knows",
        severity: Warning,
        seen: "Kubernetes is {version}; the catalog covers versions up to {known}",
        why: "VDO keeps the last release that is known to work; it most likely works here, too.",
        remedy: ["Provide a newer catalog, or upgrade VDO"],
    }
    VSPHERE_UNKNOWN = "VDO-1112" {
        title: "vSphere is newer than the catalog knows",
        severity: Warning,
        seen: "{vcenter} is {version}; the catalog covers versions up to {known}",
        why: "VDO keeps the last release that is known to work; it most likely works here, too.",
        remedy: ["Provide a newer catalog, or upgrade VDO"],
    }
    RELEASE_KNOWN_BAD = "VDO-1113" {
        title: "This driver release has a known bug in this environment",
        severity: Blocker,
        seen: "{driver} {version}: {reason}",
        why: "Other clusters with this combination have hit the bug. VDO does not install such a release, and does not downgrade a running driver by itself.",
        remedy: ["{advice}", "vdoctl plan --all   shows the releases that fit this cluster"],
    }
    VERSION_UNKNOWN = "VDO-1114" {
        title: "The requested release is not in the catalog",
        severity: Blocker,
        seen: "{field} is {version}; the catalog lists {known}",
        why: "Without a catalog entry VDO knows neither the release's manifest nor its images.",
        remedy: ["Choose a listed release, or omit {field} and let VDO choose", "Provide a catalog that lists {version}"],
    }
    DOWNGRADE_REFUSED = "VDO-1115" {
        title: "The requested release is older than the running one",
        severity: Blocker,
        seen: "{driver} runs {running}; {field} requests {version}",
        why: "Older releases may not understand the state that the driver has stored. VDO never downgrades automatically.",
        remedy: ["Set {field} to {running} or newer"],
    }
    RELEASE_NOT_LISTED = "VDO-1116" {
        title: "The catalog does not list the running release",
        severity: Warning,
        seen: "{driver} {version} runs; the catalog in use (serial {serial}) does not list it",
        why: "VDO still repairs the driver and passes new passwords to it. It cannot tell whether the release has known bugs or fits a newer Kubernetes or vSphere.",
        remedy: ["Provide a catalog that lists it: see spec.matrixURL and spec.bundle of the CompatibilityConfig", "vdoctl plan   shows whether a listed release can replace it"],
    }
}
