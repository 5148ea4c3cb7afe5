//! `vdoctl`: the command line of VDO.

fn main() -> std::process::ExitCode {
    vdoctl::main()
}
