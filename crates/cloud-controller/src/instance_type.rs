//! The instance type: processors, memory and operating system of a machine in one word.

use crate::model::VirtualMachine;

/// `vsphere-vm.cpu-4.mem-8gb.os-ubuntu`. Memory is in whole GiB, rounded down; an operating system
/// that has no short name is `unknown`. Autoscalers compare these words: they never change.
pub fn of(vm: &VirtualMachine) -> String {
    let (cpus, gib) = (vm.cpus, vm.memory_mib / 1024);
    format!("vsphere-vm.cpu-{cpus}.mem-{gib}gb.os-{}", operating_system(&vm.guest_id))
}

/// The short name of a guest operating system.
///
/// Guests whose short name is their vSphere id without `Guest` and `_64` stand in [`PLAIN`]; the
/// others are spelt out.
fn operating_system(guest_id: &str) -> &str {
    let short = guest_id.strip_suffix("Guest").unwrap_or(guest_id);
    let short = short.strip_suffix("_64").unwrap_or(short);
    if let Some(plain) = PLAIN.iter().find(|plain| **plain == short) {
        // A few exist for one word size only.
        return if NOT_THERE.contains(&guest_id) { UNKNOWN } else { plain };
    }
    match short {
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
        _ => windows(short),
    }
}

/// Older Windows: the id in small letters, without the word size.
fn windows(short: &str) -> &str {
    match short {
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

/// Ids that are their own short name.
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

/// Ids the rule above would name although the table of the Go controller does not.
const NOT_THERE: &[&str] = &["asianux5Guest", "asianux7Guest", "solaris11Guest"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vm;

    #[test]
    fn the_word_is_made_of_processors_memory_and_system() {
        let mut vm = vm("node-1");
        (vm.cpus, vm.memory_mib) = (4, 8191);
        vm.guest_id = "ubuntu64Guest".into();
        assert_eq!(of(&vm), "vsphere-vm.cpu-4.mem-7gb.os-ubuntu");
    }

    #[test]
    fn each_system_has_the_short_name_it_always_had() {
        for (id, short) in [
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
            // Never had one, and keep none.
            ("other5xLinux64Guest", "unknown"),
            ("debian11_64Guest", "unknown"),
            ("sles15_64Guest", "unknown"),
            ("rockylinux_64Guest", "unknown"),
            ("windows2019srv_64Guest", "unknown"),
            ("solaris11Guest", "unknown"),
            ("", "unknown"),
        ] {
            assert_eq!(operating_system(id), short, "{id}");
        }
    }
}
