//! The Secret the cloud controller reads.

use std::collections::BTreeMap;

use crate::secret::SecretText;

/// Renders the data of the CPI's Secret from address, user and password of each vCenter.
///
/// An address that fits into a Secret's key gets the format by address; any other (IPv6, a port)
/// gets the numbered one, which needs release 1.28 or newer. `server` must be letter for letter
/// what `vsphere.conf` names as server. The numbering follows the order given: pass the vCenters
/// sorted, so that equal input gives an equal Secret.
pub fn render<'a>(
    vcenters: impl IntoIterator<Item = (&'a str, &'a str, &'a SecretText)>,
) -> BTreeMap<String, SecretText> {
    let mut data = BTreeMap::new();
    for (index, (server, username, password)) in vcenters.into_iter().enumerate() {
        // The controller cuts one line break off the end of values in the format by address.
        let exact = !username.ends_with('\n') && !password.expose().ends_with('\n');
        if fits_key(server) && exact {
            data.insert(format!("{server}.username"), username.into());
            data.insert(format!("{server}.password"), password.clone());
        } else {
            data.insert(format!("server_{index}"), server.into());
            data.insert(format!("username_{index}"), username.into());
            data.insert(format!("password_{index}"), password.clone());
        }
    }
    data
}

/// Whether the controller finds a server again in a key made from it.
fn fits_key(server: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let misread =
        [".username", ".password", ".vc-session-manager-url", ".vc-session-manager-token"];
    !server.is_empty()
        && server.len() <= 240
        && !server.starts_with('.')
        && server.bytes().all(legal)
        && !misread.iter().any(|word| server.contains(word))
}
