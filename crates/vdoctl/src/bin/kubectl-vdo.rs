//! `kubectl vdo`: the same program, as a plugin of kubectl.

fn main() -> std::process::ExitCode {
    vdoctl::main()
}
