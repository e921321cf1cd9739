//! Makes the checksums of a would-be delta right, so that fuzzing gets past them.

use deltawire_format::{chunk, header, index};

/// Writes the CRC-32 of `data[start..end]` behind it and returns where that ends; `None` where it does
/// not fit.
fn seal(data: &mut [u8], start: usize, end: usize) -> Option<usize> {
    let crc = crc32fast::hash(data.get(start..end)?).to_le_bytes();
    let behind = end.checked_add(header::CRC_LEN)?;
    data.get_mut(end..behind)?.copy_from_slice(&crc);
    Some(behind)
}

fn u32_at(data: &[u8], at: usize) -> Option<usize> {
    let raw = data.get(at..at + 4)?;
    Some(u32::from_le_bytes(raw.try_into().ok()?) as usize)
}

/// The varint at `at`, and where it ends; any form of it.
pub(crate) fn varint(data: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut value = 0usize;
    for shift in (0..usize::BITS).step_by(7) {
        let byte = *data.get(at)?;
        at += 1;
        value |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some((value, at));
        }
    }
    None
}

/// Seals a record of its own.
pub(crate) fn seal_record(record: &mut [u8]) {
    let end = record.len() - header::CRC_LEN;
    let _ = seal(record, 0, end);
}

/// Goes through the records as their lengths say and seals each.
pub(crate) fn seal_all(data: &mut [u8]) {
    let _ = seal_records(data);
}

fn seal_records(data: &mut [u8]) -> Option<()> {
    let payload = u32_at(data, 12)?;
    let mut at = seal(data, 0, header::FIXED_LEN + payload)?;
    loop {
        at = match *data.get(at)? {
            chunk::RECORD | chunk::CLASSES_RECORD => {
                let (length, body) = varint(data, at + 1)?;
                seal(data, at, body.checked_add(length)?)?
            }
            index::RECORD => {
                let payload = u32_at(data, at + 4)?;
                let trailer = seal(data, at, at + index::FIXED_LEN + payload)?;
                // The length of the index, its checksum, the last bytes.
                seal(data, trailer, trailer + 4)?;
                return Some(());
            }
            _ => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_without_checksums_gets_its_own_back() {
        for (name, good) in crate::made() {
            let mut data = good.clone();
            let delta = crate::stream::open(&good).expect("a good delta");
            let mut ends = vec![
                delta.header_bytes,
                delta.bytes - 12,
                delta.bytes - index::END_MAGIC.len() as u64,
            ];
            let chunks = delta.index.chunks.iter();
            ends.extend(chunks.map(|c| c.offset + u64::from(c.length)));
            for end in ends {
                data[end as usize - header::CRC_LEN..end as usize].fill(0x55);
            }
            seal_all(&mut data);
            assert_eq!(data, good, "{name}");
        }
    }
}
