use serde_json::json;

use super::*;

/// The result for one object, `self`, and the list of it, `all`.
fn test(expression: &str, object: Json) -> Result<Option<String>, String> {
    Predicate::of(expression)?.test(&BTreeMap::from([("shop/web".to_owned(), object)]), "node-a", "1.20.5")
}

#[test]
fn expression_is_true_false_or_not_known_with_its_cause() {
    let object =
        || json!({"spec": {"replicas": 3, "node": "node-a"}, "status": {"ready": 3, "load": 0.5, "phase": "Ready"}});
    let (yes, no, no_of_list) = (Ok(None), Ok(Some("shop/web")), Ok(Some("")));
    for (expression, expected) in [
        ("self.status.phase == 'Ready'", yes),
        ("self.status.phase == 'Degraded'", no),
        ("self.spec.replicas - 1 <= self.status.ready && self.status.load < 1.0", yes),
        ("self.spec.node != node", no),
        ("version == '1.20.5' && version.startsWith('1.20') && has(self.spec)", yes),
        ("self.?status.?absent.orValue('Ready') == 'Ready'", yes),
        ("has(self.status.absent) && self.status.absent", no),
        ("self.status.absent == 1 || true", yes),
        (r"self.status.phase != '\u00e4'", yes),
        ("all.all(o, o.status.ready == o.spec.replicas)", yes),
        ("all.exists(o, o.status.ready == 0)", no_of_list),
        ("all.exists_one(o, o.spec.node == node) && size(all) == 1", yes),
        ("all.filter(o, o.status.ready > 2).size() == 1", yes),
        ("all.map(o, o.status.ready).exists(n, n == 4)", no_of_list),
        ("self.status.absent == 1", Err("shop/web: No such key: absent")),
        ("self.status.phase", Err("shop/web: it returned a string, which is neither true nor false")),
        ("all.map(o, o.status.ready)", Err("it returned a list, which is neither true nor false")),
        ("self.status.phase > 1", Err("shop/web: ")),
        ("self.status.ready / 0 == 1", Err("shop/web: ")),
        ("other == 1 && has(self.spec)", Err("shop/web: Undeclared reference to 'other'")),
    ] {
        let found = test(expression, object());
        match (&found, expected) {
            (Err(error), Err(start)) => assert!(error.starts_with(start), "{expression}: {error}"),
            _ => assert_eq!(found.as_ref().map(Option::as_deref).map_err(String::as_str), expected, "{expression}"),
        }
    }
}

#[test]
fn one_object_for_which_it_is_false_decides_beside_those_for_which_it_is_not_known() {
    let named = |name: &str, object: Json| (name.to_owned(), object);
    let unknown = named("a", json!({}));
    let (well, ill) = (named("b", json!({"ok": true})), named("c", json!({"ok": false})));
    let predicate = Predicate::of("self.ok").unwrap();
    let test = |objects: &[(String, Json)]| predicate.test(&objects.iter().cloned().collect(), "", "");
    assert_eq!(test(&[unknown.clone(), well.clone(), ill.clone()]), Ok(Some("c".to_owned())));
    assert_eq!(test(&[unknown, well.clone()]), Err("a: No such key: ok".to_owned()));
    assert_eq!((test(&[well]), test(&[])), (Ok(None), Ok(None)));
}

#[test]
fn expression_that_cannot_be_evaluated_is_rejected_with_its_cause() {
    let (long, nested, chained) = (
        format!("self.{} == 1", "a".repeat(1024)),
        "!".repeat(2) + &"(".repeat(90) + "self",
        format!("self{}", "[0]".repeat(300)),
    );
    for (expression, error) in [
        ("self.status.phase ==", ""),
        ("", ""),
        ("has(self)", "invalid argument to has() macro"),
        ("true", "it reads neither self nor all: write self for each object"),
        ("self.ready && all.all(o, o.ready)", "it reads both self and all"),
        ("all.all(self, self.ready)", "a loop has a variable with the name self"),
        ("size(all.filter(o, o.parts.exists(node, node.ready))) > 0", "a loop has a variable with the name node"),
        ("self.?version.optMap(version, version == '1').orValue(true)", "a loop has a variable with the name version"),
        ("self.name == 'ä'", "it has a character that is not ASCII"),
        ("self.ä == 1", "it has a character that is not ASCII"),
        (long.as_str(), "it is longer than 1024 characters"),
        (nested.as_str(), ""),
        (chained.as_str(), "more than 64 parts of it are within one another"),
    ] {
        let found = Predicate::of(expression).map(|_| ()).unwrap_err();
        assert!(found.contains(error) && !found.is_empty(), "{expression}: {found}");
    }
}

#[test]
fn expression_is_passed_to_the_log_before_it_is_parsed_for_the_first_time() {
    static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    Predicate::log_with(|text| LOGGED.lock().unwrap().push(text.to_owned()));
    for expression in ["self.logged == 1", "self.logged =="] {
        let _ = [Predicate::of(expression), Predicate::of(expression)];
        let logged = LOGGED.lock().unwrap();
        assert_eq!(logged.iter().filter(|text| *text == expression).count(), 1, "{expression}");
    }
}

#[test]
fn evaluation_ends_after_a_number_of_steps_and_has_no_result_then() {
    let numbers: Vec<u32> = (0..200).collect();
    let object = || json!({"numbers": numbers.clone()});
    let too_long = |expression: &str| {
        let error = test(expression, object()).unwrap_err();
        assert!(error.contains("more than 10000 steps"), "{expression}: {error}");
    };
    assert_eq!(test("self.numbers.all(n, n < 200)", object()), Ok(None));
    assert_eq!(test("self.numbers.exists(a, self.numbers.exists(b, a + b == 60))", object()), Ok(None));
    for looped in [
        "self.numbers.all(a, self.numbers.all(b, a + b >= 0))",
        "self.numbers.exists(a, self.numbers.exists(b, a + b < 0))",
        "self.numbers.exists_one(a, self.numbers.exists_one(b, a + b < 0))",
        "size(self.numbers.map(a, self.numbers.map(b, a + b))) > 0",
        "size(self.numbers.filter(a, size(self.numbers.filter(b, a + b >= 0)) > 0)) > 0",
    ] {
        too_long(looped);
        // A part that decides without it hides nothing.
        too_long(&format!("{looped} || true"));
    }
}

#[test]
fn evaluation_ends_where_it_copies_too_much_and_has_no_result_then() {
    let object = || json!({"text": "a".repeat(1000), "list": [0, 1]});
    for doubled in [
        format!("size([self.text]{}) > 0", ".map(a, a + a)".repeat(40)),
        format!("size([self.list]{}) > 0", ".map(a, a + a)".repeat(40)),
        format!("size([self.list]{}) > 0", ".map(a, [a, a])".repeat(40)),
        format!("size([self.list]{}) > 0", ".map(a, {0: a, 1: a})".repeat(35)),
        format!("optional.of(self.text){}.hasValue()", ".optMap(a, a + a)".repeat(40)),
        format!("size([[optional.of(self.text)]]{}) > 0", ".map(a, a + a)".repeat(40)),
    ] {
        // A part that decides without it hides nothing.
        for expression in [doubled.clone(), format!("{doubled} || true")] {
            let error = test(&expression, object()).unwrap_err();
            assert!(error.contains("it copies more than 32 MiB"), "{expression}: {error}");
        }
    }
    // A few doublings are nothing, and each evaluation begins from nothing.
    for _ in 0..100 {
        assert_eq!(test("[self.text].map(a, a + a).map(a, a + a).all(a, size(a) == 4000)", object()), Ok(None));
    }
    let found = test("{'a': self.text}.a + 'b' != self.text && [?self.?list][0] + [2] == [0, 1, 2]", object());
    assert_eq!(found, Ok(None));
}

/// The stack is that of the threads of the controller that evaluate.
#[test]
fn deepest_expressions_are_evaluated_on_a_stack_of_two_mebibytes() {
    type Nested = fn(usize) -> String;
    let deepest: [(Nested, usize); 3] = [
        (|depth| format!("size({}self{}) > 0", "[".repeat(depth), "]".repeat(depth)), DEPTH - 3),
        (|depth| format!("self.one{} > 0", " + self.one".repeat(depth)), DEPTH - 3),
        (|depth| format!("{}one == 1{}", "self.ones.all(one, ".repeat(depth), ")".repeat(depth)), DEPTH / 2 - 1),
    ];
    for (nested, depth) in deepest {
        let refused = Predicate::of(&nested(depth + 1)).map(|_| ()).unwrap_err();
        assert!(refused.contains("more than 64 parts"), "{refused}");
        let evaluate = move || test(&nested(depth), json!({"one": 1, "ones": [1]}));
        let evaluated = std::thread::Builder::new().stack_size(2 << 20).spawn(evaluate).unwrap().join().unwrap();
        assert_eq!(evaluated, Ok(None), "{}", nested(depth));
    }
}

#[test]
fn predicate_depends_on_the_node_only_where_it_reads_its_name() {
    for (expression, node, version, list) in [
        ("self.a == node", true, false, false),
        ("all.all(x, x.a == version)", false, true, true),
        ("self.node == 'node' && self.version == 1", false, false, false),
    ] {
        let predicate = Predicate::of(expression).unwrap();
        let found = (predicate.uses_node, predicate.uses_version, predicate.of_list);
        assert_eq!(found, (node, version, list), "{expression}");
    }
}
