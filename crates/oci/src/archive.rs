//! Image archives: an OCI image layout in one tar file, with the checksums of all files.
//!
//! ```text
//!   oci-layout            the version of the layout
//!   blobs/sha256/…        manifests, configurations and layers, each named by its digest
//!   files/…               files that travel with the images
//!   index.json            the images: name, digest, size
//!   SHA256SUMS            for `sha256sum --check`
//! ```
//!
//! Blobs come first. So an interrupted export continues at the end of the file, and needs no second copy on the disk.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use snafu::{OptionExt as _, ResultExt as _, ensure};

use crate::{
    digest::{Digest, Hasher},
    error::{
        BusySnafu, DamagedSnafu, Error, FileSnafu, NotAnArchiveSnafu, OtherDigestSnafu,
        TooLargeSnafu,
    },
    manifest::{Descriptor, INDEX, Parts, Platform, RawManifest},
    reference::Reference,
    tar::{self, BLOCK, Header},
};

const LAYOUT: (&str, &str) = ("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
const INDEX_FILE: &str = "index.json";
const CHECKSUMS: &str = "SHA256SUMS";
const BLOBS: &str = "blobs/sha256/";
/// The files that travel with the images.
const FILES: &str = "files/";
/// No manifest, index or list of checksums is larger.
const MAX_DOCUMENT: u64 = 16 << 20;

/// The name of an image in an index, as other tools read it.
const NAME: &str = "org.opencontainers.image.ref.name";
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// The platforms of an image that was not exported completely.
const PLATFORMS: &str = "com.vmware.vdo.platforms";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u32,
    media_type: String,
    manifests: Vec<Descriptor>,
}

/// A blob whose content is not complete.
struct Unfinished {
    digest: Digest,
    content_at: u64,
    size: u64,
    have: u64,
    hasher: Hasher,
}

/// Writes an archive.
pub(crate) struct ArchiveWriter {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    /// Where the next header goes.
    end: u64,
    /// The digest of each complete file.
    checksums: BTreeMap<String, Digest>,
    unfinished: Option<Unfinished>,
}

impl ArchiveWriter {
    /// Begins an archive, or continues one that was interrupted. Content that does not have its digest is dropped.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let mut partial = path.to_owned().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).open(&partial);
        let file = opened.context(FileSnafu { path: &partial, deed: "written" })?;
        ensure!(file.try_lock().is_ok(), BusySnafu { path: &partial });
        let path = path.to_owned();
        let checksums = BTreeMap::new();
        let mut writer = Self { path, partial, file, end: 0, checksums, unfinished: None };
        writer.find_content()?;
        if writer.checksums.is_empty() {
            writer.add_file(LAYOUT.0, LAYOUT.1.as_bytes())?;
        }
        Ok(writer)
    }

    fn failed(&self, deed: &'static str) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = self.partial.clone();
        move |source| Error::File { path, deed, source }
    }

    /// Reads the content of an interrupted export, and forgets everything from the first damaged entry on.
    fn find_content(&mut self) -> Result<(), Error> {
        let length = self.file.metadata().map_err(self.failed("read"))?.len();
        let mut block = [0; 512];
        while self.end + BLOCK <= length {
            self.file.read_exact_at(&mut block, self.end).map_err(self.failed("read"))?;
            let Some(Header::File { path, size }) = tar::parse(&block) else { break };
            let (content_at, is_layout) = (self.end + BLOCK, path == LAYOUT.0);
            let digest =
                path.strip_prefix(BLOBS).map(|hex| format!("sha256:{hex}").parse::<Digest>());
            let expected = match digest {
                Some(Ok(digest)) => digest,
                None if is_layout && self.end == 0 => Digest::from_bytes(LAYOUT.1.as_bytes()),
                _ => break,
            };
            let have = size.min(length - content_at);
            let hasher = hash(&self.file, content_at, have).map_err(self.failed("read"))?;
            if have < size {
                self.unfinished =
                    Some(Unfinished { digest: expected, content_at, size, have, hasher });
                break;
            }
            if hasher.finish() != expected {
                break;
            }
            self.end = content_at + tar::padded(size);
            self.checksums.insert(path, expected);
        }
        let is_ours = self.end > 0 || length == 0;
        let why = "vdoctl did not begin it; remove it or write to another file";
        ensure!(is_ours, NotAnArchiveSnafu { path: &self.partial, why });
        let keep = self.unfinished.as_ref().map_or(self.end, |blob| blob.content_at + blob.have);
        self.file.set_len(keep.max(self.end)).map_err(self.failed("written"))
    }

    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.checksums.contains_key(&blob_path(digest))
    }

    /// Begins a blob, or continues it. Returns how many bytes are there already.
    pub(crate) fn begin(&mut self, digest: &Digest, size: u64) -> Result<u64, Error> {
        if let Some(blob) = &self.unfinished
            && blob.digest == *digest
            && blob.size == size
        {
            return Ok(blob.have);
        }
        ensure!(
            size < tar::MAX_SIZE,
            TooLargeSnafu { name: digest.to_string(), limit: tar::MAX_SIZE }
        );
        let header = tar::header(&blob_path(digest), size);
        self.write_at_end(&header)?;
        let content_at = self.end + BLOCK;
        let (digest, hasher) = (digest.clone(), Hasher::new());
        self.unfinished = Some(Unfinished { digest, content_at, size, have: 0, hasher });
        Ok(0)
    }

    /// Drops the content of the blob that was begun.
    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        let Some(blob) = self.unfinished.as_mut() else { return Ok(()) };
        (blob.have, blob.hasher) = (0, Hasher::new());
        let content_at = blob.content_at;
        self.file.set_len(content_at).map_err(self.failed("written"))
    }

    /// Appends content to the blob that was begun.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let failed = self.failed("written");
        let Some(blob) = self.unfinished.as_mut() else { return Ok(()) };
        let room = blob.size - blob.have;
        let name = blob.digest.to_string();
        ensure!(bytes.len() as u64 <= room, TooLargeSnafu { name, limit: blob.size });
        self.file.write_all_at(bytes, blob.content_at + blob.have).map_err(failed)?;
        blob.hasher.update(bytes);
        blob.have += bytes.len() as u64;
        Ok(())
    }

    /// Completes the blob that was begun. Content with another digest is dropped.
    pub(crate) fn finish_blob(&mut self) -> Result<(), Error> {
        let Some(blob) = self.unfinished.take() else { return Ok(()) };
        let found = blob.hasher.finish();
        if found != blob.digest {
            self.file.set_len(self.end).map_err(self.failed("written"))?;
            let name = format!("the blob {}", blob.digest);
            return OtherDigestSnafu {
                name,
                expected: blob.digest.to_string(),
                found: found.to_string(),
            }
            .fail();
        }
        self.end = blob.content_at + tar::padded(blob.size);
        self.file.set_len(self.end).map_err(self.failed("written"))?;
        self.checksums.insert(blob_path(&blob.digest), blob.digest);
        Ok(())
    }

    fn write_at_end(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.set_len(self.end).map_err(self.failed("written"))?;
        self.file.write_all_at(bytes, self.end).map_err(self.failed("written"))
    }

    fn add_file(&mut self, path: &str, bytes: &[u8]) -> Result<(), Error> {
        let name = path.to_owned();
        ensure!(path.len() <= 100, TooLargeSnafu { name, limit: 100_u64 });
        let size = bytes.len() as u64;
        self.write_at_end(&[&tar::header(path, size)[..], bytes].concat())?;
        self.end += BLOCK + tar::padded(size);
        self.file.set_len(self.end).map_err(self.failed("written"))?;
        self.checksums.insert(path.to_owned(), Digest::from_bytes(bytes));
        Ok(())
    }

    /// Writes index, files and checksums, and gives the archive its name. Returns the digest of the archive.
    pub(crate) fn finish(
        mut self,
        images: &[ArchivedImage],
        files: &[(String, Vec<u8>)],
    ) -> Result<Digest, Error> {
        for (name, bytes) in files {
            self.add_file(&format!("{FILES}{name}"), bytes)?;
        }
        let manifests = images.iter().map(ArchivedImage::to_descriptor).collect();
        let index = Index { schema_version: 2, media_type: INDEX.to_owned(), manifests };
        let index = serde_json::to_vec(&index).unwrap_or_default();
        self.add_file(INDEX_FILE, &index)?;
        let mut sums = String::new();
        for (path, digest) in &self.checksums {
            let _ = writeln!(sums, "{}  {path}", digest.hex());
        }
        self.add_file(CHECKSUMS, sums.as_bytes())?;
        // Two empty blocks end an archive.
        self.write_at_end(&[0; 1024])?;
        self.file.sync_all().map_err(self.failed("written"))?;
        let length = self.end + 2 * BLOCK;
        let digest = hash(&self.file, 0, length).map_err(self.failed("read"))?.finish();
        fs::rename(&self.partial, &self.path)
            .context(FileSnafu { path: &self.path, deed: "written" })?;
        Ok(digest)
    }
}

fn blob_path(digest: &Digest) -> String {
    format!("{BLOBS}{}", digest.hex())
}

/// Hashes a part of a file.
fn hash(file: &File, from: u64, length: u64) -> io::Result<Hasher> {
    let (mut hasher, mut buffer, mut at) = (Hasher::new(), vec![0; 1 << 20], from);
    while at < from + length {
        let wanted = usize::try_from(from + length - at).unwrap_or(usize::MAX).min(buffer.len());
        let got = file.read_at(&mut buffer[..wanted], at)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(&buffer[..got]);
        at += got as u64;
    }
    Ok(hasher)
}

/// An image in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedImage {
    /// The name under which it was exported.
    pub name: Reference,
    pub digest: Digest,
    /// The platforms, if the archive does not have all of the image.
    pub platforms: Option<Vec<Platform>>,
    pub(crate) media_type: String,
    pub(crate) size: u64,
}

impl ArchivedImage {
    fn to_descriptor(&self) -> Descriptor {
        let name = self.name.tagged();
        let mut annotations =
            BTreeMap::from([NAME, CONTAINERD_NAME].map(|key| (key.to_owned(), name.clone())));
        if let Some(platforms) = &self.platforms {
            let platforms: Vec<String> = platforms.iter().map(Platform::to_string).collect();
            annotations.insert(PLATFORMS.to_owned(), platforms.join(","));
        }
        let (media_type, digest) = (self.media_type.clone(), self.digest.clone());
        Descriptor { media_type, digest, size: self.size, platform: None, annotations }
    }

    fn from_descriptor(descriptor: Descriptor) -> Result<Self, Error> {
        let name = descriptor.annotations.get(NAME).cloned().unwrap_or_default();
        let digest = descriptor.digest;
        let name: Reference = format!("{name}@{digest}").parse()?;
        let platforms = descriptor.annotations.get(PLATFORMS);
        let platforms = platforms
            .map(|list| list.split(',').map(str::parse).collect::<Result<Vec<Platform>, Error>>());
        let platforms = platforms.transpose()?;
        Ok(Self {
            name,
            digest,
            platforms,
            media_type: descriptor.media_type,
            size: descriptor.size,
        })
    }
}

/// Where a file of an archive is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) at: u64,
    pub(crate) size: u64,
}

/// A complete archive whose content was checked.
#[derive(Debug)]
pub struct Archive {
    pub(crate) path: PathBuf,
    file: File,
    places: BTreeMap<String, Place>,
    images: Vec<ArchivedImage>,
}

impl Archive {
    /// Opens an archive and checks every file in it: checksums, digests, and that no part of an image is missing.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).context(FileSnafu { path, deed: "read" })?;
        let places = list(path, &file)?;
        let mut archive = Self { path: path.to_owned(), file, places, images: Vec::new() };
        archive.check_layout()?;
        archive.check_sums()?;
        archive.images = archive.read_index()?;
        for image in &archive.images {
            archive.check_image(image)?;
        }
        Ok(archive)
    }

    pub fn images(&self) -> &[ArchivedImage] {
        &self.images
    }

    /// The names of the files that travel with the images.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.places.keys().filter_map(|path| path.strip_prefix(FILES))
    }

    /// The content of a file that travels with the images.
    pub fn file(&self, name: &str) -> Result<Vec<u8>, Error> {
        self.document(&format!("{FILES}{name}"))
    }

    fn damaged(&self, why: String) -> Error {
        DamagedSnafu { path: &self.path, why }.build()
    }

    fn check_layout(&self) -> Result<(), Error> {
        let why = "it has no file oci-layout";
        ensure!(self.places.contains_key(LAYOUT.0), NotAnArchiveSnafu { path: &self.path, why });
        Ok(())
    }

    /// Compares every file with its checksum, and every blob with its name.
    fn check_sums(&self) -> Result<(), Error> {
        let text = self.document(CHECKSUMS)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut expected = BTreeMap::new();
        for line in text.lines() {
            let parsed = line.split_once("  ").and_then(|(hex, path)| {
                Some((path.to_owned(), format!("sha256:{hex}").parse::<Digest>().ok()?))
            });
            let parsed = parsed.with_context(|| DamagedSnafu {
                path: &self.path,
                why: format!("{CHECKSUMS} has the line {line:?}"),
            })?;
            expected.extend([parsed]);
        }
        for (path, place) in self.places.iter().filter(|(path, _)| *path != CHECKSUMS) {
            let read = hash(&self.file, place.at, place.size);
            let found = read.context(FileSnafu { path: &self.path, deed: "read" })?.finish();
            let Some(sum) = expected.remove(path) else {
                return Err(self.damaged(format!("{CHECKSUMS} does not list {path}")));
            };
            let named = path.strip_prefix(BLOBS).is_none_or(|hex| hex == found.hex());
            if found != sum || !named {
                return Err(
                    self.damaged(format!("{path} has another content: its digest is {found}"))
                );
            }
        }
        match expected.keys().next() {
            Some(missing) => Err(self.damaged(format!("{missing} is missing"))),
            None => Ok(()),
        }
    }

    fn read_index(&self) -> Result<Vec<ArchivedImage>, Error> {
        let index: Index = serde_json::from_slice(&self.document(INDEX_FILE)?)
            .map_err(|error| self.damaged(format!("{INDEX_FILE} cannot be read: {error}")))?;
        let images = index.manifests.into_iter().map(ArchivedImage::from_descriptor);
        let images = images.collect::<Result<Vec<_>, Error>>();
        images.map_err(|error| self.damaged(format!("{INDEX_FILE}: {error}")))
    }

    fn document(&self, path: &str) -> Result<Vec<u8>, Error> {
        let Some(place) = self.places.get(path) else {
            return Err(self.damaged(format!("{path} is missing")));
        };
        if place.size > MAX_DOCUMENT && !path.starts_with(FILES) {
            return Err(self.damaged(format!("{path} is larger than {MAX_DOCUMENT} bytes")));
        }
        let mut bytes = vec![0; usize::try_from(place.size).unwrap_or(usize::MAX)];
        let read = self.file.read_exact_at(&mut bytes, place.at);
        read.context(FileSnafu { path: &self.path, deed: "read" })?;
        Ok(bytes)
    }

    /// Checks that everything an image refers to is in the archive.
    fn check_image(&self, image: &ArchivedImage) -> Result<(), Error> {
        let (_, blobs) = self.content(image)?;
        for blob in blobs {
            match self.places.get(&blob_path(&blob.digest)) {
                Some(place) if place.size == blob.size => {}
                found => {
                    let size = found.map_or("missing".to_owned(), |place| {
                        format!("{} bytes long instead of {}", place.size, blob.size)
                    });
                    let why =
                        format!("{}: the blob {} is {size}", image.name.tagged(), blob.digest);
                    return Err(self.damaged(why));
                }
            }
        }
        Ok(())
    }

    /// The manifests of an image, children first, and its other blobs.
    pub(crate) fn content(
        &self,
        image: &ArchivedImage,
    ) -> Result<(Vec<RawManifest>, Vec<Descriptor>), Error> {
        let name = image.name.tagged();
        let root = self.manifest(&name, &image.digest, &image.media_type)?;
        let Parts::Index(children) = root.parts(&name)? else {
            let blobs = own_blobs(&root, &name)?;
            return Ok((vec![root], blobs));
        };
        let (mut manifests, mut blobs) = (Vec::new(), Vec::new());
        for child in children {
            let is_left_out = image.platforms.as_ref().is_some_and(|wanted| {
                child.platform.as_ref().is_none_or(|platform| !wanted.contains(platform))
            });
            if is_left_out {
                continue;
            }
            let manifest = self.manifest(&name, &child.digest, &child.media_type)?;
            blobs.extend(own_blobs(&manifest, &name)?);
            manifests.push(manifest);
        }
        manifests.push(root);
        Ok((manifests, blobs))
    }

    fn manifest(&self, name: &str, digest: &Digest, kind: &str) -> Result<RawManifest, Error> {
        let path = blob_path(digest);
        if !self.places.contains_key(&path) {
            return Err(self.damaged(format!("{name}: the manifest {digest} is missing")));
        }
        RawManifest::new(name, self.document(&path)?, Some(kind))
    }

    pub(crate) fn place(&self, digest: &Digest) -> Option<Place> {
        self.places.get(&blob_path(digest)).copied()
    }
}

/// The configuration and the layers of a manifest, without those that registries do not have.
fn own_blobs(manifest: &RawManifest, name: &str) -> Result<Vec<Descriptor>, Error> {
    match manifest.parts(name)? {
        Parts::Blobs(blobs) => Ok(blobs.into_iter().filter(|blob| !blob.is_foreign()).collect()),
        // No tool writes an index below an index.
        Parts::Index(_) => Ok(Vec::new()),
    }
}

/// Lists the files of an archive.
fn list(path: &Path, mut file: &File) -> Result<BTreeMap<String, Place>, Error> {
    let read = FileSnafu { path, deed: "read" };
    let length = file.metadata().context(read)?.len();
    let (mut places, mut at, mut block) = (BTreeMap::new(), 0_u64, [0; 512]);
    loop {
        let truncated = DamagedSnafu { path, why: "its end is missing" };
        ensure!(at + BLOCK <= length, truncated);
        file.seek(SeekFrom::Start(at)).context(read)?;
        file.read_exact(&mut block).context(read)?;
        let header = tar::parse(&block);
        let header = header.context(NotAnArchiveSnafu { path, why: "it is not a tar archive" })?;
        let (name, size) = match header {
            Header::End => return Ok(places),
            Header::File { path, size } => (Some(path), size),
            Header::Other { size } => (None, size),
        };
        at += BLOCK;
        ensure!(size <= length.saturating_sub(at), truncated);
        let twice = |name: String| DamagedSnafu { path, why: format!("it contains {name} twice") };
        if let Some(name) = name
            && places.insert(name.clone(), Place { at, size }).is_some()
        {
            return twice(name).fail();
        }
        at += tar::padded(size);
    }
}
