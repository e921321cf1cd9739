//! How a remote store is reached: everything that its URL does not say.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// Least bytes of a part: what S3 demands of all but the last.
pub const MIN_PART: u64 = 5 << 20;
/// Most bytes of a part.
pub const MAX_PART: u64 = 1 << 30;
/// Most requests on their way at once.
pub const MAX_PARALLEL: usize = 256;

/// Settings of a remote store. Local directories and memory have none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// The service's URL, for one that is not the cloud's own.
    pub endpoint: Option<String>,
    /// Region of an S3 bucket; otherwise the environment's, otherwise `us-east-1`.
    pub region: Option<String>,
    /// Accept `http://` for the endpoint.
    pub allow_http: bool,
    /// S3: the bucket is the first part of the path, not of the host's name.
    pub path_style: bool,
    /// Who asks; otherwise what the environment or the machine's metadata service says.
    pub credentials: Option<Credentials>,
    /// Ask without credentials, for public buckets.
    pub anonymous: bool,
    /// PEM file with certificates to trust beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest wait for an answer to begin or to go on; sending a part must fit into it.
    pub read_timeout: Duration,
    /// How often a failed request is tried again.
    pub retries: u32,
    /// Wait before the first retry; doubles with each.
    pub retry_wait: Duration,
    /// Longest wait between two tries.
    pub retry_wait_most: Duration,
    /// No retry begins later than this after the first try.
    pub retry_time: Duration,
    /// Bytes of a part of an upload (the first 900 of them), and of one request of a download.
    pub part_bytes: u64,
    /// Requests of one transfer on their way at once; times `part_bytes` they bound its memory.
    pub parallel: usize,
    /// Keeps what was downloaded.
    pub cache: Option<CacheOptions>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            allow_http: false,
            path_style: true,
            credentials: None,
            anonymous: false,
            ca_file: None,
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(60),
            retries: 8,
            retry_wait: Duration::from_millis(100),
            retry_wait_most: Duration::from_secs(10),
            retry_time: Duration::from_secs(120),
            part_bytes: 8 << 20,
            parallel: 4,
            cache: None,
        }
    }
}

impl StoreOptions {
    /// Checks the values.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] naming the one that is out of range.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::new(ErrorKind::Store, message));
        if !(MIN_PART..=MAX_PART).contains(&self.part_bytes) {
            return refuse(format!(
                "part_bytes is {}, but must be {MIN_PART} to {MAX_PART}",
                self.part_bytes
            ));
        }
        if !(1..=MAX_PARALLEL).contains(&self.parallel) {
            return refuse(format!(
                "parallel is {}, but must be 1 to {MAX_PARALLEL}",
                self.parallel
            ));
        }
        if self.connect_timeout.is_zero() || self.read_timeout.is_zero() {
            return refuse("a timeout of 0 leaves no time for anything".to_owned());
        }
        if self.anonymous && self.credentials.is_some() {
            return refuse("credentials are of no use to anonymous requests".to_owned());
        }
        if let Some(endpoint) = &self.endpoint {
            crate::location::check_no_secrets(endpoint)?;
            if !self.allow_http && !endpoint.to_ascii_lowercase().starts_with("https://") {
                return refuse(
                    "the endpoint is no https:// URL; allow http only in a network that you trust"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }
}

/// A local directory of downloaded objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// Made if it is missing. Several processes may share it.
    pub directory: PathBuf,
    /// Most bytes of all files in it.
    pub most_bytes: u64,
}

/// Who asks. `Debug` shows none of it but whether it is there.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// S3 access key id, or Azure storage account.
    pub id: Option<String>,
    /// S3 secret access key, or Azure account key.
    pub secret: Option<String>,
    /// S3 session token, GCS bearer token, or Azure shared access signature.
    pub token: Option<String>,
    /// GCS service account file.
    pub file: Option<PathBuf>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |there: bool| if there { "(given)" } else { "(none)" };
        f.debug_struct("Credentials")
            .field("id", &shown(self.id.is_some()))
            .field("secret", &shown(self.secret.is_some()))
            .field("token", &shown(self.token.is_some()))
            .field("file", &shown(self.file.is_some()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let options = StoreOptions {
            credentials: Some(Credentials {
                id: Some("AKID-hidden".into()),
                secret: Some("secret-hidden".into()),
                token: Some("token-hidden".into()),
                file: Some("/file-hidden".into()),
            }),
            ..StoreOptions::default()
        };
        let text = format!("{options:?}");
        assert!(
            !text.contains("hidden") && text.contains("(given)"),
            "{text}"
        );
    }

    #[test]
    fn values_out_of_range() {
        StoreOptions::default().check().unwrap();
        let bad: [fn(&mut StoreOptions); 8] = [
            |o| o.part_bytes = MIN_PART - 1,
            |o| o.part_bytes = MAX_PART + 1,
            |o| o.parallel = 0,
            |o| o.read_timeout = Duration::ZERO,
            |o| o.endpoint = Some("http://localhost:1".into()),
            |o| o.endpoint = Some("localhost:1".into()),
            |o| o.endpoint = Some("https://user:hidden@host".into()),
            |o| {
                o.anonymous = true;
                o.credentials = Some(Credentials::default());
            },
        ];
        for (number, change) in bad.iter().enumerate() {
            let mut options = StoreOptions::default();
            change(&mut options);
            let error = options.check().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Store, "{number}");
            assert!(!error.to_string().contains("hidden"));
        }
        let options = StoreOptions {
            endpoint: Some("http://localhost:1".into()),
            allow_http: true,
            ..StoreOptions::default()
        };
        options.check().unwrap();
    }
}
