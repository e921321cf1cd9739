//! Element types, by their safetensors names.

use deltawire_kernels::ordered::Order;

/// Known dtypes with their width in bytes [F9].
pub const DTYPES: [(&str, u8); 19] = [
    ("BOOL", 1),
    ("U8", 1),
    ("I8", 1),
    ("F8_E4M3", 1),
    ("F8_E5M2", 1),
    ("F8_E4M3FNUZ", 1),
    ("F8_E5M2FNUZ", 1),
    ("F8_E8M0", 1),
    ("BF16", 2),
    ("F16", 2),
    ("I16", 2),
    ("U16", 2),
    ("F32", 4),
    ("I32", 4),
    ("U32", 4),
    ("F64", 8),
    ("I64", 8),
    ("U64", 8),
    ("C64", 8),
];

/// Width of a known dtype.
pub fn width_of(dtype: &str) -> Option<u8> {
    DTYPES
        .iter()
        .find(|(name, _)| *name == dtype)
        .map(|(_, width)| *width)
}

/// How a dtype's patterns are ordered.
pub fn order_of(dtype: &str) -> Order {
    if dtype == "BF16" || dtype.starts_with('F') && dtype != "F8_E8M0" {
        Order::Float
    } else {
        Order::Integer
    }
}

/// Bits below the exponent field of a dtype, and the field's mask; `None` without exponents.
pub fn exponent_field(dtype: &str) -> Option<(u32, u32)> {
    match dtype {
        "BF16" => Some((7, 0xff)),
        "F16" => Some((10, 0x1f)),
        "F32" => Some((23, 0xff)),
        "F64" => Some((52, 0x7ff)),
        "F8_E4M3" | "F8_E4M3FNUZ" => Some((3, 0xf)),
        "F8_E5M2" | "F8_E5M2FNUZ" => Some((2, 0x1f)),
        _ => None,
    }
}

/// Runs an expression with `$W` standing for the word type of a width.
#[macro_export]
macro_rules! with_word {
    ($width:expr, $W:ident => $body:expr) => {
        match $width {
            1 => {
                type $W = u8;
                $body
            }
            2 => {
                type $W = u16;
                $body
            }
            4 => {
                type $W = u32;
                $body
            }
            _ => {
                type $W = u64;
                $body
            }
        }
    };
}
