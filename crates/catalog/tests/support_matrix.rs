//! `docs/support.md`: which clusters VDO supports, from the catalog and from the programs that the tests run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{collections::BTreeSet, fmt::Write as _, fs};

use catalog::{
    Driver, Environment, Implementation, Policy, Request, Rewrite, Vcenter, choose, embedded,
    version::KubernetesVersion,
};

const VCENTERS: [(&str, &str); 5] =
    [("6.7 U3", "6.7U3"), ("7.0 U3", "7.0U3"), ("8.0", "8.0U3"), ("9.0", "9.0"), ("9.1", "9.1")];

/// The test that shows VDO on a distribution, what it runs, and its file.
const DISTRIBUTIONS: [(&str, &str, &str, &str); 9] = [
    (
        "vanilla",
        "real nodes: kubelet, containerd and pods of VDO and its drivers",
        "crates/vdoctl/tests/install_on_real_nodes/main.rs",
        "vdo_is_installed_from_a_registry_and_its_pods_initialise_real_nodes",
    ),
    (
        "openshift",
        "a real API server with OpenShift's API groups, and a policy that reproduces its SecurityContextConstraints",
        "crates/operator/tests/security_context_constraints.rs",
        "openshift_admits_the_pods_of_the_operator_and_of_every_driver_release",
    ),
    ("rke2", REPORTED, PLATFORMS, DEPENDS),
    ("k3s", REPORTED, PLATFORMS, DEPENDS),
    ("k0s", REPORTED, PLATFORMS, DEPENDS),
    ("microk8s", LABELED, PLATFORMS, DEPENDS),
    ("talos", LABELED, PLATFORMS, DEPENDS),
    ("eks-anywhere", REPORTED, PLATFORMS, DEPENDS),
    ("tkg", REPORTED, PLATFORMS, DEPENDS),
];
const REPORTED: &str = "a real API server that reports the distribution's version; simulated nodes";
const LABELED: &str = "a real API server; simulated nodes with the distribution's marks";
const PLATFORMS: &str = "crates/operator/tests/platforms.rs";
const DEPENDS: &str = "manifests_depend_on_the_platform_and_its_nodes";

fn read(path: &str) -> String {
    fs::read_to_string(testkit::repository().join(path)).unwrap()
}

/// The version of Kubernetes that a Go module pins.
fn pinned(module: &str) -> KubernetesVersion {
    let text = read(&format!("peers/{module}go.mod"));
    let line = text.lines().find(|line| line.contains("k8s.io/kubernetes v")).unwrap();
    line.split("k8s.io/kubernetes v").nth(1).unwrap().trim().parse().unwrap()
}

/// Which drivers VDO installs with its default policy.
fn drivers(
    kubernetes: KubernetesVersion,
    vcenter: &str,
    implementation: Implementation,
) -> &'static str {
    let environment = Environment {
        kubernetes,
        vcenters: vec![Vcenter {
            name: "vc".into(),
            version: vcenter.parse().unwrap(),
            oldest_host: Some(vcenter.parse().unwrap()),
        }],
        distribution: "vanilla".into(),
        windows_nodes: false,
        topology: false,
        rewrite: Rewrite::default(),
        today: None,
    };
    let fits = |driver| {
        let request = Request { implementation, policy: Policy::Stable, installed: None };
        choose(embedded(), &environment, driver, &request).action.version().is_some()
    };
    match (fits(Driver::Cpi), fits(Driver::Csi)) {
        (true, true) => "both",
        (true, false) => "cloud provider",
        (false, true) => "storage",
        (false, false) => "none",
    }
}

fn matrix(implementation: Implementation) -> String {
    let mut text = String::from("| Kubernetes |");
    for (name, _) in VCENTERS {
        write!(text, " vCenter {name} |").unwrap();
    }
    text.push_str("\n|---|---|---|---|---|---|\n");
    let newest = embedded().newest_kubernetes(Driver::Csi, Implementation::Upstream).unwrap();
    for minor in 26..=newest.minor {
        let kubernetes = KubernetesVersion::minor(1, minor);
        write!(text, "| {} |", kubernetes.as_minor()).unwrap();
        for (_, vcenter) in VCENTERS {
            write!(text, " {} |", drivers(kubernetes, vcenter, implementation)).unwrap();
        }
        text.push('\n');
    }
    text
}

fn kubernetes() -> String {
    let mut text = String::from("| Kubernetes | What the tests run |\n|---|---|\n");
    let (present, nodes, earlier) = (pinned(""), pinned("kubelet/"), pinned("kubernetes-1.33/"));
    assert_eq!(present, nodes, "one version of Kubernetes");
    writeln!(
        text,
        "| {present} | control plane and real nodes: every test of operator, drivers and `vdoctl` |"
    )
    .unwrap();
    writeln!(
        text,
        "| {earlier} | control plane: an upgrade of Kubernetes to {present} under a running VDO |"
    )
    .unwrap();
    text
}

fn distributions() -> String {
    let platforms = read("docs/platforms.md");
    let (_, table) = platforms.split_once("| Distribution |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let detected: BTreeSet<&str> =
        rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2)).collect();
    let known: BTreeSet<&str> = DISTRIBUTIONS.iter().map(|(name, ..)| *name).collect();
    assert_eq!(detected, known, "a distribution without a test, or a test without one");
    let mut text = String::from("| Distribution | What the tests run | Test |\n|---|---|---|\n");
    for (name, what, file, test) in DISTRIBUTIONS {
        assert!(read(file).contains(&format!("fn {test}(")), "{file} has no test {test}");
        writeln!(text, "| `{name}` | {what} | [`{test}`](../{file}) |").unwrap();
    }
    text
}

#[test]
fn the_support_matrix_is_current() {
    let page = testkit::repository().join("docs/support.md");
    let text = fs::read_to_string(&page).unwrap();
    let parts = [
        ("upstream", matrix(Implementation::Upstream)),
        ("rust", matrix(Implementation::Rust)),
        ("kubernetes", kubernetes()),
        ("distributions", distributions()),
    ];
    let mut new = text.clone();
    for (name, part) in parts {
        let (begin, end) = (format!("<!-- {name} -->\n\n"), format!("\n<!-- /{name} -->"));
        let start = new.find(&begin).unwrap() + begin.len();
        let stop = start + new[start..].find(&end).unwrap();
        new.replace_range(start..stop, &part);
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&page, new).unwrap();
        return;
    }
    assert!(
        text == new,
        "regenerate it: UPDATE_DOCS=1 cargo test -p catalog --test support_matrix"
    );
}
