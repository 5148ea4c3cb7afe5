//! What whoever makes or reads catalogs does with them: the commands of `vdoctl catalog`.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use crate::{
    Action, Catalog, Driver, EMBEDDED, Environment, Implementation, Policy, Release, Request,
    Rewrite, Vcenter, choose,
    choose::is_covered,
    diff::diff,
    manifest::{Profile, from_manifest, images_to_mirror, render},
    model::{KubernetesRange, Manifest, VsphereRange},
    read,
    trust::{Bundle, CatalogStore, PublicKey, SigningKey, Trust},
    version::{KubernetesMinor, KubernetesVersion, VsphereBound, VsphereVersion},
    write,
};
use clap::{Subcommand, ValueEnum};
use jiff::Timestamp;
use semver::Version;
use snafu::{OptionExt as _, ResultExt as _, Whatever, ensure_whatever, whatever};

/// One of the drivers.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum DriverName {
    /// The cloud provider.
    Cpi,
    /// The storage driver.
    Csi,
}

impl From<DriverName> for Driver {
    fn from(name: DriverName) -> Self {
        match name {
            DriverName::Cpi => Self::Cpi,
            DriverName::Csi => Self::Csi,
        }
    }
}

/// Whose driver.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Maker {
    /// The Go driver of the Kubernetes project.
    #[default]
    Upstream,
    /// The driver of this project.
    Rust,
}

impl From<Maker> for Implementation {
    fn from(maker: Maker) -> Self {
        match maker {
            Maker::Upstream => Self::Upstream,
            Maker::Rust => Self::Rust,
        }
    }
}

/// What to do with catalogs, where `embedded` stands for the one in this program, and `-` for standard
/// input.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the releases, newest first.
    List {
        /// The catalog.
        #[arg(default_value = "embedded")]
        catalog: String,
        /// Only this driver's.
        #[arg(long)]
        driver: Option<DriverName>,
    },
    /// Shows all a catalog says about one release.
    Show {
        /// Which driver.
        driver: DriverName,
        /// Its version.
        version: Version,
        /// The catalog.
        #[arg(long, default_value = "embedded")]
        catalog: String,
    },
    /// Reads a catalog or a bundle and says what is in it, or what is wrong with it.
    #[command(alias = "check")]
    Verify {
        /// The file.
        file: String,
        /// Public keys a bundle must be signed with one of.
        #[arg(long = "key")]
        keys: Vec<PublicKey>,
    },
    /// Writes a catalog with nothing left to fold out, ready to be signed.
    Build {
        /// The file.
        file: String,
        /// Its new serial.
        #[arg(long)]
        serial: Option<u64>,
        /// When it should be followed by a newer one.
        #[arg(long)]
        expires: Option<Timestamp>,
    },
    /// Makes a key pair: the private key into a file, the public key to standard output.
    Keygen {
        /// The file, which must not exist yet.
        file: PathBuf,
    },
    /// Signs a catalog.
    Sign {
        /// The catalog.
        file: String,
        /// Files with private keys.
        #[arg(long = "key", required = true)]
        keys: Vec<PathBuf>,
    },
    /// Tells what a newer catalog says that an older does not.
    Diff {
        /// The older.
        old: String,
        /// The newer.
        new: String,
    },
    /// Adds a release made from a published manifest to a catalog.
    FromManifest {
        /// The catalog to add to.
        #[arg(long, default_value = "embedded")]
        catalog: String,
        /// Which driver.
        #[arg(long)]
        driver: DriverName,
        /// Its version.
        #[arg(long)]
        version: Version,
        /// The oldest Kubernetes it supports.
        #[arg(long)]
        kubernetes_min: KubernetesMinor,
        /// The newest Kubernetes it supports.
        #[arg(long)]
        kubernetes_max: KubernetesMinor,
        /// The oldest vSphere it supports.
        #[arg(long)]
        vsphere_min: VsphereBound,
        /// The files of the manifest.
        #[arg(required = true)]
        files: Vec<String>,
    },
    /// Lists images, one per line: what to mirror.
    Images {
        /// The catalog.
        #[arg(default_value = "embedded")]
        catalog: String,
        /// Only this driver's.
        #[arg(long)]
        driver: Option<DriverName>,
        /// Only those by this maker.
        #[arg(long)]
        implementation: Option<Maker>,
        /// Only this version's.
        #[arg(long)]
        version: Option<Version>,
    },
    /// Says which release fits a cluster, and why the others do not.
    Explain {
        /// The catalog.
        #[arg(default_value = "embedded")]
        catalog: String,
        /// Which driver.
        #[arg(long)]
        driver: DriverName,
        /// Whose driver.
        #[arg(long, default_value = "upstream")]
        implementation: Maker,
        /// The cluster's version.
        #[arg(long)]
        kubernetes: KubernetesVersion,
        /// The vCenters' versions.
        #[arg(long, required = true)]
        vsphere: Vec<VsphereVersion>,
        /// What runs now.
        #[arg(long)]
        installed: Option<Version>,
    },
    /// Writes a release's objects for a plain cluster.
    Render {
        /// The catalog.
        #[arg(default_value = "embedded")]
        catalog: String,
        /// Which driver.
        #[arg(long)]
        driver: DriverName,
        /// Whose driver.
        #[arg(long, default_value = "upstream")]
        implementation: Maker,
        /// Its version.
        #[arg(long)]
        version: Version,
        /// The cluster's version.
        #[arg(long)]
        kubernetes: KubernetesVersion,
        /// A mirror for every image.
        #[arg(long)]
        mirror: Option<String>,
        /// Volumes follow zones: for a storage driver whose configuration names topology categories.
        #[arg(long)]
        zones: bool,
        /// How many control-plane nodes the cluster has: controllers run on as many, up to three.
        #[arg(long, value_name = "COUNT", default_value_t = 3)]
        control_plane_nodes: u32,
    },
}

impl Command {
    /// Whether its answer is for people, and may be broken into lines as a screen needs it.
    pub fn is_prose(&self) -> bool {
        match self {
            Self::List { .. }
            | Self::Show { .. }
            | Self::Verify { .. }
            | Self::Diff { .. }
            | Self::Explain { .. } => true,
            Self::Build { .. }
            | Self::Keygen { .. }
            | Self::Sign { .. }
            | Self::FromManifest { .. }
            | Self::Images { .. }
            | Self::Render { .. } => false,
        }
    }

    /// The catalogs it reads.
    pub fn catalogs(&self) -> Vec<&str> {
        match self {
            Self::List { catalog, .. }
            | Self::Show { catalog, .. }
            | Self::FromManifest { catalog, .. }
            | Self::Images { catalog, .. }
            | Self::Explain { catalog, .. }
            | Self::Render { catalog, .. } => vec![catalog],
            Self::Verify { file, .. } | Self::Build { file, .. } | Self::Sign { file, .. } => {
                vec![file]
            }
            Self::Diff { old, new } => vec![old, new],
            Self::Keygen { .. } => Vec::new(),
        }
    }

    /// Whether it makes a catalog for others to use.
    pub fn publishes(&self) -> bool {
        matches!(self, Self::Build { .. } | Self::Sign { .. })
    }
}

/// One line of an answer.
macro_rules! say {
    ($answer:expr, $($text:tt)+) => {{
        let _ = writeln!($answer, $($text)+);
    }};
}

/// Carries a command out and returns its answer.
pub fn run(command: Command) -> Result<String, Whatever> {
    let mut answer = String::new();
    match command {
        Command::List { catalog, driver } => Ok(list(&open(&catalog)?, driver.map(Driver::from))),
        Command::Show { driver, version, catalog } => {
            let catalog = open(&catalog)?;
            let release = catalog
                .find(driver.into(), Implementation::Upstream, &version)
                .with_whatever_context(|| format!("{version} is not in the catalog"))?;
            serde_saphyr::to_string(release).whatever_context("it cannot be written")
        }
        Command::Verify { file, keys } => check(&file, &bytes(&file)?, &keys),
        Command::Build { file, serial, expires } => {
            let mut catalog = open(&file)?;
            catalog.serial = serial.unwrap_or(catalog.serial);
            catalog.expires = expires.or(catalog.expires);
            Ok(write(&catalog))
        }
        Command::Keygen { file } => keygen(&file),
        Command::Sign { file, keys } => sign(&file, &keys),
        Command::Diff { old, new } => {
            for line in diff(&open(&old)?, &open(&new)?) {
                say!(answer, "{line}");
            }
            Ok(answer)
        }
        Command::FromManifest {
            catalog,
            driver,
            version,
            kubernetes_min,
            kubernetes_max,
            vsphere_min,
            files,
        } => {
            let kubernetes =
                KubernetesRange { min: kubernetes_min, max: kubernetes_max, tolerates: None };
            add_published(&catalog, driver.into(), version, kubernetes, vsphere_min, &files)
        }
        Command::Images { catalog, driver, implementation, version } => {
            let wanted = |release: &&Release| {
                driver.is_none_or(|driver| Driver::from(driver) == release.driver)
                    && implementation
                        .is_none_or(|maker| Implementation::from(maker) == release.implementation)
                    && version.as_ref().is_none_or(|version| *version == release.version)
            };
            let catalog = open(&catalog)?;
            let releases: Vec<&Release> = catalog.releases.iter().filter(wanted).collect();
            // An empty list would be mirrored without a word.
            ensure_whatever!(!releases.is_empty(), "the catalog has no such release");
            let images: BTreeSet<_> = releases.into_iter().flat_map(images_to_mirror).collect();
            for image in images {
                say!(answer, "{image}");
            }
            Ok(answer)
        }
        Command::Explain { catalog, driver, implementation, kubernetes, vsphere, installed } => {
            let request = Request {
                implementation: implementation.into(),
                policy: Policy::Latest,
                installed,
            };
            Ok(explain(&open(&catalog)?, driver.into(), kubernetes, &vsphere, &request))
        }
        Command::Render {
            catalog,
            driver,
            implementation,
            version,
            kubernetes,
            mirror,
            zones,
            control_plane_nodes,
        } => {
            let catalog = open(&catalog)?;
            let release = catalog
                .find(driver.into(), implementation.into(), &version)
                .with_whatever_context(|| format!("{version} is not in the catalog"))?;
            let mut profile = Profile::new(kubernetes);
            profile.images.rewrite = mirror.as_deref().map(Rewrite::mirror).unwrap_or_default();
            profile.topology = zones;
            profile.placement.nodes = control_plane_nodes;
            let rendered = render(release, &profile).whatever_context("it cannot be rendered")?;
            for object in &rendered.objects {
                let yaml =
                    serde_saphyr::to_string(&object.0).whatever_context("it cannot be written")?;
                say!(answer, "---\n{}", yaml.trim_end());
            }
            Ok(answer)
        }
    }
}

fn list(catalog: &Catalog, driver: Option<Driver>) -> String {
    let wanted = |release: &&Release| driver.is_none_or(|driver| driver == release.driver);
    let mut releases: Vec<&Release> = catalog.releases.iter().filter(wanted).collect();
    releases.sort_by(|a, b| (a.driver, &b.version).cmp(&(b.driver, &a.version)));
    let mut answer = String::new();
    say!(
        answer,
        "{:<6}  {:<8}  {:<14}  {:<14}  STATE",
        "DRIVER",
        "VERSION",
        "KUBERNETES",
        "VSPHERE"
    );
    for release in releases {
        let state = [format!("{:?}", release.channel), format!("{:?}", release.support)];
        let vsphere = format!("from {}", release.vsphere.min);
        say!(
            answer,
            "{:<6}  {:<8}  {:<14}  {:<14}  {}",
            release.driver.to_string(),
            release.version.to_string(),
            release.kubernetes.to_string(),
            vsphere,
            state.join(", ").to_lowercase()
        );
    }
    answer
}

/// The bytes of a file, where `embedded` and `-` stand for what they stand for everywhere here.
pub fn bytes(file: &str) -> Result<Vec<u8>, Whatever> {
    match file {
        "embedded" => Ok(EMBEDDED.as_bytes().to_vec()),
        "-" => {
            let mut all = Vec::new();
            let read = io::stdin().read_to_end(&mut all);
            read.map(|_| all).whatever_context("standard input cannot be read")
        }
        path => fs::read(path).with_whatever_context(|_| format!("{path} cannot be read")),
    }
}

fn open(file: &str) -> Result<Catalog, Whatever> {
    unsigned(file, &bytes(file)?)
}

fn unsigned(file: &str, bytes: &[u8]) -> Result<Catalog, Whatever> {
    if Bundle::is_one(bytes) {
        whatever!("{file} is a signed bundle; `verify --key KEY` judges it");
    }
    read(bytes).with_whatever_context(|_| format!("{file} cannot be used"))
}

/// Says what is in a catalog or a bundle. With keys it is judged as the operator would judge it, coming
/// from a network.
pub fn check(file: &str, bytes: &[u8], keys: &[PublicKey]) -> Result<String, Whatever> {
    let catalog = if keys.is_empty() {
        unsigned(file, bytes)?
    } else {
        let mut store = CatalogStore::embedded();
        let trust = Trust { keys, unsigned: false };
        store
            .offer(bytes, trust, Timestamp::now())
            .with_whatever_context(|_| format!("{file} would be refused"))?;
        Catalog::clone(&store.catalog())
    };
    let mut answer = String::new();
    say!(answer, "serial {}, issued {}", catalog.serial, catalog.issued);
    if let Some(expires) = catalog.expires {
        say!(answer, "expires {expires}");
    }
    for (driver, maker, by) in [
        (Driver::Cpi, Implementation::Upstream, ""),
        (Driver::Cpi, Implementation::Rust, " by this project"),
        (Driver::Csi, Implementation::Upstream, ""),
        (Driver::Csi, Implementation::Rust, " by this project"),
    ] {
        let mut versions = catalog.of(driver, maker).map(|release| &release.version);
        let count = versions.clone().count();
        match (versions.next(), versions.next_back()) {
            (Some(only), None) => say!(answer, "{driver}: 1 release{by}, {only}"),
            (Some(first), Some(last)) => {
                say!(answer, "{driver}: {count} releases{by}, {first} to {last}");
            }
            _ => {}
        }
    }
    let uncovered =
        catalog.releases.iter().filter(|release| is_covered(&catalog, release).is_err());
    let uncovered: Vec<_> = uncovered.map(|r| format!("{} {}", r.driver, r.version)).collect();
    if !uncovered.is_empty() {
        say!(answer, "not installed, images without a digest: {}", uncovered.join(", "));
    }
    Ok(answer)
}

fn keygen(file: &PathBuf) -> Result<String, Whatever> {
    let (key, pem) = SigningKey::generate().whatever_context("no key could be made")?;
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let mut out =
        opened.with_whatever_context(|_| format!("{} cannot be created", file.display()))?;
    out.write_all(pem.as_bytes()).whatever_context("the key cannot be written")?;
    Ok(format!("{}{}\n", key.public().to_pem(), key.public()))
}

fn sign(file: &str, keys: &[PathBuf]) -> Result<String, Whatever> {
    let text = bytes(file)?;
    let catalog = read(&text).whatever_context("it would be refused, so it is not signed")?;
    if !catalog.is_matrix() && catalog.expires.is_none() {
        whatever!(
            "{file} does not say when it expires and would be refused, so it is not signed; set \
             `expires` in it, or write it with `build --expires`"
        );
    }
    let mut signing = Vec::new();
    for path in keys {
        let pem = fs::read_to_string(path)
            .with_whatever_context(|_| format!("{} cannot be read", path.display()))?;
        signing.push(
            SigningKey::from_pem(&pem)
                .with_whatever_context(|_| format!("{} cannot be used", path.display()))?,
        );
    }
    Ok(format!("{}\n", Bundle::sign(&text, &signing).to_json()))
}

fn add_published(
    catalog: &str,
    driver: Driver,
    version: Version,
    kubernetes: KubernetesRange,
    min: VsphereBound,
    files: &[String],
) -> Result<String, Whatever> {
    let mut catalog = open(catalog)?;
    if catalog.find(driver, Implementation::Upstream, &version).is_some() {
        whatever!("{driver} {version} is in the catalog already");
    }
    let mut texts = Vec::new();
    for file in files {
        texts.push(
            String::from_utf8(bytes(file)?)
                .with_whatever_context(|_| format!("{file} is not text"))?,
        );
    }
    let named = Release {
        kubernetes,
        vsphere: VsphereRange { min, max: None, tested: None, hosts: None, because: String::new() },
        ..Release::published(driver, version, Manifest::default())
    };
    let release =
        from_manifest::fetched(&named, &texts).whatever_context("the manifest cannot be used")?;
    catalog.releases.push(release);
    catalog.serial += 1;
    let written = write(&catalog);
    read(written.as_bytes()).whatever_context("the catalog would be refused")?;
    Ok(written)
}

fn explain(
    catalog: &Catalog,
    driver: Driver,
    kubernetes: KubernetesVersion,
    vsphere: &[VsphereVersion],
    request: &Request,
) -> String {
    let mut answer = String::new();
    let vcenter = |(n, version): (usize, &VsphereVersion)| Vcenter {
        name: format!("vCenter {}", n + 1),
        version: *version,
        oldest_host: None,
    };
    let seen = Environment {
        kubernetes,
        vcenters: vsphere.iter().enumerate().map(vcenter).collect(),
        distribution: "vanilla".to_owned(),
        windows_nodes: false,
        topology: false,
        rewrite: Rewrite::default(),
        today: None,
    };
    let decision = choose(catalog, &seen, driver, request);
    match &decision.action {
        Action::Install(version) => say!(answer, "Install {version}"),
        Action::Keep(version) => say!(answer, "Keep {version}"),
        Action::Nothing => say!(answer, "Nothing"),
        Action::Change(path) => {
            say!(answer, "Change {}", path.from);
            for hop in &path.hops {
                for step in &hop.before {
                    say!(answer, "  before  {}", step.text);
                }
                say!(answer, "  to      {}", hop.to);
                for step in &hop.after {
                    say!(answer, "  after   {}", step.text);
                }
            }
        }
    }
    if let Some(standstill) = &decision.standstill {
        say!(answer, "{standstill}");
    }
    for notice in &decision.notices {
        say!(answer, "! {notice}");
    }
    say!(answer, "");
    for (version, reason) in &decision.others {
        say!(answer, "{version:<8} {reason}");
    }
    answer
}
