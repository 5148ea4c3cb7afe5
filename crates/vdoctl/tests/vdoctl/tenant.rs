//! An admin works with vdoctl in a cluster in which a tenant tries every trick of `adversary`.

use api::{VDOConfig, condition};
use kube::Api;
use testkit::eventually;

use crate::{
    adversary::{self, Adversary},
    cluster::objects,
    stage::{NAMESPACE, Stage},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_changes_nothing_that_an_admin_does_with_vdoctl() {
    let stage = Stage::set().await;
    let adversary = Adversary::settle(&stage.plane).await;
    stage.works(&["deploy", "--no-wait"]);
    adversary.attack(&stage.plane).await;
    // vdoctl does not know whose VDOConfig that is.
    let output = stage.vdoctl(&["status"]);
    assert_eq!(output.code, 5, "{}", output.all());
    assert!(output.err.contains("if it is yours"), "{}", output.all());

    stage.workdir.write("vdo.yaml", objects(&stage, |_| {})).unwrap();
    stage.works(&["configure", "-f", "vdo.yaml", "--yes"]);
    let operator = stage.operator().await;
    let configs = Api::<VDOConfig>::namespaced(stage.plane.client(), NAMESPACE);
    eventually("VDO is ready", 180, async || {
        let config = configs.get("vdo").await.map_err(|error| error.to_string())?;
        adversary::assert_ignored(&config);
        let status = config.status.unwrap_or_default();
        let ready = condition::is_true(&status.conditions, "Ready");
        if ready { Ok(()) } else { Err(serde_json::to_string_pretty(&status).unwrap()) }
    })
    .await;
    for command in [&["status"][..], &["plan"], &["version"], &["deploy", "--dry-run"]] {
        let output = stage.vdoctl(command);
        let all = output.all();
        assert_eq!(output.code, 0, "{command:?}: {all}");
        assert!(!all.contains("mallory.example.com") && !all.contains("99.9.9"), "{all}");
    }
    // A second deployment gives the operator no permission in the tenant's namespace.
    stage.works(&["deploy", "--no-wait"]);
    assert!(!stage.can_adopt_in(adversary::TENANT).await);
    adversary.assert_held(&stage.plane.client()).await;
    drop(operator);
}
