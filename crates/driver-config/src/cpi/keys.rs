//! The keys of `vsphere.conf`, section by section.

use super::{Global, Labels, LoadBalancer, LoadBalancerClass, Nodes, Nsxt, Route, VirtualCenter};
use crate::keys::{Key, key};

pub(super) const GLOBAL: &[Key<Global>] = &[
    key!(Text user = "user", "user"),
    key!(Secret password = "password", "password"),
    key!(Text server = "server", "server"),
    key!(Port port = "port", "port"),
    key!(Flag insecure_flag = "insecureFlag", "insecure-flag"),
    key!(List datacenters = "datacenters", "datacenters"),
    key!(Number soap_roundtrip_count = "soapRoundtripCount", "soap-roundtrip-count"),
    key!(Text ca_file = "caFile", "ca-file"),
    key!(Text thumbprint = "thumbprint", "thumbprint"),
    key!(Text secret_name = "secretName", "secret-name"),
    key!(Text secret_namespace = "secretNamespace", "secret-namespace"),
    key!(Text secrets_directory = "secretsDirectory", "secrets-directory"),
    key!(Flag api_disable = "apiDisable", "api-disable"),
    key!(Text api_binding = "apiBinding", "api-binding"),
    key!(List ip_family = "ipFamily", "ip-family"),
];

pub(super) const VCENTER: &[Key<VirtualCenter>] = &[
    key!(Text server = "server", "server"),
    key!(Text user = "user", "user"),
    key!(Secret password = "password", "password"),
    key!(Port port = "port", "port"),
    key!(Flag insecure_flag = "insecureFlag", "insecure-flag"),
    key!(List datacenters = "datacenters", "datacenters"),
    key!(Number soap_roundtrip_count = "soapRoundtripCount", "soap-roundtrip-count"),
    key!(Text ca_file = "caFile", "ca-file"),
    key!(Text thumbprint = "thumbprint", "thumbprint"),
    key!(Text secret_name = "secretName", "secret-name"),
    key!(Text secret_namespace = "secretNamespace", "secret-namespace"),
    key!(List ip_family = "ipFamily", "ip-family"),
];

pub(super) const LABELS: &[Key<Labels>] =
    &[key!(Text region = "region", "region"), key!(Text zone = "zone", "zone")];

pub(super) const NODES: &[Key<Nodes>] = &[
    key!(Commas internal_network_subnet_cidr = "internalNetworkSubnetCidr", "internal-network-subnet-cidr"),
    key!(Commas external_network_subnet_cidr = "externalNetworkSubnetCidr", "external-network-subnet-cidr"),
    key!(Text internal_vm_network_name = "internalVmNetworkName", "internal-vm-network-name"),
    key!(Text external_vm_network_name = "externalVmNetworkName", "external-vm-network-name"),
    key!(Commas exclude_internal_network_subnet_cidr = "excludeInternalNetworkSubnetCidr", "exclude-internal-network-subnet-cidr"),
    key!(Commas exclude_external_network_subnet_cidr = "excludeExternalNetworkSubnetCidr", "exclude-external-network-subnet-cidr"),
];

pub(super) const ROUTE: &[Key<Route>] = &[key!(Text router_path = "routerPath", "router-path")];

pub(super) const NSXT: &[Key<Nsxt>] = &[
    key!(Text user = "user", "user"),
    key!(Secret password = "password", "password"),
    key!(Text host = "host", "host"),
    key!(Flag insecure_flag = "insecureFlag", "insecure-flag"),
    key!(Flag remote_auth = "remoteAuth", "remote-auth"),
    key!(Text secret_name = "secretName", "secret-name"),
    key!(Text secret_namespace = "secretNamespace", "secret-namespace"),
    key!(Secret vmc_access_token = "vmcAccessToken", "vmc-access-token"),
    key!(Text vmc_auth_host = "vmcAuthHost", "vmc-auth-host"),
    key!(Text client_auth_cert_file = "clientAuthCertFile", "client-auth-cert-file"),
    key!(Text client_auth_key_file = "clientAuthKeyFile", "client-auth-key-file"),
    key!(Text ca_file = "caFile", "ca-file"),
];

pub(super) const LOAD_BALANCER: &[Key<LoadBalancer>] = &[
    key!(Text size = "size", "size"),
    key!(Text lb_service_id = "lbServiceId", "lb-service-id"),
    key!(Text tier1_gateway_path = "tier1GatewayPath", "tier1-gateway-path"),
    key!(Flag snat_disabled = "snatDisabled", "snat-disabled"),
    key!(Map tags = "tags", "tags"),
    key!(Text class.ip_pool_name = "ipPoolName", "ip-pool-name"),
    key!(Text class.ip_pool_id = "ipPoolId", "ip-pool-id"),
    key!(Text class.tcp_app_profile_name = "tcpAppProfileName", "tcp-app-profile-name"),
    key!(Text class.tcp_app_profile_path = "tcpAppProfilePath", "tcp-app-profile-path"),
    key!(Text class.udp_app_profile_name = "udpAppProfileName", "udp-app-profile-name"),
    key!(Text class.udp_app_profile_path = "udpAppProfilePath", "udp-app-profile-path"),
];

pub(super) const LOAD_BALANCER_CLASS: &[Key<LoadBalancerClass>] = &[
    key!(Text ip_pool_name = "ipPoolName", "ip-pool-name"),
    key!(Text ip_pool_id = "ipPoolId", "ip-pool-id"),
    key!(Text tcp_app_profile_name = "tcpAppProfileName", "tcp-app-profile-name"),
    key!(Text tcp_app_profile_path = "tcpAppProfilePath", "tcp-app-profile-path"),
    key!(Text udp_app_profile_name = "udpAppProfileName", "udp-app-profile-name"),
    key!(Text udp_app_profile_path = "udpAppProfilePath", "udp-app-profile-path"),
];
