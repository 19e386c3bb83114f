//! The places of the sources that mutants change, and what has to be written around each so that it can be switched.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Result, anyhow};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, UnOp};

use crate::list::{Genre, Span};

/// A place that cargo-mutants names, in bytes of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The text that the mutant replaces.
    pub replaced: Range<usize>,
    pub switch: Switch,
}

/// The ways to switch a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The whole expression here is written once for each mutant, and once as it is.
    Expression(Range<usize>),
    /// A function returns early.
    Body(usize),
    /// A pattern gets a guard, which ends here.
    Arm(usize),
    /// A guard gets one more condition in front.
    Guard(usize),
    /// The compiler would refuse it.
    Unviable,
    /// Constants are evaluated by the compiler, which reads no environment.
    Constant,
    /// A function with a return type that it does not name can return one type alone.
    Unnamed,
}

/// The places of one file.
#[derive(Default)]
pub struct Places {
    pub by_span: HashMap<(Genre, Span), Place>,
    /// The bodies of all functions.
    pub functions: Vec<Range<usize>>,
}

/// Finds all places of a file that mutants may change.
pub fn find(source: &str) -> Result<Places> {
    let file = syn::parse_file(source).map_err(|error| anyhow!("{error} (line {})", error.span().start().line))?;
    let mut finder = Finder::default();
    finder.visit_file(&file);
    Ok(finder.places)
}

#[derive(Default)]
struct Finder {
    places: Places,
    /// In a constant, outside of the closures in it.
    constant: bool,
    /// The outermost of the operators that are being visited, without a parenthesis between.
    ///
    /// A replaced operator may bind more or less than the one before: cargo-mutants replaces text, and so does this.
    operators: Option<Range<usize>>,
}

impl Finder {
    fn add(&mut self, genre: Genre, replaced: proc_macro2::Span, switch: Switch) {
        let switch = if self.constant { Switch::Constant } else { switch };
        self.places.by_span.insert((genre, replaced.into()), Place { replaced: replaced.byte_range(), switch });
    }

    fn in_constant(&mut self, constant: bool, visit: impl FnOnce(&mut Self)) {
        let outside = std::mem::replace(&mut self.constant, constant);
        visit(self);
        self.constant = outside;
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        self.places.functions.push(block.span().byte_range());
        let (Some(first), Some(last)) = (block.stmts.first(), block.stmts.last()) else { return };
        let (first, last) = (first.span(), last.span());
        let mut types = Unnamed(false);
        types.visit_return_type(&signature.output);
        let switch = match () {
            () if signature.constness.is_some() => Switch::Constant,
            () if types.0 => Switch::Unnamed,
            () => Switch::Body(first.byte_range().start),
        };
        let span = Span { start: Span::from(first).start, end: Span::from(last).end };
        let replaced = first.byte_range().start..last.byte_range().end;
        self.places.by_span.insert((Genre::FnValue, span), Place { replaced, switch });
    }
}

/// Finds `impl Trait`.
struct Unnamed(bool);

impl Visit<'_> for Unnamed {
    fn visit_type_impl_trait(&mut self, _: &syn::TypeImplTrait) {
        self.0 = true;
    }
}

/// Returns whether a pattern is bound in this condition, which can be in no other expression then.
fn binds(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => matches!(binary.op, BinOp::And(_)) && (binds(&binary.left) || binds(&binary.right)),
        _ => false,
    }
}

impl<'a> Visit<'a> for Finder {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.function(&item.sig, &item.block);
        self.in_constant(item.sig.constness.is_some(), |finder| visit::visit_item_fn(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        self.in_constant(item.sig.constness.is_some(), |finder| visit::visit_impl_item_fn(finder, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        self.in_constant(item.sig.constness.is_some(), |finder| visit::visit_trait_item_fn(finder, item));
    }

    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        self.in_constant(true, |finder| visit::visit_item_const(finder, item));
    }

    fn visit_impl_item_const(&mut self, item: &'a syn::ImplItemConst) {
        self.in_constant(true, |finder| visit::visit_impl_item_const(finder, item));
    }

    fn visit_trait_item_const(&mut self, item: &'a syn::TraitItemConst) {
        self.in_constant(true, |finder| visit::visit_trait_item_const(finder, item));
    }

    fn visit_item_static(&mut self, item: &'a syn::ItemStatic) {
        self.in_constant(true, |finder| visit::visit_item_static(finder, item));
    }

    fn visit_variant(&mut self, variant: &'a syn::Variant) {
        self.in_constant(true, |finder| visit::visit_variant(finder, variant));
    }

    fn visit_expr_const(&mut self, expression: &'a syn::ExprConst) {
        self.in_constant(true, |finder| visit::visit_expr_const(finder, expression));
    }

    fn visit_type_array(&mut self, array: &'a syn::TypeArray) {
        self.in_constant(true, |finder| visit::visit_type_array(finder, array));
    }

    fn visit_expr_repeat(&mut self, repeat: &'a syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.in_constant(true, |finder| finder.visit_expr(&repeat.len));
    }

    fn visit_generic_argument(&mut self, argument: &'a syn::GenericArgument) {
        self.in_constant(true, |finder| visit::visit_generic_argument(finder, argument));
    }

    fn visit_expr_closure(&mut self, closure: &'a syn::ExprClosure) {
        self.in_constant(closure.constness.is_some(), |finder| visit::visit_expr_closure(finder, closure));
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        let outer = self.operators.take();
        let range = expression.span().byte_range();
        let is_operator = matches!(expression, Expr::Binary(_) | Expr::Unary(_) | Expr::Cast(_));
        if is_operator && !binds(expression) {
            self.operators = Some(outer.clone().unwrap_or(range));
        }
        let switch = self.operators.clone().map_or(Switch::Unviable, Switch::Expression);
        match expression {
            Expr::Binary(binary) => self.add(Genre::BinaryOperator, binary.op.span(), switch),
            Expr::Unary(unary) if !matches!(unary.op, UnOp::Deref(_)) => {
                self.add(Genre::UnaryOperator, unary.op.span(), switch);
            }
            _ => {}
        }
        visit::visit_expr(self, expression);
        self.operators = outer;
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        self.add(Genre::MatchArm, arm.span(), Switch::Arm(arm.pat.span().byte_range().end));
        if let Some((_, guard)) = &arm.guard {
            let range = guard.span().byte_range();
            let switch = if binds(guard) { Switch::Guard(range.start) } else { Switch::Expression(range) };
            self.add(Genre::MatchArmGuard, guard.span(), switch);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, expression: &'a syn::ExprStruct) {
        let whole = expression.span().byte_range();
        for pair in expression.fields.pairs() {
            let field = pair.value().span();
            let end = pair.punct().map_or(field, Spanned::span);
            let span = Span { start: Span::from(field).start, end: Span::from(end).end };
            let replaced = field.byte_range().start..end.byte_range().end;
            let switch = if self.constant { Switch::Constant } else { Switch::Expression(whole.clone()) };
            self.places.by_span.insert((Genre::StructField, span), Place { replaced, switch });
        }
        visit::visit_expr_struct(self, expression);
    }
}
