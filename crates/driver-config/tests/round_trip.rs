//! Every written value reads back equal.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{NASTY, cpi_config, csi_config, one_csi_vcenter, one_vcenter};
use driver_config::cpi::CpiConfig;
use driver_config::csi::CsiConfig;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_cloud_controller_configuration_survives_yaml(config in cpi_config()) {
        let text = config.to_yaml().unwrap();
        prop_assert_eq!(CpiConfig::read_yaml(text.expose()).unwrap().strict().unwrap(), config);
    }

    #[test]
    fn every_cloud_controller_configuration_survives_gcfg(config in cpi_config()) {
        let text = config.to_ini().unwrap();
        prop_assume!(!text.is_empty());
        prop_assert_eq!(CpiConfig::read(text.expose()).unwrap().strict().unwrap(), config);
    }

    #[test]
    fn every_csi_configuration_survives(config in csi_config()) {
        let text = config.render().unwrap();
        prop_assume!(!text.is_empty());
        prop_assert_eq!(CsiConfig::read(text.expose()).unwrap().strict().unwrap(), config);
    }

    #[test]
    fn no_text_makes_a_reader_panic(text in "\\PC{0,200}") {
        let _ = (CpiConfig::read_yaml(&text), CpiConfig::read_ini(&text), CsiConfig::read(&text));
    }

    #[test]
    fn a_text_is_written_exactly_or_the_error_names_its_key(password in any::<String>()) {
        let config = one_csi_vcenter("vc", |vc| vc.password = password.as_str().into());
        match config.render() {
            Ok(text) => {
                let read = CsiConfig::read(text.expose()).unwrap().config;
                prop_assert_eq!(read.vcenters["vc"].password.expose(), password);
            }
            Err(error) => {
                prop_assert!(password.contains(['\r', '\0']));
                prop_assert_eq!(error.to_string(), "`[VirtualCenter \"vc\"] password` cannot be written");
            }
        }
    }
}

#[test]
fn every_nasty_password_survives_all_three_formats() {
    for password in NASTY {
        let cpi = one_vcenter("vc", |vc| vc.password = password.into());
        let yaml = CpiConfig::read(cpi.to_yaml().unwrap().expose()).unwrap().config;
        let ini = CpiConfig::read(cpi.to_ini().unwrap().expose()).unwrap().config;
        assert_eq!((&yaml, &ini), (&cpi, &cpi), "{password:?}");
        let csi = one_csi_vcenter("vc", |vc| vc.password = password.into());
        assert_eq!(CsiConfig::read(csi.render().unwrap().expose()).unwrap().config, csi);
    }
}

#[test]
fn debug_output_never_contains_a_password() {
    let cpi = one_vcenter("vc", |vc| vc.password = "hunter2".into());
    let csi = one_csi_vcenter("vc", |vc| vc.password = "hunter2".into());
    let texts = (cpi.to_yaml(), cpi.to_ini(), csi.render());
    let printed =
        format!("{cpi:?} {csi:?} {texts:?} {:?}", driver_config::gcfg::parse("[S]\nk = hunter2"));
    assert!(!printed.contains("hunter2"), "{printed}");
}

#[test]
fn a_datacenter_with_a_comma_is_refused_because_the_driver_would_see_two() {
    let config = one_vcenter("vc", |vc| vc.datacenters = vec!["a,b".into()]);
    let path = config.to_yaml().unwrap_err().to_string();
    assert!(path.starts_with("`vcenter.vc.datacenters` has an item that"), "{path}");
    assert!(
        config
            .to_ini()
            .unwrap_err()
            .to_string()
            .starts_with("`[VirtualCenter \"vc\"] datacenters`")
    );
}

#[test]
fn equal_configurations_give_equal_texts() {
    for config in common::sample(cpi_config(), 20) {
        assert_eq!(config.to_yaml(), config.clone().to_yaml());
    }
}
