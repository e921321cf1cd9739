//! `deltawire.StoreOptions`, read attribute by attribute. Python has checked types and ranges.

use std::path::PathBuf;
use std::time::Duration;

use deltawire_board::{CacheOptions, Credentials, StoreOptions};
use pyo3::prelude::*;

#[derive(FromPyObject)]
pub(crate) struct GivenOptions {
    endpoint: Option<String>,
    region: Option<String>,
    allow_http: bool,
    path_style: bool,
    credentials: Option<GivenCredentials>,
    anonymous: bool,
    ca_file: Option<PathBuf>,
    connect_timeout: f64,
    read_timeout: f64,
    retries: u32,
    retry_wait: f64,
    max_retry_wait: f64,
    retry_time: f64,
    part_bytes: u64,
    parallel: usize,
    cache: Option<PathBuf>,
    max_cache_bytes: u64,
}

#[derive(FromPyObject)]
struct GivenCredentials {
    id: Option<String>,
    secret: Option<String>,
    token: Option<String>,
    file: Option<PathBuf>,
}

impl From<GivenOptions> for StoreOptions {
    fn from(given: GivenOptions) -> Self {
        Self {
            endpoint: given.endpoint,
            region: given.region,
            allow_http: given.allow_http,
            path_style: given.path_style,
            credentials: given.credentials.map(|given| Credentials {
                id: given.id,
                secret: given.secret,
                token: given.token,
                file: given.file,
            }),
            anonymous: given.anonymous,
            ca_file: given.ca_file,
            connect_timeout: seconds(given.connect_timeout),
            read_timeout: seconds(given.read_timeout),
            retries: given.retries,
            retry_wait: seconds(given.retry_wait),
            retry_wait_most: seconds(given.max_retry_wait),
            retry_time: seconds(given.retry_time),
            part_bytes: given.part_bytes,
            parallel: given.parallel,
            cache: given.cache.map(|directory| CacheOptions {
                directory,
                most_bytes: given.max_cache_bytes,
            }),
        }
    }
}

/// What is no duration becomes 0, which the checks refuse.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}
