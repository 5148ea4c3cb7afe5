//! Writes the Rust types and services of the .proto files: `generator FOLDER_OF_PROTOS OUTPUT_FOLDER`.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(protos), Some(output)) = (arguments.next(), arguments.next()) else {
        return Err("usage: generator FOLDER_OF_PROTOS OUTPUT_FOLDER".into());
    };
    let protos = PathBuf::from(protos);
    let files = ["csi.proto", "pluginregistration.proto"].map(|file| protos.join(file));
    let descriptors = protox::compile(files, [protos])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .disable_comments(["."])
        .out_dir(output)
        .compile_fds(descriptors)?;
    Ok(())
}
