//! Clients of S3, GCS, Azure and web servers.
//!
//! Only credentials and the region are read from the environment, from the variables that each cloud's
//! own tools read; anything else is [`StoreOptions`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, Certificate, ClientOptions, ObjectStore, RetryConfig};

use crate::error::{explain, Error, ErrorKind, Result};
use crate::location::{Bucket, Cloud};
use crate::options::StoreOptions;

/// Variables of the AWS command line and SDKs that say who asks, and where.
const AWS: &[(&str, AmazonS3ConfigKey)] = &[
    ("AWS_DEFAULT_REGION", AmazonS3ConfigKey::DefaultRegion),
    ("AWS_REGION", AmazonS3ConfigKey::Region),
    ("AWS_ACCESS_KEY_ID", AmazonS3ConfigKey::AccessKeyId),
    ("AWS_SECRET_ACCESS_KEY", AmazonS3ConfigKey::SecretAccessKey),
    ("AWS_SESSION_TOKEN", AmazonS3ConfigKey::Token),
    (
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        AmazonS3ConfigKey::WebIdentityTokenFile,
    ),
    ("AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn),
    ("AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName),
    (
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
    ),
    (
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        AmazonS3ConfigKey::ContainerCredentialsFullUri,
    ),
    (
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        AmazonS3ConfigKey::ContainerAuthorizationTokenFile,
    ),
];

/// Variables of Google's libraries; without them gcloud's own file and the metadata service are asked.
const GOOGLE: &[(&str, GoogleConfigKey)] = &[(
    "GOOGLE_APPLICATION_CREDENTIALS",
    GoogleConfigKey::ApplicationCredentials,
)];

/// Variables of the Azure command line and SDKs.
const AZURE: &[(&str, AzureConfigKey)] = &[
    ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
    ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
    ("AZURE_STORAGE_SAS_TOKEN", AzureConfigKey::SasKey),
    ("AZURE_TENANT_ID", AzureConfigKey::AuthorityId),
    ("AZURE_CLIENT_ID", AzureConfigKey::ClientId),
    ("AZURE_CLIENT_SECRET", AzureConfigKey::ClientSecret),
    (
        "AZURE_FEDERATED_TOKEN_FILE",
        AzureConfigKey::FederatedTokenFile,
    ),
    ("IDENTITY_ENDPOINT", AzureConfigKey::MsiEndpoint),
];

/// A client for each process: connections are served by the I/O threads of the process that opened
/// them, which a forked child does not have.
pub(crate) struct RemoteClient {
    bucket: Bucket,
    options: StoreOptions,
    slot: Mutex<(u32, Arc<dyn ObjectStore>)>,
}

impl fmt::Debug for RemoteClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteClient")
            .field("bucket", &self.bucket)
            .finish_non_exhaustive()
    }
}

impl RemoteClient {
    /// Makes a client; nothing is asked of the store yet.
    pub(crate) fn new(bucket: Bucket, options: StoreOptions) -> Result<Self> {
        options.check()?;
        let client = build(&bucket, &options)?;
        Ok(Self {
            bucket,
            options,
            slot: Mutex::new((std::process::id(), client)),
        })
    }

    /// This process's client.
    pub(crate) fn get(&self) -> Result<Arc<dyn ObjectStore>> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if slot.0 != process {
            let client = build(&self.bucket, &self.options)?;
            let foreign = std::mem::replace(&mut *slot, (process, client));
            // Dropping it would speak to threads that the fork did not copy.
            std::mem::forget(foreign);
        }
        Ok(Arc::clone(&slot.1))
    }
}

fn build(bucket: &Bucket, options: &StoreOptions) -> Result<Arc<dyn ObjectStore>> {
    // An application that links another provider first keeps it.
    drop(rustls::crypto::ring::default_provider().install_default());
    let built = match bucket.cloud {
        Cloud::S3 => s3(bucket, options),
        Cloud::Gcs => gcs(bucket, options),
        Cloud::Azure => azure(bucket, options),
        Cloud::Http => http(bucket, options),
    };
    built.map_err(|error| match error {
        Failure::Ours(error) => error,
        Failure::Theirs(error) => Error::new(
            ErrorKind::Store,
            format!(
                "cannot set up the connection: {}; check options and credentials",
                explain(&error)
            ),
        ),
    })
}

enum Failure {
    Ours(Error),
    Theirs(object_store::Error),
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Self {
        Self::Theirs(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

type Built = std::result::Result<Arc<dyn ObjectStore>, Failure>;

fn s3(bucket: &Bucket, options: &StoreOptions) -> Built {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&bucket.name)
        .with_client_options(client_options(options, options.allow_http)?)
        .with_retry(retry(options))
        .with_virtual_hosted_style_request(!options.path_style)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        // One at a time anyway, and not every service knows the bulk request.
        .with_disable_bulk_delete(true)
        .with_skip_signature(options.anonymous);
    for (variable, key) in AWS {
        let wanted = match key {
            AmazonS3ConfigKey::Region | AmazonS3ConfigKey::DefaultRegion => true,
            _ => options.credentials.is_none() && !options.anonymous,
        };
        if let Some(value) = wanted.then(|| environment(variable)).flatten() {
            builder = builder.with_config(*key, value);
        }
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(credentials) = &options.credentials {
        let (Some(id), Some(secret)) = (&credentials.id, &credentials.secret) else {
            return Err(missing("S3 credentials need an id and a secret").into());
        };
        builder = builder
            .with_access_key_id(id)
            .with_secret_access_key(secret);
        if let Some(token) = &credentials.token {
            builder = builder.with_token(token);
        }
    }
    Ok(Arc::new(builder.build()?))
}

fn gcs(bucket: &Bucket, options: &StoreOptions) -> Built {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&bucket.name)
        .with_client_options(client_options(options, options.allow_http)?)
        .with_retry(retry(options));
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_base_url(endpoint.trim_end_matches('/'));
    }
    if options.anonymous {
        // The token is never sent; it keeps the builder from looking for others.
        builder = builder.with_bearer_token("").with_skip_signature(true);
    } else if let Some(credentials) = &options.credentials {
        builder = match (&credentials.token, &credentials.file) {
            (Some(token), _) => builder.with_bearer_token(token),
            (None, Some(file)) => builder.with_service_account_path(file.to_string_lossy()),
            (None, None) => {
                return Err(
                    missing("GCS credentials need a token or a service account file").into(),
                )
            }
        };
    } else {
        for (variable, key) in GOOGLE {
            if let Some(value) = environment(variable) {
                builder = builder.with_config(*key, value);
            }
        }
    }
    Ok(Arc::new(builder.build()?))
}

fn azure(bucket: &Bucket, options: &StoreOptions) -> Built {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name(&bucket.name)
        .with_client_options(client_options(options, options.allow_http)?)
        .with_allow_http(options.allow_http)
        .with_retry(retry(options))
        .with_skip_signature(options.anonymous);
    for (variable, key) in AZURE {
        let wanted = match key {
            AzureConfigKey::AccountName => true,
            _ => options.credentials.is_none() && !options.anonymous,
        };
        if let Some(value) = wanted.then(|| environment(variable)).flatten() {
            builder = builder.with_config(*key, value);
        }
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    if let Some(credentials) = &options.credentials {
        if let Some(account) = &credentials.id {
            builder = builder.with_account(account);
        }
        builder =
            match (&credentials.secret, &credentials.token) {
                (Some(key), None) => builder.with_access_key(key),
                (None, Some(signature)) => builder.with_config(AzureConfigKey::SasKey, signature),
                _ => return Err(missing(
                    "Azure credentials need an account key (secret) or a shared access signature \
                     (token), and not both",
                )
                .into()),
            };
    }
    Ok(Arc::new(builder.build()?))
}

fn http(bucket: &Bucket, options: &StoreOptions) -> Built {
    let plain = bucket.name.starts_with("http://");
    let builder = HttpBuilder::new()
        .with_url(&bucket.name)
        .with_client_options(client_options(options, plain || options.allow_http)?)
        .with_retry(retry(options));
    Ok(Arc::new(builder.build()?))
}

fn missing(message: &str) -> Error {
    Error::new(ErrorKind::Store, message)
}

fn environment(variable: &str) -> Option<String> {
    std::env::var(variable)
        .ok()
        .filter(|value| !value.is_empty())
}

fn retry(options: &StoreOptions) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: options.retry_wait,
            max_backoff: options.retry_wait_most.max(options.retry_wait),
            base: 2.0,
        },
        max_retries: options.retries as usize,
        retry_timeout: options.retry_time,
    }
}

fn client_options(options: &StoreOptions, allow_http: bool) -> Result<ClientOptions> {
    let mut client = ClientOptions::new()
        .with_allow_http(allow_http)
        .with_connect_timeout(options.connect_timeout)
        .with_read_timeout(options.read_timeout)
        // A whole part over a slow line may take longer than any bound that is of use elsewhere.
        .with_timeout_disabled();
    if let Some(path) = &options.ca_file {
        let refuse = |why: String| {
            let message = format!(
                "the certificates in {} are of no use: {why}",
                path.display()
            );
            Error::new(ErrorKind::Store, message)
        };
        let pem = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
        let certificates =
            Certificate::from_pem_bundle(&pem).map_err(|error| refuse(explain(&error)))?;
        if certificates.is_empty() {
            return Err(refuse("none is in PEM form".to_owned()));
        }
        for certificate in certificates {
            client = client.with_root_certificate(certificate);
        }
    }
    Ok(client)
}
