//! Writer epochs: the later publisher fences the earlier.

use serde::Serialize;

use crate::control::Control;
use crate::error::{Error, ErrorKind, Result};
use crate::hex::WriteId;
use crate::layout;
use crate::manifest::to_record;
use crate::store::{Created, Store};

#[derive(Serialize)]
struct Epoch {
    epoch: u64,
    write_id: WriteId,
    time_ms: u64,
    /// Only in the record that must not take the place of the first.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    probe: bool,
}

/// Tries against other publishers that open at the same moment.
const MAX_TRIES: u64 = 1000;

/// Takes the next epoch. From then on no publisher with a lower one commits.
///
/// On a store that others run it is made sure that a create does not replace: the epoch's own record is
/// created a second time, with other bytes, which must fail.
///
/// # Errors
/// [`ErrorKind::Store`], also if the store is read-only or replaces what it should only create.
pub fn acquire(store: &Store, write_id: WriteId, time_ms: u64) -> Result<u64> {
    store.check_writable()?;
    // One listing when a publisher opens; collection keeps it short, and never takes the newest epoch.
    let newest = Control::list(store)?.epochs.last().copied().unwrap_or(0);
    let exhausted = || Error::new(ErrorKind::Store, "no free writer epoch").at(layout::CONTROL);
    let first = newest.checked_add(1).ok_or_else(exhausted)?;
    for epoch in first..first.saturating_add(MAX_TRIES) {
        let mut record = Epoch {
            epoch,
            write_id,
            time_ms,
            probe: false,
        };
        let path = layout::epoch(epoch);
        match store.create(&path, &to_record(&record)?)? {
            Created::Now | Created::Recovered => {}
            Created::Taken(_) => continue,
        }
        if !store.settles() {
            record.probe = true;
            match store.create(&path, &to_record(&record)?)? {
                Created::Taken(_) => {}
                Created::Now | Created::Recovered => return Err(Error::new(
                    ErrorKind::Store,
                    "this store replaces an object where it was told to create one only if none \
                         is there, so two publishers could commit the same version; publish to \
                         one that honours the condition (for S3: If-None-Match)",
                )
                .at(store.url())),
            }
        }
        return Ok(epoch);
    }
    Err(exhausted())
}

/// Checks that no later publisher has opened the board: one small request.
///
/// # Errors
/// [`ErrorKind::Conflict`] if one has; [`ErrorKind::Store`].
pub fn check_current(store: &Store, epoch: u64) -> Result<()> {
    let next = epoch.saturating_add(1);
    if store.exists(&layout::epoch(next))? {
        return Err(fenced(store, next, epoch));
    }
    Ok(())
}

/// The error of a publisher of epoch `own` that has seen a `later` one.
pub(crate) fn fenced(store: &Store, later: u64, own: u64) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "another publisher opened this board after this one (epoch {later} follows {own}); \
             stop one of them, then open a new publisher"
        ),
    )
    .at(store.url())
}
