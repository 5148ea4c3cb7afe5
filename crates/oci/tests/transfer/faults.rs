//! Interruptions and manipulations.

use std::{fs, os::unix::fs::FileExt as _};

use oci::{Archive, Error, Silent, Target};
use testkit::{Registry, Workdir};

use crate::{
    front::{Behaviour, Front},
    images::{LAYER, plain, push, wanted},
};

/// Reports when the second image begins.
struct Stop(tokio::sync::watch::Sender<bool>);

impl oci::Progress for Stop {
    fn image(&mut self, name: &str) {
        let _ = self.0.send(name.ends_with("/b:1"));
    }
    fn bytes(&mut self, _: u64, _: u64) {}
    fn done(&mut self, _: u64) {}
}

fn blob_requests(front: &Front) -> Vec<String> {
    let requests = front.requests().into_iter();
    requests.filter(|request| request.starts_with("GET") && request.contains("/blobs/")).collect()
}

#[tokio::test]
async fn an_interrupted_export_continues_at_the_byte_where_it_stopped() {
    let workdir = Workdir::new("interrupted").unwrap();
    let registry = Registry::start().await;
    push(&registry, &workdir, "vdo");
    let front = Front::before(registry.address(), Behaviour::default()).await;
    let wanted = wanted(&["vdo"], &front.address.to_string());
    let [whole, path] = ["whole.tar", "bundle.tar"].map(|name| workdir.path().join(name));
    let (_, expected) = oci::export(&plain(), &wanted, &whole, &mut Silent).await.unwrap();
    front.requests();

    // The connection breaks again and again: the export gives up, and keeps what it has.
    let breaks = |cuts| Behaviour { cut: Some(500_000), cuts, ..Behaviour::default() };
    front.set(breaks(5));
    let stopped = oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap_err();
    assert!(stopped.help().unwrap().contains("continues where it stopped"), "{stopped}");
    assert!(!path.exists(), "an incomplete archive has another name");
    let ranges: Vec<String> = blob_requests(&front);
    assert!(
        ranges.iter().any(|request| request.ends_with(&format!("bytes=500000-{}", LAYER - 1))),
        "{ranges:?}"
    );

    // The computer was switched off meanwhile: some bytes never reached the disk.
    let partial = workdir.path().join("bundle.tar.partial");
    let kept = fs::metadata(&partial).unwrap().len();
    fs::OpenOptions::new().write(true).open(&partial).unwrap().set_len(kept - 100).unwrap();
    front.set(breaks(1));
    let (_, digest) = oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap();
    assert_eq!(digest, expected, "the same archive as without an interruption");
    assert!(!partial.exists());
    let ranges = blob_requests(&front);
    assert!(ranges[0].ends_with(&format!("bytes=2499900-{}", LAYER - 1)), "{ranges:?}");
    Archive::open(&path).unwrap();

    // A registry that cannot continue sends everything again.
    fs::remove_file(&path).unwrap();
    front.set(Behaviour { no_ranges: true, ..breaks(2) });
    let (_, digest) = oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap();
    assert_eq!(digest, expected);
}

#[tokio::test]
async fn content_that_a_registry_changed_is_refused() {
    let workdir = Workdir::new("manipulated").unwrap();
    let registry = Registry::start().await;
    push(&registry, &workdir, "vdo");
    let behaviour = Behaviour { manipulates: true, ..Behaviour::default() };
    let front = Front::before(registry.address(), behaviour).await;
    let wanted = wanted(&["vdo"], &front.address.to_string());
    let path = workdir.path().join("bundle.tar");
    let refused = oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap_err();
    assert!(matches!(refused, Error::OtherDigest { .. }), "{refused}");
    assert!(refused.help().unwrap().contains("other content than the publisher's"));
    // Nothing of it is used later.
    front.set(Behaviour::default());
    oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap();
    Archive::open(&path).unwrap();
}

#[tokio::test]
async fn a_file_that_is_not_ours_is_not_continued_and_two_exports_do_not_mix() {
    let workdir = Workdir::new("partial").unwrap();
    let registry = Registry::start().await;
    push(&registry, &workdir, "vdo");
    let wanted = wanted(&["vdo"], &registry.address().to_string());
    let path = workdir.path().join("bundle.tar");
    let partial = workdir.write("bundle.tar.partial", "the only copy of a thesis").unwrap();
    let refused = oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap_err();
    assert!(refused.to_string().contains("vdoctl did not begin it"), "{refused}");
    assert_eq!(fs::read_to_string(&partial).unwrap(), "the only copy of a thesis");
    fs::write(&partial, "").unwrap();
    let other = fs::File::open(&partial).unwrap();
    other.lock().unwrap();
    let refused = oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }), "{refused}");
    drop(other);
    oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap();
}

#[tokio::test]
async fn every_change_of_an_archive_is_noticed_before_anything_is_sent() {
    let workdir = Workdir::new("tampered").unwrap();
    let registry = Registry::start().await;
    push(&registry, &workdir, "vdo");
    let wanted = wanted(&["vdo"], &registry.address().to_string());
    let path = workdir.path().join("bundle.tar");
    oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap();
    let good = fs::read(&path).unwrap();
    let find =
        |text: &str| good.windows(text.len()).position(|some| some == text.as_bytes()).unwrap();

    // A byte in each part: layout, a manifest, a layer, the index, the checksums.
    let places = [
        find("imageLayoutVersion"),
        find("\"architecture\":"),
        good.len() / 3,
        2 * good.len() / 3,
        find("upstream.example.com"),
        find("  blobs/sha256/"),
    ];
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    for place in places {
        file.write_all_at(&[good[place] ^ 1], place as u64).unwrap();
        let refused = Archive::open(&path).unwrap_err();
        assert!(
            matches!(refused, Error::Damaged { .. } | Error::NotAnArchive { .. }),
            "byte {place}: {refused}"
        );
        file.write_all_at(&[good[place]], place as u64).unwrap();
    }
    Archive::open(&path).unwrap();

    // Another image in place of the exported one, with checksums that fit: the name of a blob is its digest.
    let layer = find("  blobs/sha256/") - 64;
    let mut forged = good.clone();
    forged[good.len() / 3] ^= 1;
    forged[layer] ^= 1;
    fs::write(&path, &forged).unwrap();
    Archive::open(&path).unwrap_err();
    for length in [0, 100, 512, good.len() / 2, good.len() - 2000] {
        fs::write(&path, &good[..length]).unwrap();
        let refused = Archive::open(&path).unwrap_err();
        assert!(refused.help().is_some(), "{length}: {refused}");
    }
}

#[tokio::test]
async fn an_import_continues_after_an_interruption() {
    let workdir = Workdir::new("import").unwrap();
    let registry = Registry::start().await;
    for name in ["a", "b"] {
        push(&registry, &workdir, name);
    }
    let wanted = wanted(&["a", "b"], &registry.address().to_string());
    let path = workdir.path().join("bundle.tar");
    oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap();
    let archive = Archive::open(&path).unwrap();
    let site = Registry::start().await;
    let front = Front::before(site.address(), Behaviour::default()).await;
    let target = Target::parse(&front.address.to_string()).unwrap();

    // The user stops the import as soon as the second image begins.
    let (sender, mut stop) = tokio::sync::watch::channel(false);
    let (client, mut progress) = (plain(), Stop(sender));
    tokio::select! {
        done = oci::import(&client, &archive, &target, &mut progress) => panic!("{done:?}"),
        _ = stop.wait_for(|stop| *stop) => {}
    }
    front.requests();
    oci::import(&client, &archive, &target, &mut Silent).await.unwrap();
    let requests = front.requests();
    let uploads = |name: &str| {
        let path = format!("POST /v2/{name}/blobs/uploads/");
        requests.iter().filter(|request| **request == path).count()
    };
    assert_eq!(uploads("a"), 0, "the first image is there: {requests:?}");
    assert!(uploads("b") >= 1, "{requests:?}");
    assert_eq!(oci::verify_registry(&client, &archive, &target, &mut Silent).await.unwrap(), []);
}

#[tokio::test]
async fn a_registry_that_states_no_sizes_is_intact_and_gets_no_blob_twice() {
    let workdir = Workdir::new("lengths").unwrap();
    let registry = Registry::start().await;
    push(&registry, &workdir, "vdo");
    let path = workdir.path().join("bundle.tar");
    let wanted = wanted(&["vdo"], &registry.address().to_string());
    oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap();
    let archive = Archive::open(&path).unwrap();

    let site = Registry::start().await;
    let behaviour = Behaviour { no_lengths: true, ..Behaviour::default() };
    let front = Front::before(site.address(), behaviour).await;
    let target = Target::parse(&front.address.to_string()).unwrap();
    let empty = oci::verify_registry(&plain(), &archive, &target, &mut Silent).await.unwrap();
    assert!(empty.iter().any(|problem| problem.text.contains("the blob")), "{empty:?}");
    oci::import(&plain(), &archive, &target, &mut Silent).await.unwrap();
    let problems = oci::verify_registry(&plain(), &archive, &target, &mut Silent).await.unwrap();
    assert_eq!(problems, []);
    front.requests();
    oci::import(&plain(), &archive, &target, &mut Silent).await.unwrap();
    let again = front.requests();
    assert!(!again.iter().any(|request| request.contains("/blobs/uploads/")), "{again:?}");
}
