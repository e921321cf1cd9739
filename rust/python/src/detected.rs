//! What a detector found, and tiles rewound with it.

use deltawire_format::detected::{After, Told};
use deltawire_format::rewind::{self, Named, Outcome, Scratch};
use deltawire_format::{dtype, table, with_word, Result, Tensor, Tiling};
use deltawire_kernels::{scan, Block, Digest, Word};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use rayon::prelude::*;

use crate::buffer::ByteMatrix;
use crate::errors::to_python;
use crate::pool::pool;

/// A tile, a matrix that holds it, and the digests of its pieces before.
pub(crate) type Item<'py> = (u32, Bound<'py, PyAny>, PyBackedBytes);
/// How it went, and the digests of its pieces after.
pub(crate) type ToldOut = (&'static str, Py<PyBytes>);
/// The same, with positions (uint32), old and new elements of what changed.
type RewoundOut = (
    &'static str,
    Py<PyBytes>,
    Py<PyBytes>,
    Py<PyBytes>,
    Py<PyBytes>,
);

/// How it went, positions (uint32) and old elements.
type PieceOut = (&'static str, Py<PyBytes>, Py<PyBytes>);

pub(crate) fn name_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Told => "told",
        Outcome::Settled => "settled",
        Outcome::Open => "open",
        Outcome::Wrong => "wrong",
    }
}

fn join(digests: &[Digest]) -> Vec<u8> {
    digests.iter().flat_map(|d| d.to_bytes()).collect()
}

/// What one tensor, or a box of it, is known to have changed; and the tiles of it.
#[pyclass(module = "deltawire._native", frozen)]
pub(crate) struct Findings {
    pub(crate) inner: rewind::Findings,
}

/// Tiles with their memory.
pub(crate) struct Held {
    tile: u32,
    memory: ByteMatrix,
    before: Vec<Digest>,
}

impl Held {
    fn new(tile: u32, matrix: &Bound<'_, PyAny>, before: &[u8]) -> PyResult<Self> {
        let chunks = before.chunks_exact(16);
        if !chunks.remainder().is_empty() {
            return Err(PyValueError::new_err("digests have 16 bytes each"));
        }
        let digest = |b: &[u8]| Digest::new(u64::read(b), u64::read(&b[8..]));
        Ok(Self {
            tile,
            memory: ByteMatrix::new(matrix)?,
            before: chunks.map(digest).collect(),
        })
    }
}

pub(crate) fn held(items: &[Item<'_>]) -> PyResult<Vec<Held>> {
    items
        .iter()
        .map(|(tile, matrix, before)| Held::new(*tile, matrix, before))
        .collect()
}

/// As the writer takes them.
pub(crate) fn after<'a>(tensor: u32, held: &'a [Held]) -> Vec<After<'a>> {
    held.iter()
        .map(|one| After {
            tensor,
            tile: one.tile,
            new: one.memory.matrix(),
            before: &one.before,
        })
        .collect()
}

pub(crate) fn told(py: Python<'_>, told: Vec<Told>) -> Vec<ToldOut> {
    told.into_iter()
        .map(|one| {
            let after = PyBytes::new(py, &join(&one.after)).unbind();
            (name_of(one.outcome), after)
        })
        .collect()
}

#[pymethods]
impl Findings {
    /// For the box of `rows` by `cols` elements from `row` and `col` on.
    #[new]
    #[pyo3(signature = (name, dtype, shape, tile, place, positions, sure, old, other, blind=false))]
    #[expect(
        clippy::too_many_arguments,
        reason = "arguments of a private constructor"
    )]
    fn new(
        py: Python<'_>,
        name: String,
        dtype: String,
        shape: Vec<u64>,
        tile: [u64; 2],
        place: (usize, usize, usize, usize),
        positions: &Bound<'_, PyAny>,
        sure: PyBackedBytes,
        old: PyBackedBytes,
        other: PyBackedBytes,
        blind: bool,
    ) -> PyResult<Self> {
        let positions = PyBuffer::<i64>::get(positions)?.to_vec(py)?;
        let entry = Tensor::new(name, dtype, shape, tile).map_err(|e| to_python(py, e))?;
        let width = usize::from(entry.width);
        let (row, rows, col, cols) = place;
        let held = Block {
            row,
            rows,
            byte: col * width,
            bytes: cols * width,
        };
        let named = Named {
            positions: &positions,
            sure: &sure,
            old: &old,
            other: &other,
            blind,
        };
        let inner = py
            .detach(|| rewind::Findings::new(entry, held, &named))
            .map_err(|e| to_python(py, e))?;
        Ok(Self { inner })
    }

    /// Tiles in the box: number, first row, rows, first column, columns, rows of a piece.
    fn tiles(&self) -> Vec<(u32, usize, usize, usize, usize, usize)> {
        let entry = self.inner.tensor();
        let width = usize::from(entry.width);
        self.inner
            .tiles()
            .map(|(tile, block)| {
                let piece = rewind::pieces(block, entry.width).next();
                let piece = piece.map_or(0, |piece| piece.rows);
                let (col, cols) = (block.byte / width, block.bytes / width);
                (tile, block.row, block.rows, col, cols, piece)
            })
            .collect()
    }

    /// What the digest of the box begins with, 16 bytes: its pieces' digests are added.
    fn start(&self) -> [u8; 16] {
        self.inner.start().to_bytes()
    }

    /// Digests of the pieces of tiles, given with matrices that hold them.
    #[pyo3(signature = (items, threads=None))]
    fn digests(
        &self,
        py: Python<'_>,
        items: Vec<(u32, Bound<'_, PyAny>)>,
        threads: Option<usize>,
    ) -> PyResult<Vec<Py<PyBytes>>> {
        let held = items
            .iter()
            .map(|(tile, matrix)| Held::new(*tile, matrix, &[]))
            .collect::<PyResult<Vec<_>>>()?;
        let work = after(0, &held);
        let pool = pool(threads)?;
        let digests: Result<Vec<Vec<Digest>>> = py.detach(|| {
            pool.install(|| {
                work.par_iter()
                    .map(|item| rewind::digests(self.inner.tensor(), item.tile, &item.new))
                    .collect()
            })
        });
        let digests = digests.map_err(|e| to_python(py, e))?;
        let bytes = |d: &Vec<Digest>| PyBytes::new(py, &join(d)).unbind();
        Ok(digests.iter().map(bytes).collect())
    }

    /// Pieces (tile, number, matrix that holds it, digest before) rewound: how each went, positions within its tile
    /// (uint32) and old elements of all that was named in it.
    fn rewind_pieces(
        &self,
        py: Python<'_>,
        items: Vec<(u32, usize, Bound<'_, PyAny>, [u8; 16])>,
    ) -> PyResult<Vec<PieceOut>> {
        let held = items
            .iter()
            .map(|(tile, _, matrix, before)| Held::new(*tile, matrix, before))
            .collect::<PyResult<Vec<_>>>()?;
        let numbers: Vec<usize> = items.iter().map(|(_, number, ..)| *number).collect();
        let work = after(0, &held);
        with_word!(self.inner.tensor().width, W => {
            let rewound: Result<Vec<rewind::Rewound<W>>> = py.detach(|| {
                let mut scratch = Scratch::default();
                let pairs = work.iter().zip(&numbers);
                pairs
                    .map(|(item, number)| {
                        let place = (item.tile, *number);
                        self.inner.rewind_piece::<W>(place, &item.new, item.before[0], &mut scratch)
                    })
                    .collect()
            });
            let rewound = rewound.map_err(|e| to_python(py, e))?;
            Ok(rewound
                .into_iter()
                .map(|one| {
                    let mut old = Vec::with_capacity(one.old.len() * W::WIDTH);
                    one.old.iter().for_each(|w| w.append(&mut old));
                    let positions: Vec<u8> =
                        one.positions.iter().flat_map(|p| p.to_le_bytes()).collect();
                    (
                        name_of(one.outcome),
                        PyBytes::new(py, &positions).unbind(),
                        PyBytes::new(py, &old).unbind(),
                    )
                })
                .collect())
        })
    }

    /// Tiles rewound, without writing them.
    #[pyo3(signature = (items, threads=None))]
    fn rewind(
        &self,
        py: Python<'_>,
        items: Vec<Item<'_>>,
        threads: Option<usize>,
    ) -> PyResult<Vec<RewoundOut>> {
        let held = held(&items)?;
        let work = after(0, &held);
        let pool = pool(threads)?;
        let width = self.inner.tensor().width;
        with_word!(width, W => {
            let rewound: Result<Vec<rewind::Rewound<W>>> = py.detach(|| {
                pool.install(|| {
                    work.par_iter()
                        .map_init(Scratch::default, |scratch, item| {
                            self.inner.rewind::<W>(item.tile, &item.new, item.before, scratch)
                        })
                        .collect()
                })
            });
            let rewound = rewound.map_err(|e| to_python(py, e))?;
            Ok(rewound
                .into_iter()
                .map(|one| {
                    let bytes = |words: &[W]| {
                        let mut out = Vec::with_capacity(words.len() * W::WIDTH);
                        words.iter().for_each(|w| w.append(&mut out));
                        PyBytes::new(py, &out).unbind()
                    };
                    let positions: Vec<u8> =
                        one.positions.iter().flat_map(|p| p.to_le_bytes()).collect();
                    (
                        name_of(one.outcome),
                        PyBytes::new(py, &join(&one.after)).unbind(),
                        PyBytes::new(py, &positions).unbind(),
                        bytes(&one.old),
                        bytes(&one.new),
                    )
                })
                .collect())
        })
    }
}

/// Numbers (int64) of the elements, of `width` bytes each, at which two matrices differ.
#[pyfunction]
pub(crate) fn differing(
    py: Python<'_>,
    before: &Bound<'_, PyAny>,
    after: &Bound<'_, PyAny>,
    width: usize,
) -> PyResult<Py<PyBytes>> {
    let held = [ByteMatrix::new(before)?, ByteMatrix::new(after)?];
    let [a, b] = [held[0].matrix(), held[1].matrix()];
    let block = a.whole();
    if b.whole() != block || a.held() != block || b.held() != block {
        return Err(PyValueError::new_err("the matrices have other shapes"));
    }
    if !matches!(width, 1 | 2 | 4 | 8) || !block.bytes.is_multiple_of(width) {
        return Err(PyValueError::new_err(
            "rows hold whole elements of 1, 2, 4 or 8 bytes",
        ));
    }
    if u32::try_from(block.len()).is_err() {
        return Err(PyValueError::new_err("compare less than 4 GiB at once"));
    }
    let positions = py.detach(|| {
        let mut found = Vec::new();
        with_word!(width, W => scan::differing::<W>(&a, &b, &block, &mut found));
        let wide = found.iter().flat_map(|&p| i64::from(p).to_le_bytes());
        wide.collect::<Vec<u8>>()
    });
    Ok(PyBytes::new(py, &positions).unbind())
}

/// Rows and columns of the tiles that a writer would cut a tensor into, of which ranks hold so many rows and
/// columns each.
#[pyfunction]
pub(crate) fn tile_shape(
    name: String,
    dtype: String,
    shape: Vec<u64>,
    tiling: (u64, u64, u64),
    steps: [Option<u64>; 2],
) -> PyResult<Option<[u64; 2]>> {
    let width = dtype::width_of(&dtype).unwrap_or(8);
    let Some((rows, cols)) = table::matrix(&shape, width) else {
        return Err(PyValueError::new_err("the shape exceeds 63 bits of bytes"));
    };
    let (max_elements, ways, min_elements) = tiling;
    let tiling = Tiling {
        max_elements,
        ways,
        min_elements,
    };
    Ok(tiling.tile_for_ranks(&name, &dtype, [rows, cols], steps))
}
