//! The modules of each product crate form no circle at any level, and those at the top form layers: none depends on one above it. No function
//! and no file is long.

#![expect(clippy::unwrap_used, reason = "only tests are here")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The modules of each crate, the lowest layer first.
const CRATES: [(&str, &str); 11] = [
    (
        "models",
        "answer backoff time domain duration limits listen log names earlier pem plain failures reason resource_version schema condition shadow wire permit \
         operator history agent_step",
    ),
    (
        "planner",
        "fnv hold annotations claims hooks predicate expressions rules signature wait view pause standby policy objects revisions history drain decision survey gates phase plan lint simulation",
    ),
    (
        "controller",
        "clock config cache caches earlier calls decisions eviction writes metrics client http outgoing owners \
         leader surroundings tls apply expressions migrate history notices jobs estimates definitions driver replica",
    ),
    (
        "apiserver",
        "clock config etag streams body shadow refusal agents metrics cluster problem auth heads store tls follow write resume \
         app access_log routes server",
    ),
    (
        "agent",
        "failure_log boot alive process config desired_state refreshes statement permit host settings memory situation staging views server \
         report stream drive",
    ),
    ("aws", "config facts holds decide cloud record cluster run"),
    (
        "deploy",
        "options object budget pod monitoring controller apiserver agent network namespaces crds reference admission policy \
         rights aws takeover openapi waiting yaml installation chart files",
    ),
    ("deploy/images", "process commit digest reference program component toolchain crates licenses sbom layer layout"),
    (
        "cli",
        "clock files near page terminal shell connect call write browser timeline history cluster failures advice forecast simulate plan completion rights marks images helm status \
         explain watch uninstall preflight install doctor bundle swap takeover requests",
    ),
    ("watches", "known objects watch_list"),
    ("ports", "limit connections plain process"),
];

/// The names that lead to a module from the root of its crate.
type Name = Vec<String>;

/// A file without its unit tests.
#[derive(Default)]
struct Module {
    file: String,
    children: Vec<String>,
    /// Names of what it defines beside modules.
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// The paths in its code, outside of `use`.
    paths: BTreeSet<Vec<String>>,
}

struct Import {
    /// `*`: all names of a module.
    name: String,
    path: Vec<String>,
    exported: bool,
}

/// Attributes of what is compiled for tests alone.
const OF_TESTS: [&str; 3] = ["[cfg(test)]", "[cfg(any(test,fuzzing))]", "[cfg(all(test,unix))]"];

/// Adds the tokens of what is not for tests alone; those of a group are between its delimiters.
fn flatten(stream: TokenStream, tokens: &mut Vec<String>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let token = match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    _ => ("(", ")"),
                };
                tokens.push(open.to_owned());
                flatten(group.stream(), tokens);
                close.to_owned()
            }
            other => other.to_string(),
        };
        let mut before = |texts: &[&str]| {
            let next = trees.peek().map(|tree| tree.to_string().replace(' ', ""));
            next.is_some_and(|next| texts.contains(&next.as_str()))
        };
        match token.as_str() {
            "#" if before(&OF_TESTS) => {
                let ends = |tree: &TokenTree| tree.to_string().starts_with(['{', ';']);
                trees.find(ends);
            }
            ":" if before(&[":"]) => {
                trees.next();
                tokens.push("::".to_owned());
            }
            _ => tokens.push(token),
        }
    }
}

impl Module {
    fn read(file: String, text: &str) -> Self {
        let mut tokens = Vec::new();
        flatten(text.parse().unwrap(), &mut tokens);
        let mut tokens = tokens.iter().map(String::as_str).peekable();
        let mut module = Self { file, ..Self::default() };
        let (mut before, mut depth) = ("", 0);
        while let Some(token) = tokens.next() {
            let next = tokens.peek().copied().unwrap_or_default();
            match token {
                "{" | "[" | "(" => depth += 1,
                "}" | "]" | ")" => depth -= 1,
                "mod" => module.children.push(next.to_owned()),
                "use" => module.import(&mut tokens, &[], matches!(before, "pub" | ")")),
                "struct" | "enum" | "trait" => _ = module.items.insert(next.to_owned()),
                "fn" | "const" | "static" | "type" if depth == 0 => _ = module.items.insert(next.to_owned()),
                word if is_word(word) && !matches!(before, "." | "::" | "mod") => {
                    let mut path = vec![word.to_owned()];
                    while tokens.next_if_eq(&"::").is_some() {
                        path.extend(tokens.next_if(|token| is_word(token)).map(str::to_owned));
                    }
                    module.paths.insert(path);
                }
                _ => {}
            }
            before = token;
        }
        module
    }

    /// Reads what a declaration imports, or a group in it.
    fn import<'a>(&mut self, tokens: &mut impl Iterator<Item = &'a str>, prefix: &[String], exported: bool) {
        let mut path = prefix.to_vec();
        let mut renamed = None;
        while let Some(token) = tokens.next() {
            match token {
                "::" => {}
                "as" => renamed = tokens.next(),
                "{" => {
                    self.import(tokens, &path, exported);
                    path.clear();
                }
                "," | "}" | ";" => {
                    if path.len() > prefix.len() {
                        path.pop_if(|last| last == "self");
                        let name = renamed.take().unwrap_or(&path[path.len() - 1]).to_owned();
                        self.imports.push(Import { name, path, exported });
                    }
                    if token != "," {
                        return;
                    }
                    path = prefix.to_vec();
                }
                part => path.push(part.to_owned()),
            }
        }
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Returns a list with one more element.
fn longer(list: &[String], last: &String) -> Vec<String> {
    [list, std::slice::from_ref(last)].concat()
}

/// The modules of a crate.
struct Crate(BTreeMap<Name, Module>);

/// The pairs of modules of which the first names an item of the second, with the path by which it does so.
type Edges = BTreeMap<(Name, Name), String>;

impl Crate {
    /// Reads the modules that the root and its descendants declare.
    fn read(text_of: impl Fn(&str) -> Option<String>) -> Self {
        let mut modules = BTreeMap::new();
        let mut declared = vec![Name::new()];
        while let Some(name) = declared.pop() {
            let inner = name.join("/");
            let files = match inner.as_str() {
                "" => ["lib.rs".to_owned(), "main.rs".to_owned()],
                _ => [format!("{inner}.rs"), format!("{inner}/mod.rs")],
            };
            let found = files.into_iter().find_map(|file| text_of(&file).map(|text| Module::read(file, &text)));
            let module = found.ok_or_else(|| format!("module {inner} has no file")).unwrap();
            declared.extend(module.children.iter().map(|child| longer(&name, child)));
            modules.insert(name, module);
        }
        Self(modules)
    }

    /// Returns the module to which a path leads from a module, or the one that defines the path's item (`true`).
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<(Name, bool)> {
        let mut at = from.to_vec();
        for (place, part) in path.iter().enumerate() {
            let child = longer(&at, part);
            let is_last = place + 1 == path.len();
            match part.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => _ = at.pop(),
                _ if self.0.contains_key(&child) && !(is_last && self.0[&at].items.contains(part)) => at = child,
                _ if self.0[&at].items.contains(part) => return Some((at, true)),
                _ => match self.imported(&at, part, depth) {
                    Some((module, false)) => at = module,
                    // Of another crate, or a variable.
                    None if place == 0 => return None,
                    None => return Some((at, true)),
                    found => return found,
                },
            }
        }
        Some((at, false))
    }

    /// Returns where a name comes from that a module imports.
    fn imported(&self, module: &[String], name: &str, depth: usize) -> Option<(Name, bool)> {
        let imports = &self.0[module].imports;
        let all_of = |import: &Import| {
            let (at, _) = self.resolve(module, import.path.strip_suffix(&["*".to_owned()])?, depth + 1)?;
            (at != module).then(|| self.resolve(&at, &[name.to_owned()], depth + 1))?
        };
        match imports.iter().find(|import| import.name == name) {
            // Two modules may import all names of each other.
            _ if depth > 4 => None,
            Some(import) => self.resolve(module, &import.path, depth + 1),
            None => imports.iter().find_map(all_of),
        }
    }

    fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (name, module) in &self.0 {
            // A name that a module only exports is not its own use; of a `*`, it uses the names in its code.
            let imports = module.imports.iter().filter(|import| !import.exported && import.name != "*");
            for path in imports.map(|import| &import.path).chain(&module.paths) {
                if let Some((other, true)) = self.resolve(name, path, 0)
                    && other != *name
                {
                    edges.entry((name.clone(), other)).or_insert_with(|| path.join("::"));
                }
            }
        }
        edges
    }

    /// Returns the shortest circle in each folder that has one. The modules of a folder are its own file and its children, each
    /// with all that is in it. Each line has a file that names an item of the file in the next line.
    fn circles(&self) -> Vec<(&Name, Vec<String>)> {
        let edges = self.edges();
        let circle = |folder| Some((folder, self.circle(folder, &edges)?));
        self.0.keys().filter_map(circle).collect()
    }

    fn circle<'a>(&self, folder: &Name, edges: &'a Edges) -> Option<Vec<String>> {
        let part = |name: &'a Name| name.starts_with(folder).then(|| name.get(folder.len()));
        let mut steps: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for ((from, to), path) in edges {
            if let (Some(start), Some(end)) = (part(from), part(to))
                && start != end
            {
                let line = format!("{} names {path} of {}", self.0[from].file, self.0[to].file);
                steps.entry(start).or_default().entry(end).or_insert(line);
            }
        }
        let back_to = |start| {
            let mut ways = VecDeque::from([(start, Vec::new())]);
            let mut seen = BTreeSet::new();
            while let Some((at, lines)) = ways.pop_front() {
                for (&next, line) in steps.get(&at).into_iter().flatten() {
                    let lines = longer(&lines, line);
                    if next == start {
                        return Some(lines);
                    }
                    if seen.insert(next) {
                        ways.push_back((next, lines));
                    }
                }
            }
            None
        };
        steps.keys().filter_map(|&start| back_to(start)).min_by_key(Vec::len)
    }
}

fn read(name: &str) -> Crate {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
    Crate::read(|file| std::fs::read_to_string(source.join(file)).ok())
}

#[test]
fn modules_do_not_depend_on_higher_layers() {
    for (name, layers) in CRATES {
        let modules = read(name);
        let layer_of = |module: &str| layers.split(' ').position(|layer| layer == module);
        let listed: BTreeSet<_> = layers.split(' ').collect();
        let existing: BTreeSet<_> = modules.0.keys().filter_map(|module| module.first()).map(String::as_str).collect();
        assert_eq!(existing, listed, "{name}: every module has its place among the layers");
        for ((from, to), path) in modules.edges() {
            if let (Some(upper), Some(lower)) = (from.first(), to.first()) {
                assert!(layer_of(lower) <= layer_of(upper), "{name}: {} depends on {path}", modules.0[&from].file);
            }
        }
    }
}

#[test]
fn modules_form_no_circle() {
    let mut found = String::new();
    for (name, _) in CRATES {
        for (folder, lines) in read(name).circles() {
            let folder = format!("{name}/src/{}", folder.join("/"));
            found += &format!("\n{folder}\n    {}\n", lines.join("\n    "));
        }
    }
    assert!(found.is_empty(), "modules that depend on one another:\n{found}");
}

/// Returns the functions of a file without its unit tests, each by its first line and the number of its lines. rustfmt ends each item at the
/// margin of its first line.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let length = |start: usize| {
        let margin = lines[start].len() - lines[start].trim_start().len();
        let is_at = |line: &str| !line.starts_with(' ') && line.ends_with(['}', ';', ',']);
        let last = lines[start..].iter().position(|line| line.get(margin..).is_some_and(is_at));
        last.map_or(1, |last| last + 1)
    };
    let is_qualified =
        |before: &str| before.is_empty() || ["pub", "const", "async"].iter().any(|word| before.starts_with(word));
    let (mut found, mut place) = (Vec::new(), 0);
    while let Some(line) = lines.get(place).copied().map(str::trim_start) {
        place += 1;
        if line.strip_prefix('#').is_some_and(|attribute| OF_TESTS.contains(&attribute.replace(' ', "").as_str())) {
            place += length(place);
        } else if line.split_once("fn ").is_some_and(|(before, _)| is_qualified(before)) {
            found.push((line, length(place - 1)));
        }
    }
    found
}

#[test]
fn functions_have_80_lines_at_most_and_files_500() {
    let mut long = Vec::new();
    for (name, _) in CRATES {
        let modules = read(name).0.into_values().map(|module| module.file);
        for file in modules.chain(["main.rs".to_owned()]).collect::<BTreeSet<_>>() {
            let file = format!("{name}/src/{file}");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(&file);
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let functions = functions(&text).into_iter().filter(|(_, lines)| *lines > 80);
            let whole = (text.lines().count() > 500).then_some(("the file", text.lines().count()));
            long.extend(functions.chain(whole).map(|(part, lines)| format!("{file}: {part} has {lines} lines")));
        }
    }
    assert!(long.is_empty(), "too long:\n{}", long.join("\n"));
}

#[test]
fn lines_of_a_function_are_counted_from_its_signature_to_its_brace_and_those_of_unit_tests_are_not() {
    let text = "fn a() {}\nimpl A {\n    pub(crate) async fn b(\n        c: C,\n    ) -> D {\n        d\n    }\n    #[cfg(test)]\n    fn e() {\n    }\n}\n\
                #[cfg(test)]\nmod tests {\n    fn f() {\n    }\n}\nconst fn g() {\n}";
    assert_eq!(functions(text), [("fn a() {}", 1), ("pub(crate) async fn b(", 5), ("const fn g() {", 2)]);
}

#[test]
fn circle_is_found_and_its_files_are_named() {
    // A sentence, files with their texts, and the lines of the circle.
    for (what, files, expected) in [
        (
            "two siblings",
            "lib.rs: mod a; mod b; | a.rs: use crate::{b::{B, C}}; struct A; | b.rs: fn f() { super::a::A }",
            "a.rs names crate::b::B of b.rs, b.rs names super::a::A of a.rs",
        ),
        (
            "a child and its parent",
            "lib.rs: mod a; | a/mod.rs: mod b; fn f(_: b::B) {} | a/b.rs: use super::f; struct B;",
            "a/mod.rs names b::B of a/b.rs, a/b.rs names super::f of a/mod.rs",
        ),
        (
            "a child and its parent by all names",
            "main.rs: mod a; use a::*; const C: A = A; | a.rs: use super::*; struct A; fn f() { C }",
            "main.rs names A of a.rs, a.rs names C of main.rs",
        ),
        (
            "three files",
            "lib.rs: mod a; mod b; mod c; | a.rs: use crate::b; fn f() { format!(\"{}\", b::f()) } | \
             b.rs: fn f() { use super::c::{self, g as h}; h() } | c.rs: use crate::a::{f,}; fn g() { f() }",
            "a.rs names b::f of b.rs, b.rs names super::c::g of c.rs, c.rs names crate::a::f of a.rs",
        ),
        (
            "a name that a third file exports",
            "lib.rs: mod a; mod b; mod c; | a.rs: use crate::b::B; struct A; | b.rs: fn f(_: super::c::A) {} struct B; | \
             c.rs: pub(crate) use crate::a::A;",
            "a.rs names crate::b::B of b.rs, b.rs names super::c::A of a.rs",
        ),
        (
            "two folders by different files",
            "lib.rs: mod a; mod b; | a.rs: mod x; mod y; | a/x.rs: struct X; | a/y.rs: use crate::b::Z; | \
             b.rs: mod z; pub use z::Z; | b/z.rs: struct Z { x: crate::a::x::X }",
            "a/y.rs names crate::b::Z of b/z.rs, b/z.rs names crate::a::x::X of a/x.rs",
        ),
        (
            "a name that the parent exports",
            "lib.rs: mod a; mod b; pub use a::A; | a.rs: pub struct A; | b.rs: use super::A;",
            "",
        ),
        ("a name of the parent", "lib.rs: mod a; struct B; // a::f() | a.rs: use super::B; fn f() {}", ""),
        (
            "unit tests",
            "lib.rs: mod a; mod b; #[cfg(test)] mod fixtures; | \
             a.rs: use crate::b::B; struct A; #[cfg(test)] use crate::b::f; | \
             b.rs: struct B; #[cfg(test)] mod tests { use crate::a::A; }",
            "",
        ),
    ] {
        let files: BTreeMap<_, _> = files.split(" | ").filter_map(|file| file.split_once(": ")).collect();
        let modules = Crate::read(|file| files.get(file).map(|text| (*text).to_owned()));
        let found: Vec<_> = modules.circles().into_iter().flat_map(|(_, lines)| lines).collect();
        assert_eq!(found.join(", "), expected, "{what}");
    }
}
