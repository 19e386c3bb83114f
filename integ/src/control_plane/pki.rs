//! Keys and certificates of one control plane: generated for it, trusted by nothing else, removed with its folder.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

/// The first address of the range of Service addresses, that of the API server's own Service.
const KUBERNETES_SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));

/// X.520's organizationName. A second group needs it spelled out, because a distinguished name of rcgen holds one value
/// per kind of attribute, and Kubernetes reads each organizationName as one group.
const ORGANIZATION_NAME: &[u64] = &[2, 5, 4, 10];

/// A certificate and its private key, both as PEM.
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// The certificate authority of a control plane and the files made from it.
pub(super) struct Pki {
    folder: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
    ca_pem: String,
}

impl Pki {
    /// Generates the authority, the serving certificates, the front proxy's client certificate and the keys of service
    /// accounts, and writes them below `folder`, readable by this user alone. The serving certificates are also valid for
    /// `address`.
    pub(super) fn generate(folder: PathBuf, address: Option<Ipv4Addr>) -> anyhow::Result<Self> {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        parameters.distinguished_name.push(DnType::CommonName, "test bed");
        let authority = CertifiedIssuer::self_signed(parameters, KeyPair::generate()?)?;
        let pki = Self { folder, ca_pem: authority.pem(), authority };

        write_private(&pki.file("ca.crt"), &pki.ca_pem)?;
        write_private(&pki.file("ca.key"), &pki.authority.key().serialize_pem())?;
        for (file, name) in [
            ("apiserver", "kube-apiserver"),
            ("controller-manager", "kube-controller-manager"),
            ("scheduler", "kube-scheduler"),
        ] {
            pki.write(file, &pki.server(name, address)?)?;
        }
        pki.write("front-proxy", &pki.client("front-proxy-client", &[])?)?;
        pki.write("kubelet-client", &pki.client("kube-apiserver-kubelet-client", &["system:masters"])?)?;
        let service_accounts = KeyPair::generate()?;
        write_private(&pki.file("sa.key"), &service_accounts.serialize_pem())?;
        write_private(&pki.file("sa.pub"), &service_accounts.public_key_pem())?;
        Ok(pki)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    pub(super) fn ca_der(&self) -> Vec<u8> {
        self.authority.der().to_vec()
    }

    /// An identity that the API server authenticates as `user`, a member of `groups`.
    pub(super) fn client(&self, user: &str, groups: &[&str]) -> anyhow::Result<Identity> {
        let mut parameters = CertificateParams::default();
        match groups {
            [] => {}
            [group] => parameters.distinguished_name.push(DnType::OrganizationName, *group),
            [first, second] => {
                parameters.distinguished_name.push(DnType::OrganizationName, *first);
                parameters.distinguished_name.push(DnType::CustomDnType(ORGANIZATION_NAME.to_vec()), *second);
            }
            _ => bail!("a client certificate can name two groups, not {groups:?}"),
        }
        parameters.distinguished_name.push(DnType::CommonName, user);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(parameters)
    }

    fn server(&self, name: &str, address: Option<Ipv4Addr>) -> anyhow::Result<Identity> {
        let mut parameters = CertificateParams::new(vec![
            "localhost".to_owned(),
            "kubernetes".to_owned(),
            "kubernetes.default".to_owned(),
            "kubernetes.default.svc".to_owned(),
            "kubernetes.default.svc.cluster.local".to_owned(),
        ])?;
        parameters
            .subject_alt_names
            .extend([SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)), SanType::IpAddress(KUBERNETES_SERVICE)]);
        parameters.subject_alt_names.extend(address.map(|address| SanType::IpAddress(IpAddr::V4(address))));
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(parameters)
    }

    fn sign(&self, mut parameters: CertificateParams) -> anyhow::Result<Identity> {
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.authority)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    fn write(&self, name: &str, identity: &Identity) -> anyhow::Result<()> {
        write_private(&self.file(&format!("{name}.crt")), &identity.certificate)?;
        write_private(&self.file(&format!("{name}.key")), &identity.key)
    }
}

/// Writes a file that only this user can read.
pub(super) fn write_private(path: &Path, content: &str) -> anyhow::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}
