//! What AdamW keeps of a made-up policy, as a step left it.

use deltawire_kernels::boundary::Step;

use crate::policy::{Random, COLS, ROWS};

/// What AdamW keeps of some elements, after a step with [`STEP`].
pub(crate) struct Masters {
    /// Weights.
    pub(crate) w: Vec<f32>,
    /// First moments.
    pub(crate) m: Vec<f32>,
    /// Second moments.
    pub(crate) v: Vec<f32>,
}

/// Step 100 with a learning rate of 1.1e-6, the other numbers as torch has them.
pub(crate) const STEP: Step = Step {
    decay: 1.0 - 1.1e-8,
    alpha: -1.1e-6,
    root: 0.308_5,
    eps: 1e-8,
    divide_first: false,
    contracted: false,
    margin: 0,
};

/// The same masters every time, as many as the policy has elements; about one percent changed.
pub(crate) fn masters() -> Masters {
    let mut random = Random(2);
    let mut made = Masters {
        w: Vec::with_capacity(ROWS * COLS),
        m: Vec::with_capacity(ROWS * COLS),
        v: Vec::with_capacity(ROWS * COLS),
    };
    for _ in 0..ROWS * COLS {
        made.w.push(random.normal() * 0.022);
        // Such that the mean of |m| / sqrt(v) is 0.18 after the corrections.
        let size = 1e-5 * (4.0 * random.unit()).exp2();
        made.m.push(random.normal() * 0.225 * size);
        made.v.push((size * STEP.root).powi(2));
    }
    made
}
