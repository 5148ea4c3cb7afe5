//! The modules of a crate and their dependencies, read from the sources.
//!
//! A dependency is a path `crate::module` outside of tests and comments. A name that `lib.rs` re-exports counts as the
//! module it comes from.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The top-level modules of one crate, each with the modules it depends on.
#[derive(Debug, Default)]
pub(crate) struct ModuleGraph(BTreeMap<String, BTreeSet<String>>);

impl ModuleGraph {
    /// Reads the sources under `src`.
    pub(crate) fn read(src: &Path) -> Self {
        let files = sources(src);
        let top = |file: &Path| {
            let first = file.strip_prefix(src).ok()?.iter().next()?.to_str()?;
            let module = first.trim_end_matches(".rs");
            (!matches!(module, "lib" | "main" | "bin")).then(|| module.to_owned())
        };
        let mut graph = Self::default();
        graph.0.extend(files.iter().filter_map(|(file, _)| Some((top(file)?, BTreeSet::new()))));
        let root = files.iter().find(|(file, _)| file.ends_with("lib.rs"));
        let exports = root.map(|(_, text)| exports(text)).unwrap_or_default();
        for (file, text) in &files {
            let Some(module) = top(file) else { continue };
            for name in roots(text) {
                let target = exports.get(&name).unwrap_or(&name);
                if *target != module && graph.0.contains_key(target) {
                    graph.0.entry(module.clone()).or_default().insert(target.clone());
                }
            }
        }
        graph
    }

    /// A dependency cycle, if there is one: the modules in its order.
    pub(crate) fn cycle(&self) -> Option<Vec<String>> {
        let mut done = BTreeSet::new();
        self.0.keys().find_map(|module| self.cycle_from(module, &mut Vec::new(), &mut done))
    }

    fn cycle_from(
        &self,
        module: &str,
        path: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(start) = path.iter().position(|step| step == module) {
            return Some(path[start..].to_vec());
        }
        if done.contains(module) {
            return None;
        }
        path.push(module.to_owned());
        let found = self.0[module].iter().find_map(|next| self.cycle_from(next, path, done));
        path.pop();
        done.insert(module.to_owned());
        found
    }

    /// One line per module, dependencies first.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut order = Vec::new();
        for module in self.0.keys() {
            self.visit(module, &mut order, &mut BTreeSet::new());
        }
        let line = |module: &&str| {
            let uses: Vec<&str> = self.0[*module].iter().map(String::as_str).collect();
            let arrow = if uses.is_empty() { "" } else { " -> " };
            format!("{module}{arrow}{}", uses.join(", "))
        };
        order.iter().map(line).collect()
    }

    fn visit<'a>(
        &'a self,
        module: &'a str,
        order: &mut Vec<&'a str>,
        path: &mut BTreeSet<&'a str>,
    ) {
        if order.contains(&module) || !path.insert(module) {
            return;
        }
        for next in &self.0[module] {
            self.visit(next, order, path);
        }
        order.push(module);
    }
}

/// Every source file that is part of the program, without comments and tests.
fn sources(src: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut tests = BTreeSet::new();
    let mut folders = vec![src.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = bare(&fs::read_to_string(&path).unwrap());
                let (text, modules) = without_tests(&text);
                let own = match path.file_name().and_then(|name| name.to_str()) {
                    Some("lib.rs" | "main.rs" | "mod.rs") => folder.clone(),
                    _ => path.with_extension(""),
                };
                tests.extend(modules.iter().map(|module| own.join(module)));
                files.push((path, text));
            }
        }
    }
    files.retain(|(path, _)| !tests.iter().any(|test| path.with_extension("").starts_with(test)));
    files.sort();
    files
}

/// A source without comments, and with empty strings.
fn bare(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let raw = raw_string(rest).filter(|_| !out.ends_with(|c: char| c.is_alphanumeric()));
        let skipped = match character {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => string(rest),
            'r' => raw.unwrap_or(0),
            // A character, not a lifetime.
            '\'' if rest.starts_with("'\\") => rest[3..].find('\'').map_or(1, |end| end + 4),
            '\'' if rest.chars().nth(2) == Some('\'') => {
                rest.char_indices().nth(3).map_or(rest.len(), |(end, _)| end)
            }
            _ => 0,
        };
        if skipped == 0 {
            out.push(character);
            rest = &rest[character.len_utf8()..];
        } else {
            out.push(' ');
            rest = &rest[skipped..];
        }
    }
    out
}

/// The length of the string literal that `text` begins with.
fn string(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, character)| {
        let ends = *character == '"' && !escaped;
        escaped = *character == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(end, _)| end + 1)
}

/// The length of the raw string literal that `text` begins with, if it does.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let content = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let close = content.find(&end).map_or(content.len(), |close| close + end.len());
    Some(1 + hashes + 1 + close)
}

/// A source without the items under `#[cfg(test)]`, and the names of test modules in files of their own.
fn without_tests(text: &str) -> (String, Vec<String>) {
    const TEST: &str = "#[cfg(test)]";
    let (mut out, mut modules) = (String::new(), Vec::new());
    let mut rest = text;
    while let Some(start) = rest.find(TEST) {
        out.push_str(&rest[..start]);
        let item = &rest[start + TEST.len()..];
        let end = item.find(['{', ';']).unwrap_or(item.len());
        let head = item[..end].trim();
        if item[end..].starts_with('{') {
            rest = &item[end + braces(&item[end..])..];
            continue;
        }
        let module = head.rsplit_once("mod ").map(|(_, name)| name.trim().to_owned());
        modules.extend(module);
        rest = item.get(end + 1..).unwrap_or_default();
    }
    out.push_str(rest);
    (out, modules)
}

/// The length of the block in braces that `text` begins with.
fn braces(text: &str) -> usize {
    let mut depth = 0_usize;
    let end = text.char_indices().find(|(_, character)| {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    end.map_or(text.len(), |(end, _)| end + 1)
}

/// The first names of all paths that begin with `crate::`.
fn roots(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (start, _) in text.match_indices("crate::") {
        let before = text[..start].trim_end();
        let part_of_a_name = text[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if part_of_a_name || before.ends_with("(in") {
            continue;
        }
        all.extend(tree(&text[start + "crate::".len()..]).into_iter().map(|path| path[0].clone()));
    }
    all
}

/// The names that `lib.rs` re-exports, each with the module it comes from.
fn exports(text: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (start, _) in text.match_indices("use ") {
        let after = &text[start + "use ".len()..];
        let after = after.strip_prefix("self::").unwrap_or(after);
        let after = after.strip_prefix("crate::").unwrap_or(after);
        for path in tree(after).into_iter().filter(|path| path.len() > 1) {
            all.insert(path[path.len() - 1].clone(), path[0].clone());
        }
    }
    all
}

/// The paths of a use tree, such as `a::{b, c::D as E}`: the last name is the one that is used.
fn tree(text: &str) -> Vec<Vec<String>> {
    fn read<'a>(mut text: &'a str, prefix: &[String], all: &mut Vec<Vec<String>>) -> &'a str {
        let mut path = prefix.to_vec();
        loop {
            text = text.trim_start();
            if let Some(inner) = text.strip_prefix('{') {
                text = inner;
                loop {
                    text = text.trim_start().trim_start_matches(',').trim_start();
                    if let Some(after) = text.strip_prefix('}') {
                        return after;
                    }
                    let before = text.len();
                    text = read(text, &path, all);
                    if text.len() == before {
                        return text;
                    }
                }
            }
            let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
            let (name, after) = text.split_at(end.unwrap_or(text.len()));
            if name.is_empty() {
                return text;
            }
            path.push(name.to_owned());
            text = after;
            if let Some(after) = text.strip_prefix("::") {
                text = after;
                continue;
            }
            if let Some(alias) = text.trim_start().strip_prefix("as ") {
                let alias = alias.trim_start();
                let end = alias.find(|c: char| !c.is_alphanumeric() && c != '_');
                let (alias, after) = alias.split_at(end.unwrap_or(alias.len()));
                path.push(alias.to_owned());
                text = after;
            }
            all.push(path);
            return text;
        }
    }
    let mut all = Vec::new();
    read(text, &[], &mut all);
    all
}

#[test]
fn paths_are_found_in_use_trees_and_in_code_and_not_in_tests_or_comments() {
    let text = "use crate::{a, b::{self, C}, d::E as F};\n// crate::comment\nfn f() { crate::g::h(\"crate::text\") }\n\
                pub(in crate::own) fn x() {}\n#[cfg(test)]\nmod tests { use crate::test; }\n";
    let (text, modules) = without_tests(&bare(text));
    assert!(modules.is_empty());
    assert_eq!(roots(&text).into_iter().collect::<Vec<_>>(), ["a", "b", "d", "g"]);
    assert_eq!(without_tests("#[cfg(test)]\nmod tests;\nuse crate::a;").1, ["tests"]);
    assert_eq!(exports("pub use self::{a::B, c::D as E};")["E"], "c");
}

#[test]
fn a_cycle_is_named_in_its_order() {
    let uses = |of: &str| of.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
    let graph = |all: &[(&str, &str)]| {
        ModuleGraph(all.iter().map(|(name, of)| ((*name).to_owned(), uses(of))).collect())
    };
    assert_eq!(graph(&[("a", "b c"), ("b", "c"), ("c", "")]).cycle(), None);
    let cycle = graph(&[("a", "b"), ("b", "c"), ("c", "b")]).cycle().unwrap();
    assert_eq!(cycle, ["b", "c"]);
    let lines = graph(&[("a", "b c"), ("b", "c"), ("c", "")]).lines();
    assert_eq!(lines, ["c", "b -> c", "a -> b, c"]);
}
