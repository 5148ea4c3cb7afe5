//! A login that vCenter refused and accepts later, without a change of the configuration.

use std::time::Duration;

use csi::{
    configuration::VcenterSettings,
    metrics::Metrics,
    vcenters::{Intervals, SharedSettings, Supervisor, Vcenters},
};
use testkit::{Inventory, Permission, Vcenter, VcenterUser, eventually};
use tokio::time::{Instant, sleep};
use vsphere::{LoginPace, Trust};

use crate::common::CLUSTER;

/// The longest pause before the driver repeats a refused login here, and the shortest.
const REPEAT_AFTER: Duration = Duration::from_secs(6);
const SHORTEST: u64 = 5;

/// A vCenter that knows the password `first`, and a driver.
struct Stage {
    vcenter: Vcenter,
    user: VcenterUser,
    vcenters: Vcenters,
    supervisor: Supervisor,
    shared: SharedSettings,
}

impl Stage {
    async fn start(repeat_after: Duration) -> Self {
        let user = VcenterUser::new("csi@vsphere.local", "first");
        let mut inventory = Inventory::with_vms(1);
        inventory.users.push(user.clone());
        inventory.permissions.push(Permission::new(&user.name, "Admin", "/"));
        let vcenters = Vcenters::default();
        let shared = SharedSettings {
            cluster_id: CLUSTER.into(),
            distribution: "".into(),
            with_tags: true,
            user_agent: "vsphere-csi/test".into(),
            intervals: Intervals::default().divided_by(100),
            logins: LoginPace::new(repeat_after),
            metrics: Metrics::default(),
        };
        let supervisor = Supervisor::new(vcenters.clone());
        Self { vcenter: Vcenter::start(inventory).await, user, vcenters, supervisor, shared }
    }

    fn configure(&mut self, password: &str, datacenters: &[&str]) {
        let settings = VcenterSettings {
            name: self.vcenter.address().to_string().into(),
            user: self.user.name.clone(),
            password: password.into(),
            trust: Trust::CaBundle(self.vcenter.ca_pem()),
            datacenters: datacenters.iter().map(ToString::to_string).collect(),
        };
        self.supervisor.apply(&[settings], &self.shared);
    }

    async fn change_password(&self, password: &str) {
        let changed = VcenterUser { password: password.into(), ..self.user.clone() };
        self.vcenter.set_user(&changed).await;
    }

    async fn is_live(&self) {
        eventually("the driver uses the vCenter", 60, async || {
            let all = self.vcenters.all_live().map_err(|error| error.to_string())?;
            all.iter().try_for_each(|one| one.require_tags().map(drop)).map_err(|e| e.to_string())
        })
        .await;
    }

    async fn is_refused(&self) -> String {
        eventually("vCenter refuses the login", 60, async || {
            let problems = format!("{:?}", self.vcenters.problems());
            let refused = problems.contains("does not let csi@vsphere.local log in");
            if refused { Ok(problems) } else { Err(problems) }
        })
        .await
    }

    /// The logins since the last call.
    async fn logins(&self) -> u64 {
        let calls = self.vcenter.calls().await.total;
        self.vcenter.forget_calls().await;
        let is_login = |method: &str| method == "Login" || method.ends_with("session");
        calls.iter().filter(|(method, _)| is_login(method)).map(|(_, count)| count).sum()
    }

    /// Waits for a login since the last call of [`Stage::logins`].
    async fn tries(&self) {
        eventually("the driver logs in", 60, async || {
            let logins = self.vcenter.calls().await.count("Login");
            if logins > 0 { Ok(()) } else { Err("no login") }
        })
        .await;
    }

    /// Waits long enough for two repetitions, and checks that no more happen than the pace allows.
    async fn keeps_the_pace(&mut self, mut disturb: impl AsyncFnMut(&mut Self, u32)) {
        let began = Instant::now();
        for round in 0..15 {
            disturb(self, round).await;
            sleep(Duration::from_secs(1)).await;
        }
        let (logins, most) = (self.logins().await, began.elapsed().as_secs() / SHORTEST + 1);
        assert!((1..=most).contains(&logins), "{logins} logins, at most {most} are allowed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_refused_at_the_start_is_repeated_at_the_pace_whatever_settings_change() {
    let mut stage = Stage::start(REPEAT_AFTER).await;
    stage.change_password("second").await;
    stage.configure("first", &[]);
    stage.is_refused().await;
    assert_eq!(stage.logins().await, 1);
    // Other settings of the same account are another connection.
    stage
        .keeps_the_pace(async |stage, round| {
            stage.configure("first", if round % 2 == 0 { &["DC0"] } else { &[] });
        })
        .await;
    stage.change_password("first").await;
    stage.is_live().await;
}

/// Also with other settings, which lead to another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_somebody_sets_is_tried_at_once_also_one_that_was_refused_before() {
    let mut stage = Stage::start(vsphere::login_pace::REPEAT_AFTER).await;
    stage.change_password("second").await;
    let steps: [(&str, &[&str]); 4] =
        [("first", &[]), ("third", &[]), ("first", &[]), ("third", &["DC0"])];
    for (password, datacenters) in steps {
        stage.logins().await;
        stage.configure(password, datacenters);
        stage.tries().await;
    }
    stage.logins().await;
    stage.configure("third", &[]);
    let problem = stage.is_refused().await;
    assert!(problem.contains("the next attempt is within 30 minutes"), "{problem}");
    assert_eq!(stage.logins().await, 0, "the same password with other settings waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_session_comes_back_after_a_refused_login_and_lost_connections_add_no_attempt() {
    let mut stage = Stage::start(REPEAT_AFTER).await;
    stage.configure("first", &[]);
    stage.is_live().await;
    stage.change_password("second").await;
    stage.vcenter.expire_sessions(&stage.user.name).await;
    stage.is_refused().await;
    stage.logins().await;
    stage
        .keeps_the_pace(async |stage, round| {
            if round % 3 == 0 {
                stage.vcenter.restart(Duration::from_millis(300)).await;
            }
        })
        .await;
    stage.change_password("first").await;
    stage.is_live().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_password_is_repeated_until_vcenter_has_it_while_the_old_session_works() {
    let mut stage = Stage::start(REPEAT_AFTER).await;
    stage.configure("first", &[]);
    stage.is_live().await;
    stage.logins().await;
    stage.configure("second", &[]);
    stage.tries().await;
    stage.logins().await;
    stage.keeps_the_pace(async |stage, _| stage.is_live().await).await;
    stage.change_password("second").await;
    stage.logins().await;
    stage.tries().await;
    // The next session uses the new password.
    stage.vcenter.expire_sessions(&stage.user.name).await;
    stage.logins().await;
    stage.tries().await;
    sleep(Duration::from_secs(1)).await;
    stage.is_live().await;
}
