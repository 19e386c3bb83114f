//! The tree of a parsed expression: its size, and a bound on what its evaluation takes.

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue, operators,
};

use super::copies::COPY;

/// The function that counts the steps of an evaluation, and fails where there are too many. No expression can have its name.
pub(super) const STEP: &str = "@step";

/// The name that the standard macros give to what a loop has found so far.
const FOUND: &str = "@result";

/// Returns the direct parts of an expression.
pub(super) fn parts(expression: &mut Expr) -> Vec<&mut IdedExpr> {
    match expression {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(CallExpr { target, args, .. }) => target.as_deref_mut().into_iter().chain(args).collect(),
        Expr::Comprehension(of) => {
            let ComprehensionExpr { iter_range, accu_init, loop_cond, loop_step, result, .. } = &mut **of;
            vec![iter_range, accu_init, loop_cond, loop_step, result]
        }
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Map(map) => map.entries.iter_mut().flat_map(parts_of_entry).collect(),
        Expr::Struct(of) => of.entries.iter_mut().flat_map(parts_of_entry).collect(),
        Expr::Select(select) => vec![&mut *select.operand],
    }
}

fn parts_of_entry(entry: &mut IdedEntryExpr) -> Vec<&mut IdedExpr> {
    match &mut entry.expr {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    }
}

/// Returns the number of expressions that are within one another.
pub(super) fn depth(expression: &mut IdedExpr) -> usize {
    1 + parts(&mut expression.expr).into_iter().map(depth).max().unwrap_or(0)
}

/// Returns the first of these names that a loop, or `optMap`, gives to a variable of its own.
pub(super) fn named_again<'a>(expression: &mut IdedExpr, names: &[&'a str]) -> Option<&'a str> {
    if let Expr::Comprehension(of) = &expression.expr
        && let Some(name) = names.iter().copied().find(|name| *name == of.iter_var || *name == of.accu_var)
    {
        return Some(name);
    }
    parts(&mut expression.expr).into_iter().find_map(|part| named_again(part, names))
}

/// Has each turn of each loop counted by [`STEP`].
pub(super) fn count_steps(expression: &mut IdedExpr) {
    if let Expr::Comprehension(of) = &mut expression.expr {
        let counted = per_turn(of);
        let whole = std::mem::take(counted);
        let step = CallExpr { func_name: STEP.to_owned(), ..CallExpr::default() };
        let no = Expr::Literal(LiteralValue::Boolean(false.into()));
        let [step, no] = [Expr::Call(step), no].map(|expr| IdedExpr { id: 0, expr });
        // Not a conjunction: the interpreter evaluates both sides of one where the first fails.
        let call = CallExpr { func_name: operators::CONDITIONAL.to_owned(), target: None, args: vec![step, whole, no] };
        *counted = IdedExpr { id: 0, expr: Expr::Call(call) };
    }
    for part in parts(&mut expression.expr) {
        count_steps(part);
    }
}

/// Has what is copied into lists, maps and sums counted by [`COPY`].
pub(super) fn count_copies(expression: &mut IdedExpr) {
    for part in parts(&mut expression.expr) {
        count_copies(part);
    }
    for part in copied(&mut expression.expr) {
        let args = vec![std::mem::take(part)];
        part.expr = Expr::Call(CallExpr { func_name: COPY.to_owned(), target: None, args });
    }
}

/// Returns the direct parts of an expression that its value has copies of. Literals are no longer than the expression.
fn copied(expression: &mut Expr) -> Vec<&mut IdedExpr> {
    let mut copied: Vec<&mut IdedExpr> = match expression {
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Map(map) => map.entries.iter_mut().flat_map(parts_of_entry).collect(),
        Expr::Call(call) if call.func_name == operators::ADD && !adds_in_place(call) => call.args.iter_mut().collect(),
        _ => Vec::new(),
    };
    copied.retain(|part| !matches!(part.expr, Expr::Literal(_)));
    copied
}

/// Returns whether it adds to what a loop has found so far.
fn adds_in_place(call: &CallExpr) -> bool {
    matches!(call.args.first(), Some(IdedExpr { expr: Expr::Ident(found), .. }) if found.as_str() == FOUND)
}

/// Returns a part of a loop that is evaluated in each turn: its condition; or, in those of `map` and `filter`, which have none, what is
/// added or decides about it. These have to keep the shape by which the interpreter adds in place instead of copying the list.
fn per_turn(of: &mut ComprehensionExpr) -> &mut IdedExpr {
    let ComprehensionExpr { loop_cond, loop_step, .. } = of;
    if !matches!(loop_cond.expr, Expr::Literal(_)) {
        return loop_cond;
    }
    let Expr::Call(CallExpr { func_name, args, .. }) = &mut loop_step.expr else { return loop_cond };
    match (func_name.as_str(), args.as_mut_slice()) {
        (operators::CONDITIONAL, [decides, ..]) => decides,
        (operators::ADD, [IdedExpr { expr: Expr::Ident(found), .. }, IdedExpr { expr: Expr::List(added), .. }])
            if found.as_str() == FOUND =>
        {
            added.elements.first_mut().unwrap_or(loop_cond)
        }
        _ => loop_cond,
    }
}
