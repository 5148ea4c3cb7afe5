use std::{io::Write as _, process::ExitCode};

use runtime::build::BuildInfo;

const BUILD: BuildInfo = BuildInfo::new("vsphere-csi");

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.first().and_then(|name| name.to_str()) {
        Some("node") => csi::node::command::run(arguments, BUILD).await,
        _ => {
            let _ = writeln!(std::io::stderr(), "use `vsphere-csi node`");
            ExitCode::from(2)
        }
    }
}
