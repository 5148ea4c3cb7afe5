//! The uuid of this node's VM: the node id, the same as upstream's.

use std::path::{Path, PathBuf};

use snafu::{ResultExt as _, Snafu};

const SERIAL_PREFIX: &str = "VMware-";

#[derive(Debug, Snafu)]
pub enum VmUuidError {
    #[snafu(display("cannot read the serial number of this VM from {}: mount the host's /sys into the pod", path.display()))]
    Read { path: PathBuf, source: std::io::Error },
    #[snafu(display(
        "the serial number of this computer, `{serial}`, does not have the form `VMware-42 1a …`: this node is not a vSphere VM"
    ))]
    NotVmware { serial: String },
}

/// Reads the uuid from the DMI data of the VM below `sys`.
pub fn vm_uuid(sys: &Path) -> Result<String, VmUuidError> {
    let folder = sys.join("class/dmi/id");
    let path = folder.join("product_serial");
    match std::fs::read_to_string(&path) {
        Ok(serial) => from_serial(&serial).or_else(|error| from_product_uuid(&folder).ok_or(error)),
        Err(error) => match from_product_uuid(&folder) {
            Some(uuid) => Ok(uuid),
            None => Err(error).context(ReadSnafu { path }),
        },
    }
}

/// `VMware-56 4d 39 5e d8 07 e1 8a-cb 25 b7 9f 65 eb 2b 9f` has the bytes in vCenter's order.
fn from_serial(serial: &str) -> Result<String, VmUuidError> {
    let digits = serial.trim().strip_prefix(SERIAL_PREFIX).map(|rest| rest.replace([' ', '-'], ""));
    match digits.filter(|digits| is_uuid(digits)) {
        Some(digits) => Ok(hyphenated(&digits)),
        None => NotVmwareSnafu { serial: serial.trim() }.fail(),
    }
}

/// For VMs whose serial number was changed. The kernel shows the first three fields in the other byte order, unless
/// the firmware is old. vCenter's uuids start with 42 or 50, and those of ESXi with 564d; no other is taken.
fn from_product_uuid(folder: &Path) -> Option<String> {
    let text = std::fs::read_to_string(folder.join("product_uuid")).ok()?;
    let digits = text.trim().replace('-', "").to_lowercase();
    is_uuid(&digits).then_some(())?;
    let swapped: String = [6, 4, 2, 0, 10, 8, 14, 12]
        .into_iter()
        .map(|start| &digits[start..start + 2])
        .chain([&digits[16..]])
        .collect();
    let of_vsphere =
        |digits: &String| ["42", "50", "564d"].iter().any(|start| digits.starts_with(start));
    let candidates: Vec<String> = [swapped, digits].into_iter().filter(of_vsphere).collect();
    match candidates.as_slice() {
        [one] => Some(hyphenated(one)),
        _ => None,
    }
}

fn is_uuid(digits: &str) -> bool {
    digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hyphenated(digits: &str) -> String {
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_id_is_the_one_of_upstream() {
        let serial = "VMware-56 4d 39 5e d8 07 e1 8a-cb 25 b7 9f 65 eb 2b 9f\n";
        assert_eq!(from_serial(serial).unwrap(), "564d395e-d807-e18a-cb25-b79f65eb2b9f");
    }

    #[test]
    fn another_computer_is_not_a_vsphere_vm() {
        for serial in ["", "0", "VMware-42", "QEMU-56 4d 39 5e d8 07 e1 8a-cb 25 b7 9f 65 eb 2b 9f"]
        {
            let error = from_serial(serial).unwrap_err().to_string();
            assert!(error.contains("not a vSphere VM"), "{error}");
        }
    }

    #[test]
    fn the_product_uuid_is_used_if_the_byte_order_is_certain() {
        let folder = std::env::temp_dir().join(format!("dmi-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (text, uuid) in [
            ("6B8C2042-0DD1-D037-156F-435F999D94C1", Some("42208c6b-d10d-37d0-156f-435f999d94c1")),
            ("42208C6B-D10D-37D0-156F-435F999D94C1", Some("42208c6b-d10d-37d0-156f-435f999d94c1")),
            ("42208C42-D10D-37D0-156F-435F999D94C1", None),
            ("12345678-D10D-37D0-156F-435F999D94C1", None),
            ("not a uuid", None),
        ] {
            std::fs::write(folder.join("product_uuid"), text).unwrap();
            assert_eq!(from_product_uuid(&folder).as_deref(), uuid, "{text}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
