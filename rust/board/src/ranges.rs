//! Many byte ranges of one object: near ones in one request, several requests at a time.

use std::ops::Range;

use futures::{stream, StreamExt, TryStreamExt};

use crate::error::{Error, ErrorKind, Result};
use crate::pieces::Source;
use crate::runtime::block_on;

/// A gap up to this many bytes is fetched along rather than asked around: about what a request costs.
pub(crate) const NEAR: u64 = 256 << 10;

/// One request: bytes to fetch, and which of the wanted ranges lie in it.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    range: Range<u64>,
    wanted: Vec<usize>,
}

/// Reads `ranges`, in any order and perhaps overlapping; the answers are in the same order.
pub(crate) fn read(
    source: &Source,
    ranges: &[Range<u64>],
    parallel: usize,
    most: u64,
) -> Result<Vec<Vec<u8>>> {
    let mut found = vec![Vec::new(); ranges.len()];
    let plan = plan(ranges, most).map_err(|error| error.at(&source.path))?;
    block_on(async {
        let mut answers = stream::iter(plan)
            .map(|request| async move {
                let bytes = source.fetch(request.range.clone()).await;
                bytes
                    .map(|bytes| (request, bytes))
                    .map_err(|trouble| trouble.into_error(&source.path))
            })
            .buffer_unordered(parallel);
        while let Some((request, mut bytes)) = answers.try_next().await? {
            if let [only] = request.wanted[..] {
                if ranges[only] == request.range {
                    found[only] = std::mem::take(&mut bytes);
                    continue;
                }
            }
            for index in request.wanted {
                let range = &ranges[index];
                // Lossless: within what is in memory.
                let from = (range.start - request.range.start) as usize;
                let to = (range.end - request.range.start) as usize;
                found[index] = bytes[from..to].to_vec();
            }
        }
        Ok(found)
    })?
}

/// Joins ranges that overlap or are near, up to `most` bytes; a larger one stays by itself.
fn plan(ranges: &[Range<u64>], most: u64) -> Result<Vec<Request>> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.retain(|&index| ranges[index].start != ranges[index].end);
    order.sort_by_key(|&index| (ranges[index].start, ranges[index].end));
    let mut requests: Vec<Request> = Vec::new();
    for index in order {
        let range = ranges[index].clone();
        if range.start > range.end {
            let message = format!("the range {} to {} is no range", range.start, range.end);
            return Err(Error::new(ErrorKind::Store, message));
        }
        if let Some(last) = requests.last_mut() {
            let end = last.range.end.max(range.end);
            let near = range.start <= last.range.end.saturating_add(NEAR);
            if near && (end - last.range.start <= most || end == last.range.end) {
                last.range.end = end;
                last.wanted.push(index);
                continue;
            }
        }
        requests.push(Request {
            range,
            wanted: vec![index],
        });
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(ranges: &[Range<u64>], most: u64) -> Vec<(Range<u64>, Vec<usize>)> {
        let plan = plan(ranges, most).unwrap();
        plan.into_iter().map(|r| (r.range, r.wanted)).collect()
    }

    #[test]
    fn near_ranges_share_a_request() {
        let far = 2 * NEAR + 100;
        assert_eq!(
            planned(
                &[far..far + 5, 10..20, 5..5, 15..30, 30 + NEAR..far - NEAR],
                1 << 30
            ),
            [(10..far + 5, vec![1, 3, 4, 0])]
        );
        assert_eq!(
            planned(&[0..10, 11 + NEAR..12 + NEAR], 1 << 30),
            [(0..10, vec![0]), (11 + NEAR..12 + NEAR, vec![1])]
        );
        // Not beyond the most bytes of a request; what lies within one is no more bytes.
        assert_eq!(
            planned(&[0..100, 90..110, 20..30, 100..120], 100),
            [(0..100, vec![0, 2]), (90..120, vec![1, 3])]
        );
        assert_eq!(planned(&[], 100), []);
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = [0..1, 5..4];
        assert!(plan(&reversed, 100).is_err());
    }
}
