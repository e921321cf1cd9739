//! Makes the checksums of a would-be delta right, so that fuzzing gets past them.

/// Writes the CRC-32 of `data[start..end]` behind it; false where it does not fit.
fn seal(data: &mut [u8], start: usize, end: usize) -> bool {
    let Some(body) = data.get(start..end) else {
        return false;
    };
    let crc = crc32fast::hash(body).to_le_bytes();
    let Some(place) = data.get_mut(end..end + 4) else {
        return false;
    };
    place.copy_from_slice(&crc);
    true
}

fn u32_at(data: &[u8], at: usize) -> Option<usize> {
    let raw = data.get(at..at + 4)?;
    Some(u32::from_le_bytes(raw.try_into().ok()?) as usize)
}

/// Goes through the records as their lengths say and seals each.
pub(crate) fn seal_all(data: &mut [u8]) {
    let Some(n) = u32_at(data, 12) else { return };
    let mut at = 32 + n;
    if !seal(data, 0, at) {
        return;
    }
    at += 4;
    while let Some(&kind) = data.get(at) {
        let end = match kind {
            1 => {
                let (Some(p), Some(v)) = (u32_at(data, at + 16), u32_at(data, at + 20)) else {
                    return;
                };
                let flags = data[at + 3];
                at + 24 + 8 * usize::from((flags & 1) + (flags >> 1 & 1)) + p + v
            }
            2 => match u32_at(data, at + 4) {
                Some(n) => at + 8 + n,
                None => return,
            },
            _ => at + 16,
        };
        if !seal(data, at, end) || kind > 2 {
            return;
        }
        at = end + 4;
    }
}
