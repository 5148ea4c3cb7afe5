//! Prints the inventory of a vCenter and then watches it. For support, and as an example.
//!
//! ```sh
//! VSPHERE_PASSWORD=… cargo run -p vsphere --example inventory -- vc.example.com administrator@vsphere.local
//! ```
//!
//! Options: `--thumbprint T` or `--ca FILE` to trust its certificate, `--insecure` to skip
//! verification, `--datacenter D` to limit the inventory (repeatable), `--once` to exit after the
//! first view, `--trace-soap` to log every call with secrets redacted.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints")]

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use vsphere::inventory::{Absence, Cluster, Datastore, Event, Host, Object, Selection, Tree, Vm};
use vsphere::{CallCounter, Client, Credentials, Error, Trust};

#[derive(Debug, Default)]
struct Options {
    address: String,
    user: String,
    trust: Trust,
    datacenters: Vec<String>,
    once: bool,
    trace_soap: bool,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    let mut places = Vec::new();
    while let Some(argument) = arguments.next() {
        let mut value = |of: &str| arguments.next().ok_or(format!("{of} needs a value"));
        match argument.as_str() {
            "--thumbprint" => options.trust = Trust::Thumbprint(value("--thumbprint")?.parse()?),
            "--ca" => {
                let file = value("--ca")?;
                let pem = std::fs::read_to_string(&file)
                    .map_err(|e| format!("cannot read {file}: {e}"))?;
                options.trust = Trust::CaBundle(pem);
            }
            "--insecure" => options.trust = Trust::Insecure,
            "--datacenter" => options.datacenters.push(value("--datacenter")?),
            "--once" => options.once = true,
            "--trace-soap" => options.trace_soap = true,
            option if option.starts_with("--") => {
                return Err(format!("there is no option {option}"));
            }
            _ => places.push(argument),
        }
    }
    match <[String; 2]>::try_from(places) {
        Ok([address, user]) => Ok(Options { address, user, ..options }),
        Err(_) => Err("give the address of a vCenter and a user".to_owned()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(words) => {
            eprintln!(
                "inventory: {words}\nusage: inventory ADDRESS USER [--thumbprint T | --ca FILE | --insecure] \
                       [--datacenter D]… [--once] [--trace-soap]\nThe password is taken from VSPHERE_PASSWORD."
            );
            return ExitCode::from(2);
        }
    };
    let level = if options.trace_soap { "vsphere=trace" } else { "vsphere=warn" };
    tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr).init();
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("inventory: {}", error.error_chain());
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Error> {
    let password = std::env::var("VSPHERE_PASSWORD").unwrap_or_default();
    let counter = Arc::new(CallCounter::default());
    let client = Client::builder(options.address)
        .trust(options.trust)
        .credentials(Credentials::new(options.user, password))
        .user_agent(concat!("vsphere-inventory/", env!("CARGO_PKG_VERSION")))
        .observer(counter.clone())
        .connect()
        .await?;
    let about = client.about()?;
    say(&format!(
        "{} (API {}), logged in as {}",
        about.full_name,
        about.api_version,
        client.user().await?
    ));
    let selection = Selection::new()
        .vms(&[Vm::IDENTITY, Vm::CONFIG, Vm::GUEST, Vm::RUNTIME])
        .hosts(&[Host::IDENTITY, Host::STATE])
        .clusters(&[Cluster::IDENTITY])
        .datastores(&[Datastore::IDENTITY, Datastore::STATE])
        .in_datacenters(options.datacenters);
    if options.once {
        print_tree(&client.collect(&selection).await?);
    } else {
        follow(&client, selection).await?;
    }
    client.shut_down().await;
    say(&format!("{} calls: {:?}", counter.total(), counter.all()));
    Ok(())
}

/// Prints the snapshot and then every change, until interrupted.
async fn follow(client: &Client, selection: Selection) -> Result<(), Error> {
    let watch = client.watch(selection);
    let inventory = watch.inventory().clone();
    let mut events = inventory.events();
    inventory.ready().await.map_err(|error| (*error).clone())?;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = tokio::signal::ctrl_c() => break,
        };
        match event {
            Some(Event::Snapshot) => print_tree(&inventory.view()),
            Some(Event::Resynced) => {
                say(&format!("~ in view again: {} objects", inventory.view().len()));
            }
            Some(Event::Appeared(object)) => {
                say(&format!("+ {}", line(&inventory.view(), &object)));
            }
            Some(Event::Changed { after, .. }) => {
                say(&format!("  {}", line(&inventory.view(), &after)));
            }
            Some(Event::Left(departure)) => {
                let why = match &departure.absence {
                    Absence::Gone(_) => "is gone",
                    Absence::Invisible { .. } => "may no longer be seen by this user",
                    Absence::Elsewhere => "was moved out of view",
                    Absence::Unreachable => "left, and vCenter could not be asked why yet",
                };
                say(&format!("- {} {why}", departure.object.name().unwrap_or_default()));
            }
            Some(Event::Unreachable(error)) => say(&format!("! {}", error.error_chain())),
            None => break,
        }
    }
    watch.stop().await;
    Ok(())
}

fn print_tree(tree: &Tree) {
    let mut lines: Vec<String> = tree
        .objects()
        .filter(|object| object.as_folder().is_none())
        .map(|object| line(tree, object))
        .collect();
    lines.sort_unstable();
    for line in lines {
        say(&line);
    }
}

fn line(tree: &Tree, object: &Object) -> String {
    let path = tree.path_of(object.reference()).unwrap_or_else(|| object.reference().to_string());
    let detail = match object {
        Object::Vm(vm) => {
            let addresses: Vec<String> =
                vm.addresses().map(|address| address.to_string()).collect();
            let power = vm.power.as_ref().map(ToString::to_string).unwrap_or_default();
            let host = vm.host.as_ref().and_then(|host| tree.get(host)?.name()).unwrap_or_default();
            format!("{power} on {host} {}", addresses.join(" "))
        }
        Object::Host(host) => {
            let state = host.connection.as_ref().map(ToString::to_string).unwrap_or_default();
            let maintenance =
                if host.in_maintenance == Some(true) { ", in maintenance" } else { "" };
            format!("ESXi {} {state}{maintenance}", host.version.as_deref().unwrap_or_default())
        }
        Object::Datastore(datastore) => {
            let gib = |bytes: Option<i64>| bytes.unwrap_or_default() >> 30;
            let (free, capacity) = (gib(datastore.free_space), gib(datastore.capacity));
            format!(
                "{} {free} of {capacity} GiB free",
                datastore.kind.as_deref().unwrap_or_default()
            )
        }
        _ => String::new(),
    };
    format!("{:<16} {path}  {detail}", object.reference().kind.as_str()).trim_end().to_owned()
}

/// A closed pipe (`| head`) is not an error.
fn say(line: &str) {
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(0);
    }
}
