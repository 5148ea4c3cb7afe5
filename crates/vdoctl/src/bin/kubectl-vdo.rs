//! `kubectl vdo`: vdoctl as a kubectl plugin.

fn main() -> std::process::ExitCode {
    vdoctl::main()
}
