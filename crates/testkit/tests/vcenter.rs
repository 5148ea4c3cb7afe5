//! The control API of the simulator, from the view of a client. The client is a few lines of raw SOAP, independent of our
//! vSphere client.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::Duration;

use reqwest::{Client, Response};
use serde_json::json;
use testkit::{Fault, Inventory, Permission, Role, Vcenter, VcenterUser, Vm, eventually};
use tokio::time::Instant;

struct Soap {
    http: Client,
    url: String,
    cookie: String,
}

impl Soap {
    fn to(vcenter: &Vcenter) -> Self {
        let authority = reqwest::Certificate::from_pem(vcenter.ca_pem().as_bytes()).unwrap();
        let http = Client::builder().tls_certs_only([authority]).build().unwrap();
        Self { http, url: format!("https://{}/sdk", vcenter.address()), cookie: String::new() }
    }

    async fn send(&self, body: &str) -> reqwest::Result<Response> {
        let envelope = format!(
            r#"<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Body>{body}</soapenv:Body></soapenv:Envelope>"#
        );
        let request = self.http.post(&self.url).header("content-type", "text/xml; charset=utf-8");
        let request = request.header("cookie", &self.cookie);
        request.header("SOAPAction", "urn:vim25/8.0.3.0").body(envelope).send().await
    }

    async fn call(&self, body: &str) -> String {
        self.send(body).await.unwrap().text().await.unwrap()
    }

    async fn login(&mut self, user: &str, password: &str) -> String {
        let body = format!(
            r#"<Login xmlns="urn:vim25"><_this type="SessionManager">SessionManager</_this><userName>{user}</userName><password>{password}</password></Login>"#
        );
        let response = self.send(&body).await.unwrap();
        if let Some(cookie) = response.headers().get("set-cookie") {
            cookie.to_str().unwrap().split(';').next().unwrap().clone_into(&mut self.cookie);
        }
        response.text().await.unwrap()
    }

    async fn time(&self) -> String {
        self.call(CURRENT_TIME).await
    }

    async fn power_off(&self, vm: &str) -> String {
        self.call(&format!(
            r#"<PowerOffVM_Task xmlns="urn:vim25"><_this type="VirtualMachine">{vm}</_this></PowerOffVM_Task>"#
        ))
        .await
    }

    async fn read_name(&self, vm: &str) -> String {
        self.call(&format!(
            r#"<RetrievePropertiesEx xmlns="urn:vim25"><_this type="PropertyCollector">propertyCollector</_this><specSet><propSet><type>VirtualMachine</type><pathSet>name</pathSet></propSet><objectSet><obj type="VirtualMachine">{vm}</obj></objectSet></specSet><options/></RetrievePropertiesEx>"#
        ))
        .await
    }
}

const CURRENT_TIME: &str = r#"<CurrentTime xmlns="urn:vim25"><_this type="ServiceInstance">ServiceInstance</_this></CurrentTime>"#;

async fn logged_in(vcenter: &Vcenter) -> Soap {
    let mut soap = Soap::to(vcenter);
    let answer = soap.login(vcenter.user(), vcenter.password()).await;
    assert!(answer.contains("<userName>"), "{answer}");
    soap
}

async fn reference_of(vcenter: &Vcenter, name: &str) -> String {
    let truth = vcenter.truth().await;
    let vms = truth["datacenters"][0]["vms"].as_array().unwrap().clone();
    let vm = vms.iter().find(|vm| vm["name"] == name).unwrap();
    vm["moref"].as_str().unwrap().rsplit(':').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_privilege_that_is_removed_makes_the_call_fail_with_no_permission() {
    let operator = VcenterUser::new("operator@vsphere.local", "secret");
    let role = Role::new(
        "power",
        &["System.Anonymous", "System.View", "System.Read", "VirtualMachine.Interact.PowerOff"],
    );
    let vcenter = Vcenter::start(Inventory::with_vms(2).user(operator, &role, &["/"])).await;
    let mut soap = Soap::to(&vcenter);
    soap.login("operator@vsphere.local", "secret").await;
    let (first, second) =
        (reference_of(&vcenter, "node-1").await, reference_of(&vcenter, "node-2").await);
    let allowed = soap.power_off(&first).await;
    assert!(allowed.contains("PowerOffVM_TaskResponse"), "{allowed}");

    let less = Role::new("power", &["System.Anonymous", "System.View", "System.Read"]);
    vcenter.set_role(&less).await;

    let refused = soap.power_off(&second).await;
    assert!(refused.contains("NoPermission"), "{refused}");
    assert!(refused.contains("VirtualMachine.Interact.PowerOff"), "{refused}");
}

#[tokio::test]
async fn objects_without_read_permission_are_invisible_but_not_gone() {
    let reader = VcenterUser::new("reader@vsphere.local", "secret");
    let role = Role::new("reader", &["System.Anonymous", "System.View", "System.Read"]);
    let vcenter = Vcenter::start(Inventory::with_vms(1).user(reader, &role, &["/"])).await;
    let mut soap = Soap::to(&vcenter);
    soap.login("reader@vsphere.local", "secret").await;
    let vm = reference_of(&vcenter, "node-1").await;
    assert!(soap.read_name(&vm).await.contains("node-1"));

    let nothing = Permission::new("reader@vsphere.local", "NoAccess", "/DC0/vm/node-1");
    vcenter.permit(&nothing).await;
    let hidden = soap.read_name(&vm).await;
    assert!(hidden.contains("NoPermission") && !hidden.contains("node-1<"), "{hidden}");

    vcenter.forbid("/DC0/vm/node-1", "reader@vsphere.local").await;
    assert!(soap.read_name(&vm).await.contains("node-1"));
    vcenter.destroy_vm("/DC0/vm/node-1").await;
    let gone = soap.read_name(&vm).await;
    assert!(gone.contains("ManagedObjectNotFound"), "{gone}");
}

#[tokio::test]
async fn a_fault_by_method_occurs_as_often_as_configured() {
    let vcenter = Vcenter::start(Inventory::small()).await;
    let soap = logged_in(&vcenter).await;
    vcenter.fault(Fault::on("CurrentTime").fails("ResourceInUse").after(1).times(2)).await;
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(soap.time().await.contains("ResourceInUse"));
    }
    assert_eq!(answers, [false, true, true, false]);
}

#[tokio::test]
async fn a_fault_by_probability_is_the_same_for_the_same_seed() {
    let vcenter = Vcenter::start(Inventory::small()).await;
    let soap = logged_in(&vcenter).await;
    let mut rounds = Vec::new();
    for _ in 0..2 {
        vcenter
            .fault(Fault::on("CurrentTime").fails("ResourceInUse").with_probability(0.5, 7))
            .await;
        let mut answers = Vec::new();
        for _ in 0..40 {
            answers.push(soap.time().await.contains("ResourceInUse"));
        }
        vcenter.clear_faults().await;
        rounds.push(answers);
    }
    assert_eq!(rounds[0], rounds[1]);
    let hits = rounds[0].iter().filter(|hit| **hit).count();
    assert!((5..=35).contains(&hits), "{hits} of 40");
}

#[tokio::test]
async fn delays_hangs_drops_cuts_and_statuses_reach_the_client() {
    let vcenter = Vcenter::start(Inventory::small()).await;
    let soap = logged_in(&vcenter).await;

    vcenter.fault(Fault::on("CurrentTime").delayed(Duration::from_millis(300)).times(1)).await;
    let began = Instant::now();
    assert!(soap.time().await.contains("CurrentTimeResponse"));
    assert!(began.elapsed() >= Duration::from_millis(300));

    vcenter.fault(Fault::on("CurrentTime").hangs().times(1)).await;
    vcenter.forget_calls().await;
    tokio::select! {
        answer = soap.send(CURRENT_TIME) => panic!("the call must hang: {answer:?}"),
        () = eventually("the call has arrived", 60, async || {
            match vcenter.calls().await.count("CurrentTime") {
                0 => Err("not yet"),
                _ => Ok(()),
            }
        }) => {}
    }
    assert!(
        soap.time().await.contains("CurrentTimeResponse"),
        "a hanging call must not block others"
    );

    vcenter.fault(Fault::on("CurrentTime").dropped().times(1)).await;
    assert!(soap.send(CURRENT_TIME).await.is_err());

    vcenter.fault(Fault::on("CurrentTime").status(503).times(1)).await;
    assert_eq!(soap.send(CURRENT_TIME).await.unwrap().status(), 503);

    vcenter.fault(Fault::on("CurrentTime").truncated().times(1)).await;
    let cut = soap.send(CURRENT_TIME).await.unwrap().text().await;
    assert!(cut.is_err(), "{cut:?}");
    assert!(soap.time().await.contains("CurrentTimeResponse"));
}

#[tokio::test]
async fn sessions_expire_logins_fail_and_accounts_lock_on_demand() {
    let careful =
        VcenterUser { lock_after: 3, ..VcenterUser::new("careful@vsphere.local", "right") };
    let role = Role::new("none", &["System.View"]);
    let vcenter = Vcenter::start(Inventory::small().user(careful.clone(), &role, &["/"])).await;
    let soap = logged_in(&vcenter).await;
    vcenter.expire_sessions(vcenter.user()).await;
    let expired = soap.time().await;
    // On a real vCenter CurrentTime needs no session, but the session list does.
    let list = soap.read_name("vm-0").await;
    assert!(list.contains("NotAuthenticated"), "{expired} {list}");

    vcenter.fault(Fault::on("Login").fails("InvalidLogin").times(1)).await;
    let mut again = Soap::to(&vcenter);
    let answer = again.login(vcenter.user(), vcenter.password()).await;
    assert!(answer.contains("InvalidLogin"), "{answer}");

    for _ in 0..3 {
        assert!(again.login(&careful.name, "wrong").await.contains("InvalidLogin"));
    }
    let locked = again.login(&careful.name, "right").await;
    assert!(locked.contains("InvalidLogin"), "the account is locked: {locked}");
    vcenter.set_user(&careful).await;
    assert!(again.login(&careful.name, "right").await.contains("<userName>"), "unlocked");
}

#[tokio::test]
async fn tasks_fail_or_never_end_on_demand() {
    let vcenter = Vcenter::start(Inventory::with_vms(1)).await;
    let soap = logged_in(&vcenter).await;
    let vm = reference_of(&vcenter, "node-1").await;
    let state_of = async |answer: &str| {
        let task = answer.split("Task\">").nth(1).unwrap().split('<').next().unwrap().to_owned();
        soap.call(&format!(
            r#"<RetrievePropertiesEx xmlns="urn:vim25"><_this type="PropertyCollector">propertyCollector</_this><specSet><propSet><type>Task</type><pathSet>info</pathSet></propSet><objectSet><obj type="Task">{task}</obj></objectSet></specSet><options/></RetrievePropertiesEx>"#
        ))
        .await
    };
    vcenter.fault(Fault::on("PowerOffVM_Task").task_fails("InvalidState").times(1)).await;
    let failing = soap.power_off(&vm).await;
    eventually("the task fails", 10, async || {
        let info = state_of(&failing).await;
        if info.contains("<state>error</state>") && info.contains("InvalidState") {
            Ok(())
        } else {
            Err(info)
        }
    })
    .await;

    vcenter.fault(Fault::on("PowerOffVM_Task").task_never_ends().times(1)).await;
    let endless = soap.power_off(&vm).await;
    let info = state_of(&endless).await;
    assert!(
        info.contains("<state>running</state>") || info.contains("<state>queued</state>"),
        "{info}"
    );

    let slow = Fault::on("PowerOffVM_Task").task_takes(Duration::from_millis(400)).times(1);
    vcenter.fault(slow).await;
    let began = Instant::now();
    let slow = soap.power_off(&vm).await;
    eventually("the slow task ends well", 10, async || {
        let info = state_of(&slow).await;
        if info.contains("<state>success</state>") { Ok(()) } else { Err(info) }
    })
    .await;
    assert!(began.elapsed() >= Duration::from_millis(400));
}

#[tokio::test]
async fn calls_are_counted_by_method_and_session() {
    let vcenter = Vcenter::start(Inventory::small()).await;
    let soap = logged_in(&vcenter).await;
    vcenter.forget_calls().await;
    soap.time().await;
    soap.time().await;
    let calls = vcenter.calls().await;
    assert_eq!(calls.count("CurrentTime"), 2);
    assert_eq!(calls.sum(), 2);
    let session = calls.sessions.values().next().unwrap();
    assert!(session.user.eq_ignore_ascii_case(vcenter.user()), "{calls:?}");
}

#[tokio::test]
async fn a_restart_ends_every_session_and_returns_503_meanwhile() {
    let vcenter = Vcenter::start(Inventory::small()).await;
    let soap = logged_in(&vcenter).await;
    vcenter.restart(Duration::from_hours(1)).await;
    let down = soap.send(CURRENT_TIME).await;
    assert!(down.as_ref().map_or(true, |answer| answer.status() == 503), "{down:?}");
    vcenter.restart(Duration::ZERO).await;
    eventually("the simulator is back without our session", 20, async || {
        let answer = soap.send(CURRENT_TIME).await.map_err(|e| e.to_string())?;
        if answer.status() == 503 { Err("503".to_owned()) } else { Ok(()) }
    })
    .await;
    assert!(soap.read_name("vm-0").await.contains("NotAuthenticated"));
}

#[tokio::test]
async fn several_vcenters_run_with_their_own_certificates() {
    let first = Vcenter::start(Inventory::small().version("7.0.3")).await;
    let second = Vcenter::start(Inventory::small().version("9.0.0")).await;
    assert_ne!(first.thumbprint_sha256(), second.thumbprint_sha256());
    let content = r#"<RetrieveServiceContent xmlns="urn:vim25"><_this type="ServiceInstance">ServiceInstance</_this></RetrieveServiceContent>"#;
    assert!(Soap::to(&first).call(content).await.contains("<version>7.0.3</version>"));
    assert!(Soap::to(&second).call(content).await.contains("<version>9.0.0</version>"));
    let mut misled = Soap::to(&first);
    misled.url = format!("https://{}/sdk", second.address());
    assert!(misled.send(content).await.is_err(), "each has its own CA");
}

#[tokio::test]
async fn five_thousand_vms_load_and_a_vm_added_later_appears() {
    let vcenter = Vcenter::start(Inventory::with_vms(5_000)).await;
    vcenter.add_vms("DC0", [Vm::named("late")]).await;
    vcenter.patch_vm("/DC0/vm/late", json!({"power": "off"})).await;
    let truth = vcenter.truth().await;
    let vms = truth["datacenters"][0]["vms"].as_array().unwrap();
    assert_eq!(vms.len(), 5_001);
    assert_eq!(vms.iter().find(|vm| vm["name"] == "late").unwrap()["power"], "off");
}
