//! A source file with all of its mutants in it, each behind its switch.
//!
//! One mutant at most is on, so that within the text of one the others are left out: a file grows by the expressions that mutants
//! are in, however these are nested.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;

use anyhow::{Context as _, Result};

use crate::list::{Genre, Mutant};
use crate::places::{Places, Switch};

/// The number of a mutant in the whole list, from 1.
pub type Number = usize;

/// The file of the crate's root defines `mutant`: it returns the number of the mutant that is on, or 0.
///
/// Without one, and with a file to write to, it records the places that each test reaches.
pub const DEFINITION: &str = r#"
/// Returns the number of the mutant that is on; the place is the first mutant at it.
pub(crate) fn mutant(place: u32) -> u32 {
    static ON: std::sync::OnceLock<(u32, Option<std::ffi::OsString>)> = std::sync::OnceLock::new();
    let (on, file) = ON.get_or_init(|| {
        let on = std::env::var("MUTANT").ok().and_then(|on| on.parse().ok()).unwrap_or(0);
        (on, std::env::var_os("MUTANTS_REACHED"))
    });
    if let Some(file) = file {
        mutant_reached(place, file);
    }
    *on
}

/// Records that a test reaches a place. Tests are named threads; when one ends, its line is written.
fn mutant_reached(place: u32, file: &std::ffi::OsStr) {
    struct Reached(String, std::time::Instant, std::collections::BTreeSet<u32>, std::ffi::OsString);
    impl Drop for Reached {
        fn drop(&mut self) {
            let places: Vec<String> = self.2.iter().map(u32::to_string).collect();
            let line = format!("{}\t{}\t{}\n", self.0, self.1.elapsed().as_millis(), places.join(" "));
            let file = std::fs::OpenOptions::new().create(true).append(true).open(&self.3);
            std::io::Write::write_all(&mut file.unwrap(), line.as_bytes()).unwrap();
        }
    }
    thread_local! {
        static REACHED: std::cell::RefCell<Option<Reached>> = const { std::cell::RefCell::new(None) };
    }
    let _ = REACHED.try_with(|reached| {
        let name = || std::thread::current().name().unwrap_or_default().to_owned();
        let mut reached = reached.borrow_mut();
        let first = || Reached(name(), std::time::Instant::now(), Default::default(), file.to_owned());
        reached.get_or_insert_with(first).2.insert(place);
    });
}
"#;

/// A file that was written with switches.
pub struct Switched {
    pub text: String,
    /// The text of each mutant, in bytes of the new file.
    pub mutants: Vec<(Range<usize>, Number)>,
    /// The bodies of the functions.
    pub functions: Vec<Range<usize>>,
    /// The mutants of each place, by the first of them.
    pub by_place: BTreeMap<Number, Vec<Number>>,
}

/// Reasons not to compile a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Unviable,
    NotTried(&'static str),
}

/// Returns the reason why this mutant cannot be switched, if there is one.
pub fn refusal(mutant: &Mutant, places: &Places) -> Result<Option<Refusal>> {
    let place = places.by_span.get(&(mutant.genre, mutant.span));
    let place = place.with_context(|| format!("the sources have no such place: {}", mutant.name))?;
    Ok(match place.switch {
        Switch::Constant => Some(Refusal::NotTried("a constant, or a function that constants call")),
        Switch::Unnamed => Some(Refusal::NotTried("the function returns a type without a name")),
        Switch::Unviable => Some(Refusal::Unviable),
        // The pattern that the condition binds would be missing.
        Switch::Guard(_) if mutant.replacement == "true" => Some(Refusal::Unviable),
        _ => None,
    })
}

/// One place in the file that is written in another way, and the mutants there.
struct Site {
    range: Range<usize>,
    kind: Kind,
    mutants: Vec<(Number, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    // The order in which those at the same place are nested.
    Function,
    Body,
    Guard,
    Arm,
    Expression,
}

/// Writes a file with these mutants, of which none is refused.
pub fn write(source: &str, places: &Places, mutants: &[(Number, &Mutant)]) -> Switched {
    let mut sites: BTreeMap<(usize, std::cmp::Reverse<usize>, Kind), Site> = BTreeMap::new();
    let mut add = |range: Range<usize>, kind, mutant: Option<(Number, String)>| {
        let key = (range.start, std::cmp::Reverse(if range.is_empty() { usize::MAX } else { range.end }), kind);
        sites.entry(key).or_insert(Site { range, kind, mutants: Vec::new() }).mutants.extend(mutant);
    };
    for function in &places.functions {
        add(function.clone(), Kind::Function, None);
    }
    for (number, mutant) in mutants {
        let Some(place) = places.by_span.get(&(mutant.genre, mutant.span)) else { continue };
        let (range, kind) = match &place.switch {
            Switch::Expression(range) => (range.clone(), Kind::Expression),
            Switch::Body(at) => (*at..*at, Kind::Body),
            Switch::Arm(at) => (*at..*at, Kind::Arm),
            Switch::Guard(at) => (*at..*at, Kind::Guard),
            Switch::Unviable | Switch::Constant | Switch::Unnamed => continue,
        };
        let text = match mutant.genre {
            Genre::FnValue => mutant.replacement.clone(),
            _ if kind == Kind::Expression => {
                let (before, after) =
                    (&source[range.start..place.replaced.start], &source[place.replaced.end..range.end]);
                format!("{before} {} {after}", mutant.replacement)
            }
            _ => String::new(),
        };
        add(range, kind, Some((*number, text)));
    }
    let sites: Vec<Site> = sites.into_values().collect();
    let mut writer = Writer { source, sites: &sites, at: 0, switched: Switched::empty() };
    writer.until(source.len());
    writer.switched
}

impl Switched {
    fn empty() -> Self {
        Self { text: String::new(), mutants: Vec::new(), functions: Vec::new(), by_place: BTreeMap::new() }
    }

    /// Returns the mutants that the compiler refuses with an error at one of these places, if it is in the text of any.
    pub fn blamed(&self, places: &[Range<usize>]) -> HashSet<Number> {
        let holds = |range: &Range<usize>| places.iter().any(|at| range.start <= at.start && at.end <= range.end);
        self.mutants.iter().filter(|(range, _)| holds(range)).map(|(_, number)| *number).collect()
    }

    /// Returns the mutants of the functions that these places are in.
    pub fn near(&self, places: &[Range<usize>]) -> HashSet<Number> {
        let around = |at: &Range<usize>| {
            let functions = self.functions.iter().filter(|body| body.start <= at.start && at.end <= body.end);
            functions.min_by_key(|body| body.len()).cloned()
        };
        let bodies: Vec<Range<usize>> = places.iter().filter_map(around).collect();
        let inside = |text: &Range<usize>| bodies.iter().any(|body| body.start <= text.start && text.end <= body.end);
        self.mutants.iter().filter(|(range, _)| inside(range)).map(|(_, number)| *number).collect()
    }
}

struct Writer<'a> {
    source: &'a str,
    /// In the order in which they begin, those around others first.
    sites: &'a [Site],
    /// The end of what is written, in the source.
    at: usize,
    switched: Switched,
}

impl<'a> Writer<'a> {
    /// Writes the source up to here.
    fn until(&mut self, end: usize) {
        while let Some((site, rest)) = self.sites.split_first().filter(|(site, _)| site.range.start < end) {
            self.sites = rest;
            self.copy(site.range.start);
            self.site(site);
        }
        self.copy(end);
    }

    fn copy(&mut self, end: usize) {
        self.switched.text.push_str(&self.source[self.at..end]);
        self.at = end;
    }

    fn site(&mut self, site: &'a Site) {
        let numbers: Vec<Number> = site.mutants.iter().map(|(number, _)| *number).collect();
        let place = numbers.first().copied().unwrap_or_default();
        if place > 0 {
            self.switched.by_place.insert(place, numbers);
        }
        match site.kind {
            Kind::Function => {
                let start = self.switched.text.len();
                self.until(site.range.end);
                self.switched.functions.push(start..self.switched.text.len());
            }
            Kind::Body => {
                self.push(&format!("match crate::mutant({place}) {{ "));
                for (number, text) in &site.mutants {
                    self.mutant(*number, &format!("{number} => return {text}, "));
                }
                self.push("_ => {} } ");
            }
            Kind::Guard => {
                for (number, _) in &site.mutants {
                    self.mutant(*number, &format!("crate::mutant({place}) != {number} && "));
                }
            }
            Kind::Arm => {
                for (number, _) in &site.mutants {
                    self.mutant(*number, &format!(" if crate::mutant({place}) != {number}"));
                }
            }
            Kind::Expression => {
                self.push(&format!("(match crate::mutant({place}) {{ "));
                for (number, text) in &site.mutants {
                    self.mutant(*number, &format!("{number} => ({text}), "));
                }
                self.push("_ => (");
                self.until(site.range.end);
                self.push(") })");
            }
        }
    }

    fn push(&mut self, text: &str) {
        self.switched.text.push_str(text);
    }

    fn mutant(&mut self, number: Number, text: &str) {
        let start = self.switched.text.len();
        let _ = self.switched.text.write_str(text);
        self.switched.mutants.push((start..self.switched.text.len(), number));
    }
}
