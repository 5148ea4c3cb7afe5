//! NSX load balancers and routes in the configuration of the cloud controller.

use api::vdo_config::{Nsx, NsxLoadBalancer, NsxLoadBalancerClass};
use driver_config::cpi::{CpiConfig, LoadBalancer, LoadBalancerClass, Nsxt};
use serde_json::json;

use crate::names;

/// Writes the NSX settings into the configuration. The credentials stay in the Secret that the spec names.
pub(super) fn configure(config: &mut CpiConfig, nsx: &Nsx) {
    config.nsxt = Nsxt {
        host: nsx.host.clone(),
        insecure_flag: nsx.insecure.unwrap_or_default(),
        remote_auth: nsx.remote_auth.unwrap_or_default(),
        secret_name: nsx.credentials.0.as_str().to_owned(),
        secret_namespace: names::KUBE_SYSTEM.to_owned(),
        ..Nsxt::default()
    };
    config.route.router_path = nsx.router_path.clone().unwrap_or_default();
    let Some(balancer) = &nsx.load_balancer else { return };
    config.load_balancer = load_balancer(balancer);
    let classes = balancer.classes.iter();
    config.load_balancer_classes =
        classes.map(|class| (class.name.clone(), class_of(class))).collect();
}

fn load_balancer(desired: &NsxLoadBalancer) -> LoadBalancer {
    // The value as in the spec: `SMALL`, `MEDIUM` and so on.
    let size = desired.size.map(|size| json!(size).as_str().unwrap_or_default().to_owned());
    let class = NsxLoadBalancerClass {
        name: String::new(),
        ip_pool_name: desired.ip_pool_name.clone(),
        ip_pool_id: desired.ip_pool_id.clone(),
        tcp_profile: desired.tcp_profile.clone(),
        udp_profile: desired.udp_profile.clone(),
    };
    LoadBalancer {
        size: size.unwrap_or_else(|| "SMALL".to_owned()),
        lb_service_id: desired.service_id.clone().unwrap_or_default(),
        tier1_gateway_path: desired.tier1_gateway_path.clone().unwrap_or_default(),
        snat_disabled: desired.snat_disabled.unwrap_or_default(),
        tags: desired.tags.clone(),
        class: class_of(&class),
    }
}

fn class_of(desired: &NsxLoadBalancerClass) -> LoadBalancerClass {
    let (tcp_app_profile_path, tcp_app_profile_name) = path_or_name(desired.tcp_profile.as_deref());
    let (udp_app_profile_path, udp_app_profile_name) = path_or_name(desired.udp_profile.as_deref());
    LoadBalancerClass {
        ip_pool_name: desired.ip_pool_name.clone().unwrap_or_default(),
        ip_pool_id: desired.ip_pool_id.clone().unwrap_or_default(),
        tcp_app_profile_name,
        tcp_app_profile_path,
        udp_app_profile_name,
        udp_app_profile_path,
    }
}

/// The spec gives a profile by its path or by its name. Returns the path and the name.
fn path_or_name(profile: Option<&str>) -> (String, String) {
    let profile = profile.unwrap_or_default().to_owned();
    if profile.starts_with('/') { (profile, String::new()) } else { (String::new(), profile) }
}
