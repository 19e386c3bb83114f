//! A serving certificate that the user provides.

use base64::Engine as _;

use super::load::*;
use super::*;

fn base64(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// An external authority.
pub(crate) struct ExternalCa {
    pub(crate) certificate: String,
    key: KeyPair,
    params: CertificateParams,
}

impl ExternalCa {
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, key, params })
    }

    /// A Secret as cert-manager creates it, with this bundle.
    fn secret(&self, bundle: &str) -> anyhow::Result<Value> {
        self.secret_with(bundle, |_| ())
    }

    /// The same with a change of the certificate.
    pub(crate) fn secret_with(
        &self,
        bundle: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> anyhow::Result<Value> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![host()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        change(&mut params);
        let leaf = params.signed_by(&key, &Issuer::from_params(&self.params, &self.key))?;
        Ok(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": SERVING_SECRET, "namespace": SYSTEM_NAMESPACE},
            "data": {"tls.crt": base64(&leaf.pem()), "tls.key": base64(&key.serialize_pem()), "ca.crt": base64(bundle)},
        }))
    }
}

pub(crate) async fn provide(ctx: &ScenarioContext, secret: Value) -> anyhow::Result<()> {
    integ::bed::workload::apply(&ctx.bed.client, vec![secret]).await
}

/// Waits until every agent trusts an authority.
async fn trusted(ctx: &ScenarioContext, authority: &ExternalCa) -> anyhow::Result<()> {
    let mut volumes = Vec::new();
    for member in &ctx.bed.members {
        volumes.push(Volumes::of(ctx, &member.name).await?);
    }
    poll("every agent trusts the authority", async || {
        let bundles: Vec<Vec<u8>> = volumes.iter().map(Volumes::bundle).collect::<Result<_, _>>()?;
        let trusts = |bundle: &Vec<u8>| String::from_utf8_lossy(bundle).contains(authority.certificate.trim());
        Ok(bundles.iter().all(trusts).then_some(()))
    })
    .await
}

/// Waits until the web API serves with a certificate of an authority.
async fn served(ctx: &ScenarioContext, authority: &ExternalCa) -> anyhow::Result<()> {
    poll("the web API serves with the certificate", async || {
        let client = trusting(authority.certificate.as_bytes(), &ctx.bed.proxy_url())?;
        Ok(client.get(url(&host(), "node-1", "")).timeout(PATIENCE).send().await.ok().map(drop))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: unit tests of certificates, and the rotation of generated ones"]
async fn provided_certificate_is_replaced_live_and_invalid_one_is_rejected() -> anyhow::Result<()> {
    let mut options = options(2);
    options.deploy.controller_args.push("--serving-certificate=provided".to_owned());
    let ending = run(options, async |ctx| {
        let (one, other, third) = (ExternalCa::new("one")?, ExternalCa::new("other")?, ExternalCa::new("third")?);
        ctx.bed.install().await?;
        ctx.until_operator("Degraded", ConditionStatus::True).await?;
        provide(ctx, one.secret(&one.certificate)?).await?;
        ctx.reported().await?;
        ctx.until_operator("Degraded", ConditionStatus::False).await?;
        anyhow::ensure!(
            secret(ctx, CA_SECRET).await?.and_then(|s| field(&s, "tls.crt")).is_none(),
            "it has no authority of the operator"
        );

        let load = Load::of(ctx, &["node-1", "node-2"]).await?;
        // First the next authority beside the current one, then its certificate.
        let both = format!("{}{}", one.certificate, other.certificate);
        provide(ctx, one.secret(&both)?).await?;
        trusted(ctx, &other).await?;
        provide(ctx, other.secret(&other.certificate)?).await?;
        served(ctx, &other).await?;
        anyhow::ensure!(
            trust(ctx).await?[TRUST_CA_KEY].contains(one.certificate.trim()),
            "the earlier one stays trusted"
        );
        load.end().await?;

        // The web API would serve with this one, too, so the controller gets it with a key that does not match.
        let mut bad = third.secret(&third.certificate)?;
        bad["data"]["tls.key"] = base64(&one.key.serialize_pem()).into();
        let load = Load::of(ctx, &["node-1", "node-2"]).await?;
        provide(ctx, bad).await?;
        let condition = ctx.until_operator("Degraded", ConditionStatus::True).await?;
        anyhow::ensure!(
            condition.reason == "CertificatesInvalid" && condition.message.contains("tls.key"),
            "{condition:?}"
        );
        anyhow::ensure!(!trust(ctx).await?[TRUST_CA_KEY].contains(third.certificate.trim()), "it has no use any more");
        load.end().await?;
        provide(ctx, other.secret(&other.certificate)?).await?;
        ctx.until_operator("Degraded", ConditionStatus::False).await?;
        ctx.release();
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(2);
    Ok(())
}
