//! A cluster and a vCenter to play with: real control plane, simulated machines.
//!
//! `sandbox [--once|--stay] [--nodes N]`: on a terminal it stays until Ctrl-C, elsewhere it ends once
//! all is up; the flags say otherwise.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it talks to a person")]

use std::{io::IsTerminal, process::ExitCode, time::Duration};

use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::{Api, api::ListParams};
use testkit::{ControlPlane, Error, Inventory, Node, Nodes, Vcenter, Vm};
use tokio::{signal, time::Instant};

struct Arguments {
    /// End once everything is up.
    once: bool,
    nodes: usize,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { once: !std::io::stdout().is_terminal(), nodes: 5 };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--once" => parsed.once = true,
            "--stay" => parsed.once = false,
            "--nodes" => {
                let number = arguments.next().and_then(|n| n.parse().ok());
                parsed.nodes = number.ok_or("--nodes wants a number, as in `--nodes 5`")?;
            }
            other => {
                return Err(format!(
                    "`{other}` is unknown here: there are `--once` and `--nodes N`"
                ));
            }
        }
    }
    Ok(parsed)
}

/// A vCenter with two tagged clusters and one virtual machine for each node.
fn inventory(nodes: usize) -> Inventory {
    let vms = (0..nodes).map(|number| {
        let mut vm = Vm::numbered("node", number + 1);
        vm.cluster = if number % 2 == 0 { "cluster-a" } else { "cluster-b" }.into();
        vm
    });
    Inventory::small().vms(vms).category("k8s-region", &[("region-1", &["/DC0"])]).category(
        "k8s-zone",
        &[("zone-a", &["/DC0/host/cluster-a"]), ("zone-b", &["/DC0/host/cluster-b"])],
    )
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("sandbox: {text}");
            return ExitCode::from(2);
        }
    };
    let stopped = async {
        tokio::select! {
            result = run(&arguments) => result,
            _ = signal::ctrl_c() => Ok(()),
        }
    };
    match stopped.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox: {}", error.full_text());
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Error> {
    let began = Instant::now();
    let step = |text: &str| println!("{:>5.1} s  {text}", began.elapsed().as_secs_f32());

    step("starting the control plane: etcd, API server, controller-manager, scheduler");
    let plane = ControlPlane::builder().with_controllers().launch().await?;
    step("starting the vCenter simulator");
    let inventory = inventory(arguments.nodes);
    let vms = inventory.datacenters[0].vms.clone();
    let vcenter = Vcenter::builder(inventory).launch().await?;
    step("adding nodes as fresh kubelets would: tainted, waiting for a cloud controller");
    let nodes = Nodes::launch(&plane).await?;
    for (number, vm) in vms.iter().enumerate() {
        let node = Node::named(&vm.name).system_uuid(&vm.uuid).uninitialized();
        nodes.add(if number == 0 { node.control_plane() } else { node }).await;
    }
    wait_until_ready(&plane, arguments.nodes).await;
    step("all nodes are Ready");
    println!("\n{}", how_to_reach(&plane, &vcenter));
    if !arguments.once {
        println!("Ctrl-C ends the sandbox and removes all of it.");
        std::future::pending::<()>().await;
    }
    Ok(())
}

async fn wait_until_ready(plane: &ControlPlane, wanted: usize) {
    let nodes = Api::<KubeNode>::all(plane.client());
    let deadline = Duration::from_mins(1);
    testkit::eventually("every node is Ready", deadline, async || {
        let all = nodes.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let ready = |node: &&KubeNode| {
            let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
            conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
        };
        let count = all.items.iter().filter(ready).count();
        if count == wanted { Ok(()) } else { Err(format!("{count} of {wanted}")) }
    })
    .await;
}

fn how_to_reach(plane: &ControlPlane, vcenter: &Vcenter) -> String {
    format!(
        "The cluster (real control plane; nodes and pods are simulated):
  export KUBECONFIG={}
  kubectl get nodes

The vCenter (simulated, version 8.0.3):
  address     {}
  user        {}
  password    {}
  thumbprint  {}
  levers      {}  (see peers/vcsim/README.md)
",
        plane.kubeconfig().display(),
        vcenter.address(),
        vcenter.user(),
        vcenter.password(),
        vcenter.thumbprint_sha256(),
        vcenter.control_url(),
    )
}
