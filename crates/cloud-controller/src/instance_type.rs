//! The instance type: CPUs, memory and operating system of a VM in one label value.

use crate::model::VirtualMachine;

/// `vsphere-vm.cpu-4.mem-8gb.os-ubuntu`. Memory is in whole GiB, rounded down. An operating system
/// without a short name is `unknown`. Autoscalers compare these values, so they must never change.
pub fn for_vm(vm: &VirtualMachine) -> String {
    let (cpus, gib) = (vm.cpus, vm.memory_mib / 1024);
    format!("vsphere-vm.cpu-{cpus}.mem-{gib}gb.os-{}", operating_system(&vm.guest_id))
}

/// The short name of a guest operating system.
///
/// [`PLAIN`] lists ids whose short name is the id without `Guest` and `_64`.
fn operating_system(guest_id: &str) -> &str {
    let short_name = guest_id.strip_suffix("Guest").unwrap_or(guest_id);
    let short_name = short_name.strip_suffix("_64").unwrap_or(short_name);
    if let Some(plain) = PLAIN.iter().find(|plain| **plain == short_name) {
        // A few exist for 64 bit only.
        return if NOT_IN_GO_TABLE.contains(&guest_id) { UNKNOWN } else { plain };
    }
    match short_name {
        "coreos64" => "coreos",
        "darwin" | "darwin64" | "darwin10" | "darwin11" => "darwin",
        "darwin12" | "darwin13" | "darwin14" | "darwin15" | "darwin16"
            if guest_id.ends_with("_64Guest") =>
        {
            "darwin"
        }
        "fedora64" => "fedora",
        "freebsd64" => "freebsd",
        "genericLinux" | "otherLinux" | "otherLinux64" | "other24xLinux" | "other24xLinux64"
        | "other26xLinux" | "other26xLinux64" | "other3xLinux" | "other3xLinux64" => "linux",
        "other" | "otherGuest64" => "other",
        "mandriva64" => "mandriva",
        "opensuse64" => "opensuse",
        "oracleLinux64" => "oracleLinux",
        "redhat" => "rhel",
        "suse64" => "suse",
        "turboLinux" | "turboLinux64" => "turbolinux",
        "ubuntu64" => "ubuntu",
        "unixWare7" => "unixware7",
        "vmwarePhoton64" => "photon",
        "windows7" => "win7",
        "windows7Server64" => "win7server",
        "windows8" => "win8",
        "windows8Server64" => "win8server",
        "windows9" => "win10",
        "windows9Server64" => "win10server",
        _ => windows(short_name),
    }
}

/// Older Windows: the id in lower case, without the word size.
fn windows(short_name: &str) -> &str {
    match short_name {
        "win2000AdvServ" => "win2000advserv",
        "win2000Pro" => "win2000pro",
        "win2000Serv" => "win2000serv",
        "windowsHyperV" => "windowshyperv",
        "winLonghorn" | "winLonghorn64" => "winlonghorn",
        "winMe" => "winme",
        "winNetBusiness" => "winnetbusiness",
        "winNetDatacenter" | "winNetDatacenter64" => "winnetdatacenter",
        "winNetEnterprise" | "winNetEnterprise64" => "winnetenterprise",
        "winNetStandard" | "winNetStandard64" => "winnetstandard",
        "winNetWeb" => "winnetweb",
        "winNT" => "winnt",
        "winVista" | "winVista64" => "winvista",
        "winXPHome" => "winxphome",
        "winXPPro" | "winXPPro64" => "winxppro",
        _ => UNKNOWN,
    }
}

const UNKNOWN: &str = "unknown";

const PLAIN: &[&str] = &[
    "asianux3",
    "asianux4",
    "asianux5",
    "asianux7",
    "centos",
    "centos64",
    "centos6",
    "centos7",
    "debian4",
    "debian5",
    "debian6",
    "debian7",
    "debian8",
    "debian9",
    "debian10",
    "dos",
    "eComStation",
    "eComStation2",
    "fedora",
    "freebsd",
    "mandrake",
    "mandriva",
    "netware4",
    "netware5",
    "netware6",
    "nld9",
    "oes",
    "openServer5",
    "openServer6",
    "opensuse",
    "oracleLinux",
    "oracleLinux6",
    "oracleLinux7",
    "os2",
    "rhel2",
    "rhel3",
    "rhel4",
    "rhel5",
    "rhel6",
    "rhel7",
    "rhel8",
    "rhel9",
    "rhel10",
    "sjds",
    "sles",
    "sles64",
    "sles10",
    "sles11",
    "sles12",
    "solaris6",
    "solaris7",
    "solaris8",
    "solaris9",
    "solaris10",
    "solaris11",
    "suse",
    "ubuntu",
    "vmkernel",
    "vmkernel5",
    "vmkernel6",
    "vmkernel65",
    "win31",
    "win95",
    "win98",
];

/// Ids that match [`PLAIN`] but have no short name in the Go controller.
const NOT_IN_GO_TABLE: &[&str] = &["asianux5Guest", "asianux7Guest", "solaris11Guest"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vm;

    #[test]
    fn the_instance_type_consists_of_cpus_memory_and_system() {
        let mut vm = vm("node-1");
        (vm.cpus, vm.memory_mib) = (4, 8191);
        vm.guest_id = "ubuntu64Guest".into();
        assert_eq!(for_vm(&vm), "vsphere-vm.cpu-4.mem-7gb.os-ubuntu");
    }

    #[test]
    fn short_names_are_those_of_the_go_controller() {
        for (id, short_name) in [
            ("vmwarePhoton64Guest", "photon"),
            ("rhel7_64Guest", "rhel7"),
            ("rhel9_64Guest", "rhel9"),
            ("centos64Guest", "centos64"),
            ("centos7_64Guest", "centos7"),
            ("otherGuest64", "other"),
            ("otherGuest", "other"),
            ("other3xLinux64Guest", "linux"),
            ("sles64Guest", "sles64"),
            ("windows9Server64Guest", "win10server"),
            ("windows9_64Guest", "win10"),
            ("winNetEnterprise64Guest", "winnetenterprise"),
            ("darwin16_64Guest", "darwin"),
            ("oracleLinux64Guest", "oracleLinux"),
            ("vmkernel65Guest", "vmkernel65"),
            // Without a short name in the Go controller.
            ("other5xLinux64Guest", "unknown"),
            ("debian11_64Guest", "unknown"),
            ("sles15_64Guest", "unknown"),
            ("rockylinux_64Guest", "unknown"),
            ("windows2019srv_64Guest", "unknown"),
            ("solaris11Guest", "unknown"),
            ("", "unknown"),
        ] {
            assert_eq!(operating_system(id), short_name, "{id}");
        }
    }
}
