//! Export, import, verify.

use std::{fs, process::Command};

use oci::{Archive, Client, ClientOptions, Credentials, Export, Silent, Target};
use testkit::{Registry, Workdir};

use crate::{
    front::{Behaviour, Front, login},
    images::{LAYER, crane, plain, push, wanted},
};

#[tokio::test]
async fn images_keep_their_digests_on_the_way_to_the_registry_of_a_site() {
    let workdir = Workdir::new("transfer").unwrap();
    let upstream = Registry::start().await;
    let digests = ["csi/driver", "vdo"].map(|name| push(&upstream, &workdir, name));
    let wanted = Export {
        files: vec![("catalog.yaml".into(), b"serial: 1\n".to_vec())],
        ..wanted(&["csi/driver", "vdo"], &upstream.address().to_string())
    };
    let path = workdir.path().join("bundle.tar");
    let (exported, digest) = oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap();
    assert_eq!(exported.iter().map(|image| image.digest.clone()).collect::<Vec<_>>(), digests);
    // From here on nothing can reach the first registry: it is gone.
    drop(upstream);

    // The archive by hand, with tar and sha256sum.
    let unpacked = workdir.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let script = format!(
        "echo '{}  bundle.tar' | sha256sum --check && tar -xf bundle.tar -C unpacked && cd unpacked && sha256sum --check --strict SHA256SUMS",
        digest.hex()
    );
    let output =
        Command::new("sh").args(["-c", &script]).current_dir(workdir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let checked = String::from_utf8_lossy(&output.stdout);
    assert_eq!(checked.matches(": OK").count(), 1 + 3 + 14, "{checked}");

    // The registry of the site: TLS with its own authority, tokens, a path prefix.
    let site = Registry::start().await;
    let front =
        Front::with_tls(site.address(), Behaviour { tokens: true, ..Behaviour::default() }).await;
    let host = front.address.to_string();
    let auth = workdir.write("auth.json", login(&host)).unwrap();
    let client = Client::new(ClientOptions {
        credentials: Credentials::read(&auth).unwrap(),
        authorities: front.authority.clone().map(String::into_bytes),
        ..ClientOptions::default()
    });
    let client = client.unwrap();
    let archive = Archive::open(&path).unwrap();
    assert_eq!(archive.files().collect::<Vec<_>>(), ["catalog.yaml"]);
    assert_eq!(archive.file("catalog.yaml").unwrap(), b"serial: 1\n");
    let target = Target::parse(&format!("{host}/team/vsphere")).unwrap();
    let before = oci::verify_registry(&client, &archive, &target, &mut Silent).await.unwrap();
    assert!(before.iter().any(|problem| problem.text == "the tag is missing"), "{before:?}");
    let imported = oci::import(&client, &archive, &target, &mut Silent).await.unwrap();
    let names: Vec<String> = imported.iter().map(|image| image.name.to_string()).collect();
    assert_eq!(names[0], format!("{host}/team/vsphere/csi/driver:1@{}", digests[0]));

    for (name, digest) in ["csi/driver", "vdo"].into_iter().zip(&digests) {
        let image = format!("{}/team/vsphere/{name}:1", site.address());
        assert_eq!(crane(&["digest", "--insecure", &image]), digest.to_string());
        assert!(crane(&["validate", "--insecure", "--fast", "--remote", &image]).contains("PASS"));
        for platform in ["linux/amd64", "linux/arm64"] {
            crane(&["config", "--insecure", "--platform", platform, &image]);
        }
    }
    let after = oci::verify_registry(&client, &archive, &target, &mut Silent).await.unwrap();
    assert_eq!(after, []);

    // The second time nothing is sent but the small manifests.
    front.requests();
    oci::import(&client, &archive, &target, &mut Silent).await.unwrap();
    let again = front.requests();
    assert!(again.iter().any(|request| request.starts_with("HEAD /v2/team/vsphere/vdo/blobs/")));
    assert!(!again.iter().any(|request| request.contains("/blobs/uploads/")), "{again:?}");

    // Somebody moves a tag: verify names it.
    let [driver, vdo] =
        ["csi/driver", "vdo"].map(|name| format!("{}/team/vsphere/{name}:1", site.address()));
    crane(&["copy", "--insecure", &driver, &vdo]);
    let moved = oci::verify_registry(&client, &archive, &target, &mut Silent).await.unwrap();
    assert_eq!(moved.len(), 1, "{moved:?}");
    assert!(moved[0].image.ends_with("/vdo:1") && moved[0].text.contains("the tag has the digest"));
}

#[tokio::test]
async fn one_platform_is_exported_on_request_and_a_registry_that_refuses_it_is_named() {
    let workdir = Workdir::new("platform").unwrap();
    let registry = Registry::start().await;
    push(&registry, &workdir, "vdo");
    let path = workdir.path().join("bundle.tar");
    let host = registry.address().to_string();
    let only = |platform: &str| Export {
        platforms: vec![platform.parse().unwrap()],
        ..wanted(&["vdo"], &host)
    };
    let refused =
        oci::export(&plain(), &only("linux/s390x"), &path, &mut Silent).await.unwrap_err();
    assert!(
        refused.to_string().contains("linux/amd64, linux/arm64, not for linux/s390x"),
        "{refused}"
    );
    oci::export(&plain(), &only("linux/arm64"), &path, &mut Silent).await.unwrap();
    let size = fs::metadata(&path).unwrap().len();
    assert!(
        (LAYER as u64..2 * LAYER as u64).contains(&size),
        "one of two layers, not {size} bytes"
    );
    let archive = Archive::open(&path).unwrap();
    let platforms = archive.images()[0].platforms.clone().unwrap();
    assert_eq!(platforms.iter().map(ToString::to_string).collect::<Vec<_>>(), ["linux/arm64"]);

    let other = Registry::start().await;
    let target = Target::parse(&other.address().to_string()).unwrap();
    let refused = oci::import(&plain(), &archive, &target, &mut Silent).await.unwrap_err();
    assert!(matches!(refused, oci::Error::Sparse { .. }), "{refused}");
    assert!(refused.help().unwrap().contains("without --platform"));
}

#[tokio::test]
async fn two_images_cannot_get_the_same_name() {
    let workdir = Workdir::new("collision").unwrap();
    let registry = Registry::start().await;
    for name in ["a/vdo", "b/vdo"] {
        push(&registry, &workdir, name);
    }
    let host = registry.address().to_string();
    let mut wanted = wanted(&["a/vdo", "b/vdo"], &host);
    wanted.images[0].0 = "one.example.com/vdo:1".parse().unwrap();
    wanted.images[1].0 = "two.example.com/vdo:1".parse().unwrap();
    let path = workdir.path().join("bundle.tar");
    oci::export(&plain(), &wanted, &path, &mut Silent).await.unwrap();
    let archive = Archive::open(&path).unwrap();
    let target = Target::parse(&host).unwrap();
    let refused =
        oci::import(&plain(), &archive, &target, &mut Silent).await.unwrap_err().to_string();
    assert!(refused.contains("one.example.com/vdo:1 and two.example.com/vdo:1"), "{refused}");
}
