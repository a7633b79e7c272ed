//! What a server must prove: the three kinds of verification of `sslmode`.
//!
//! In all of them the server must prove that it has the key of the certificate that it shows, also where the certificate
//! itself is not looked at: SCRAM's channel binding relies on it.
//!
//! webpki is stricter than libpq: a certificate whose chain is checked must be of version 3, and a host's name must be
//! among its alternative names, not its common name.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use super::files::{self, Fault, Trusted};
use crate::address::{TlsMode, TlsOptions};

/// Sets up TLS as the options say.
pub(super) fn setup(options: &TlsOptions) -> Result<ClientConfig, Fault> {
    // Named, not taken from the process: a program that uses this crate may have set up another.
    let provider = Arc::new(ring::default_provider());
    let proof = match options.mode {
        TlsMode::Disable | TlsMode::Allow | TlsMode::Prefer => Proof::None,
        TlsMode::Require => files::roots(&options.roots)?.map_or(Proof::None, Proof::Chain),
        TlsMode::VerifyCa => Proof::Chain(files::roots(&options.roots)?.ok_or(Fault::NoRoots)?),
        TlsMode::VerifyFull => Proof::Name(files::roots(&options.roots)?.ok_or(Fault::NoRoots)?),
    };
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(Fault::Unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { proof, provider }));
    match files::client(options.certificate.as_ref(), options.key.as_ref())? {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(Fault::Unusable),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// What the certificate must show.
#[derive(Debug)]
enum Proof {
    None,
    /// That a trusted root signed it.
    Chain(Trusted),
    /// That a trusted root signed it, for this host.
    Name(Trusted),
}

#[derive(Debug)]
struct Verifier {
    proof: Proof,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn check_chain(
        &self,
        trusted: &Trusted,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let checked = verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &trusted.store,
            intermediates,
            now,
            algorithms,
        );
        match checked {
            // One certificate that signs itself and is both root and server is how many a small server is set up. webpki
            // refuses it because it may sign others, after it has found the dates good; being in the file is the proof.
            Err(Error::InvalidCertificate(CertificateError::Other(_)))
                if trusted.certificates.iter().any(|root| root == certificate) =>
            {
                Ok(())
            }
            checked => checked,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.proof {
            Proof::None => {}
            Proof::Chain(trusted) => self.check_chain(trusted, certificate, intermediates, now)?,
            Proof::Name(trusted) => {
                self.check_chain(trusted, certificate, intermediates, now)?;
                verify_server_name(&ParsedCertificate::try_from(certificate)?, host)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match (&self.proof, public_key(certificate)) {
            // Nothing else of the certificate matters, so it may be of a version that webpki does not read.
            (Proof::None, Some(key)) => {
                verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
            }
            _ => verify_tls13_signature(message, certificate, signature, algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The public key of a certificate of any version, in its DER form.
fn public_key(certificate: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let (_, certificate, _) = element(certificate)?;
    let (_, mut rest, _) = element(certificate)?;
    // The version is left out in version 1.
    if rest.first() == Some(&VERSION) {
        (_, _, rest) = element(rest)?;
    }
    // Serial number, algorithm, issuer, validity, subject.
    for _ in 0..5 {
        (_, _, rest) = element(rest)?;
    }
    let (key, _, _) = element(rest)?;
    (key.first() == Some(&SEQUENCE)).then(|| key.to_vec().into())
}

/// The first DER element, what is in it, and what follows it.
fn element(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    /// Above it, a length is written as the number of its bytes and then the bytes.
    const SHORT: u8 = 0x80;
    let first = *text.get(1)?;
    let (header, length) = if first < SHORT {
        (2, usize::from(first))
    } else {
        let bytes = text.get(2..2 + usize::from(first - SHORT))?;
        // A certificate is no longer than three bytes can say: it comes in one message of TLS.
        if bytes.len() > 3 {
            return None;
        }
        let length = bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
        (2 + bytes.len(), length)
    };
    let end = header.checked_add(length)?;
    Some((text.get(..end)?, text.get(header..end)?, text.get(end..)?))
}
