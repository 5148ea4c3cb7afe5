//! Runs the real Helm on the generated chart.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use catalog::manifest::Object;
use serde_json::Value;
use testkit::Workdir;

pub(crate) struct Helm {
    pub(crate) workdir: Workdir,
    kubeconfig: Option<PathBuf>,
}

impl Helm {
    /// Helm in a folder with the chart in `deploy/chart`, as in a checkout.
    pub(crate) fn new(kubeconfig: Option<PathBuf>) -> Self {
        let workdir = Workdir::new("helm").unwrap();
        for file in shipping::files().unwrap() {
            write(&workdir.path().join(&file.path), &file.text);
        }
        write(&workdir.path().join("deploy/install.yaml"), &operator::install::manifest().unwrap());
        Self { workdir, kubeconfig }
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let folder = self.workdir.path();
        let folders = [testkit::peer("helm"), testkit::peer("kubectl")];
        let folders = folders.iter().filter_map(|program| program.parent()).map(Path::to_owned);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap();
        command.current_dir(folder).env("PATH", path).env("HOME", folder);
        command.env_remove("KUBECONFIG").envs(self.kubeconfig.as_ref().map(|c| ("KUBECONFIG", c)));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(&testkit::peer("helm")).args(arguments).output().unwrap()
    }

    /// Runs commands of a page, which must succeed.
    pub(crate) fn script(&self, script: &str) -> String {
        let mut shell = self.command(Path::new("bash"));
        let output = shell.args(["-c", &format!("set -euo pipefail\n{script}")]).output().unwrap();
        assert!(output.status.success(), "{script}\n{}", shown(&output));
        shown(&output)
    }

    /// The objects that Helm renders with these values, without the annotations for Helm.
    pub(crate) fn rendered(&self, values: &Value, arguments: &[&str]) -> Vec<Object> {
        let output = self.template(values, arguments);
        assert!(output.status.success(), "{values}\n{}", shown(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let objects = objects.into_iter().filter(|object| !object.is_null());
        objects.map(|object| without_helm(Object(object))).collect()
    }

    pub(crate) fn template(&self, values: &Value, arguments: &[&str]) -> Output {
        let file = self.workdir.write("values.json", values.to_string()).unwrap();
        let file = file.display().to_string();
        self.run(&[&["template", "vdo", "deploy/chart", "--values", &file], arguments].concat())
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn without_helm(mut object: Object) -> Object {
    let metadata = object.0["metadata"].as_object_mut().unwrap();
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("helm.sh/resource-policy");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    object
}

pub(crate) fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}
