//! CEL expressions about objects of the cluster: parsed, and evaluated within bounds.

mod copies;
mod fields;
mod tree;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use cel::common::ast::IdedExpr;
use cel::{Context, Env, ExecutionError, Value};
use models::plain::cut;
use serde_json::Value as Json;

use self::fields::{OBJECT, OBJECTS};

pub use self::fields::Fields;

/// Maximum number of turns that the loops of one evaluation take together, over all objects.
pub const STEPS: u32 = 10_000;

/// Maximum number of parts of an expression that are within one another. The interpreter calls itself for each of them.
const DEPTH: usize = 64;

/// Maximum length of an expression, as in the schema. The parser's time and memory depend on it.
const LENGTH: usize = 1024;

/// Stack of the parser, which calls itself for each part too, before these can be counted.
const PARSER_STACK: usize = 16 << 20;

/// Maximum length of an error in messages.
const ERROR_LENGTH: usize = 300;

/// The number of parsed expressions that are remembered: a policy is read in each turn.
const REMEMBERED: usize = 1024;

/// The variables besides the objects.
const NODE: &str = "node";
const VERSION: &str = "version";

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    copies::add_to(&mut environment);
    Arc::new(environment)
});

/// The parsed expressions, and the errors of those that cannot be parsed.
static PARSED: LazyLock<Mutex<Parsed>> = LazyLock::new(Mutex::default);

type Parsed = HashMap<String, Result<Arc<Predicate>, String>>;

/// Logs an expression before it is parsed.
static LOG: OnceLock<fn(&str)> = OnceLock::new();

/// A parsed expression.
#[derive(Debug)]
pub struct Predicate {
    expression: IdedExpr,
    /// True if it is about the list of objects, and not about each of them.
    pub of_list: bool,
    /// True if it depends on the name of the node.
    pub uses_node: bool,
    /// True if it depends on the version.
    pub uses_version: bool,
    /// The fields that it reads.
    pub fields: Fields,
}

impl Predicate {
    /// Has each expression passed to `log` before it is parsed: if the library panics on one, then or when it is evaluated, that ends the
    /// process, and nothing else names it. The first call has an effect.
    pub fn log_with(log: fn(&str)) {
        let _ = LOG.set(log);
    }

    /// Parses an expression, or returns what was parsed before.
    ///
    /// # Errors
    /// The defect of the expression.
    pub fn of(text: &str) -> Result<Arc<Self>, String> {
        let mut parsed = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = parsed.get(text) {
            return known.clone();
        }
        if let Some(log) = LOG.get() {
            log(text);
        }
        let found = on_large_stack(text).map(Arc::new);
        if parsed.len() >= REMEMBERED {
            parsed.clear();
        }
        parsed.insert(text.to_owned(), found.clone());
        found
    }

    /// Evaluates it on these objects, by name. Returns `None` if it is true, and otherwise the name of the first object for which it is
    /// false, which is empty where it is about the list.
    ///
    /// # Errors
    /// The cause for which it is neither true nor false.
    pub fn test(&self, objects: &BTreeMap<String, Json>, node: &str, version: &str) -> Result<Option<String>, String> {
        copies::begin();
        let left = Arc::new(AtomicU32::new(STEPS));
        let mut context = Context::with_env(ENVIRONMENT.clone());
        let counter = left.clone();
        let step = move || -> Result<bool, ExecutionError> {
            let taken = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            taken.map(|_| true).map_err(|_| ExecutionError::function_error(tree::STEP, "too many steps"))
        };
        context.add_function::<(), _>(tree::STEP, step).map_err(|error| error.to_string())?;
        context.add_variable_from_value(NODE, node);
        context.add_variable_from_value(VERSION, version);
        if self.of_list {
            context.add_variable_from_value(OBJECTS, objects.values().map(cel_of).collect::<Vec<_>>());
            let holds = self.holds(&context, &left)?;
            return Ok((!holds).then(String::new));
        }
        let mut failed = None;
        for (name, object) in objects {
            context.add_variable_from_value(OBJECT, cel_of(object));
            match self.holds(&context, &left) {
                Ok(true) => {}
                // One for which it is false decides, also beside one for which it is not known.
                Ok(false) => return Ok(Some(name.clone())),
                Err(error) => {
                    failed.get_or_insert_with(|| format!("{name}: {error}"));
                }
            }
        }
        failed.map_or(Ok(None), Err)
    }

    fn holds(&self, context: &Context<'_, '_>, left: &AtomicU32) -> Result<bool, String> {
        let result = Value::resolve(&self.expression, context);
        // The interpreter may have gone on after the last step, with a result that means nothing.
        if left.load(Ordering::Relaxed) == 0 {
            return Err(format!(
                "it takes more than {STEPS} steps: let it read fewer objects, or loops within one another"
            ));
        }
        if copies::are_too_many() {
            let most = copies::MOST >> 20;
            return Err(format!(
                "it copies more than {most} MiB into lists, maps and sums: let it read fewer fields or objects"
            ));
        }
        match result {
            Ok(Value::Bool(holds)) => Ok(holds),
            Ok(other) => Err(format!("it returned a {}, which is neither true nor false", other.type_of())),
            Err(error) => Err(cut(&error.to_string(), ERROR_LENGTH)),
        }
    }
}

/// Parses an expression on a thread of its own, whose stack is large enough for any of the permitted length.
fn on_large_stack(text: &str) -> Result<Predicate, String> {
    if text.chars().count() > LENGTH {
        return Err(format!("it is longer than {LENGTH} characters"));
    }
    // The parser slices by bytes, and may panic where a character has several; a panic ends the process.
    if !text.is_ascii() {
        return Err("it has a character that is not ASCII: write it as \\u00e4 within a string".to_owned());
    }
    // No thread, or a panic in a test: in what ships, a panic ends the process, once the controller has logged the expression.
    let failed = || "its parser has failed".to_owned();
    std::thread::scope(|scope| {
        let parser = std::thread::Builder::new().stack_size(PARSER_STACK).spawn_scoped(scope, || parse(text));
        parser.map_err(|_| failed())?.join().unwrap_or_else(|_| Err(failed()))
    })
}

fn parse(text: &str) -> Result<Predicate, String> {
    let parsed = ENVIRONMENT.parser().parse(text).map_err(|errors| {
        let first = errors.errors.first().map(|error| format!("{} at {}:{}", error.msg, error.pos.0, error.pos.1));
        cut(&first.unwrap_or_else(|| errors.to_string()), ERROR_LENGTH)
    });
    let mut expression = parsed?;
    if tree::depth(&mut expression) > DEPTH {
        return Err(format!("more than {DEPTH} parts of it are within one another"));
    }
    // Another variable of the same name would count as this one.
    if let Some(name) = tree::named_again(&mut expression, &[OBJECT, NODE, VERSION]) {
        return Err(format!("a loop has a variable with the name {name}: give this variable another name"));
    }
    let (of_each, of_list, uses_node, uses_version) = {
        let names = expression.references();
        let uses = |name: &str| names.has_variable(name) || names.has_variable(format!(".{name}"));
        (uses(OBJECT), uses(OBJECTS), uses(NODE), uses(VERSION))
    };
    if of_each == of_list {
        let which = if of_each { "both self and all" } else { "neither self nor all" };
        return Err(format!("it reads {which}: write self for each object, or all for the list of them"));
    }
    let fields = Fields::read_by(&mut expression);
    tree::count_copies(&mut expression);
    tree::count_steps(&mut expression);
    Ok(Predicate { expression, of_list, uses_node, uses_version, fields })
}

fn cel_of(value: &Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        // Whole numbers are of one type, as in the expressions of Kubernetes.
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::UInt(number),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(cel_of).collect::<Vec<_>>()),
        Json::Object(fields) => {
            Value::from(fields.iter().map(|(name, value)| (name.clone(), cel_of(value))).collect::<HashMap<_, _>>())
        }
    }
}

#[cfg(test)]
mod tests;
