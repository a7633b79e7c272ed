//! Certificates and keys on disk.
//!
//! They are read for each connection, so that a renewed certificate is taken without a restart.

use std::io;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::address::{File, Roots};

/// What is wrong with a file of certificates or keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The mode asks for proof and there is nothing to prove it by.
    #[error("there is no file of trusted roots: set `sslrootcert` to one, or to `system`")]
    NoRoots,
    /// A file cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        path: String,
        #[source]
        source: io::Error,
    },
    /// A file does not contain what it should.
    #[error("`{path}` is not in PEM form or has no {what}")]
    Pem { path: String, what: &'static str },
    /// A certificate without its key.
    #[error("there is a client certificate, but no key for it: set `sslkey`")]
    NoKey,
    /// Somebody else may read the key.
    #[error("the key `{path}` can be read by others: its mode should be 0600, or 0640 if root owns it")]
    Exposed { path: String },
    /// rustls does not accept what the files contain.
    #[error("the certificates or the key are not usable")]
    Unusable(#[source] rustls::Error),
}

/// Whom to believe.
#[derive(Debug)]
pub(super) struct Trusted {
    /// As webpki wants them.
    pub(super) store: RootCertStore,
    /// Those from a file, whole.
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

/// The trusted roots; `None` if there are none, which only a mode that does not ask for proof may accept.
pub(super) fn roots(roots: &Roots) -> Result<Option<Trusted>, Fault> {
    let mut store = RootCertStore::empty();
    let mut whole = Vec::new();
    match roots {
        Roots::Unknown => return Ok(None),
        Roots::System => {
            // Some of what a system trusts may be older than what webpki reads; the rest is still good.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Roots::File(file) if !file.named && !file.path.exists() => return Ok(None),
        Roots::File(file) => {
            whole = certificates(&file.path)?;
            for certificate in &whole {
                store.add(certificate.clone()).map_err(Fault::Unusable)?;
            }
        }
    }
    Ok(Some(Trusted { store, certificates: whole }))
}

/// The client's certificate with its chain, and its key; `None` if there is none.
pub(super) fn client(
    certificate: Option<&File>,
    key: Option<&File>,
) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, Fault> {
    let Some(certificate) = certificate.filter(|file| file.named || file.path.exists()) else {
        return Ok(None);
    };
    let chain = certificates(&certificate.path)?;
    let key = key.filter(|file| file.named || file.path.exists()).ok_or(Fault::NoKey)?;
    check_mode(&key.path)?;
    let key = PrivateKeyDer::from_pem_file(&key.path).map_err(|error| pem_fault(&key.path, "key", error))?;
    Ok(Some((chain, key)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let fault = |error| pem_fault(path, "certificate", error);
    let found =
        CertificateDer::pem_file_iter(path).map_err(fault)?.collect::<Result<Vec<_>, _>>().map_err(fault)?;
    if found.is_empty() {
        return Err(pem_fault(path, "certificate", pem::Error::NoItemsFound));
    }
    Ok(found)
}

/// The cause of a file that is no PEM is not kept: it may quote a line of a key.
fn pem_fault(path: &Path, what: &'static str, error: pem::Error) -> Fault {
    let path = path.display().to_string();
    match error {
        pem::Error::Io(source) => Fault::Read { path, source },
        _ => Fault::Pem { path, what },
    }
}

/// libpq's rule: a key is for its owner alone, except that root may share one with a group.
#[cfg(unix)]
fn check_mode(path: &Path) -> Result<(), Fault> {
    use std::os::unix::fs::MetadataExt;
    let metadata =
        std::fs::metadata(path).map_err(|source| Fault::Read { path: path.display().to_string(), source })?;
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.is_file() && metadata.mode() & forbidden != 0 {
        return Err(Fault::Exposed { path: path.display().to_string() });
    }
    Ok(())
}

/// Elsewhere the directory of the user's profile protects the key.
#[cfg(not(unix))]
fn check_mode(_: &Path) -> Result<(), Fault> {
    Ok(())
}
