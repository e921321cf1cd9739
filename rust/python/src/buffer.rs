//! NumPy byte matrices as the kernels' matrices, and float arrays as slices. The only `unsafe` outside the kernels crate.

use std::slice;

use deltawire_kernels::{Matrix, Target};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Rows and bytes of a row of a whole matrix, and row and byte at which a shard of it begins.
type Place = (usize, usize, usize, usize);

/// A uint8 array of shape `(rows, row_bytes)` whose rows are contiguous, exported for as long as
/// this lives, so that its memory can neither move nor go.
pub(crate) struct ByteMatrix {
    buffer: PyBuffer<u8>,
    rows: usize,
    row_bytes: usize,
    row_stride: usize,
    place: Option<Place>,
}

impl ByteMatrix {
    /// For an array; or for a shard, given as `(array, rows, row_bytes, row, byte)`.
    pub(crate) fn new(matrix: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(tuple) = matrix.cast::<PyTuple>() {
            let (array, rows, row_bytes, row, byte) = tuple.extract()?;
            let mut memory = Self::new_whole(&array)?;
            let fits = |first: usize, count: usize, all: usize| {
                first.checked_add(count).is_some_and(|end| end <= all)
            };
            if !fits(row, memory.rows, rows) || !fits(byte, memory.row_bytes, row_bytes) {
                return Err(PyValueError::new_err("the shard lies outside its tensor"));
            }
            memory.place = Some((rows, row_bytes, row, byte));
            return Ok(memory);
        }
        Self::new_whole(matrix)
    }

    fn new_whole(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(array)?;
        let &[rows, row_bytes] = buffer.shape() else {
            return Err(PyValueError::new_err(
                "expected a uint8 array of two dimensions",
            ));
        };
        let &[row_stride, stride] = buffer.strides() else {
            return Err(PyBufferError::new_err("expected an array with strides"));
        };
        let several = rows > 1 && row_bytes > 0;
        let row_stride = match usize::try_from(row_stride) {
            Ok(stride) => stride,
            Err(_) if !several => row_bytes,
            Err(_) => return Err(PyValueError::new_err("rows must ascend in memory")),
        };
        if row_bytes > 1 && stride != 1 || buffer.suboffsets().is_some() {
            return Err(PyValueError::new_err("rows must be contiguous"));
        }
        let row_stride = if several { row_stride } else { row_bytes };
        Ok(Self {
            buffer,
            rows,
            row_bytes,
            row_stride,
            place: None,
        })
    }

    /// For reading. Callers of the Python API promise not to write to tensors during a call.
    pub(crate) fn matrix(&self) -> Matrix<'_> {
        // SAFETY: the exporter guarantees that the elements of this shape and these strides (checked
        // in `new`) are readable while the export in `self` lives, which the lifetime ties the
        // matrix to. That nobody writes meanwhile is the documented contract of the Python API.
        let memory = unsafe {
            Matrix::from_raw(
                self.buffer.buf_ptr().cast::<u8>().cast_const(),
                self.rows,
                self.row_bytes,
                self.row_stride,
            )
        };
        let shard = |(rows, row_bytes, row, byte)| memory.within(rows, row_bytes, row, byte);
        // That it fits was checked in `new`.
        self.place.and_then(shard).unwrap_or(memory)
    }

    /// For changing in place.
    pub(crate) fn target(&mut self) -> PyResult<Target<'_>> {
        if self.buffer.readonly() && self.rows * self.row_bytes > 0 {
            return Err(PyBufferError::new_err("the target is read-only"));
        }
        if self.rows > 1 && self.row_stride < self.row_bytes {
            return Err(PyBufferError::new_err("the target's rows overlap"));
        }
        // SAFETY: as in `matrix`; the export is writable and the rows do not overlap (just
        // checked), and `&mut self` keeps other views of this export away.
        let memory = unsafe {
            Target::from_raw(
                self.buffer.buf_ptr().cast(),
                self.rows,
                self.row_bytes,
                self.row_stride,
            )
        };
        let Some((rows, row_bytes, row, byte)) = self.place else {
            return Ok(memory);
        };
        memory
            .within(rows, row_bytes, row, byte)
            .ok_or_else(|| PyValueError::new_err("the shard lies outside its tensor"))
    }
}

/// A float32 array of one dimension whose elements are contiguous, exported for as long as this lives, so
/// that its memory can neither move nor go.
pub(crate) struct Floats {
    buffer: PyBuffer<f32>,
}

impl Floats {
    pub(crate) fn new(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let expected = "expected a contiguous float32 array of one dimension";
        let buffer = PyBuffer::<f32>::get(array)
            .map_err(|e| PyValueError::new_err(format!("{expected}: {e}")))?;
        // PyO3 0.30 takes big-endian numbers for native ones on little-endian machines.
        let native = matches!(buffer.format().to_bytes(), b"f" | b"@f" | b"=f");
        if !native || buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(expected));
        }
        Ok(Self { buffer })
    }

    /// For reading. Callers of the Python API promise not to write to tensors during a call.
    pub(crate) fn slice(&self) -> &[f32] {
        let len = self.buffer.item_count();
        if len == 0 {
            // Its pointer may be null.
            return &[];
        }
        // SAFETY: the exporter guarantees that so many elements are readable while the export in `self`
        // lives, which the lifetime ties the slice to. `PyBuffer` checked that they are aligned, `new` that
        // they are native float32 and lie back to back; every bit pattern is one. That nobody writes
        // meanwhile is the documented contract of the Python API.
        unsafe { slice::from_raw_parts(self.buffer.buf_ptr().cast::<f32>().cast_const(), len) }
    }
}

/// All matrices of a list of arrays.
pub(crate) fn matrices(arrays: &[Bound<'_, PyAny>]) -> PyResult<Vec<ByteMatrix>> {
    arrays.iter().map(ByteMatrix::new).collect()
}
