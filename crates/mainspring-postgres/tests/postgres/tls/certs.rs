//! Certificates for the tests: authorities, servers and clients, in files of a directory that goes with the test.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SigningKey, date_time_ymd};

/// A certificate and its key, in PEM form.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Who signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let key = KeyPair::generate().expect("a key");
        let params = authority(name);
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    /// A certificate for a server that is reached by a name.
    pub(crate) fn server(&self, host: &str) -> Pair {
        self.sign(&CertificateParams::new([host.to_owned()]).expect("a host name"))
    }

    /// A certificate for a client that calls itself by a name.
    pub(crate) fn client(&self, user: &str) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}

/// A server's certificate that signs itself and may sign others, as `openssl req -x509` makes them.
pub(crate) fn lonely(host: &str, expired: bool) -> Pair {
    let mut params = authority(host);
    params.subject_alt_names =
        CertificateParams::new([host.to_owned()]).expect("a host name").subject_alt_names;
    if expired {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    }
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    Pair { certificate, key: key.serialize_pem() }
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

/// Writes a file that only its owner can read.
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("the directory is ours");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("the file is ours");
    path
}

/// A server's certificate of version 1, without extensions, as `openssl x509 -req` made them for decades.
pub(crate) fn ancient(host: &str) -> Pair {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, host);
    let key = KeyPair::generate().expect("a key");
    let modern = params.self_signed(&key).expect("a certificate");
    let parts = elements(content(modern.der()));
    // Without the version and without the extensions.
    let fields = elements(content(parts[0])).into_iter().filter(|field| !matches!(field[0], 0xa0 | 0xa3));
    let signed = tagged(0x30, &fields.collect::<Vec<_>>().concat());
    let signature = key.sign(&signed).expect("a signature");
    let signature = tagged(0x03, &[&[0], signature.as_slice()].concat());
    let whole = tagged(0x30, &[&signed, parts[1], &signature].concat());
    Pair { certificate: pem::encode(&pem::Pem::new("CERTIFICATE", whole)), key: key.serialize_pem() }
}

/// A DER element. None of ours is longer than two bytes can say.
fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("a short element").to_be_bytes();
    let header =
        if content.len() < 128 { vec![tag, length[1]] } else { vec![tag, 0x82, length[0], length[1]] };
    [&header, content].concat()
}

/// What is in a DER element.
fn content(element: &[u8]) -> &[u8] {
    &element[header(element).0..]
}

/// The DER elements that follow each other in a text.
fn elements(mut text: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !text.is_empty() {
        let (header, length) = header(text);
        let (element, rest) = text.split_at(header + length);
        found.push(element);
        text = rest;
    }
    found
}

/// The lengths of an element's header and of its content.
fn header(element: &[u8]) -> (usize, usize) {
    match element[1] {
        short @ ..0x80 => (2, usize::from(short)),
        long => {
            let bytes = usize::from(long - 0x80);
            let length =
                element[2..2 + bytes].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            (2 + bytes, length)
        }
    }
}
