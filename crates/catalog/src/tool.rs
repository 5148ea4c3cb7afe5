//! The commands of `vdoctl catalog`, for publishers and readers of catalogs.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    image::is_digest,
    manifest::{Profile, from_manifest, images_to_mirror, render, to_yaml},
    model::{KubernetesRange, Manifest, VsphereRange},
    parse, read,
    trust::{Bundle, CatalogStore, PublicKey, SigningKey, Trust, build_keys},
    version::{KubernetesMinor, KubernetesVersion, VsphereBound, VsphereVersion},
    write,
};
use clap::{Subcommand, ValueEnum};
use jiff::Timestamp;
use semver::Version;
use snafu::{OptionExt as _, ResultExt as _, Whatever, ensure_whatever, whatever};

/// A driver.
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

/// A driver's implementation.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum ImplementationName {
    /// The Go driver of the Kubernetes project.
    #[default]
    Upstream,
    /// The driver of this project.
    Rust,
}

impl From<ImplementationName> for Implementation {
    fn from(maker: ImplementationName) -> Self {
        match maker {
            ImplementationName::Upstream => Self::Upstream,
            ImplementationName::Rust => Self::Rust,
        }
    }
}

/// A command on catalogs. `embedded` is the catalog of this program, `-` is standard input.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the releases, newest first.
    List {
        /// The catalog.
        #[arg(default_value = "embedded")]
        catalog: String,
        /// Only this driver.
        #[arg(long)]
        driver: Option<DriverName>,
    },
    /// Shows one release in full.
    Show {
        /// The driver.
        driver: DriverName,
        /// The version.
        version: Version,
        /// The catalog.
        #[arg(long, default_value = "embedded")]
        catalog: String,
    },
    /// Checks a catalog or a bundle and shows its content or its errors.
    #[command(alias = "check")]
    Verify {
        /// The file.
        file: String,
        /// Trusted public keys, by default those of this program: one of them must have signed the bundle.
        // A key in PEM begins with a hyphen.
        #[arg(long = "key", allow_hyphen_values = true)]
        keys: Vec<PublicKey>,
    },
    /// Writes a catalog with every release spelled out, ready to be signed.
    Build {
        /// The file.
        file: String,
        /// The new serial.
        #[arg(long)]
        serial: Option<u64>,
        /// When a newer catalog is due.
        #[arg(long)]
        expires: Option<Timestamp>,
        /// The digest of an image that has none yet, such as registry.example.com/driver:1.0=sha256:...
        #[arg(long = "digest", value_name = "IMAGE=DIGEST")]
        digests: Vec<String>,
    },
    /// Creates a key pair: writes the private key to a file, prints the public key.
    Keygen {
        /// The file, which must not exist yet.
        file: PathBuf,
    },
    /// Prints the public keys that this program and its operator trust.
    Keys,
    /// Signs a catalog.
    Sign {
        /// The catalog.
        file: String,
        /// Files with private keys.
        #[arg(long = "key", required = true)]
        keys: Vec<PathBuf>,
    },
    /// Shows the differences between two catalogs.
    Diff {
        /// The older catalog.
        old: String,
        /// The newer catalog.
        new: String,
    },
    /// Adds a release made from a published manifest to a catalog.
    FromManifest {
        /// The catalog to add to.
        #[arg(long, default_value = "embedded")]
        catalog: String,
        /// The driver.
        #[arg(long)]
        driver: DriverName,
        /// The version.
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
    /// Lists the images to mirror, one per line.
    Images {
        /// The catalog.
        #[arg(default_value = "embedded")]
        catalog: String,
        /// Only this driver.
        #[arg(long)]
        driver: Option<DriverName>,
        /// Only this implementation.
        #[arg(long)]
        implementation: Option<ImplementationName>,
        /// Only this version.
        #[arg(long)]
        version: Option<Version>,
    },
    /// Shows which release fits a cluster, and why the others do not.
    Explain {
        /// The catalog.
        #[arg(default_value = "embedded")]
        catalog: String,
        /// The driver.
        #[arg(long)]
        driver: DriverName,
        /// The implementation.
        #[arg(long, default_value = "upstream")]
        implementation: ImplementationName,
        /// The cluster's version.
        #[arg(long)]
        kubernetes: KubernetesVersion,
        /// The vCenters' versions.
        #[arg(long, required = true)]
        vsphere: Vec<VsphereVersion>,
        /// The version of the oldest ESXi host.
        #[arg(long, value_name = "VERSION")]
        hosts: Option<VsphereVersion>,
        /// The installed version.
        #[arg(long)]
        installed: Option<Version>,
    },
    /// Renders the objects of a release for a plain cluster.
    Render {
        /// The catalog.
        #[arg(default_value = "embedded")]
        catalog: String,
        /// The driver.
        #[arg(long)]
        driver: DriverName,
        /// The implementation.
        #[arg(long, default_value = "upstream")]
        implementation: ImplementationName,
        /// The version.
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
    /// True if the output is prose that the screen may wrap.
    pub fn is_prose(&self) -> bool {
        match self {
            Self::List { .. }
            | Self::Show { .. }
            | Self::Verify { .. }
            | Self::Diff { .. }
            | Self::Explain { .. } => true,
            Self::Build { .. }
            | Self::Keygen { .. }
            | Self::Keys
            | Self::Sign { .. }
            | Self::FromManifest { .. }
            | Self::Images { .. }
            | Self::Render { .. } => false,
        }
    }

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
            Self::Keygen { .. } | Self::Keys => Vec::new(),
        }
    }

    /// True if it writes a catalog for others to use.
    pub fn publishes(&self) -> bool {
        matches!(self, Self::Build { .. } | Self::Sign { .. })
    }
}

/// Appends a line to the output.
macro_rules! push_line {
    ($output:expr, $($text:tt)+) => {{
        let _ = writeln!($output, $($text)+);
    }};
}

/// Runs a command and returns its output.
pub fn run(command: Command) -> Result<String, Whatever> {
    let mut output = String::new();
    match command {
        Command::List { catalog, driver } => Ok(list(&open(&catalog)?, driver.map(Driver::from))),
        Command::Show { driver, version, catalog } => {
            let catalog = open(&catalog)?;
            let release = catalog
                .find(driver.into(), Implementation::Upstream, &version)
                .with_whatever_context(|| format!("{version} is not in the catalog"))?;
            serde_saphyr::to_string(release)
                .whatever_context("the release cannot be written as YAML")
        }
        Command::Verify { file, keys } => check(&file, &bytes(&file)?, &keys),
        Command::Build { file, serial, expires, digests } => {
            let mut catalog = open(&file)?;
            catalog.serial = serial.unwrap_or(catalog.serial);
            catalog.expires = expires.or(catalog.expires);
            for digest in &digests {
                pin(&mut catalog, digest)?;
            }
            Ok(write(&catalog))
        }
        Command::Keygen { file } => keygen(&file),
        Command::Keys => {
            let keys = build_keys().whatever_context("this program was built with a wrong key")?;
            if keys.is_empty() {
                push_line!(output, "# none: a catalog from a network needs spec.publicKey");
            }
            for key in keys {
                push_line!(output, "{key}");
            }
            Ok(output)
        }
        Command::Sign { file, keys } => sign(&file, &keys),
        Command::Diff { old, new } => {
            for line in diff(&open(&old)?, &open(&new)?) {
                push_line!(output, "{line}");
            }
            Ok(output)
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
            // The user would mirror an empty list without noticing.
            ensure_whatever!(!releases.is_empty(), "the catalog has no such release");
            let images: BTreeSet<_> = releases.into_iter().flat_map(images_to_mirror).collect();
            for image in images {
                push_line!(output, "{image}");
            }
            Ok(output)
        }
        Command::Explain {
            catalog,
            driver,
            implementation,
            kubernetes,
            vsphere,
            hosts,
            installed,
        } => {
            let request = Request {
                implementation: implementation.into(),
                policy: Policy::Latest,
                installed,
            };
            let catalog = open(&catalog)?;
            Ok(explain(&catalog, driver.into(), kubernetes, &vsphere, hosts, &request))
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
            let rendered =
                render(release, &profile).whatever_context("the release cannot be rendered")?;
            let yaml = to_yaml(&rendered.objects)
                .whatever_context("the rendered objects cannot be written as YAML")?;
            Ok(format!("---\n{yaml}"))
        }
    }
}

/// Adds the digest of one image to every release that has the image.
fn pin(catalog: &mut Catalog, text: &str) -> Result<(), Whatever> {
    let (image, digest) = text
        .split_once('=')
        .with_whatever_context(|| format!("--digest {text} is not IMAGE=DIGEST"))?;
    ensure_whatever!(is_digest(digest), "{digest} is not sha256: and 64 hex digits");
    let mut images = catalog.releases.iter().flat_map(images_to_mirror);
    let known = images.find(|known| known.tagged() == image);
    let known = known.with_whatever_context(|| format!("the catalog has no image {image}"))?;
    if let Some(other) = known.digest.filter(|other| other != digest) {
        whatever!("the catalog already has another digest for {image}: {other}");
    }
    let digests = BTreeMap::from([(image.to_owned(), digest.to_owned())]);
    parse::pin(&mut catalog.releases, &digests).whatever_context("--digest cannot be used")
}

fn list(catalog: &Catalog, driver: Option<Driver>) -> String {
    let wanted = |release: &&Release| driver.is_none_or(|driver| driver == release.driver);
    let mut releases: Vec<&Release> = catalog.releases.iter().filter(wanted).collect();
    releases.sort_by(|a, b| (a.driver, &b.version).cmp(&(b.driver, &a.version)));
    let mut output = String::new();
    push_line!(
        output,
        "{:<6}  {:<8}  {:<14}  {:<14}  STATE",
        "DRIVER",
        "VERSION",
        "KUBERNETES",
        "VSPHERE"
    );
    for release in releases {
        let state = [format!("{:?}", release.channel), format!("{:?}", release.support)];
        let vsphere = format!("from {}", release.vsphere.min);
        push_line!(
            output,
            "{:<6}  {:<8}  {:<14}  {:<14}  {}",
            release.driver.to_string(),
            release.version.to_string(),
            release.kubernetes.to_string(),
            vsphere,
            state.join(", ").to_lowercase()
        );
    }
    output
}

/// Reads a file; `embedded` and `-` mean the same as in every command.
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
    if Bundle::is_bundle(bytes) {
        whatever!("{file} is a signed bundle; check it with `verify --key KEY`");
    }
    read(bytes).with_whatever_context(|_| format!("{file} cannot be used"))
}

/// Describes a catalog or a bundle. With keys it applies the operator's rules for catalogs from the network; for a bundle,
/// those of this program are the default.
pub fn check(file: &str, bytes: &[u8], keys: &[PublicKey]) -> Result<String, Whatever> {
    let built_in = build_keys().unwrap_or_default();
    let keys = if keys.is_empty() && Bundle::is_bundle(bytes) { &built_in } else { keys };
    let catalog = if keys.is_empty() {
        unsigned(file, bytes)?
    } else {
        let mut store = CatalogStore::embedded();
        let trust = Trust { keys, unsigned: false };
        store
            .offer(bytes, trust, Timestamp::now())
            .with_whatever_context(|_| format!("VDO would refuse {file}"))?;
        Catalog::clone(&store.catalog())
    };
    let mut output = String::new();
    push_line!(output, "serial {}, issued {}", catalog.serial, catalog.issued);
    if let Some(expires) = catalog.expires {
        push_line!(output, "expires {expires}");
    }
    for (driver, maker, by) in [
        (Driver::Cpi, Implementation::Upstream, ""),
        (Driver::Cpi, Implementation::Rust, " by this project"),
        (Driver::Csi, Implementation::Upstream, ""),
        (Driver::Csi, Implementation::Rust, " by this project"),
    ] {
        let mut versions = catalog.releases_of(driver, maker).map(|release| &release.version);
        let count = versions.clone().count();
        match (versions.next(), versions.next_back()) {
            (Some(only), None) => push_line!(output, "{driver}: 1 release{by}, {only}"),
            (Some(first), Some(last)) => {
                push_line!(output, "{driver}: {count} releases{by}, {first} to {last}");
            }
            _ => {}
        }
    }
    let uncovered =
        catalog.releases.iter().filter(|release| is_covered(&catalog, release).is_err());
    let uncovered: Vec<_> = uncovered.map(|r| format!("{} {}", r.driver, r.version)).collect();
    if !uncovered.is_empty() {
        push_line!(output, "cannot be installed, images lack a digest: {}", uncovered.join(", "));
    }
    Ok(output)
}

fn keygen(file: &PathBuf) -> Result<String, Whatever> {
    let (key, pem) = SigningKey::generate().whatever_context("the key cannot be generated")?;
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let mut out =
        opened.with_whatever_context(|_| format!("{} cannot be created", file.display()))?;
    out.write_all(pem.as_bytes()).whatever_context("the key cannot be written")?;
    Ok(key.public().to_pem())
}

fn sign(file: &str, keys: &[PathBuf]) -> Result<String, Whatever> {
    let text = bytes(file)?;
    let catalog =
        read(&text).whatever_context("VDO would refuse the catalog, so it is not signed")?;
    if !catalog.is_matrix() && catalog.expires.is_none() {
        whatever!(
            "{file} has no expiry, so VDO would refuse it; it is not signed. Set \
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
        whatever!("{driver} {version} is already in the catalog");
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
    read(written.as_bytes()).whatever_context("VDO would refuse the catalog")?;
    Ok(written)
}

fn explain(
    catalog: &Catalog,
    driver: Driver,
    kubernetes: KubernetesVersion,
    vsphere: &[VsphereVersion],
    hosts: Option<VsphereVersion>,
    request: &Request,
) -> String {
    let mut output = String::new();
    let vcenter = |(n, version): (usize, &VsphereVersion)| Vcenter {
        name: format!("vCenter {}", n + 1),
        version: *version,
        oldest_host: hosts,
    };
    let environment = Environment {
        kubernetes,
        vcenters: vsphere.iter().enumerate().map(vcenter).collect(),
        distribution: "vanilla".to_owned(),
        windows_nodes: false,
        topology: false,
        rewrite: Rewrite::default(),
        today: None,
    };
    let decision = choose(catalog, &environment, driver, request);
    match &decision.action {
        Action::Install(version) => push_line!(output, "Install {version}"),
        Action::Keep(version) => push_line!(output, "Keep {version}"),
        Action::Nothing => push_line!(output, "Nothing"),
        Action::Change(path) => {
            push_line!(output, "Change {}", path.from);
            for hop in &path.hops {
                for step in &hop.before {
                    push_line!(output, "  before  {}", step.text);
                }
                push_line!(output, "  to      {}", hop.to);
                for step in &hop.after {
                    push_line!(output, "  after   {}", step.text);
                }
            }
        }
    }
    if let Some(standstill) = &decision.standstill {
        push_line!(output, "{standstill}");
    }
    for notice in &decision.notices {
        push_line!(output, "! {notice}");
    }
    push_line!(output, "");
    for (version, reason) in &decision.others {
        push_line!(output, "{version:<8} {reason}");
    }
    output
}
