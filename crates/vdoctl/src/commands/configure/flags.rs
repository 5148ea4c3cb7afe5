//! The flags for one vCenter.

use std::path::{Path, PathBuf};

use api::VsphereCloudConfig;
use clap::Args;

use super::draft::Access;
use crate::failure::{Failure, Outcome, request};

#[derive(Args, Debug, Default)]
pub(crate) struct VcenterFlags {
    /// The vCenter: host name or IP address, with :port if it is not 443.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) vcenter: Option<String>,
    /// The vCenter user, for example vdo@vsphere.local.
    #[arg(long, value_name = "NAME", requires = "vcenter")]
    user: Option<String>,
    /// A file that contains only the password, or - for standard input.
    #[arg(long, value_name = "FILE", requires = "vcenter")]
    password_file: Option<PathBuf>,
    /// The password. Other users of this computer can see it: prefer --password-file or the environment variable.
    #[arg(long, value_name = "TEXT", requires = "vcenter", conflicts_with = "password_file")]
    #[arg(allow_hyphen_values = true)]
    password: Option<String>,
    /// Trust the vCenter's certificate with this SHA-1 or SHA-256 thumbprint.
    #[arg(long, value_name = "HEX", requires = "vcenter")]
    thumbprint: Option<String>,
    /// Trust certificates from these certificate authorities (PEM).
    #[arg(long, value_name = "FILE", requires = "vcenter", conflicts_with = "thumbprint")]
    ca_file: Option<PathBuf>,
    /// Do not verify the certificate. An attacker on the network can then read the password.
    #[arg(long, requires = "vcenter", conflicts_with_all = ["thumbprint", "ca_file"])]
    insecure: bool,
    /// Use only these datacenters.
    #[arg(long, value_name = "NAME", requires = "vcenter", value_delimiter = ',')]
    datacenter: Vec<String>,
}

impl VcenterFlags {
    pub(crate) fn access(&self, known: &[VsphereCloudConfig]) -> Outcome<Option<Access>> {
        let Some(address) = &self.vcenter else { return Ok(None) };
        let Some(user) = &self.user else {
            return request("--user is missing", "add --user NAME@DOMAIN");
        };
        let mut access = Access::named(address, known, 0);
        access.password = self.password()?;
        access.user.clone_from(user);
        access.thumbprint.clone_from(&self.thumbprint);
        access.ca = self.ca_file.as_deref().map(read).transpose()?;
        access.insecure = self.insecure;
        access.datacenters.clone_from(&self.datacenter);
        Ok(Some(access))
    }

    fn password(&self) -> Outcome<driver_config::SecretText> {
        let text = match (&self.password, &self.password_file) {
            (Some(password), _) => password.clone(),
            (None, Some(file)) => {
                let text = read(file)?;
                // Editors and `echo` add a line break.
                let line = text.strip_suffix('\n').unwrap_or(&text);
                line.strip_suffix('\r').unwrap_or(line).to_owned()
            }
            (None, None) => {
                return request(
                    "the password is missing",
                    "add --password-file FILE, or set VDOCTL_CONFIGURE_PASSWORD (VDOCTL_DOCTOR_PASSWORD)",
                );
            }
        };
        Ok(text.into())
    }
}

fn read(path: &Path) -> Outcome<String> {
    let read = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|source| Failure::File { path: path.to_owned(), deed: "read", source })
}
