use std::{io::Write as _, process::ExitCode};

use runtime::build::BuildInfo;

const BUILD: BuildInfo = BuildInfo::new("vsphere-csi");

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|name| name == "node") {
        return csi::node::command::run(arguments, BUILD).await;
    }
    let _ = writeln!(std::io::stderr(), "use `vsphere-csi node`");
    ExitCode::from(2)
}
