//! `vdoctl prepare`

use clap::{Args, ValueEnum};

use crate::{failure::Outcome, screen::Screen, text::wrap};

/// Print the settings that new nodes need.
///
/// A node that is created with these settings needs no repair later. vdoctl changes nothing: save the output, adapt it
/// and use it with the tool that creates your nodes. Start with `template` and `guest`, which every distribution
/// needs.
#[derive(Args, Debug)]
pub(crate) struct Prepare {
    /// The tool or system to prepare. Without it, vdoctl lists all.
    #[arg(value_enum)]
    target: Option<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// The VM template, with govc.
    Template,
    /// The guest operating system, with cloud-init.
    Guest,
    /// Clusters that kubeadm creates.
    Kubeadm,
    /// RKE2.
    Rke2,
    /// k3s.
    K3s,
    /// Talos Linux.
    Talos,
    /// Cluster API with its provider for vSphere.
    ClusterApi,
}

impl Target {
    fn text(self) -> &'static str {
        match self {
            Self::Template => include_str!("prepare/template.sh"),
            Self::Guest => include_str!("prepare/guest.yaml"),
            Self::Kubeadm => include_str!("prepare/kubeadm.yaml"),
            Self::Rke2 => include_str!("prepare/rke2.yaml"),
            Self::K3s => include_str!("prepare/k3s.yaml"),
            Self::Talos => include_str!("prepare/talos.yaml"),
            Self::ClusterApi => include_str!("prepare/cluster-api.yaml"),
        }
    }
}

impl Prepare {
    pub(crate) fn run(&self, screen: &Screen) -> Outcome {
        if let Some(target) = self.target {
            return screen.print(target.text());
        }
        let mut text = String::new();
        for target in Target::value_variants() {
            let Some(value) = target.to_possible_value() else { continue };
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            text.push_str(&wrap(&format!("{:<13}", value.get_name()), &help, screen.width));
        }
        screen.print(&text)?;
        screen.note("\nTo print one of them: vdoctl prepare NAME");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn documents(target: Target) -> Vec<Value> {
        let all = target.text().split("\n---\n");
        all.map(|text| serde_saphyr::from_str(text).unwrap()).collect()
    }

    /// The paths of all values with this text.
    fn places(value: &Value, wanted: &str, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    places(value, wanted, &format!("{at}/{name}"), found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| places(item, wanted, at, found)),
            value if value.as_str() == Some(wanted) => found.push(at.to_owned()),
            _ => {}
        }
    }

    #[test]
    fn every_kubelet_waits_for_the_cloud_provider() {
        for (target, wanted, expected) in [
            (Target::Kubeadm, "external", vec!["/nodeRegistration/kubeletExtraArgs/value"; 2]),
            (Target::Rke2, "cloud-provider=external", vec!["/kubelet-arg"; 2]),
            (Target::K3s, "cloud-provider=external", vec!["/kubelet-arg"; 2]),
            (
                Target::ClusterApi,
                "external",
                vec![
                    "/spec/kubeadmConfigSpec/initConfiguration/nodeRegistration/kubeletExtraArgs/value",
                    "/spec/kubeadmConfigSpec/joinConfiguration/nodeRegistration/kubeletExtraArgs/value",
                    "/spec/template/spec/joinConfiguration/nodeRegistration/kubeletExtraArgs/value",
                ],
            ),
        ] {
            let mut found = Vec::new();
            for document in documents(target) {
                places(&document, wanted, "", &mut found);
            }
            assert_eq!(found, expected, "{target:?}");
        }
        let talos = documents(Target::Talos);
        assert_eq!(talos[0]["cluster"]["externalCloudProvider"]["enabled"], true);
    }

    #[test]
    fn the_built_in_cloud_controller_is_off_on_servers_only() {
        for target in [Target::Rke2, Target::K3s] {
            let [server, agent] = &documents(target)[..] else { unreachable!() };
            assert_eq!(server["disable-cloud-controller"], true);
            assert_eq!(agent["disable-cloud-controller"], Value::Null);
        }
    }

    /// The same values as the checks demand.
    #[test]
    fn vms_have_the_properties_that_the_checks_demand() {
        let template = Target::Template.text();
        assert!(template.contains("disk.enableUUID=TRUE") && template.contains("-version=15"));
        assert!(template.contains("pvscsi"));
        let vm_template = &documents(Target::ClusterApi)[2];
        assert_eq!(vm_template["spec"]["template"]["spec"]["hardwareVersion"], "vmx-15");
        let guest = &documents(Target::Guest)[0];
        assert_eq!(guest["packages"][0], "open-vm-tools");
        assert!(guest["write_files"][1]["content"].as_str().unwrap().contains("blacklist"));
    }
}
