//! Untrusted catalogs: each is refused with its own message, and the old catalog stays in use.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::assigning_clones,
    reason = "a test that cannot set itself up should fall, and reads better plain"
)]

use std::io::{self, Read};

use aws_lc_rs::signature::Ed25519KeyPair;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use catalog::{
    EMBEDDED, embedded,
    trust::{
        self, BoundedBuffer, Bundle, CatalogStore, MAX_BUNDLE_BYTES, PublicKey, SigningKey, Trust,
    },
};
use jiff::Timestamp;

fn now() -> Timestamp {
    "2026-12-01T00:00:00Z".parse().unwrap()
}

fn key() -> SigningKey {
    SigningKey::generate().unwrap().0
}

fn text(serial: u64) -> String {
    EMBEDDED.replacen("serial: 1", &format!("serial: {serial}"), 1)
}

fn bundle(text: &str, key: SigningKey) -> Vec<u8> {
    Bundle::sign(text.as_bytes(), &[key]).to_json().into_bytes()
}

/// Offers bytes to a store with the embedded catalog and returns the message of the refusal.
fn refused(bytes: &[u8], keys: &[PublicKey]) -> String {
    let mut store = CatalogStore::embedded();
    let error = store.offer(bytes, Trust { keys, unsigned: false }, now()).unwrap_err();
    assert_eq!(*store.catalog(), *embedded(), "the old one stays in use");
    assert_eq!(store.digest(), CatalogStore::embedded().digest());
    snafu::Report::from_error(error).to_string()
}

#[test]
fn a_newer_signed_catalog_replaces_the_old_one() {
    let key = key();
    let public = [key.public()];
    let trust = Trust { keys: &public, unsigned: false };
    let offered = bundle(&text(2), key);
    let mut store = CatalogStore::embedded();
    assert!(store.offer(&offered, trust, now()).unwrap());
    assert_eq!(store.catalog().serial, 2);
    assert!(!store.offer(&offered, trust, now()).unwrap(), "the same again is no change");
}

#[test]
fn a_catalog_without_a_signature_is_refused() {
    assert!(
        refused(text(2).as_bytes(), &[key().public()]).starts_with("the catalog is not signed")
    );
    let bundle = Bundle::sign(text(2).as_bytes(), &[]).to_json();
    assert!(refused(bundle.as_bytes(), &[key().public()]).starts_with("the catalog is not signed"));
}

#[test]
fn a_tampered_catalog_is_refused() {
    let key = key();
    let public = [key.public()];
    let genuine = String::from_utf8(bundle(&text(2), key)).unwrap();
    // One character in the payload.
    let place = genuine.find("\"payload\":\"").unwrap() + 400;
    for (n, letter) in [(place, 'A'), (place + 1_000, 'B'), (place + 10_000, 'C')] {
        let mut forged = genuine.clone();
        let letter = if forged.as_bytes()[n] == letter as u8 { 'Z' } else { letter };
        forged.replace_range(n..=n, &letter.to_string());
        let sentence = refused(forged.as_bytes(), &public);
        assert!(sentence.contains("the catalog was changed after it was signed"), "{sentence}");
    }
}

#[test]
fn a_catalog_signed_with_an_unknown_key_is_refused_and_both_keys_are_named() {
    let other_key = key();
    let ours = key().public();
    let theirs = other_key.public().id();
    let sentence = refused(&bundle(&text(2), other_key), std::slice::from_ref(&ours));
    assert!(sentence.contains(&format!("signed with {theirs}")), "{sentence}");
    assert!(sentence.contains(&format!("the trusted keys are {}", ours.id())), "{sentence}");
}

#[test]
fn a_signature_with_the_id_of_another_key_is_refused() {
    let (ours, other_key) = (key().public(), key());
    let id = other_key.public().id().to_string();
    let forged = String::from_utf8(bundle(&text(2), other_key))
        .unwrap()
        .replace(&id, &ours.id().to_string());
    let sentence = refused(forged.as_bytes(), std::slice::from_ref(&ours));
    assert!(sentence.contains("does not match"), "{sentence}");
}

#[test]
fn an_expired_catalog_is_refused() {
    let key = key();
    let public = [key.public()];
    let old = text(2).replace("expires: 2027-11-15", "expires: 2026-11-20");
    let sentence = refused(&bundle(&old, key), &public);
    assert_eq!(
        sentence.trim(),
        "the catalog expired on 2026-11-20T00:00:00Z; the source that offers it is out of date"
    );
}

#[test]
fn a_catalog_in_use_works_after_its_expiry_with_a_warning() {
    let store = CatalogStore::embedded();
    assert_eq!(store.overdue(now()), None);
    let later = "2028-01-01T00:00:00Z".parse().unwrap();
    assert!(store.overdue(later).is_some());
    assert_eq!(*store.catalog(), *embedded());
}

#[test]
fn a_rolled_back_catalog_is_refused() {
    let (key, pem) = SigningKey::generate().unwrap();
    let keys = [key.public()];
    let trust = Trust { keys: &keys, unsigned: false };
    let mut store = CatalogStore::embedded();
    store.offer(&bundle(&text(7), key), trust, now()).unwrap();
    let error = store.offer(&bundle(&text(6), again(&pem)), trust, now()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the catalog has serial 6, older than 7, which was accepted before"
    );
    assert_eq!(store.catalog().serial, 7);
}

/// Reads a key again, because signing consumes it.
fn again(pem: &str) -> SigningKey {
    SigningKey::from_pem(pem).unwrap()
}

#[test]
fn an_unsigned_catalog_in_between_does_not_allow_a_rollback() {
    let (key, pem) = SigningKey::generate().unwrap();
    let keys = [key.public()];
    let trust = Trust { keys: &keys, unsigned: true };
    let mut store = CatalogStore::embedded();
    assert!(store.offer(&bundle(&text(50), key), trust, now()).unwrap());
    assert!(store.offer(text(2).as_bytes(), trust, now()).unwrap(), "the admin's own is accepted");
    let error = store.offer(&bundle(&text(3), again(&pem)), trust, now()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the catalog has serial 3, older than 50, which was accepted before"
    );
    assert_eq!(store.catalog().serial, 2);
    assert!(
        store.offer(&bundle(&text(50), again(&pem)), trust, now()).unwrap(),
        "the earlier one is accepted again"
    );
}

#[test]
fn a_restart_does_not_allow_a_rollback() {
    let (key, pem) = SigningKey::generate().unwrap();
    let keys = [key.public()];
    let trust = Trust { keys: &keys, unsigned: false };
    let mut before = CatalogStore::embedded();
    before.offer(&bundle(&text(50), key), trust, now()).unwrap();
    assert_eq!(before.floors()[&keys[0].id()], 50);
    let mut store = CatalogStore::embedded().with_floors(&before.floors());
    assert!(store.offer(&bundle(&text(3), again(&pem)), trust, now()).is_err());
    assert_eq!(*store.catalog(), *embedded());
    assert!(store.offer(&bundle(&text(50), again(&pem)), trust, now()).unwrap());
    assert_eq!(store.catalog().serial, 50);
    let lower = [(keys[0].id(), 0)].into();
    assert_eq!(before.clone().with_floors(&lower).floors(), before.floors(), "it never sinks");
}

#[test]
fn two_catalogs_with_one_serial_are_not_both_accepted() {
    let (key, pem) = SigningKey::generate().unwrap();
    let keys = [key.public()];
    let trust = Trust { keys: &keys, unsigned: false };
    let mut store = CatalogStore::embedded();
    store.offer(&bundle(&text(7), key), trust, now()).unwrap();
    let other = text(7).replace("newestVsphere: \"9.1\"", "newestVsphere: \"9.2\"");
    let error = store.offer(&bundle(&other, again(&pem)), trust, now()).unwrap_err();
    let sentence = error.to_string();
    assert!(
        sentence.starts_with("the catalog has serial 7 like one accepted before"),
        "{sentence}"
    );
    assert_eq!(store.catalog().newest_vsphere, embedded().newest_vsphere);
}

/// A publisher signs the highest possible serial, by mistake or on purpose.
#[test]
fn a_publisher_with_a_huge_serial_does_not_lock_out_another() {
    let ((hostile, pem), other) = (SigningKey::generate().unwrap(), key());
    let (hostile_id, other_id) = (hostile.public().id(), other.public().id());
    let keys = [hostile.public(), other.public()];
    let both = Trust { keys: &keys, unsigned: false };
    let mut store = CatalogStore::embedded();
    assert!(store.offer(&bundle(&text(u64::MAX), hostile), both, now()).unwrap());
    assert!(store.offer(&bundle(&text(2), other), both, now()).unwrap(), "the other's first");
    assert_eq!(store.catalog().serial, 2);
    // Each key has its own floor, and no catalog goes below it.
    let floors = store.floors();
    assert_eq!((floors[&hostile_id], floors[&other_id]), (u64::MAX, 2));
    let error = store.offer(&bundle(&text(9), again(&pem)), both, now()).unwrap_err();
    assert!(error.to_string().contains("serial 9, older than 18446744073709551615"), "{error}");
}

#[test]
fn a_catalog_with_two_signatures_must_be_newer_for_both_keys() {
    let ((one, one_pem), (two, two_pem)) =
        (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    let keys = [one.public(), two.public()];
    let trust = Trust { keys: &keys, unsigned: false };
    let both = |serial| {
        let keys = [again(&one_pem), again(&two_pem)];
        Bundle::sign(text(serial).as_bytes(), &keys).to_json().into_bytes()
    };
    let mut store = CatalogStore::embedded();
    assert!(store.offer(&both(3), trust, now()).unwrap());
    assert!(store.offer(&bundle(&text(5), one), trust, now()).unwrap());
    assert!(store.offer(&both(4), trust, now()).is_err(), "the first key signed 5 meanwhile");
    assert!(store.offer(&bundle(&text(2), two), trust, now()).is_err(), "the second signed 3");
    assert!(store.offer(&both(6), trust, now()).unwrap());
}

#[test]
fn a_signed_catalog_needs_an_expiry() {
    let (key, _) = SigningKey::generate().unwrap();
    let public = [key.public()];
    let endless = text(2).replace("expires: 2027-11-15T00:00:00Z\n", "");
    assert_ne!(endless, text(2));
    let sentence = refused(&bundle(&endless, key), &public);
    assert_eq!(
        sentence.trim(),
        "the catalog has no expiry, but a signed catalog needs one: set `expires` and sign it again"
    );
    // An unsigned catalog of the admin needs no expiry.
    let trust = Trust { keys: &public, unsigned: true };
    let mut store = CatalogStore::embedded();
    assert!(store.offer(endless.as_bytes(), trust, now()).unwrap());
}

#[test]
fn only_the_catalog_that_was_in_use_is_restored_after_its_expiry() {
    let (key, pem) = SigningKey::generate().unwrap();
    let keys = [key.public()];
    let trust = Trust { keys: &keys, unsigned: false };
    let old = text(7).replace("expires: 2027-11-15", "expires: 2026-11-20");
    let old = bundle(&old, key);
    let mut store = CatalogStore::embedded();
    assert!(store.restore(&old, trust).unwrap());
    assert_eq!(store.catalog().serial, 7);
    assert!(store.overdue(now()).is_some(), "that is a warning");
    assert!(!store.offer(&old, trust, now()).unwrap(), "its source still offers it");
    // Signature and serial are still checked.
    let later = CatalogStore::embedded().with_floors(&[(keys[0].id(), 8)].into());
    assert!(later.clone().restore(&old, trust).is_err());
    let other_key = [self::key().public()];
    assert!(
        CatalogStore::embedded()
            .restore(&old, Trust { keys: &other_key, unsigned: false })
            .is_err()
    );
    let forged = String::from_utf8(old).unwrap().replace("\"payload\":\"", "\"payload\":\"AAAA");
    assert!(CatalogStore::embedded().restore(forged.as_bytes(), trust).is_err());
    assert!(later.clone().restore(&bundle(&text(9), again(&pem)), trust).unwrap());
}

/// The release that a catalog installs on a new cluster, or the reason for none.
fn chosen(catalog: &catalog::Catalog) -> (Option<String>, String) {
    let seen = catalog::Environment {
        kubernetes: "v1.35.1".parse().unwrap(),
        vcenters: vec![catalog::Vcenter {
            name: "vc".into(),
            version: "8.0.3".parse().unwrap(),
            oldest_host: None,
        }],
        distribution: "vanilla".into(),
        windows_nodes: false,
        topology: false,
        rewrite: catalog::Rewrite::mirror("mirror.example.com"),
        today: None,
    };
    let request = catalog::Request {
        implementation: catalog::Implementation::Upstream,
        policy: catalog::Policy::Stable,
        installed: None,
    };
    let decision = catalog::choose(catalog, &seen, catalog::Driver::Csi, &request);
    let reasons = decision.others.iter().map(|(version, reason)| format!("{version}: {reason}"));
    let reasons: Vec<String> = reasons.collect();
    (decision.action.version().map(ToString::to_string), reasons.join("\n"))
}

#[test]
fn a_release_with_images_that_the_signature_does_not_cover_is_not_installed() {
    let digest =
        EMBEDDED.lines().find(|line| line.contains("csi-vsphere/driver:v3.7.3: sha256:")).unwrap();
    let unpinned = text(2).replace(&format!("{digest}\n"), "");
    let (key, pem) = SigningKey::generate().unwrap();
    let keys = [key.public()];
    let trust = Trust { keys: &keys, unsigned: true };
    let mut store = CatalogStore::embedded();
    let (newest, _) = chosen(&store.catalog());
    assert_eq!(newest.as_deref(), Some("3.7.3"), "the test removes the digest of the newest");

    assert!(store.offer(&bundle(&text(2), key), trust, now()).unwrap());
    assert_eq!(chosen(&store.catalog()).0, newest, "all its images have a digest");

    let unpinned_and_signed = bundle(&unpinned.replace("serial: 2", "serial: 3"), again(&pem));
    assert!(store.offer(&unpinned_and_signed, trust, now()).unwrap());
    let (other, reasons) = chosen(&store.catalog());
    assert_ne!(other, newest);
    let reason = "3.7.3: The catalog's signature does not cover all images: \
                  registry.k8s.io/csi-vsphere/driver:v3.7.3 has no digest.";
    assert!(reasons.contains(reason), "{reasons}");

    // Without a signature, the admin is responsible: the release is only not proven.
    assert!(store.offer(unpinned.as_bytes(), trust, now()).unwrap());
    let (_, reasons) = chosen(&store.catalog());
    assert!(!reasons.contains("signature"), "{reasons}");
    assert!(reasons.contains("3.7.3: It fits, but"), "{reasons}");
}

#[test]
fn a_truncated_bundle_is_refused() {
    let key = key();
    let public = [key.public()];
    let whole = bundle(&text(2), key);
    for cut in (1..whole.len()).step_by(whole.len() / 40).chain([whole.len() - 1]) {
        let sentence = refused(&whole[..cut], &public);
        let fits = sentence.starts_with("the catalog bundle is incomplete")
            // Too little to look like a bundle.
            || (cut < 16 && sentence.starts_with("the catalog is not signed"));
        assert!(fits, "{cut}: {sentence}");
    }
}

#[test]
fn a_catalog_of_a_future_schema_is_refused() {
    let key = key();
    let public = [key.public()];
    let sentence =
        refused(&bundle(&text(2).replace("schema: \"1.1\"", "schema: \"2.0\""), key), &public);
    assert!(
        sentence
            .contains("the catalog has schema 2.0; this operator reads 1.x. Upgrade the operator")
    );
}

#[test]
fn a_bundle_of_a_future_format_is_refused() {
    let sentence = refused(br#"{"format":2,"payload":"","signatures":[]}"#, &[]);
    assert!(
        sentence.starts_with("the catalog bundle has format 2; this operator reads 1"),
        "{sentence}"
    );
}

#[test]
fn an_inconsistent_signed_catalog_is_refused() {
    let key = key();
    let public = [key.public()];
    let twice = text(2).replace("version: 3.7.2", "version: 3.7.3");
    let sentence = refused(&bundle(&twice, key), &public);
    assert!(
        sentence.contains("the catalog is inconsistent: CSI 3.7.3 is in it twice"),
        "{sentence}"
    );
}

/// A stream of a gigabyte that is generated on the fly and counted.
struct Gigabyte {
    left: u64,
    read: u64,
}

impl Read for Gigabyte {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        into[..length].fill(b'x');
        self.left -= length as u64;
        self.read += length as u64;
        Ok(length)
    }
}

#[test]
fn a_catalog_of_a_gigabyte_is_refused_after_a_few_megabytes() {
    let mut stream = Gigabyte { left: 1 << 30, read: 0 };
    let error = BoundedBuffer::expecting(None).unwrap().drain(&mut stream).unwrap_err();
    assert!(error.to_string().starts_with("the catalog is larger than 5 MiB"), "{error}");
    assert!(
        stream.read < (MAX_BUNDLE_BYTES + (64 << 10)) as u64 + 1,
        "{} bytes were read",
        stream.read
    );
    let error = BoundedBuffer::expecting(Some(1 << 30)).unwrap_err();
    assert!(
        error.to_string().starts_with("the catalog is larger than"),
        "refused at once where the length is known"
    );
    let mut store = CatalogStore::embedded();
    let trust = Trust { keys: &[], unsigned: true };
    assert!(store.offer(&vec![b' '; MAX_BUNDLE_BYTES + 1], trust, now()).is_err());
    assert_eq!(*store.catalog(), *embedded());
}

#[test]
fn a_bundle_has_a_size_limit_even_if_its_catalog_is_small() {
    let key = key();
    let public = [key.public()];
    let mut padded = bundle(&text(2), key);
    padded.resize(MAX_BUNDLE_BYTES + 1, b' ');
    let sentence = refused(&padded, &public);
    assert!(sentence.starts_with("the catalog is larger than 5 MiB"), "{sentence}");
}

#[test]
fn a_catalog_has_a_size_limit_even_if_its_bundle_is_small_enough() {
    let key = key();
    let public = [key.public()];
    let padding = "# nothing\n".repeat((catalog::parse::MAX_BYTES - EMBEDDED.len()) / 10 + 1);
    let large = bundle(&format!("{}\n{padding}", text(2)), key);
    assert!(large.len() <= MAX_BUNDLE_BYTES);
    let sentence = refused(&large, &public);
    assert!(sentence.starts_with("the catalog is larger than 4 MiB"), "{sentence}");
}

#[test]
fn a_signature_made_for_another_purpose_is_refused() {
    let (key, pem) = SigningKey::generate().unwrap();
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let raw = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&BASE64_STANDARD.decode(body).unwrap());
    let text = text(2);
    // The same key over the same text, but without the catalog prefix.
    let signature = raw.unwrap().sign(text.as_bytes());
    let bundle = serde_json::json!({
        "format": 1,
        "payload": BASE64_STANDARD.encode(&text),
        "signatures": [{ "key": key.public().id(), "signature": BASE64_STANDARD.encode(signature) }],
    });
    let sentence = refused(bundle.to_string().as_bytes(), &[key.public()]);
    assert!(sentence.contains("does not match"), "{sentence}");
}

#[test]
fn a_stream_that_fails_is_not_taken_for_a_complete_one() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("connection reset"))
        }
    }
    let error = BoundedBuffer::default().drain(Broken).unwrap_err();
    assert_eq!(error.to_string(), "the catalog could not be read completely");
}

#[test]
fn the_admins_own_catalog_needs_no_signature_and_no_higher_serial() {
    let mut store = CatalogStore::embedded();
    let trust = Trust { keys: &[], unsigned: true };
    assert!(store.offer(text(0).as_bytes(), trust, now()).unwrap());
    let matrix = br#"{"CPI": {"1.36.0": {"vSphere": {"min": "7.0", "max": "9.0"}, "k8s": {"skewVersion": "1.36"},
        "deploymentPath": ["https://example.com/cpi.yaml"]}}}"#;
    assert!(store.offer(matrix, trust, now()).unwrap());
    assert_eq!(store.catalog().releases.len(), 1);
}

#[test]
fn a_signed_matrix_is_accepted_until_its_signer_publishes_a_catalog() {
    let (key, pem) = SigningKey::generate().unwrap();
    let keys = [key.public()];
    let trust = Trust { keys: &keys, unsigned: false };
    let matrix = r#"{"CPI": {"1.26.0": {"vSphere": {"min": "6.7.1", "max": "8.0.1"},
        "k8s": {"skewVersion": "1.26"}, "deploymentPath": ["https://example.com/cpi.yaml"]}}}"#;
    let mut store = CatalogStore::embedded();
    assert!(store.offer(&bundle(matrix, key), trust, now()).unwrap());
    assert!(store.catalog().is_matrix());
    assert!(store.offer(&bundle(&text(5), again(&pem)), trust, now()).unwrap());
    // A matrix has no serial and no expiry: anybody who recorded it could bring it back.
    let error = store.offer(&bundle(matrix, again(&pem)), trust, now()).unwrap_err();
    assert!(error.to_string().contains("serial 0, older than 5"), "{error}");
    let error = store.offer(&bundle(&text(4), again(&pem)), trust, now()).unwrap_err();
    assert!(error.to_string().contains("serial 4, older than 5"), "{error}");
}

#[test]
fn keys_written_by_openssl_are_accepted() {
    // The first key of RFC 8032, in the format of `openssl genpkey` and `openssl pkey -pubout`.
    let private = "-----BEGIN PRIVATE KEY-----\n\
                   MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
                   -----END PRIVATE KEY-----\n";
    let public = "-----BEGIN PUBLIC KEY-----\n\
                  MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
                  -----END PUBLIC KEY-----\n";
    let key = SigningKey::from_pem(private).unwrap();
    assert_eq!(key.public(), public.parse().unwrap());
    assert_eq!(key.public(), key.public().to_string().parse().unwrap(), "and as we write them");
    assert_eq!(key.public().to_pem(), public);
    let (_, made) = SigningKey::generate().unwrap();
    assert!(
        made.lines().nth(1).unwrap().starts_with("MC4CAQAwBQYDK2Vw"),
        "ours has openssl's form"
    );
    for text in ["", "AAAA", "not base64!", private] {
        assert!(text.parse::<PublicKey>().is_err());
    }
    assert!(SigningKey::from_pem(public).is_err());
}

#[test]
fn two_signatures_allow_a_key_rotation() {
    let (old, new) = (key(), key());
    let keys = [new.public()];
    let both = Bundle::sign(text(2).as_bytes(), &[old, new]).to_json();
    let mut store = CatalogStore::embedded();
    assert!(store.offer(both.as_bytes(), Trust { keys: &keys, unsigned: false }, now()).unwrap());
}

#[test]
fn the_built_in_keys_are_valid_and_key_lists_allow_comments() {
    trust::build_keys().expect("every line of data/keys.txt is a comment or a key");
    let (one, two) = (key().public(), key().public());
    let list = format!("# since the first release\n{one}\n\n  {two}   # its successor\n");
    let read: Vec<String> =
        trust::read_keys(&list).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(read, [one.to_string(), two.to_string()]);
    assert!(trust::read_keys("not a key").is_err());
}

#[test]
fn a_build_trusts_the_keys_of_the_project_and_of_its_publisher() {
    let [project, old, new] = [key(), key(), key()];
    let list = format!("# The project's.\n{}\n", project.public());
    let variable = format!(" {}\n{} {} ", old.public(), new.public(), project.public());
    let keys = trust::built_in_keys(&list, &variable).unwrap();
    assert_eq!(keys, [project.public(), old.public(), new.public()]);
    assert_eq!(trust::built_in_keys(&list, "").unwrap(), [project.public()]);
    assert!(trust::built_in_keys(&list, "not-a-key").is_err());

    // The catalog of a rotation has the signatures of both keys, the next one only that of the new key.
    let both = Bundle::sign(text(2).as_bytes(), &[old, new]).to_json();
    for trusted in &keys[1..] {
        let keys = std::slice::from_ref(trusted);
        let trust = Trust { keys, unsigned: false };
        assert!(CatalogStore::embedded().offer(both.as_bytes(), trust, now()).unwrap());
    }
    let trust = Trust { keys: &keys[..1], unsigned: false };
    let refused = CatalogStore::embedded().offer(both.as_bytes(), trust, now()).unwrap_err();
    assert!(matches!(refused, trust::Refusal::UnknownKey { .. }), "{refused}");
}
