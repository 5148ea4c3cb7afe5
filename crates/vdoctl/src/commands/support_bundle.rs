//! `vdoctl support-bundle`

use std::{
    fs::{self, FileType},
    io::{self, IsTerminal as _, Write as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use clap::Args;
use flate2::{Compression, write::GzEncoder};
use health::Examination;
use jiff::Timestamp;
use operator::support::{self, BundleFile};
use serde::de::IgnoredAny;
use serde_json::json;

use super::{configure::VcenterFlags, doctor};
use crate::{
    BUILD,
    cluster::Cluster,
    failure::{Doing as _, Failure, Outcome, refuse, request},
    options::Global,
    progress::ProgressStep,
    screen::Screen,
    text::count,
};

/// Collect objects, events and logs for support in one archive, without secrets.
///
/// The archive contains the report of `vdoctl doctor`, VDO's objects, nodes, volumes, claims, CSI objects and storage classes. From the namespaces of VDO and
/// the drivers, it contains workloads, pods, ConfigMaps, events, logs and metrics. It contains the names and keys of
/// Secrets. vdoctl redacts the values of Secrets in all files.
#[derive(Args, Debug)]
pub(crate) struct SupportBundle {
    /// The archive to write, or - for standard output. The default is vdo-support-TIME.tar.gz in the current
    /// directory.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl SupportBundle {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Outcome {
        let name = Timestamp::now().strftime("vdo-support-%Y%m%d-%H%M%S.tar.gz").to_string();
        let path = self.output.clone().unwrap_or_else(|| name.into());
        writable(&path)?;
        let cluster = Cluster::connect(global).await?;
        let version = cluster.client.apiserver_version().await.doing("asking for the version")?;
        let step = ProgressStep::begin(screen, "Collect objects, events and logs");
        let report = doctors_report(global, &screen.quieter()).await;
        let mut files = support::collect(&cluster.client, &cluster.namespace, vec![report]).await;
        let unreadable = files.iter().filter(|file| file.unreadable).count();
        if files.iter().all(|file| file.unreadable || file.path == DOCTOR) {
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
        files.insert(0, BundleFile { path: "about.json".into(), text: about, unreadable: false });
        step.done(&count(files.len(), "file"));
        if is_stdout(&path) {
            archive(io::stdout().lock(), &files)?.flush()?;
        } else {
            write(&path, &files)?;
            screen.print(&format!("{}\n", path.display()))?;
        }
        screen.note(&format!("The archive contains {}.", contents(&files)));
        if unreadable > 0 {
            let all = count(files.len(), "file");
            screen.note(&format!(
                "vdoctl could not read {unreadable} of {all}; each file contains the reason."
            ));
        }
        if files.iter().any(|file| file.text == support::LEFT_OUT) {
            screen.note("You lack the permission to read all Secrets, so vdoctl cannot redact their values. The archive omits ConfigMaps, events, workloads, pods, nodes, volumes, claims, attachments, logs and metrics. Check the rest before you share it.");
        } else {
            screen.note(
                "The archive contains no secrets, but it contains the names of your VMs and nodes. Check it before you share it.",
            );
        }
        Ok(())
    }
}

/// The file with the report of `vdoctl doctor`.
const DOCTOR: &str = "doctor.json";

/// The findings and datastores that `vdoctl doctor -o json` prints.
async fn doctors_report(global: &Global, screen: &Screen) -> BundleFile {
    let inspected = doctor::inspect(global, screen, &VcenterFlags::default(), false).await;
    let path = DOCTOR.to_owned();
    match inspected {
        Ok(inspection) => {
            inspection.close().await;
            let examination = Examination::run(inspection.facts);
            let text = serde_json::to_string_pretty(&doctor::report(&examination));
            BundleFile { path, text: text.unwrap_or_default(), unreadable: false }
        }
        Err(failure) => {
            let text = json!({"unreadable": failure.to_string()}).to_string();
            BundleFile { path, text, unreadable: true }
        }
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Rejects a terminal and everything that is not a regular file: the archive would replace a link, pipe or device.
fn writable(path: &Path) -> Outcome {
    if is_stdout(path) {
        return if io::stdout().is_terminal() {
            request(
                "vdoctl does not write an archive to a terminal",
                "redirect it: vdoctl support-bundle -o - > FILE",
            )
        } else {
            Ok(())
        };
    }
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => refuse(
            format!(
                "{} is {}; vdoctl does not overwrite it",
                path.display(),
                kind(there.file_type())
            ),
            "name a file, or - for standard output",
        ),
        _ => Ok(()),
    }
}

fn kind(there: FileType) -> &'static str {
    match there {
        there if there.is_dir() => "a directory",
        there if there.is_symlink() => "a symbolic link",
        there if there.is_fifo() => "a pipe",
        _ => "not a regular file",
    }
}

/// The number of objects of each kind, and of logs.
fn contents(files: &[BundleFile]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for file in files.iter().filter(|file| !file.unreadable) {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let (kind, number) = if file.path.contains("/logs/") {
            ("logs", 1)
        } else if file.path.contains("/metrics/") {
            ("metrics", 1)
        } else if let (Some(kind), Ok(items)) =
            (name.strip_suffix(".json"), serde_json::from_str::<Vec<IgnoredAny>>(&file.text))
        {
            (kind, items.len())
        } else {
            continue;
        };
        match counts.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, all)) => *all += number,
            None => counts.push((kind, number)),
        }
    }
    let texts = counts.iter().filter(|(_, number)| *number > 0);
    texts.map(|(kind, number)| format!("{number} {kind}")).collect::<Vec<_>>().join(", ")
}

/// The error if no file could be read, with the first reason.
fn nothing(files: &[BundleFile]) -> Failure {
    let why = files.first().map(|file| file.text.clone()).unwrap_or_default();
    let why = serde_json::from_str::<serde_json::Value>(&why)
        .ok()
        .and_then(|output| output["unreadable"].as_str().map(str::to_owned))
        .unwrap_or(why);
    Failure::Other {
        text: "vdoctl cannot read anything in this cluster".into(),
        source: why.into(),
    }
}

/// Writes a temporary file and renames it, so that the archive is complete or does not exist. Only its owner can
/// read it.
fn write(path: &Path, files: &[BundleFile]) -> Outcome {
    let (out, partial) = partial(path).map_err(|source| unwritten(path, source))?;
    let written =
        archive(out, files).and_then(|file| file.sync_all()).map_err(|e| unwritten(path, e));
    // The path may have changed in the meantime.
    let moved = written
        .and_then(|()| writable(path))
        .and_then(|()| fs::rename(&partial, path).map_err(|source| unwritten(path, source)));
    moved.inspect_err(|_| drop(fs::remove_file(&partial)))
}

fn unwritten(path: &Path, source: io::Error) -> Failure {
    Failure::File { path: path.to_owned(), deed: "written", source }
}

/// A new temporary file next to `path`.
fn partial(path: &Path) -> io::Result<(fs::File, PathBuf)> {
    let mut number = 0;
    loop {
        let mut partial = path.to_owned().into_os_string();
        partial.push(format!(".{}-{number}.partial", std::process::id()));
        let partial = PathBuf::from(partial);
        match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 100 => {
                number += 1;
            }
            opened => return opened.map(|file| (file, partial)),
        }
    }
}

fn archive<W: io::Write>(out: W, files: &[BundleFile]) -> io::Result<W> {
    let mut out = GzEncoder::new(out, Compression::default());
    let now = Timestamp::now().as_second();
    for file in files {
        entry(&mut out, file, now)?;
    }
    // Two empty blocks end an archive.
    out.write_all(&[0; 1024])?;
    out.finish()
}

/// One file in the ustar format: a header of 512 bytes, then the content, padded to whole blocks.
fn entry(out: &mut impl io::Write, file: &BundleFile, now: i64) -> io::Result<()> {
    let mut header = [0_u8; 512];
    let path = format!("vdo-support/{}", file.path);
    // A path of more than 100 bytes is split at a slash.
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
