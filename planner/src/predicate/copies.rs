//! A bound on what an evaluation copies: a few steps can double a value again and again, until the process has no memory left.

use std::cell::Cell;

use cel::common::types::{CelBytes, CelList, CelMap, CelOptional, CelString, DYN_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{Env, ExecutionError};

/// The function that counts what is copied, and fails where that is too much. No expression can have its name.
pub(super) const COPY: &str = "@copy";

/// Maximum size of what one evaluation copies into lists, maps and sums together, over all objects, in bytes.
pub(super) const MOST: usize = 32 << 20;

/// Memory of a value besides its text and its parts, with its place in a list or map, in bytes.
const OF_EACH: usize = 64;

thread_local! {
    /// The bytes that the evaluation on this thread may copy yet.
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Adds the function to an environment.
pub(super) fn add_to(environment: &mut Env) {
    // No function of the language has this name.
    let _ = environment.add_overload(COPY, COPY, vec![DYN_TYPE], copy);
}

/// Begins an evaluation on this thread.
pub(super) fn begin() {
    LEFT.set(MOST);
}

/// Returns whether the evaluation on this thread has copied too much.
pub(super) fn are_too_many() -> bool {
    LEFT.get() == 0
}

/// Returns its argument, which is about to be copied.
fn copy<'b, 'v>(mut args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let value = args.pop().ok_or_else(|| ExecutionError::function_error(COPY, "nothing to copy"))?;
    let left = LEFT.get();
    let left = left.saturating_sub(size(value.as_ref(), left));
    LEFT.set(left);
    if left == 0 { Err(ExecutionError::function_error(COPY, "too much")) } else { Ok(value) }
}

/// Returns the size of a value in bytes, or, where it is larger than `limit`, at least that.
fn size(value: &dyn Val, limit: usize) -> usize {
    if let Some(text) = value.downcast_ref::<CelString>() {
        return OF_EACH + text.inner().len();
    }
    if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        return OF_EACH + bytes.inner().len();
    }
    let mut total = OF_EACH;
    let mut add = |part: &dyn Val| {
        if total < limit {
            total += size(part, limit - total);
        }
    };
    if let Some(list) = value.downcast_ref::<CelList>() {
        for item in list.inner() {
            add(&**item);
        }
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        for (key, item) in map.inner() {
            add(key.inner());
            add(&**item);
        }
    } else if let Some(optional) = value.downcast_ref::<CelOptional>()
        && let Some(held) = optional.option()
    {
        add(held);
    }
    total
}
