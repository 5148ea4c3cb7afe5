//! `vdoctl support-bundle`.

use std::{fs, io, io::Write as _, path::PathBuf};

use clap::Args;
use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use operator::support::{self, File};
use serde_json::json;

use crate::{
    BUILD,
    arguments::Global,
    cluster::Cluster,
    failure::{Doing as _, Failure, Outcome},
    progress::Step,
    screen::Screen,
    text::count,
};

/// Write one archive with all that helps to help you, and no secret.
///
/// It holds VDO's objects, nodes, CSI objects and storage classes, and of the namespaces of VDO and the
/// drivers: workloads, pods, ConfigMaps, events and logs. Of Secrets it holds names and keys; what
/// they hold is looked for in everything else and replaced.
#[derive(Args, Debug)]
pub(crate) struct SupportBundle {
    /// Where to write it; by default vdo-support-TIME.tar.gz here.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl SupportBundle {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let cluster = Cluster::connect(global).await?;
        let version = cluster.client.apiserver_version().await.doing("asking for the version")?;
        let step = Step::begin(screen, "Collect objects, events and logs");
        let mut files = support::collect(&cluster.client, &cluster.namespace).await;
        let unreadable = files.iter().filter(|file| file.unreadable).count();
        if unreadable == files.len() {
            step.failed("");
            return Err(nothing(&files));
        }
        let about = json!({
            "made": Timestamp::now().to_string(),
            "by": BUILD.to_string(),
            "kubernetes": version.git_version,
            "contents": files.iter().map(|file| file.path.clone()).collect::<Vec<_>>(),
        });
        let about = serde_json::to_string_pretty(&about).unwrap_or_default();
        files.insert(0, File { path: "about.json".into(), text: about, unreadable: false });
        step.done(&count(files.len(), "file"));
        let name = Timestamp::now().strftime("vdo-support-%Y%m%d-%H%M%S.tar.gz").to_string();
        let path = self.output.clone().unwrap_or_else(|| name.into());
        write(&path, &files)?;
        screen.print(&format!("{}\n", path.display()))?;
        if unreadable > 0 {
            let all = count(files.len(), "file");
            screen.note(&format!("{unreadable} of {all} could not be read; each says why."));
        }
        if files.iter().any(|file| file.text == support::LEFT_OUT) {
            screen.note("You may not read every Secret, so ConfigMaps, events, workloads, pods and logs were left out: what is secret in them could not be removed.");
        }
        screen.note("It holds no secrets. Look into it before you pass it on: names of your machines are in it.");
        Ok(())
    }
}

/// There would be nothing in it: why, in the words of the first.
fn nothing(files: &[File]) -> Failure {
    let why = files.first().map(|file| file.text.clone()).unwrap_or_default();
    let why = serde_json::from_str::<serde_json::Value>(&why)
        .ok()
        .and_then(|said| said["unreadable"].as_str().map(str::to_owned))
        .unwrap_or(why);
    Failure::Other { text: "nothing in this cluster could be read".into(), source: why.into() }
}

/// Writes the archive beside its place and moves it there: it is whole or not there at all.
fn write(path: &PathBuf, files: &[File]) -> Outcome {
    let mut partial = path.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = archive(&partial, files).and_then(|()| fs::rename(&partial, path));
    written.map_err(|source| {
        let _ = fs::remove_file(&partial);
        Failure::File { path: path.clone(), deed: "written", source }
    })
}

fn archive(path: &PathBuf, files: &[File]) -> io::Result<()> {
    let mut out = GzEncoder::new(fs::File::create(path)?, Compression::default());
    let now = Timestamp::now().as_second();
    for file in files {
        entry(&mut out, file, now)?;
    }
    // Two empty blocks end an archive.
    out.write_all(&[0; 1024])?;
    let file = out.finish()?;
    file.sync_all()
}

/// One file in the ustar format: a block of 512 bytes about it, then itself, filled up to whole blocks.
fn entry(out: &mut impl io::Write, file: &File, now: i64) -> io::Result<()> {
    let mut header = [0_u8; 512];
    let path = format!("vdo-support/{}", file.path);
    // A path of more than 100 bytes is broken at a slash.
    let fits = |at: &usize| path.len() - at <= 101;
    let slash = || path.match_indices('/').map(|(at, _)| at).find(fits);
    let broken = if path.len() <= 100 { None } else { slash() };
    let (prefix, name) = broken.map_or(("", path.as_str()), |at| (&path[..at], &path[at + 1..]));
    let mut put = |at: usize, size: usize, text: &str| {
        let bytes = &text.as_bytes()[..text.len().min(size)];
        header[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, 100, name);
    put(100, 8, "0000644\0");
    put(108, 8, "0000000\0");
    put(116, 8, "0000000\0");
    put(124, 12, &format!("{:011o}\0", file.text.len()));
    put(136, 12, &format!("{now:011o}\0"));
    put(148, 8, "        ");
    put(156, 1, "0");
    put(257, 8, "ustar\x0000");
    put(345, 155, prefix);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.write_all(&header)?;
    out.write_all(file.text.as_bytes())?;
    let rest = file.text.len() % 512;
    if rest > 0 {
        out.write_all(&vec![0; 512 - rest])?;
    }
    Ok(())
}
