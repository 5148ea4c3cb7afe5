//! Writes the documents of a release that depend on its other files. `scripts/release` runs it.
//!
//! ```text
//!   release_documents packages FOLDER CREATED [IMAGE=DIGEST]...
//!                                                              install.yaml, the chart and the OLM bundle, with digests
//!   release_documents artifact FOLDER BUNDLE                  the signed catalog, as an OCI image layout
//!   release_documents krew VERSION [OS/ARCHITECTURE=FILE]...   the manifest of the kubectl plugin
//!   release_documents layers LAYOUT ARCHITECTURE               the files with the layers of an image, one per line
//!   release_documents sbom PACKAGE METADATA LOCK ARCHITECTURE PACKAGES
//!                                                              the bill of materials of a binary and its image
//!   release_documents provenance VERSION COMMIT SHA256SUMS     who built which files from which commit
//! ```
#![allow(clippy::print_stdout, reason = "it prints documents")]

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use shipping::{PluginArchive, Release, SystemPackage};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["packages", folder, created, images @ ..] => packages(Path::new(folder), created, images),
        ["artifact", folder, bundle] => artifact(Path::new(folder), Path::new(bundle)),
        ["krew", version, archives @ ..] => krew(version, archives),
        ["layers", layout, architecture] => layers(Path::new(layout), architecture),
        ["sbom", package, metadata, lock, architecture, packages] => {
            let (metadata, lock) = (fs::read(metadata)?, fs::read_to_string(lock)?);
            let packages = SystemPackage::list(&fs::read_to_string(packages)?, architecture)?;
            print!("{}", shipping::bill_of_materials(package, &metadata, &lock, &packages)?);
            Ok(())
        }
        ["provenance", version, commit, sums] => provenance(version, commit, sums),
        _ => {
            Err("usage: release_documents packages|artifact|krew|layers|sbom|provenance ...".into())
        }
    }
}

fn pair(text: &str) -> Outcome<(String, String)> {
    let (name, value) = text.rsplit_once('=').ok_or_else(|| format!("{text} is not NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

fn packages(folder: &Path, created: &str, images: &[&str]) -> Outcome {
    let digests = images.iter().map(|text| pair(text)).collect::<Outcome<BTreeMap<_, _>>>()?;
    let release = Release { digests, created: Some(created.to_owned()) };
    fs::create_dir_all(folder)?;
    fs::write(folder.join("install.yaml"), release.install_manifest()?)?;
    for file in shipping::files_of(&release)? {
        let path = folder.join(file.path.strip_prefix("deploy/").unwrap_or(&file.path));
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, file.text)?;
    }
    Ok(())
}

fn artifact(folder: &Path, bundle: &Path) -> Outcome {
    let title = bundle.file_name().and_then(|name| name.to_str()).ok_or("the bundle has a name")?;
    let artifact = oci::Artifact {
        title: title.to_owned(),
        media_type: catalog::trust::MEDIA_TYPE.to_owned(),
        content: fs::read(bundle)?,
    };
    for (path, content) in artifact.layout()? {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, content)?;
    }
    Ok(())
}

/// Finds the image of an architecture in an OCI image layout.
fn layers(layout: &Path, architecture: &str) -> Outcome {
    let blob = |descriptor: &Value| -> Outcome<PathBuf> {
        let digest =
            descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
        Ok(layout.join("blobs/sha256").join(digest.ok_or("a descriptor has a digest")?))
    };
    let read = |path: &Path| -> Outcome<Value> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
    let mut manifest = read(&layout.join("index.json"))?;
    while let Some(manifests) = manifest["manifests"].as_array() {
        let fits = |one: &&Value| {
            one["platform"].is_null() || one["platform"]["architecture"] == architecture
        };
        let found = manifests.iter().find(fits);
        let found = found.ok_or_else(|| format!("{} has no {architecture}", layout.display()))?;
        manifest = read(&blob(found)?)?;
    }
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        println!("{}", blob(layer)?.display());
    }
    Ok(())
}

fn krew(version: &str, archives: &[&str]) -> Outcome {
    let mut described = Vec::new();
    for text in archives {
        let (platform, path) = pair(text)?;
        let (os, architecture) = platform.split_once('/').ok_or("a platform is OS/ARCHITECTURE")?;
        let name = Path::new(&path).file_name().and_then(|name| name.to_str());
        described.push(PluginArchive {
            name: name.ok_or("an archive has a name")?.to_owned(),
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            sha256: sha256(&fs::read(&path)?),
        });
    }
    print!("{}", shipping::krew_manifest(version, &described)?.text);
    Ok(())
}

fn sha256(bytes: &[u8]) -> String {
    oci::Digest::from_bytes(bytes).hex().to_owned()
}

/// A statement in the format of in-toto and SLSA. It is as trustworthy as the signature of the release.
fn provenance(version: &str, commit: &str, sums: &str) -> Outcome {
    let home = env!("CARGO_PKG_REPOSITORY");
    let sums = fs::read_to_string(sums)?;
    let subjects: Vec<Value> = sums
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(sum, name)| json!({"name": name, "digest": {"sha256": sum}}))
        .collect();
    let source =
        json!({"uri": format!("git+{home}@refs/tags/v{version}"), "digest": {"gitCommit": commit}});
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{home}/blob/v{version}/scripts/release"),
                "externalParameters": {"version": version},
                "resolvedDependencies": [source],
            },
            "runDetails": {"builder": {"id": format!("{home}/blob/v{version}/Makefile")}},
        },
    });
    println!("{}", serde_json::to_string_pretty(&statement)?);
    Ok(())
}
