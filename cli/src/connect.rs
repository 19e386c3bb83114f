//! The options of every command that choose the cluster and the user, as kubectl has them, and the client made of them.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;
use kube::config::{AuthInfo, Config, KubeConfigOptions, Kubeconfig};

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

impl ConnectOptions {
    /// Reads the kubeconfig: the server and the user.
    pub(crate) async fn config(&self) -> anyhow::Result<Config> {
        let kubeconfig = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path)
                .with_context(|| format!("the kubeconfig {} cannot be used: check --kubeconfig", path.display()))?,
            None => Kubeconfig::read()
                .context("no usable kubeconfig: set KUBECONFIG, use --kubeconfig, or check `kubectl config view`")?,
        };
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .context("the kubeconfig cannot be used: check `kubectl config view` and --context")?;
        self.impersonate(&mut config.auth_info)?;
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
