//! Where the engine is, and how a connection to it is made.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use http::uri::Scheme;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, pki_types::ServerName};

/// The address of one upstream.
pub(super) struct Address {
    place: Place,
    /// What `host` says.
    pub(super) authority: String,
    /// What stands before every path.
    pub(super) prefix: String,
}

enum Place {
    Tcp { host: String, port: u16, tls: Option<TlsConnector> },
    Unix(PathBuf),
}

impl Address {
    /// The address that `url` names: `http://host:port[/prefix]`, `https://...` or `unix:/path`.
    ///
    /// # Errors
    /// One sentence that says what is wrong with the URL.
    pub(super) fn new(url: &str) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(Self { place: Place::Unix(path.into()), authority: "localhost".into(), prefix: String::new() });
        }
        let uri: Uri = url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => None,
            Some(scheme) if *scheme == Scheme::HTTPS => Some(tls_connector()?),
            _ => return Err(format!("{url:?} must begin with http://, https:// or unix:")),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| format!("{url:?} names no host"))?;
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let authority = uri.authority().map_or(host, |authority| {
            let authority = authority.as_str();
            authority.rsplit_once('@').map_or(authority, |(_, host)| host)
        });
        Ok(Self {
            authority: authority.to_owned(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            place: Place::Tcp { host: host.trim_start_matches('[').trim_end_matches(']').to_owned(), port, tls },
        })
    }

    /// The host's name, without a port.
    pub(super) fn host(&self) -> &str {
        match &self.place {
            Place::Tcp { host, .. } => host,
            Place::Unix(_) => "localhost",
        }
    }

    /// A new connection.
    pub(super) async fn dial(&self) -> io::Result<Box<dyn Duplex>> {
        match &self.place {
            Place::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Place::Tcp { host, port, tls } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let socket = socket2::SockRef::from(&stream);
                socket.set_keepalive(true)?;
                let Some(tls) = tls else { return Ok(Box::new(stream)) };
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                Ok(Box::new(tls.connect(name, stream).await?))
            }
        }
    }
}

/// Anything that bytes go through both ways.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {
    /// Asks the kernel not to acknowledge each small segment by itself, until its timer of delayed acknowledgements
    /// has run off.
    fn delay_acknowledgements(&self) {}
}

impl Duplex for UnixStream {}

impl Duplex for TlsStream<TcpStream> {}

impl Duplex for TcpStream {
    #[cfg(target_os = "linux")]
    fn delay_acknowledgements(&self) {
        // Only a matter of speed.
        let _ = socket2::SockRef::from(self).set_tcp_quickack(false);
    }
}

fn tls_connector() -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("https needs root certificates, and this system has none (set SSL_CERT_FILE)".into());
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
