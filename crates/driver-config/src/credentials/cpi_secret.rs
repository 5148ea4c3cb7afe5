//! The Secret of the cloud controller.

use std::collections::BTreeMap;

use crate::secret::SecretText;

/// Renders the data of the CPI's Secret from address, user and password of each vCenter.
///
/// An address that is a valid Secret key gets the format by address. Any other address (IPv6, a port) gets the
/// numbered format, which needs release 1.28 or newer. `server` must equal the server in `vsphere.conf` exactly.
/// The numbers follow the given order: pass the vCenters sorted, so that equal input gives an equal Secret.
pub fn render<'a>(
    vcenters: impl IntoIterator<Item = (&'a str, &'a str, &'a SecretText)>,
) -> BTreeMap<String, SecretText> {
    let mut data = BTreeMap::new();
    for (index, (server, username, password)) in vcenters.into_iter().enumerate() {
        // In the format by address, the controller removes one line break at the end of a value.
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

/// True if the controller recognises the server in a key made from it.
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
