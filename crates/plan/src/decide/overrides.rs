//! The admin's settings of the driver pods: `spec.overrides`.
//!
//! VDO applies them to the objects of every release, and refuses what the release does not have: containers that
//! do not exist, and arguments and variables that VDO sets itself. A running driver then stays as it is.

use api::{
    VDOConfigSpec,
    finding::{Finding, codes},
    vdo_config::{
        ContainerOverrides, LogLevel, Overrides, PodToleration, Resources, Variable,
        WorkloadOverrides,
    },
};
use catalog::{Driver, manifest::Object};
use serde_json::{Value, json};

use super::{desired::DesiredDriver, proxy::Proxy};
use crate::facts::Facts;

const CLOUD_CONTROLLER: &str = "vsphere-cloud-controller-manager";
const STORAGE_CONTROLLER: &str = "vsphere-csi-controller";
const STORAGE_NODE: &str = "vsphere-csi-node";
const STORAGE_NODE_WINDOWS: &str = "vsphere-csi-node-windows";

/// Options of the sidecars that only tune them. The admin's value replaces that of the release.
const TUNABLE: [&str; 6] = [
    "kube-api-burst",
    "kube-api-qps",
    "retry-interval-max",
    "retry-interval-start",
    "timeout",
    "worker-threads",
];

/// The settings that affect a driver; none if there are none.
pub(super) fn for_driver(spec: &VDOConfigSpec, driver: Driver) -> Option<Value> {
    let Overrides { proxy, cloud_controller, storage_controller, storage_node } =
        spec.overrides.as_ref()?;
    let own = match driver {
        Driver::Cpi => json!([proxy, cloud_controller]),
        Driver::Csi => json!([proxy, storage_controller, storage_node]),
    };
    own.as_array()?.iter().any(|part| !part.is_null()).then_some(own)
}

/// Applies the settings and the proxy to the objects of a release, under the names of the release. The error is the
/// mistake in the settings.
pub(super) fn apply(
    objects: &mut [Object],
    overrides: Option<&Overrides>,
    proxy: Option<&Proxy<'_>>,
    driver: Driver,
) -> Result<(), String> {
    let none = Overrides::default();
    let overrides = overrides.unwrap_or(&none);
    let parts: &[(&str, &str, &Option<WorkloadOverrides>)] = match driver {
        Driver::Cpi => &[(CLOUD_CONTROLLER, "cloudController", &overrides.cloud_controller)],
        Driver::Csi => &[
            (STORAGE_CONTROLLER, "storageController", &overrides.storage_controller),
            (STORAGE_NODE, "storageNode", &overrides.storage_node),
        ],
    };
    for (name, field, settings) in parts {
        let Some(workload) = workload(objects, name) else { continue };
        if let Some(settings) = settings {
            change(workload, name, settings)
                .map_err(|problem| format!("spec.overrides.{field}{problem}"))?;
        }
        // The node pods do not connect to vCenter.
        if let Some(proxy) = proxy.filter(|_| *name != STORAGE_NODE) {
            proxy.apply(workload).map_err(|problem| format!("spec.overrides.{field}{problem}"))?;
        }
    }
    let level = overrides.storage_node.as_ref().and_then(|settings| settings.log_level);
    if let (Driver::Csi, Some(level)) = (driver, level)
        && let Some(workload) = workload(objects, STORAGE_NODE_WINDOWS)
    {
        log(workload, level);
    }
    Ok(())
}

/// The finding about a mistake in the settings.
pub(super) fn refusal(facts: &Facts, desired: &DesiredDriver<'_>, problem: String) -> Finding {
    codes::DRIVER_CONFIG_REFUSED
        .found()
        .with("driver", desired.driver.to_string())
        .with("problem", problem)
        .with("field", "spec.overrides")
        .with("config", facts.config.metadata.name.as_deref().unwrap_or_default())
        .about(super::myself(facts))
        .build()
}

fn workload<'a>(objects: &'a mut [Object], name: &str) -> Option<&'a mut Value> {
    let is_it = |object: &&mut Object| {
        matches!(object.kind(), "Deployment" | "DaemonSet") && object.name() == name
    };
    objects.iter_mut().find(is_it).map(|object| &mut object.0)
}

fn change(workload: &mut Value, name: &str, settings: &WorkloadOverrides) -> Result<(), String> {
    let WorkloadOverrides {
        replicas,
        resources,
        tolerations,
        node_selector,
        priority_class,
        log_level,
        args,
        env,
        containers,
    } = settings;
    if let Some(replicas) = replicas.filter(|_| workload["kind"] == "Deployment") {
        workload["spec"]["replicas"] = json!(replicas);
    }
    // First the log level: additional arguments must not repeat it.
    if let Some(level) = log_level {
        log(workload, *level);
    }
    let pod = &mut workload["spec"]["template"]["spec"];
    for PodToleration { key, value, effect } in tolerations {
        let mut toleration = json!({"key": key});
        toleration["operator"] = json!(if value.is_some() { "Equal" } else { "Exists" });
        if let Some(value) = value {
            toleration["value"] = json!(value);
        }
        if let Some(effect) = effect {
            toleration["effect"] = json!(effect);
        }
        push(&mut pod["tolerations"], toleration);
    }
    for (key, value) in node_selector {
        let there = &pod["nodeSelector"][key];
        if !there.is_null() && *there != **value {
            return Err(format!(".nodeSelector: the release requires {key}={there}"));
        }
        pod["nodeSelector"][key] = json!(value);
    }
    if let Some(class) = priority_class {
        pod["priorityClassName"] = json!(class);
    }
    let driver =
        ContainerOverrides { resources: resources.clone(), args: args.clone(), env: env.clone() };
    let all = pod["containers"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
    let main = all.iter().position(|container| container["name"] == name).unwrap_or_default();
    if let Some(container) = all.get_mut(main) {
        set(container, &driver)?;
    }
    for (name, settings) in containers {
        let names: Vec<String> =
            all.iter().filter_map(|c| c["name"].as_str().map(str::to_owned)).collect();
        let Some(container) = all.iter_mut().find(|container| container["name"] == name.as_str())
        else {
            return Err(format!(
                ".containers: this release has no container {name}, but {}",
                names.join(", ")
            ));
        };
        set(container, settings).map_err(|problem| format!(".containers.{name}{problem}"))?;
    }
    Ok(())
}

fn set(container: &mut Value, settings: &ContainerOverrides) -> Result<(), String> {
    let ContainerOverrides { resources, args, env } = settings;
    if let Some(Resources { requests, limits }) = resources {
        for (kind, amounts) in [("requests", requests), ("limits", limits)] {
            let Some(amounts) = amounts else { continue };
            for (name, amount) in [("cpu", &amounts.cpu), ("memory", &amounts.memory)] {
                if let Some(amount) = amount {
                    container["resources"][kind][name] = json!(amount);
                }
            }
        }
    }
    for argument in args {
        if !argument.starts_with('-') {
            return Err(format!(".args: {argument} is not an option such as --name=value"));
        }
        let name = option_name(argument);
        let there = container["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let is_there = there.map(option_name).any(|other| other == name);
        if is_there && !TUNABLE.contains(&name) {
            return Err(format!(".args: VDO sets --{name} itself"));
        }
        if let Some(all) = container["args"].as_array_mut().filter(|_| is_there) {
            all.retain(|other| other.as_str().is_none_or(|other| option_name(other) != name));
        }
        push(&mut container["args"], json!(argument));
    }
    for Variable { name, value } in env {
        add_variable(container, name, value)?;
    }
    Ok(())
}

/// `v` for `--v=4`.
fn option_name(argument: &str) -> &str {
    argument.trim_start_matches('-').split('=').next().unwrap_or_default()
}

pub(super) fn add_variable(container: &mut Value, name: &str, value: &str) -> Result<(), String> {
    if variable(container, name).is_some() {
        return Err(format!(".env: VDO sets {name} itself"));
    }
    push(&mut container["env"], json!({"name": name, "value": value}));
    Ok(())
}

fn variable<'a>(container: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    container["env"].as_array_mut()?.iter_mut().find(|variable| variable["name"] == name)
}

fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(items) => items.push(item),
        None => *list = json!([item]),
    }
}

/// Sets the log level of the driver's own containers, each in the way of its program.
fn log(workload: &mut Value, level: LogLevel) {
    let (verbosity, logger, filter) = match level {
        LogLevel::Info => ("--v=2", "PRODUCTION", "info"),
        LogLevel::Debug => ("--v=4", "DEVELOPMENT", "info,csi=debug,vsphere=debug"),
        LogLevel::Trace => ("--v=6", "DEVELOPMENT", "debug,csi=trace"),
    };
    let is_cloud = workload["metadata"]["name"] == CLOUD_CONTROLLER;
    let main = workload["metadata"]["name"].clone();
    let containers = &mut workload["spec"]["template"]["spec"]["containers"];
    for container in containers.as_array_mut().into_iter().flatten() {
        if is_cloud {
            if let Some(args) = container["args"].as_array_mut() {
                args.retain(|arg| arg.as_str().is_none_or(|arg| option_name(arg) != "v"));
            }
            push(&mut container["args"], json!(verbosity));
        } else if let Some(variable) = variable(container, "LOGGER_LEVEL") {
            variable["value"] = json!(logger);
        } else if container["name"] == main && variable(container, "X_CSI_MODE").is_none() {
            push(&mut container["env"], json!({"name": "CSI_LOG", "value": filter}));
        }
    }
}
