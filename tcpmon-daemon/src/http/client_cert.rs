//! Which client certificates are accepted.

use std::{net::IpAddr, sync::Arc};

use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use x509_cert::{
    Certificate,
    der::Decode,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

/// The rules from the web config file. Whatever they are, a client must prove that it has its certificate's key.
#[derive(Debug)]
pub(super) struct ClientCertRules {
    /// A certificate is requested.
    pub(super) requested: bool,
    /// Connections without a certificate are refused.
    pub(super) mandatory: bool,
    /// Authorities, one of which must have signed the certificate; without this, any issuer is accepted.
    pub(super) chain: Option<Arc<dyn ClientCertVerifier>>,
    /// The certificate must have one of these names; without this, any name is accepted.
    pub(super) allowed_sans: Option<Vec<String>>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ClientCertRules {
    fn offer_client_auth(&self) -> bool {
        self.requested
    }

    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.as_ref().map_or(&[], |chain| chain.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(chain) = &self.chain {
            chain.verify_client_cert(end_entity, intermediates, now)?;
        }
        match &self.allowed_sans {
            Some(allowed) if !names(end_entity)?.iter().any(|name| allowed.contains(name)) => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            _ => Ok(ClientCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Subject alternative names, of the four kinds that exporter-toolkit compares: host, e-mail, address, URI.
fn names(certificate: &CertificateDer<'_>) -> Result<Vec<String>, Error> {
    let bad_encoding = |_| Error::from(CertificateError::BadEncoding);
    let certificate = Certificate::from_der(certificate).map_err(bad_encoding)?;
    let names = certificate.tbs_certificate.get::<SubjectAltName>().map_err(bad_encoding)?;
    let text = |name: &GeneralName| match name {
        GeneralName::DnsName(name) | GeneralName::Rfc822Name(name) | GeneralName::UniformResourceIdentifier(name) => {
            Some(name.to_string())
        }
        GeneralName::IpAddress(octets) => {
            let octets = octets.as_bytes();
            let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
            Some(v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()?.to_string())
        }
        _ => None,
    };
    Ok(names.map(|(_, names)| names.0.iter().filter_map(text).collect()).unwrap_or_default())
}
