//! The writes of keys and certificates: to their Secrets, and of their public parts for the agents.

use super::*;

impl Keeper {
    pub(super) async fn write(&self, found: &Found, write: Write, now: Timestamp) -> Result<(), TlsError> {
        let material = |name| move |source| TlsError::Material { name, source };
        let Found { safe, ring, .. } = found;
        match write {
            Write::MakeAuthority { carried, kept } => {
                let Issuing { certificate, key } = Issuing::make(now).map_err(material(names::CA_SECRET))?;
                let mut keys = safe.keys.clone();
                keys.insert(certificate.id.clone(), key);
                let before = safe.authorities.newest.clone();
                let authorities = Authorities { newest: Some(certificate), before, kept, carried };
                self.put_authorities(&Safe { authorities, keys }).await
            }
            Write::Arrange(authorities) => self.put_authorities(&Safe { authorities, keys: safe.keys.clone() }).await,
            Write::Issue(by) => {
                let missing = MaterialError::Missing("the key of an authority");
                let issuing = safe.issuer(&by).ok_or(missing).map_err(material(names::SERVING_SECRET))?;
                let data = issuing.issue(self.hosts(), now).map_err(material(names::SERVING_SECRET))?;
                self.put(&self.serving, names::SERVING_SECRET, Contents { data, carried: None }).await
            }
            Write::MakeKey { carried } => {
                let key = PermitKey::make().map_err(material(names::PERMIT_KEY_SECRET))?;
                let ring = KeyRing { newest: Some(key), before: ring.newest.clone(), carried };
                self.put(&self.keys, names::PERMIT_KEY_SECRET, ring.data()).await
            }
            Write::DropKey => {
                let ring = KeyRing { newest: ring.newest.clone(), before: None, carried: ring.carried.clone() };
                self.put(&self.keys, names::PERMIT_KEY_SECRET, ring.data()).await
            }
            Write::Publish(wanted) => self.publish(found, &wanted).await,
        }
    }

    async fn put_authorities(&self, safe: &Safe) -> Result<(), TlsError> {
        let contents = safe.data().map_err(|source| TlsError::Material { name: names::CA_SECRET, source })?;
        self.put(&self.authorities, names::CA_SECRET, contents).await
    }

    /// Creates a Secret, or replaces the one that was seen, at its version.
    async fn put(&self, cache: &Cache<SecretFacts>, name: &'static str, contents: Contents) -> Result<(), TlsError> {
        self.leadership.check()?;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.config.namespace);
        let existing = cache.get(name).map(|found| found.0);
        let (secret, exists) = store::secret(name, contents, existing);
        let written = if exists {
            secrets.replace(name, &PostParams::default(), &secret).await
        } else {
            secrets.create(&PostParams::default(), &secret).await
        };
        let written = written.map_err(|source| TlsError::Api { name, verb: "written", source: Box::new(source) })?;
        cache.written(&written);
        Ok(())
    }

    async fn publish(&self, found: &Found, wanted: &Published) -> Result<(), TlsError> {
        let name = names::TRUST_CONFIG_MAP;
        let material = |source| TlsError::Material { name, source };
        let existing = self.trust.get(name);
        let text = |field| existing.as_ref().and_then(|trust| trust.text(field)).map(str::to_owned);
        let mut data = BTreeMap::new();
        let all = found.safe.certificates().chain(&found.others);
        let bundle = match &found.facts.certificates {
            Some(_) => Some(store::bundle_of(wanted, all)).filter(|bundle| !bundle.is_empty()),
            None => text(names::TRUST_CA_KEY),
        };
        let keys = match &found.facts.signing {
            Some(_) => {
                let keys = found.ring.keys().filter(|key| wanted.keys.contains(&key.id)).map(PermitKey::jwk);
                Some(store::jwks(&keys.collect::<Result<Vec<_>, _>>().map_err(material)?))
            }
            None => text(names::TRUST_PERMIT_KEYS),
        };
        data.extend(bundle.map(|text| (names::TRUST_CA_KEY, text)));
        data.extend(keys.map(|text| (names::TRUST_PERMIT_KEYS, text)));
        let version = existing.as_ref().map(TrustFacts::VERSION);
        let map = store::trust(&self.config.agent_namespace, version, &data, &wanted.since).map_err(material)?;
        self.leadership.check()?;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.config.agent_namespace);
        let params = PatchParams::apply(names::CONTROLLER_MANAGER).force();
        let written = maps.patch(name, &params, &Patch::Apply(map)).await.map_err(|source| TlsError::Api {
            name,
            verb: "applied",
            source: Box::new(source),
        })?;
        self.trust.written(&written);
        Ok(())
    }
}
