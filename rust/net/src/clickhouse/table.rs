//! One table of one ClickHouse server, as its URL names it.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// Where `deploy/clickhouse/ledger.sql` puts the records.
const DATABASE: &str = "foreword";
const TABLE: &str = "exchanges";

/// Where rows go, and in whose name.
#[derive(Clone)]
pub struct Table {
    /// `http://host:port`, without credentials.
    server: String,
    user: Option<HeaderValue>,
    password: Option<HeaderValue>,
    database: String,
    name: String,
}

impl Table {
    /// From `http(s)://[user[:password]@]host[:port]/[database][?table=name]`. ClickHouse's own `clickhouse://` and
    /// `clickhouses://` say the same.
    ///
    /// # Errors
    /// One sentence that repeats nothing of the URL: it may hold a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| "the ClickHouse URL is no URL".to_owned())?;
        let (scheme, standard) = match uri.scheme_str() {
            Some("http" | "clickhouse") => ("http", 8123),
            Some("https" | "clickhouses") => ("https", 8443),
            _ => return Err("the ClickHouse URL must begin with http:// or https://".into()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or("the ClickHouse URL names no host")?;
        let port = uri.port_u16().unwrap_or(standard);
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        let credentials = authority.rsplit_once('@').map(|(credentials, _)| credentials);
        let (user, password) = match credentials.map(|both| both.split_once(':').unwrap_or((both, ""))) {
            None => (None, None),
            Some((user, password)) => (Some(secret(user)?), Some(secret(password)?)),
        };
        let database = Some(uri.path().trim_matches('/')).filter(|name| !name.is_empty()).unwrap_or(DATABASE);
        let mut table = TABLE;
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("table", name)) => table = name,
                _ => return Err("the ClickHouse URL takes no parameter but table".into()),
            }
        }
        for name in [database, table] {
            if !is_name(name) {
                return Err("the ClickHouse URL names a database or table that is no plain name".into());
            }
        }
        let server = format!("{scheme}://{host}:{port}");
        Ok(Self { server, user, password, database: database.into(), name: table.into() })
    }

    /// `http://host:port`.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Path and query of one insert whose body is records, one JSON object a line. A batch that is sent twice has the
    /// same `token`: replicated tables, and others with a deduplication window, then keep one.
    pub(super) fn insert(&self, token: &str) -> String {
        let Self { database, name, .. } = self;
        format!(
            "/?query=INSERT%20INTO%20%60{database}%60.%60{name}%60%20(record)%20FORMAT%20JSONAsString\
             &insert_deduplication_token={token}&wait_end_of_query=1&input_format_skip_unknown_fields=1"
        )
    }

    /// Who asks.
    pub(super) fn headers(&self) -> HeaderMap {
        let named = [("x-clickhouse-user", &self.user), ("x-clickhouse-key", &self.password)];
        let given = named.into_iter().filter_map(|(name, value)| {
            let value = value.as_ref().filter(|value| !value.is_empty())?;
            Some((HeaderName::from_static(name), value.clone()))
        });
        given.chain([(http::header::CONNECTION, HeaderValue::from_static("close"))]).collect()
    }
}

/// Without the credentials.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}?table={}", self.server, self.database, self.name)
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({self})")
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A user name or password, percent-decoded.
fn secret(text: &str) -> Result<HeaderValue, String> {
    let mut decoded = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => decoded.extend(u8::try_from(high * 16 + low)),
            _ => return Err("the ClickHouse URL holds a % without two hex digits".into()),
        }
    }
    let mut value =
        HeaderValue::from_bytes(&decoded).map_err(|_| "the ClickHouse URL's credentials hold control characters")?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_server_database_table_and_credentials() {
        let table = Table::parse("https://fleet:p%40ss%2Fword@ch.example:9443/logs?table=llm").unwrap();
        assert_eq!(table.to_string(), "https://ch.example:9443/logs?table=llm");
        assert!(table.insert("t").starts_with("/?query=INSERT%20INTO%20%60logs%60.%60llm%60%20(record)%20FORMAT"));
        let headers = table.headers();
        assert_eq!(headers["x-clickhouse-user"], "fleet");
        assert_eq!(headers["x-clickhouse-key"], "p@ss/word");
        assert!(!format!("{table:?} {headers:?}").contains("p@ss"));
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        for (url, shown) in [
            ("http://ch", "http://ch:8123/foreword?table=exchanges"),
            ("clickhouses://ch/", "https://ch:8443/foreword?table=exchanges"),
            ("http://[::1]:81/db", "http://[::1]:81/db?table=exchanges"),
        ] {
            let table = Table::parse(url).unwrap();
            assert_eq!(table.to_string(), shown);
            assert!(table.headers().keys().all(|name| name == "connection"));
        }
    }

    #[test]
    fn a_wrong_url_is_refused_without_being_repeated() {
        for url in [
            "ftp://me:hunter2@ch",
            "me:hunter2@ch:8123",
            "http://me:hunter2@",
            "http://me:hunter2%zz@ch",
            "http://me:hunter2@ch/a`b",
            "http://me:hunter2@ch/db?table=x;DROP",
            "http://me:hunter2@ch/db?compress=1",
            "http://me:hunter2%0a@ch",
        ] {
            let refused = Table::parse(url).unwrap_err();
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }
}
