//! Verifies the vCenters of a draft: connects, logs in and reads the inventory.

use ::catalog::manifest::Object;
use api::VsphereCloudConfig;
use jiff::Timestamp;
use kube::ResourceExt as _;
use operator::proof::{self, VerifiedVcenter};
use vsphere::CertificateRefused;

use super::{dialogue, draft::Draft};
use crate::{
    BUILD,
    cluster::Cluster,
    failure::{Failure, Outcome, refuse},
    progress::ProgressStep,
    screen::Screen,
    text::{CARE, Table, count, fold, paint},
};

/// Verifies all vCenters. Shows an untrusted certificate and asks whether to trust it.
pub(super) async fn prove(draft: &mut Draft, cluster: &Cluster, screen: &Screen) -> Outcome {
    for (number, mut vcenter) in draft.vcenters()? {
        loop {
            match attempt(&vcenter, &draft.objects, Some(cluster), screen).await {
                Ok(_) => break,
                Err(Attempt::Untrusted(refused)) => {
                    let thumbprint = trust(&vcenter, &refused, screen)?;
                    draft.objects[number].0["spec"]["thumbprint"] = thumbprint.as_str().into();
                    vcenter.spec.thumbprint = Some(thumbprint.as_str().into());
                }
                Err(Attempt::Failed(failure)) => return Err(failure),
            }
        }
    }
    Ok(())
}

pub(crate) enum Attempt {
    /// The certificate is not trusted; a thumbprint would fix that.
    Untrusted(CertificateRefused),
    Failed(Failure),
}

/// Verifies one vCenter and shows a summary of its inventory.
pub(crate) async fn attempt(
    vcenter: &VsphereCloudConfig,
    objects: &[Object],
    cluster: Option<&Cluster>,
    screen: &Screen,
) -> Result<VerifiedVcenter, Attempt> {
    let address = vcenter.spec.vc_ip.0.clone();
    let client = cluster.map(|cluster| &cluster.client);
    let inputs = proof::connection_inputs(client, objects, vcenter).await.map_err(|text| {
        let text = format!("vCenter {address} cannot be verified: {text}");
        Attempt::Failed(Failure::Refused { text, help: String::new() })
    })?;
    let step = ProgressStep::begin(screen, format!("Log in to {address}"));
    match proof::prove(&inputs, BUILD).await {
        Ok(proof) => {
            step.done(&seen(&proof));
            Ok(proof)
        }
        Err(proof::Error::Vcenter { source }) => {
            step.failed("");
            Err(match &*source {
                vsphere::Error::Certificate { refused, .. } if !vcenter.spec.insecure => {
                    Attempt::Untrusted(refused.clone())
                }
                error => {
                    Attempt::Failed(Failure::Vcenter { address, source: Box::new(error.clone()) })
                }
            })
        }
        Err(other) => {
            step.failed("");
            let text = format!("vCenter {address} cannot be used");
            Err(Attempt::Failed(Failure::Other { text, source: other.into() }))
        }
    }
}

fn seen(proof: &VerifiedVcenter) -> String {
    let shared = proof.datastores.iter().filter(|store| store.shared).count();
    format!(
        "{} {}, {}, {}, {}",
        proof.about.name,
        proof.about.version,
        count(proof.datacenters.len(), "datacenter"),
        count(proof.clusters, "cluster"),
        count(shared, "shared datastore"),
    )
}

/// Shows a certificate and asks whether to trust it. `--yes` does not answer this question, because the user must
/// have seen the certificate.
pub(crate) fn trust(
    vcenter: &VsphereCloudConfig,
    refused: &CertificateRefused,
    screen: &Screen,
) -> Outcome<String> {
    let address = &vcenter.spec.vc_ip.0;
    let mut table = Table::plain();
    let shown = &refused.shown;
    table.row(["issued to", &shown.subject]);
    table.row(["issued by", &shown.issuer]);
    table.row(["for", &shown.names.join(", ")]);
    let until = Timestamp::from_second(shown.until).map(|until| until.strftime("%F").to_string());
    table.row(["valid until", until.as_deref().unwrap_or("unknown")]);
    table.row(["SHA-256", &refused.seen.to_string()]);
    if !screen.interactive {
        let name = vcenter.name_any();
        return refuse(
            format!("the certificate of vCenter {address} is not trusted: {refused}"),
            format!(
                "if {} is its thumbprint, set --thumbprint, or spec.thumbprint of VsphereCloudConfig {name}; \
                 for your own certificate authority, set --ca-file or spec.caBundle",
                refused.seen
            ),
        );
    }
    // Also with --quiet: the user cannot trust a certificate without seeing it.
    let shown = format!(
        "\n{} {address} has a certificate that this computer does not trust:\n\n{}",
        paint(CARE, "!"),
        table.render(screen.side_width)
    );
    let warning = "  Compare the thumbprint with the one in vCenter: an attacker on the network could present another certificate.";
    screen.complain(&fold(&format!("{shown}\n{warning}\n\n"), screen.side_width));
    dialogue::confirm_certificate()?;
    Ok(refused.seen.to_string())
}
