//! The options of every command that choose the cluster and the user, as kubectl has them, and the client made of them.

mod proxy;

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;
use kube::config::{AuthInfo, Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::shell::Given;

/// Heading of these options in `--help`.
const HEADING: &str = "Options of kubectl";

#[derive(Debug, Default, Args)]
pub(crate) struct ConnectOptions {
    /// Path to the kubeconfig file to use. Default: those in KUBECONFIG, or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE", help_heading = HEADING)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use instead of the current one.
    #[arg(long, global = true, help_heading = HEADING)]
    context: Option<String>,
    /// Username to impersonate, such as a user or system:serviceaccount:NAMESPACE:NAME.
    #[arg(long = "as", global = true, value_name = "USER", help_heading = HEADING)]
    user: Option<String>,
    /// Group to impersonate with --as; may be repeated.
    #[arg(long = "as-group", global = true, value_name = "GROUP", help_heading = HEADING)]
    groups: Vec<String>,
}

pub(crate) fn client(config: Config) -> anyhow::Result<kube::Client> {
    kube::Client::try_from(config).context("the Kubernetes client cannot be set up")
}

/// Returns true if there is no kubeconfig. One that exists and cannot be read counts as one.
fn is_missing(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => error.kind() == ErrorKind::NotFound,
        _ => false,
    }
}

/// Returns the `proxy-url` of the cluster that a context has; without a name, the current one.
fn proxy_url(kubeconfig: &Kubeconfig, context: Option<&String>) -> Option<String> {
    let context = context.or(kubeconfig.current_context.as_ref())?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == *context)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.clone().filter(|url| !url.is_empty())
}

impl ConnectOptions {
    /// Returns the options that are given.
    pub(crate) fn given(&self) -> Vec<Given> {
        let file = self.kubeconfig.as_ref().map(|path| path.display().to_string());
        let single = [
            ("--kubeconfig", "--kubeconfig", file),
            ("--context", "--kube-context", self.context.clone()),
            ("--as", "--kube-as-user", self.user.clone()),
        ];
        let groups = self.groups.iter().map(|group| ("--as-group", "--kube-as-group", Some(group.clone())));
        single.into_iter().chain(groups).filter_map(|(kubectl, helm, value)| Some((kubectl, helm, value?))).collect()
    }

    pub(crate) async fn client(&self) -> anyhow::Result<kube::Client> {
        client(self.config().await?)
    }

    /// Returns the server and the user: those of the kubeconfig, or, as kubectl does, those of a pod that has none.
    pub(crate) async fn config(&self) -> anyhow::Result<Config> {
        let mut config = match self.of_pod() {
            Some(config) => config,
            None => self.of_kubeconfig().await?,
        };
        self.impersonate(&mut config.auth_info)?;
        Ok(config)
    }

    /// Returns the configuration by a pod's service account, unless there is a kubeconfig, or one was named.
    fn of_pod(&self) -> Option<Config> {
        let is_named = std::env::var_os("KUBECONFIG").is_some_and(|paths| !paths.is_empty());
        if is_named || self.kubeconfig.is_some() || self.context.is_some() {
            return None;
        }
        Kubeconfig::read().is_err_and(|error| is_missing(&error)).then(Config::incluster)?.ok()
    }

    async fn of_kubeconfig(&self) -> anyhow::Result<Config> {
        let kubeconfig = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path)
                .with_context(|| format!("the kubeconfig {} cannot be used: check --kubeconfig", path.display()))?,
            None => Kubeconfig::read()
                .context("no usable kubeconfig: set KUBECONFIG, use --kubeconfig, or check `kubectl config view`")?,
        };
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let of_kubeconfig = proxy_url(&kubeconfig, self.context.as_ref());
        let read = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = read.map_err(|error| {
            let next = match &error {
                KubeconfigError::ParseNoProxy(_) => {
                    "NO_PROXY cannot be used: separate its entries with single commas, and leave out all but \
                                                    names of hosts, domains, addresses and networks"
                }
                _ => "the kubeconfig cannot be used: check `kubectl config view` and --context",
            };
            anyhow::Error::new(error).context(next)
        })?;
        // `kube` compares NO_PROXY with the proxy, and not with the server.
        config.proxy_url =
            proxy::proxy(&config.cluster_url, of_kubeconfig.as_deref(), |name| std::env::var(name).ok())?;
        Ok(config)
    }

    /// Sets the user to impersonate. What the options leave out is as the kubeconfig has it.
    fn impersonate(&self, user: &mut AuthInfo) -> anyhow::Result<()> {
        if let Some(name) = &self.user {
            user.impersonate = Some(name.clone());
        }
        if !self.groups.is_empty() {
            ensure!(user.impersonate.is_some(), "--as-group needs the user of the group: use --as too");
            user.impersonate_groups = Some(self.groups.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn client_is_made_for_each_kind_of_proxy() {
        for url in ["http://proxy:3128", "https://me:secret@proxy:3128", "socks5://localhost:1080"] {
            let mut config = Config::new("https://api.example".parse().unwrap());
            config.proxy_url = Some(url.parse().unwrap());
            let made = client(config).map(drop);
            assert!(made.is_ok(), "{url}: {made:?}");
        }
    }

    #[test]
    fn options_that_are_given_are_those_of_the_commands_to_copy() {
        assert_eq!(ConnectOptions::default().given(), []);
        let options = ConnectOptions {
            kubeconfig: Some(PathBuf::from("/a/config")),
            context: Some("prod".to_owned()),
            user: Some("ann".to_owned()),
            groups: vec!["g".to_owned(), "h".to_owned()],
        };
        let names: Vec<String> =
            options.given().iter().map(|(kubectl, helm, value)| format!("{kubectl} {helm} {value}")).collect();
        let expected = [
            "--kubeconfig --kubeconfig /a/config",
            "--context --kube-context prod",
            "--as --kube-as-user ann",
            "--as-group --kube-as-group g",
            "--as-group --kube-as-group h",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn proxy_url_is_that_of_the_chosen_context() {
        let kubeconfig = Kubeconfig::from_yaml(
            "
current-context: bastion
contexts:
- {name: bastion, context: {cluster: private, user: me}}
- {name: direct, context: {cluster: public, user: me}}
- {name: empty, context: {cluster: none, user: me}}
clusters:
- {name: private, cluster: {server: 'https://a', proxy-url: 'socks5://localhost:1080'}}
- {name: public, cluster: {server: 'https://b'}}
- {name: none, cluster: {server: 'https://c', proxy-url: ''}}
",
        )
        .unwrap();
        let socks = Some("socks5://localhost:1080");
        for (context, expected) in
            [(None, socks), (Some("bastion"), socks), (Some("direct"), None), (Some("empty"), None), (Some("x"), None)]
        {
            let found = proxy_url(&kubeconfig, context.map(str::to_owned).as_ref());
            assert_eq!(found.as_deref(), expected, "{context:?}");
        }
    }

    #[test]
    fn pod_takes_its_service_account_only_where_there_is_no_kubeconfig() {
        let read = |kind| KubeconfigError::ReadConfig(std::io::Error::from(kind), PathBuf::from("config"));
        for (sentence, error, expected) in [
            ("no home directory", KubeconfigError::FindPath, true),
            ("no file", read(ErrorKind::NotFound), true),
            ("a file that may not be read", read(ErrorKind::PermissionDenied), false),
            ("a file without a context", KubeconfigError::CurrentContextNotSet, false),
        ] {
            assert_eq!(is_missing(&error), expected, "{sentence}");
        }
    }

    #[test]
    fn options_replace_the_impersonated_user_of_the_kubeconfig() {
        let of_file = |user: Option<&str>| AuthInfo { impersonate: user.map(str::to_owned), ..AuthInfo::default() };
        let groups = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (sentence, user, group, file, expected) in [
            ("no option", None, vec![], Some("ann"), Some((Some("ann"), None))),
            ("a user", Some("bob"), vec![], Some("ann"), Some((Some("bob"), None))),
            ("user and groups", Some("bob"), vec!["a", "b"], None, Some((Some("bob"), Some(vec!["a", "b"])))),
            ("groups of the kubeconfig's user", None, vec!["a"], Some("ann"), Some((Some("ann"), Some(vec!["a"])))),
            ("groups without a user", None, vec!["a"], None, None),
        ] {
            let options =
                ConnectOptions { user: user.map(str::to_owned), groups: groups(&group), ..ConnectOptions::default() };
            let mut info = of_file(file);
            let result = options.impersonate(&mut info).ok();
            let found = result.map(|()| (info.impersonate, info.impersonate_groups));
            let expected = expected.map(|(user, of)| (user.map(str::to_owned), of.map(|of| groups(&of))));
            assert_eq!(found, expected, "{sentence}");
        }
    }
}
