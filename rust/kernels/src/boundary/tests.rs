use proptest::prelude::*;

use super::*;

type Kernel = fn(&Step, Elements<'_>, &mut Found);

/// All kernels that this processor can run.
fn kernels() -> Vec<(&'static str, Kernel)> {
    let mut kernels: Vec<(&'static str, Kernel)> = vec![("scalar", run_scalar)];
    #[cfg(target_arch = "x86_64")]
    {
        if features::avx2() && features::fma() {
            // SAFETY: the features were just detected.
            kernels.push(("avx2", |s, e, o| unsafe { x86::run_avx2(s, e, o) }));
        }
        if features::avx512() && features::fma() {
            // SAFETY: the features were just detected.
            kernels.push(("avx512", |s, e, o| unsafe { x86::run_avx512(s, e, o) }));
        }
    }
    kernels
}

fn check(step: &Step, w: &[f32], m: &[f32], v: &[f32], first: u32) -> Found {
    let wanted = naive::changes(step, w, m, v, first);
    for (name, kernel) in kernels() {
        let mut found = Found::default();
        kernel(step, Elements { w, m, v, first }, &mut found);
        if found != wanted {
            let differs = (0..w.len()).find(|&i| {
                let one = |x: &[f32]| [x[i]];
                let mut found = Found::default();
                let (w, m, v) = (&one(w), &one(m), &one(v));
                kernel(step, Elements { w, m, v, first }, &mut found);
                found != naive::changes(step, w, m, v, first)
            });
            let element = differs.map(|i| (w[i], m[i], v[i]));
            panic!("{name}: {step:?}, {element:?}\n{found:?}\n{wanted:?}");
        }
    }
    let mut found = Found::default();
    changes(step, w, m, v, first, &mut found).unwrap();
    assert_eq!(found, wanted);
    wanted
}

/// Numbers where something ends, and their neighbours.
const SPECIAL: [u32; 16] = [
    0,
    1,
    2,
    0x7fff,
    0x8000,
    0x8001,
    0x0001_0000,
    0x007f_ffff,
    0x0080_0000,
    0x3f80_0000,
    0x7f7f_7fff,
    0x7f7f_8000,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7f80_0001,
    0x7fff_ffff,
];

fn special() -> impl Strategy<Value = f32> {
    (prop::sample::select(&SPECIAL[..]), any::<bool>())
        .prop_map(|(bits, sign)| f32::from_bits(bits | u32::from(sign) << 31))
}

fn any_float() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits)
}

/// Of a size that weights have, or any other.
fn weight() -> impl Strategy<Value = f32> {
    let usual = (any::<u32>(), 90u32..130)
        .prop_map(|(bits, exponent)| f32::from_bits(bits & 0x807f_ffff | exponent << 23));
    let power = (1u32..255, any::<bool>())
        .prop_map(|(e, sign)| f32::from_bits(e << 23 | u32::from(sign) << 31));
    prop_oneof![8 => usual, 2 => any_float(), 2 => power, 1 => special()]
}

/// A weight some units from a border of its cell.
fn near_border() -> impl Strategy<Value = f32> {
    let units = prop_oneof![-40i64..40, -0x8000i64..0x8000];
    (weight(), any::<bool>(), units).prop_map(|(near, upper, units)| {
        let (first, last) = naive::cell(naive::bf16(near));
        let place = if upper { last } else { first } + units;
        let ends = (-1 - 0x7f80_0000, 0x7f80_0000);
        naive::value(place.clamp(ends.0, ends.1))
    })
}

fn step() -> impl Strategy<Value = Step> {
    let decay = prop_oneof![
        3 => Just(1.0f32),
        3 => (1e-9f32..1e-3).prop_map(|x| 1.0 - x),
        1 => 1e-3f32..3.0,
        1 => any_float().prop_map(|x| if x.is_finite() && x > 0.0 { x } else { 0.5 }),
    ];
    let alpha = prop_oneof![
        4 => (-30i32..1).prop_map(|e| -f64::powi(2.0, e) as f32 / 1.1),
        1 => Just(-0.0f32),
        1 => -20f32..20.0,
        1 => special(),
        1 => any_float(),
    ];
    let root = prop_oneof![
        4 => 0.01f32..1.0,
        1 => Just(1.0f32),
        1 => any_float(),
    ];
    let eps = prop_oneof![
        4 => Just(1e-8f32),
        1 => Just(0.0f32),
        1 => Just(1e-30f32),
        1 => any_float(),
    ];
    let margin = prop_oneof![
        3 => Just(0u32),
        3 => 1u32..5,
        1 => any::<u32>().prop_map(|x| x >> (x % 32)),
    ];
    (decay, alpha, root, eps, any::<[bool; 2]>(), margin).prop_map(
        |(decay, alpha, root, eps, [divide_first, contracted], margin)| Step {
            decay,
            alpha,
            root,
            eps,
            divide_first,
            contracted,
            margin,
        },
    )
}

/// A weight, and moments whose update is near to what it takes to leave the weight's cell.
fn borderline(step: Step) -> impl Strategy<Value = [f32; 3]> {
    let v = prop_oneof![
        6 => (0u32..255, any::<u32>())
            .prop_map(|(e, bits)| f32::from_bits(e << 23 | bits & 0x007f_ffff)),
        1 => Just(0.0f32),
        1 => special(),
        1 => any_float(),
    ];
    let m = prop_oneof![
        1 => any_float(),
        1 => special(),
        10 => Just(0.0f32),
    ];
    let off = prop_oneof![
        4 => -1e-3f64..1e-3,
        2 => -1e-6f64..1e-6,
        1 => -1f64..2.0,
    ];
    (near_border(), v, m, off, any::<bool>()).prop_map(move |(w, v, m, off, upper)| {
        if m.to_bits() != 0 {
            return [w, m, v];
        }
        let (first, last) = naive::cell(naive::bf16(w));
        let border = f64::from(naive::value(if upper { last } else { first }));
        let before = border * f64::from(step.decay);
        let d = f64::from(v).sqrt() / f64::from(step.root) + f64::from(step.eps);
        let u = f64::from(w) - before;
        [w, (u * d / f64::from(step.alpha) * (1.0 + off)) as f32, v]
    })
}

fn split(elements: &[[f32; 3]]) -> [Vec<f32>; 3] {
    [0, 1, 2].map(|k| elements.iter().map(|x| x[k]).collect())
}

fn borderlines() -> impl Strategy<Value = (Step, Vec<[f32; 3]>)> {
    step().prop_flat_map(|step| {
        let elements = prop::collection::vec(borderline(step), 0..400);
        (Just(step), elements)
    })
}

proptest! {
    #[test]
    fn every_kernel_is_as_defined((step, elements) in borderlines(), first in 0u32..1000) {
        let [w, m, v] = split(&elements);
        check(&step, &w, &m, &v, first);
    }

    #[test]
    fn nothing_that_changed_is_missed(
        (step, elements) in borderlines(), off in prop::collection::vec(-1i64..2, 400),
    ) {
        // The weights are those before the step here.
        let finite = elements.iter().zip(&off).filter_map(|(&[before, m, v], off)| {
            let u = naive::update(&step, m, v);
            let after = naive::after(&step, before, u);
            if before.is_nan() || after.is_nan() {
                return None;
            }
            let margin = i64::from(step.margin.min(1 << 20));
            let off = if u == 0.0 || after.is_infinite() { 0 } else { off * margin };
            let place = naive::place(after) + off;
            // Places count across zero, but between zeros there is no distance.
            (i64::from(place < 0) == i64::from(naive::place(after) < 0))
                .then(|| (before, [naive::value(place), m, v]))
        });
        let (before, elements): (Vec<f32>, Vec<[f32; 3]>) = finite.unzip();
        let [w, m, v] = split(&elements);
        let found = check(&step, &w, &m, &v, 0);
        let mut next = 0;
        for (i, (&before, &after)) in before.iter().zip(&w).enumerate() {
            let old = naive::bf16(before);
            if found.positions.get(next) != Some(&(i as u32)) {
                prop_assert!(
                    old == naive::bf16(after) || after.is_nan(), "missed: {:?} {:?}", step, elements[i]
                );
                continue;
            }
            let told = [found.old[next], found.other[next]];
            prop_assert!(
                found.kinds[next] == UNKNOWN || told.contains(&old), "{:?} {:?}", step, elements[i]
            );
            prop_assert_eq!(found.kinds[next] == CERTAIN, told[0] == told[1] && found.kinds[next] != UNKNOWN);
            next += 1;
        }
        prop_assert_eq!(next, found.positions.len());
    }
}

/// Reproducible numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }
}

const USUAL: Step = Step {
    decay: 1.0 - 1e-8,
    alpha: -1e-5,
    root: 0.3,
    eps: 1e-8,
    divide_first: false,
    contracted: false,
    margin: 0,
};

#[test]
fn many_elements_in_parts_and_batches() {
    let mut random = Random(3);
    for (count, alpha) in [
        (3 * PART + 77, -1e-5),
        (2 * PART, -1e-2),
        (PART + 1, 4.0),
        (1, 1e-5),
    ] {
        let w: Vec<f32> = (0..count).map(|_| random.unit() - 0.5).collect();
        let m: Vec<f32> = (0..count).map(|_| random.unit() * 2e-4 - 1e-4).collect();
        let v: Vec<f32> = (0..count).map(|_| (random.unit() * 1e-4).powi(2)).collect();
        for (margin, contracted) in [(0, false), (1, true)] {
            let step = Step {
                alpha,
                margin,
                contracted,
                ..USUAL
            };
            let found = check(&step, &w, &m, &v, 5);
            assert!(
                count == 1 || found.positions.len() * 400 > count,
                "{}",
                found.positions.len()
            );
        }
    }
}

#[test]
fn results_are_appended() {
    let mut found = Found::default();
    let (w, m, v) = ([1.0, 1.0 - 2e-3, 1.0], [0.0, 1.0, 0.0], [0.0; 3]);
    let step = Step { eps: 1e-2, ..USUAL };
    for first in [0, 10, u32::MAX - 2] {
        changes(&step, &w, &m, &v, first, &mut found).unwrap();
    }
    assert_eq!(found.positions, [1, 11, u32::MAX - 1]);
    assert_eq!(found.kinds, [CERTAIN; 3]);
    assert_eq!(found.old, found.other);
    found.clear();
    assert_eq!(found, Found::default());
}

#[test]
fn steps_that_do_not_rise_are_refused() {
    for decay in [0.0, -0.0, -1.0, f32::INFINITY, f32::NAN] {
        let mut found = Found::default();
        let step = Step { decay, ..USUAL };
        assert_eq!(changes(&step, &[1.0], &[1.0], &[0.0], 0, &mut found), None);
        assert_eq!(found, Found::default());
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn approximations_are_as_near_as_the_bounds_need() {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    fn avx2(v: f32) -> f32 {
        _mm256_cvtss_f32(_mm256_rsqrt_ps(_mm256_set1_ps(v)))
    }

    #[target_feature(enable = "avx512f")]
    fn avx512(v: f32) -> f32 {
        _mm512_cvtss_f32(_mm512_rsqrt14_ps(_mm512_set1_ps(v)))
    }

    const STEP: usize = 4999;
    let check = |v: f32, approximation: f32| {
        let ratio = f64::from(approximation) * f64::from(v).sqrt();
        assert!(ratio >= 1.0 - 1.5 / 4096.0, "{v:e}: {approximation:e}");
    };
    for bits in (1..0x7f80_0000).step_by(STEP) {
        let v = f32::from_bits(bits);
        if features::avx2() {
            // SAFETY: the feature was just detected.
            check(v, unsafe { avx2(v) });
        }
        if features::avx512() {
            // SAFETY: the features were just detected.
            check(v, unsafe { avx512(v) });
        }
    }
}
