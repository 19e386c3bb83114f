use super::*;

const CRON: &str = "0 0 2 * * 7 *";

/// The values about updates that a file has, each with its place, and the keys without effect.
fn found(text: &str) -> (Vec<(String, String)>, Vec<String>) {
    let values = read(text).unwrap_or_else(|error| panic!("{error:#}\n{text}"));
    (SETTINGS.iter().filter_map(|(key, _)| values.get(key)).collect(), values.unknown())
}

fn error(text: &str) -> String {
    read(text).map(|values| panic!("{values:?}\n{text}")).unwrap_err().to_string()
}

#[test]
fn values_are_found_in_the_files_that_people_have() {
    let of_helm = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec:\n  valuesFrom: []\n  chart: {spec: {chart: \
                   bottlerocket-update-operator, sourceRef: {kind: HelmRepository, name: x}}}\n  values:";
    let of_argo = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec:";
    let argo = "spec.source.helm.";
    let chart = format!("chart: {CHART}");
    for (sentence, file, place) in [
        ("the values", "max_concurrent_updates: 3\nscheduler_cron_expression: CRON".to_owned(), ""),
        ("one document with its marks", "---\nmax_concurrent_updates: '3'\nscheduler_cron_expression: CRON\n---\n".to_owned(), ""),
        (
            "helm get values",
            "USER-SUPPLIED VALUES:\nmax_concurrent_updates: 3\nscheduler_cron_expression: CRON".to_owned(),
            "",
        ),
        (
            "helm get values --all",
            "COMPUTED VALUES:\nglobal: {}\nimage: x\nmax_concurrent_updates: 3\nscheduler_cron_expression: CRON".to_owned(),
            "",
        ),
        ("JSON", r#"{"max_concurrent_updates": 3, "scheduler_cron_expression": "CRON"}"#.to_owned(), ""),
        (
            "the values of a parent chart",
            "image: {tag: '1'}\nbottlerocket-update-operator:\n  enabled: true\n  max_concurrent_updates: 3\n  \
             scheduler_cron_expression: CRON\ncert-manager: {namespace: x, resources: {}}"
                .to_owned(),
            "bottlerocket-update-operator.",
        ),
        (
            "of one with both charts",
            "bottlerocket-shadow: {namespace: x, apiserver_service_port: '443'}\nbrupop: {max_concurrent_updates: 3, \
             scheduler_cron_expression: CRON, apiserver_service_port: '443'}"
                .to_owned(),
            "brupop.",
        ),
        (
            "under an alias, in a chart of a chart",
            "platform: {brupop: {max_concurrent_updates: 3, scheduler_cron_expression: CRON}}".to_owned(),
            "platform.brupop.",
        ),
        (
            "a HelmRelease",
            format!("{of_helm} {{max_concurrent_updates: 3, scheduler_cron_expression: CRON}}"),
            "spec.values.",
        ),
        (
            "an Application with values",
            format!(
                "{of_argo}\n  source:\n    {chart}\n    helm:\n      values: |\n        max_concurrent_updates: 3\n        \
                 scheduler_cron_expression: CRON"
            ),
            argo,
        ),
        (
            "an Application with a valuesObject, which replaces values",
            format!(
                "{of_argo} {{source: {{{chart}, helm: {{values: 'max_concurrent_updates: 9', valuesObject: {{max_concurrent_updates: 3, \
                 scheduler_cron_expression: CRON}}}}}}}}"
            ),
            argo,
        ),
        (
            "an Application with parameters, which come first",
            format!(
                "{of_argo} {{source: {{{chart}, helm: {{values: 'max_concurrent_updates: 9', parameters: [{{name: \
                 max_concurrent_updates, value: '3'}}, {{name: scheduler_cron_expression, value: CRON}}, {{name: \
                 logging.formatter, value: json}}, {{name: 'image_pull_secrets[0].name', value: x}}]}}}}}}"
            ),
            argo,
        ),
        (
            "the chart in the earlier operator's own repository",
            format!(
                "{of_argo} {{source: {{repoURL: 'https://github.com/bottlerocket-os/bottlerocket-update-operator.git', path: \
                 deploy/charts/{CHART}, helm: {{parameters: [{{name: max_concurrent_updates, value: '3'}}, {{name: \
                 scheduler_cron_expression, value: CRON}}]}}}}}}"
            ),
            argo,
        ),
        (
            "an Application with several sources",
            format!(
                "{of_argo} {{sources: [{{chart: bottlerocket-shadow, helm: {{valuesObject: {{namespace: x, \
                 apiserver_service_port: '443'}}, valueFiles: [a.yaml]}}}}, {{repoURL: x, ref: values}}, {{chart: \
                 bottlerocket-update-operator, helm: {{valuesObject: {{max_concurrent_updates: 3, \
                 scheduler_cron_expression: CRON}}}}}}]}}"
            ),
            "spec.sources[2].helm.",
        ),
        (
            "a Helmfile",
            "repositories: [{name: brupop, url: x}]\nreleases: [{name: other, chart: a/b, values: [other.yaml]}, {name: brupop, chart: \
             brupop/bottlerocket-update-operator, values: [{max_concurrent_updates: 9}, {scheduler_cron_expression: CRON}], \
             set: [{name: max_concurrent_updates, value: 3}]}]"
                .to_owned(),
            "releases[1].values.",
        ),
    ] {
        let expected = [("3", "max_concurrent_updates"), (CRON, "scheduler_cron_expression")];
        let expected = expected.map(|(value, key)| (value.to_owned(), format!("{place}{key}"))).to_vec();
        let file = if sentence == "JSON" { file } else { file.replace("CRON", "\"CRON\"") };
        assert_eq!(found(&file.replace("CRON", CRON)), (expected, vec![]), "{sentence}");
    }
}

#[test]
fn file_without_all_values_of_the_chart_is_one_error_with_what_to_do() {
    let of_helm = "{apiVersion: helm.toolkit.fluxcd.io/v2, kind: HelmRelease, spec: ";
    let of_argo = "{apiVersion: argoproj.io/v1alpha1, kind: Application, spec: ";
    let released = "chart: {spec: {chart: bottlerocket-update-operator, sourceRef: {kind: HelmRepository}}}";
    let own = "{max_concurrent_updates: 3}";
    for (file, expected) in [
        ("", "it holds no values"),
        ("null", "it holds no values"),
        ("USER-SUPPLIED VALUES:\nnull\n", "it holds no values"),
        ("[1]", "it holds a list"),
        ("a: [", "it is no YAML"),
        ("{}", "it has no values of the chart bottlerocket-update-operator. Those"),
        ("replicas: 2\nwindow: x", "operator: its keys are replicas, window. Those about updates are max_concurrent"),
        ("image: x\nreplicas: 2", "its keys are image, replicas"),
        ("cert-manager: {image: x}", "its keys are cert-manager"),
        ("{apiVersion: v1, kind: ConfigMap, data: {values: x}}", "it is a ConfigMap"),
        (
            "{apiVersion: v1, kind: HelmRepository}\n---\nmax_concurrent_updates: 3",
            "it has 2 documents (HelmRepository, values)",
        ),
        ("a: {max_concurrent_updates: 3}\nb: {max_concurrent_updates: 2}", "several places: a, b"),
        ("a: {max_concurrent_updates: 3}\nupdate_window_start: x", "several places: a, its top level"),
        (&format!("{of_helm}{{valuesFrom: [{{kind: ConfigMap, name: x}}], values: {own}}}}}"), "spec.valuesFrom names"),
        (&format!("{of_helm}{{{released}}}}}"), "it has no values"),
        ("{apiVersion: helm.toolkit.fluxcd.io/v2, kind: HelmRelease}", "it is a HelmRelease"),
        (
            &format!(
                "{of_argo}{{source: {{helm: {{valueFiles: [a.yaml], fileParameters: [{{name: a, path: b}}], valuesObject: {own}}}}}}}}}"
            ),
            "spec.source.helm.valueFiles and spec.source.helm.fileParameters name",
        ),
        (
            &format!(
                "{of_argo}{{sources: [{{path: charts/x, helm: {{valueFiles: [$values/a.yaml]}}}}, {{ref: values}}]}}}}"
            ),
            "spec.sources[0].helm.valueFiles names",
        ),
        (&format!("{of_argo}{{source: {{helm: {{values: 'a: ['}}}}}}}}"), "spec.source.helm.values is no YAML"),
        (&format!("{of_argo}{{source: {{path: x}}}}}}"), "the chart \"x\" (spec.source.path) may have values"),
        (
            &format!("{of_argo}{{source: {{chart: bottlerocket-update-operator, helm: {{values: {own}}}}}}}}}"),
            "spec.source.helm.values names values",
        ),
        (
            "repositories: [{name: a}]\nreleases: [{chart: a/bottlerocket-update-operator, values: [{max_concurrent_updates: 3}, \
             production.yaml]}]",
            "releases[0].values[1] names",
        ),
        (
            "releases: [{chart: oci://a/bottlerocket-update-operator, values: [{max_concurrent_updates: 3}], set: [{name: \
             scheduler_cron_expression, file: x}, {name: scheduler_cron_expression, values: [a]}]}]",
            "releases[0].set[0] and releases[0].set[1] name values",
        ),
        (
            "releases: [{chart: oci://a/bottlerocket-update-operator, values: {max_concurrent_updates: 3}, set: {a: b}}]",
            "releases[0].values and releases[0].set name values",
        ),
        (
            "releases: [{name: a, values: [{max_concurrent_updates: 3}]}, {name: b, values: [{max_concurrent_updates: 2}]}]",
            "several places: releases[0].values, releases[1].values",
        ),
    ] {
        let error = error(file);
        assert!(error.contains(expected), "{expected} is missing in {error}\n{file}");
        let advice = ["helm get values --all", "leave only"];
        assert!(advice.iter().any(|advice| error.contains(advice)), "{error}");
    }
}

/// A parent chart, or a copy of the chart, has a values.yaml of its own, in which the schedule may be.
#[test]
fn values_for_another_chart_than_the_released_one_are_refused() {
    let own = "{max_concurrent_updates: 3}";
    let of_flux = |chart: &str, kind: &str, field: &str, values: &str| {
        format!(
            "{{kind: HelmRelease, spec: {{chart: {{spec: {{chart: {chart}, sourceRef: {{kind: {kind}}}, {field}}}}}, values: {values}}}}}"
        )
    };
    let of_argo = |source: &str, values: &str| {
        format!("{{kind: Application, spec: {{source: {{{source}, helm: {{valuesObject: {values}}}}}}}}}")
    };
    let below = format!("{{brupop: {own}}}");
    for (file, expected) in [
        (of_flux(CHART, "HelmRepository", "valuesFiles: [a.yaml]", own), "spec.chart.spec.valuesFiles names values"),
        (of_flux(CHART, "HelmRepository", "valuesFile: a.yaml", own), "spec.chart.spec.valuesFile names values"),
        (of_flux("platform", "HelmRepository", "version: x", &below), "the chart \"platform\" (spec.chart.spec.chart)"),
        (of_flux(&format!("./charts/{CHART}"), "GitRepository", "version: x", own), "may have values of its own"),
        (of_flux(CHART, "HelmRepository", "version: x", &below), "spec.values.brupop is not where the chart"),
        (
            format!("{{kind: HelmRelease, spec: {{chartRef: {{kind: OCIRepository, name: x}}, values: {own}}}}}"),
            "a chart that is not named at spec.chart.spec.chart may have values",
        ),
        (of_argo("path: charts/platform", &below), "the chart \"charts/platform\" (spec.source.path) may"),
        (of_argo(&format!("repoURL: 'https://example.com/x', path: charts/{CHART}"), own), "may have values"),
        (of_argo("chart: platform", &below), "the chart \"platform\" (spec.source.chart) may"),
        (format!("releases: [{{chart: ./charts/{CHART}, values: [{own}]}}]"), "(releases[0].chart) may have values"),
        (format!("repositories: []\nreleases: [{{chart: a/{CHART}, values: [{own}]}}]"), "(releases[0].chart) may"),
    ] {
        let error = error(&file);
        assert!(error.contains(expected) && error.contains("helm get values --all"), "{expected}: {error}\n{file}");
    }
    // The values file of a parent chart is taken as it is, and what it cannot show is said.
    let unseen = |file: &str| read(file).unwrap().unseen();
    assert!(unseen(&below).unwrap().contains("no brupop.scheduler_cron_expression"));
    assert_eq!(unseen("brupop: {scheduler_cron_expression: x}"), None);
    assert_eq!(unseen(own), None);
}

#[test]
fn environment_that_a_patch_sets_is_refused() {
    let file = format!(
        "{{kind: HelmRelease, spec: {{chart: {{spec: {{chart: {CHART}, sourceRef: {{kind: HelmRepository}}}}}}, values: \
         {{max_concurrent_updates: 3}}, postRenderers: [{{kustomize: {{patches: [{{patch: 'name: SCHEDULER_CRON_EXPRESSION'}}]}}}}]}}}}"
    );
    let error = error(&file);
    assert!(error.contains("it sets SCHEDULER_CRON_EXPRESSION") && error.contains("without --values"), "{error}");
}

#[test]
fn keys_that_the_chart_never_had_are_named() {
    let of_helm = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec:\n  chart: {spec: {chart: \
                   bottlerocket-update-operator, sourceRef: {kind: HelmRepository}}}\n  values: {image: x, scheduler: {cron: x}, maxUnavailable: 1}";
    assert_eq!(
        found(of_helm),
        (vec![], vec!["spec.values.maxUnavailable".to_owned(), "spec.values.scheduler".to_owned()])
    );
    let misspelt = "max_concurrent_updates: 3\nscheduler_cron_expresion: x";
    assert_eq!(found(misspelt).1, ["scheduler_cron_expresion"]);
    let keys = SETTINGS.iter().map(|(key, _)| key).chain(&OWN_KEYS).chain(&COMMON_KEYS);
    let every = keys.map(|key| format!("{key}: x\n")).collect::<String>();
    assert!(found(&every).1.is_empty());
}
