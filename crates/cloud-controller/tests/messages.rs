//! The controller's error messages lead to findings that explain them.

use cloud_controller::{
    addresses::{Family, NoAddress},
    configuration::ConfigurationError,
    provided_ip::ProvidedIpError,
    zones,
};
use vsphere::{Error, LoginRefusal};

#[test]
fn every_error_message_has_a_finding() {
    let text = || "x".to_owned();
    let login = |reason| Error::LoginRefused { address: text(), user: text(), reason };
    let messages = [
        (NoAddress::NoHostName.to_string(), "VDO-1208"),
        (NoAddress::NoInterface.to_string(), "VDO-1208"),
        (
            NoAddress::NoNetwork { internal: text(), external: text(), found: text() }.to_string(),
            "VDO-1219",
        ),
        (NoAddress::OnlyLocal { found: text() }.to_string(), "VDO-1219"),
        (NoAddress::NoneOfFamily { family: Family::V6, found: text() }.to_string(), "VDO-1219"),
        (
            ProvidedIpError::NotThere { address: [10, 0, 0, 1].into(), found: text() }.to_string(),
            "VDO-1218",
        ),
        (zones::MissingTag { category: text(), unusable: None }.to_string(), "VDO-1702"),
        (ConfigurationError::Nsx { what: "routes" }.to_string(), "VDO-1920"),
        (login(LoginRefusal::Credentials).to_string(), "VDO-1305"),
        (login(LoginRefusal::Locked).to_string(), "VDO-1306"),
        (std::io::Error::from_raw_os_error(98).to_string(), "VDO-1614"),
    ];
    for (message, code) in messages {
        let known = health::messages::explain(&message).map(|known| known.findings[0].code);
        assert_eq!(known, Some(code), "{message}");
    }
}
