//! A login that vCenter refused and accepts later, without a change of the credentials.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::Duration;

use cloud_controller::{
    addresses::{AddressRules, Family},
    catalogue::Scope,
    configuration::{CaBundle, Configuration, CredentialSource, TrustSource, Vcenter as Settings},
    metrics::Metrics,
    pooled_vcenter::{SharedSettings, Signal},
    vcenter_pool::{PoolSupervisor, VcenterPool},
    zones::Categories,
};
use testkit::{Inventory, Permission, Vcenter, VcenterUser, Workdir, eventually};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use vsphere::{Limits, LoginPace};

/// The longest pause before the controller repeats a refused login here, and the shortest.
const REPEAT_AFTER: Duration = Duration::from_secs(6);
const SHORTEST: u64 = 5;

/// A vCenter that knows the password `first`, and the vCenter pool of a controller, with the credentials in files.
struct Stage {
    vcenter: Vcenter,
    user: VcenterUser,
    pool: VcenterPool,
    supervisor: PoolSupervisor,
    shared: SharedSettings,
    workdir: Workdir,
    _signals: mpsc::UnboundedReceiver<Signal>,
}

impl Stage {
    async fn start() -> Self {
        let user = VcenterUser::new("ccm@vsphere.local", "first");
        let mut inventory = Inventory::with_vms(1).category("k8s-zone", &[("a", &["/DC0"])]);
        inventory.users.push(user.clone());
        inventory.permissions.push(Permission::new(&user.name, "Admin", "/"));
        let no_cluster = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let (signals, receiver) = mpsc::unbounded_channel();
        let shared = SharedSettings {
            categories: Categories::default(),
            tag_period: Duration::from_secs(1),
            scope: Scope::default(),
            refresh_labels: false,
            host_labels: false,
            limits: Limits { longest_pause: Duration::from_secs(1), ..Limits::default() },
            logins: LoginPace::new(REPEAT_AFTER),
            user_agent: "test".into(),
            metrics: Metrics::default(),
            signals,
            kubernetes: kube::Client::try_from(no_cluster).unwrap(),
        };
        let pool = VcenterPool::default();
        let stage = Self {
            vcenter: Vcenter::start(inventory).await,
            user,
            supervisor: PoolSupervisor::new(pool.clone()),
            pool,
            shared,
            workdir: Workdir::new("refused-logins").unwrap(),
            _signals: receiver,
        };
        stage.workdir.write("127.0.0.1.username", &stage.user.name).unwrap();
        stage.set_file("first");
        stage
    }

    fn set_file(&self, password: &str) {
        self.workdir.write("127.0.0.1.password", password).unwrap();
    }

    fn configure(&mut self, datacenters: &[&str]) {
        let ca = CaBundle::Pem(self.vcenter.ca_pem().into());
        let settings = Settings {
            name: self.vcenter.address().to_string().into(),
            server: "127.0.0.1".into(),
            trust: TrustSource::CaFile("ca.pem".into(), ca),
            datacenters: datacenters.iter().map(ToString::to_string).collect(),
            families: vec![Family::V4],
            credentials: CredentialSource::Directory(self.workdir.path().to_owned()),
        };
        let configuration = Configuration {
            vcenters: vec![settings],
            categories: Categories::default(),
            rules: AddressRules::default(),
        };
        self.supervisor.apply(configuration, &self.shared);
    }

    async fn change_password(&self, password: &str) {
        let changed = VcenterUser { password: password.into(), ..self.user.clone() };
        self.vcenter.set_user(&changed).await;
    }

    async fn is_live(&self) {
        eventually("the controller uses the vCenter", 60, async || {
            let problems = self.pool.problems();
            if problems.is_empty() { Ok(()) } else { Err(format!("{problems:?}")) }
        })
        .await;
    }

    async fn is_refused(&self) -> String {
        eventually("vCenter refuses the login", 60, async || {
            let problems = format!("{:?}", self.pool.problems());
            let refused = problems.contains("does not let ccm@vsphere.local log in");
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
        eventually("the controller logs in", 60, async || {
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
    let mut stage = Stage::start().await;
    stage.change_password("second").await;
    stage.configure(&[]);
    stage.is_refused().await;
    assert_eq!(stage.logins().await, 1);
    // Other settings of the same account are another connection.
    stage
        .keeps_the_pace(async |stage, round| {
            stage.configure(if round % 2 == 0 { &["DC0"] } else { &[] });
        })
        .await;
    let problem = stage.is_refused().await;
    assert!(problem.contains("the next attempt is within 30 minutes"), "{problem}");
    stage.change_password("first").await;
    stage.is_live().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_session_comes_back_after_a_refused_login_and_lost_connections_add_no_attempt() {
    let mut stage = Stage::start().await;
    stage.configure(&[]);
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
    let mut stage = Stage::start().await;
    stage.configure(&[]);
    stage.is_live().await;
    stage.logins().await;
    stage.set_file("second");
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
