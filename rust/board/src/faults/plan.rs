//! Which requests are hit by which fault, and what was asked.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::kinds::{Fault, Operation};
use super::store::LateWrite;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::block_on;

/// Newest events, and newest writes, that are remembered.
const REMEMBERED: usize = 10_000;

/// A fault and the requests that it is for.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What is done.
    pub fault: Fault,
    /// To which operations; empty: to all that it fits.
    pub on: Vec<Operation>,
    /// Only where this is part of the object's path in the store.
    pub path: String,
    /// Matching requests that are let through first.
    pub skip: u64,
    /// How many are hit; `None`: all further ones.
    pub times: Option<u64>,
    /// Share of the matching requests that are hit, drawn from the plan's seed.
    pub probability: f64,
    /// [`Fault::Delay`], [`Fault::Timeout`]: for how long.
    pub wait: Duration,
    /// [`Fault::Torn`], [`Fault::Cut`], [`Fault::Short`]: bytes that get through.
    pub bytes: u64,
    /// [`Fault::Late`], [`Fault::StaleList`]: operations.
    pub operations: u64,
}

impl Rule {
    /// A rule for the next request that `fault` fits.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            on: Vec::new(),
            path: String::new(),
            skip: 0,
            times: Some(1),
            probability: 1.0,
            wait: Duration::ZERO,
            bytes: 0,
            operations: 8,
        }
    }

    fn is_for(&self, operation: Operation, path: &str) -> bool {
        self.fault.fits(operation)
            && (self.on.is_empty() || self.on.contains(&operation))
            && path.contains(&self.path)
    }
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Counted from 1.
    pub number: u64,
    /// What was asked.
    pub operation: Operation,
    /// Of which object or directory.
    pub path: String,
    /// What was done to it, but for delays.
    pub fault: Option<Fault>,
}

/// Decides over requests, one by one. Any number of stores may ask the same plan.
#[derive(Debug)]
pub struct FaultPlan {
    seed: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    rules: Vec<(u64, Rule)>,
    rules_ever: u64,
    number: u64,
    counts: BTreeMap<Operation, u64>,
    injected: BTreeMap<Fault, u64>,
    events: VecDeque<Event>,
    /// How often the same was asked, so that a draw does not depend on what else goes on.
    asked: HashMap<(Operation, String), u64>,
    written: VecDeque<(u64, String)>,
    late: Vec<(u64, LateWrite)>,
    crashed: bool,
}

/// What becomes of a request.
pub(super) struct Verdict {
    pub(super) wait: Duration,
    /// The rule that hits it.
    pub(super) rule: Option<Rule>,
    /// Writes of before that are done first.
    pub(super) due: Vec<LateWrite>,
}

impl FaultPlan {
    /// A plan without rules: it only counts.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule after the others; of those that match a request the first one hits.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] for an operation that the fault does not fit, and a probability that is none.
    pub fn add(&self, rule: Rule) -> Result<()> {
        let refuse = |message: String| Err(Error::new(ErrorKind::Store, message));
        if let Some(operation) = rule.on.iter().find(|each| !rule.fault.fits(**each)) {
            return refuse(format!(
                "the fault {} does not fit the operation {}",
                rule.fault.as_str(),
                operation.as_str()
            ));
        }
        if !(0.0..=1.0).contains(&rule.probability) {
            return refuse(format!("{} is no probability", rule.probability));
        }
        let mut inner = self.lock();
        inner.rules_ever += 1;
        let id = inner.rules_ever;
        inner.rules.push((id, rule));
        Ok(())
    }

    /// Removes all rules, and reconnects what a crash has cut off. Late writes still come.
    pub fn clear(&self) {
        let mut inner = self.lock();
        inner.rules.clear();
        inner.crashed = false;
    }

    /// Cuts the process off, as [`Fault::Crash`] does.
    pub fn crash(&self) {
        self.lock().crashed = true;
    }

    /// Whether a crash has cut the process off.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.lock().crashed
    }

    /// Does all late writes now; returns how many there were.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] if there are no I/O threads.
    pub fn settle(&self) -> Result<usize> {
        let late = std::mem::take(&mut self.lock().late);
        let count = late.len();
        block_on(async {
            for (_, write) in late {
                write.land(self).await;
            }
        })?;
        Ok(count)
    }

    /// Requests so far by operation, those that failed included.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Operation, u64> {
        self.lock().counts.clone()
    }

    /// Requests hit so far by fault, delayed ones included; of those after a crash only the first.
    #[must_use]
    pub fn injected(&self) -> BTreeMap<Fault, u64> {
        self.lock().injected.clone()
    }

    /// The newest requests, at most 10,000, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.iter().cloned().collect()
    }

    /// Decides over a request. `place` tells requests of one object apart, such as ranges.
    pub(super) fn judge(&self, operation: Operation, path: &str, place: u64) -> Verdict {
        let mut inner = self.lock();
        inner.number += 1;
        let number = inner.number;
        *inner.counts.entry(operation).or_default() += 1;
        let same = without_write_ids(path);
        let asked = inner.asked.entry((operation, same.clone())).or_default();
        *asked += 1;
        let asked = *asked;
        let (due, later) = std::mem::take(&mut inner.late)
            .into_iter()
            .partition(|(at, _)| *at <= number);
        inner.late = later;
        let due: Vec<(u64, LateWrite)> = due;
        let mut verdict = Verdict {
            wait: Duration::ZERO,
            rule: None,
            due: due.into_iter().map(|(_, write)| write).collect(),
        };
        let mut fault = inner.crashed.then_some(Fault::Crash);
        if inner.crashed {
            verdict.rule = Some(Rule::new(Fault::Crash));
        } else {
            let mut hit = Vec::new();
            for (id, rule) in &mut inner.rules {
                if rule.times == Some(0) || !rule.is_for(operation, path) {
                    continue;
                }
                if rule.skip > 0 {
                    rule.skip -= 1;
                    continue;
                }
                let key = (self.seed, *id, operation, same.as_str(), place, asked);
                if rule.probability < 1.0 && draw(&key) >= rule.probability {
                    continue;
                }
                rule.times = rule.times.map(|left| left - 1);
                hit.push(rule.fault);
                verdict.wait += rule.wait;
                if rule.fault != Fault::Delay {
                    fault = Some(rule.fault);
                    verdict.rule = Some(rule.clone());
                    break;
                }
            }
            for fault in hit {
                *inner.injected.entry(fault).or_default() += 1;
            }
            inner.crashed = fault == Some(Fault::Crash);
        }
        inner.events.push_back(Event {
            number,
            operation,
            path: path.to_owned(),
            fault,
        });
        if inner.events.len() > REMEMBERED {
            inner.events.pop_front();
        }
        verdict
    }

    /// Takes up a write to be done `operations` from now.
    pub(super) fn later(&self, operations: u64, write: LateWrite) {
        let mut inner = self.lock();
        let due = inner.number.saturating_add(operations.max(1));
        inner.late.push((due, write));
    }

    /// Takes note of a write that was done.
    pub(super) fn wrote(&self, path: &str) {
        let mut inner = self.lock();
        let number = inner.number;
        inner.written.push_back((number, path.to_owned()));
        if inner.written.len() > REMEMBERED {
            inner.written.pop_front();
        }
    }

    /// What was written in the last operations, the listing that asks included.
    pub(super) fn recent(&self, operations: u64) -> HashSet<String> {
        let inner = self.lock();
        let since = inner.number.saturating_sub(operations);
        let recent = inner.written.iter().filter(|(number, _)| *number >= since);
        recent.map(|(_, path)| path.clone()).collect()
    }
}

/// A number from 0 to below 1 that follows from the key alone.
fn draw(key: &(u64, u64, Operation, &str, u64, u64)) -> f64 {
    let (seed, rule, operation, path, place, asked) = key;
    let mut hasher = blake3::Hasher::new();
    for number in [seed, rule, &(*operation as u64), place, asked] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(path.as_bytes());
    let mut first = [0; 8];
    hasher.finalize_xof().fill(&mut first);
    // 53 bits, exactly as a double holds them.
    (u64::from_le_bytes(first) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The path with write ids, which are different in each run, left out.
fn without_write_ids(path: &str) -> String {
    let mut result = String::with_capacity(path.len());
    let mut rest = path;
    while !rest.is_empty() {
        let digits = rest
            .bytes()
            .take_while(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            .count();
        // Hexadecimal digits are ASCII, so both cuts lie between characters.
        let cut = if digits == 0 {
            rest.chars().next().map_or(0, char::len_utf8)
        } else {
            digits
        };
        let (run, after) = rest.split_at(cut);
        result.push_str(if digits == 32 { "*" } else { run });
        rest = after;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(plan: &FaultPlan, operation: Operation, path: &str) -> Option<Fault> {
        plan.judge(operation, path, 0).rule.map(|rule| rule.fault)
    }

    #[test]
    fn names_are_unique_and_parsed() {
        for operation in Operation::ALL {
            assert_eq!(Operation::parse(operation.as_str()), Some(operation));
        }
        for fault in Fault::ALL {
            assert_eq!(Fault::parse(fault.as_str()), Some(fault));
        }
        assert_eq!(Fault::parse("create"), None);
    }

    #[test]
    fn the_nth_matching_request_is_hit() {
        let plan = FaultPlan::new(0);
        let rule = Rule {
            on: vec![Operation::Create],
            path: "manifests/".into(),
            skip: 1,
            times: Some(2),
            ..Rule::new(Fault::Error)
        };
        plan.add(rule).unwrap();
        let hits: Vec<_> = (0..5)
            .map(|_| {
                assert_eq!(fault(&plan, Operation::Create, "r/control/a"), None);
                assert_eq!(fault(&plan, Operation::Get, "r/manifests/a"), None);
                fault(&plan, Operation::Create, "r/manifests/a").is_some()
            })
            .collect();
        assert_eq!(hits, [false, true, true, false, false]);
        assert_eq!(plan.counts()[&Operation::Create], 10);
        assert_eq!(plan.injected()[&Fault::Error], 2);
        assert_eq!(plan.events().len(), 15);
    }

    #[test]
    fn draws_follow_seed_path_and_count_alone() {
        let hits = |seed, other: bool, id: &str| -> Vec<bool> {
            let plan = FaultPlan::new(seed);
            plan.add(Rule {
                times: None,
                probability: 0.3,
                ..Rule::new(Fault::Error)
            })
            .unwrap();
            let path = format!("objects/1/0-{id}.dw");
            (0..1000)
                .map(|_| {
                    if other {
                        fault(&plan, Operation::Head, "elsewhere");
                    }
                    fault(&plan, Operation::Get, &path).is_some()
                })
                .collect()
        };
        let (a, b) = ("0".repeat(32), "7f".repeat(16));
        let first = hits(1, false, &a);
        assert_eq!(first, hits(1, true, &b));
        assert_ne!(first, hits(2, false, &a));
        assert_ne!(first, hits(1, false, "0"));
        let share = first.iter().filter(|hit| **hit).count();
        assert!((250..350).contains(&share), "{share}");
    }

    #[test]
    fn a_crash_ends_everything_until_it_is_cleared() {
        let plan = FaultPlan::new(0);
        plan.add(Rule {
            skip: 2,
            ..Rule::new(Fault::Crash)
        })
        .unwrap();
        assert_eq!(fault(&plan, Operation::Get, "a"), None);
        assert_eq!(fault(&plan, Operation::Get, "a"), None);
        assert!(!plan.crashed());
        for operation in Operation::ALL {
            assert_eq!(fault(&plan, operation, "a"), Some(Fault::Crash));
        }
        assert!(plan.crashed());
        assert_eq!(plan.injected()[&Fault::Crash], 1);
        plan.clear();
        assert_eq!(fault(&plan, Operation::Get, "a"), None);
    }

    #[test]
    fn delays_add_up_before_the_fault() {
        let plan = FaultPlan::new(0);
        for fault in [Fault::Delay, Fault::Delay, Fault::Timeout, Fault::Error] {
            let wait = Duration::from_millis(5);
            plan.add(Rule {
                wait,
                ..Rule::new(fault)
            })
            .unwrap();
        }
        let verdict = plan.judge(Operation::Get, "a", 0);
        assert_eq!(verdict.wait, Duration::from_millis(15));
        assert_eq!(verdict.rule.unwrap().fault, Fault::Timeout);
        assert_eq!(fault(&plan, Operation::Get, "a"), Some(Fault::Error));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let plan = FaultPlan::new(0);
        for (kind, operation) in [
            (Fault::Cut, Operation::Create),
            (Fault::Late, Operation::Part),
            (Fault::LostReply, Operation::Get),
            (Fault::StaleList, Operation::Get),
        ] {
            let rule = Rule {
                on: vec![operation],
                ..Rule::new(kind)
            };
            let error = plan.add(rule).unwrap_err();
            assert!(error.message.contains(operation.as_str()), "{error}");
        }
        for probability in [-0.1, 1.1, f64::NAN] {
            assert!(plan
                .add(Rule {
                    probability,
                    ..Rule::new(Fault::Error)
                })
                .is_err());
        }
    }

    #[test]
    fn only_whole_write_ids_are_left_out() {
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(without_write_ids(&format!("o/5/0-{id}.dw")), "o/5/0-*.dw");
        assert_eq!(without_write_ids("manifests/00000000000000000005.json"), {
            "manifests/00000000000000000005.json"
        });
        assert_eq!(without_write_ids("ünï/ä"), "ünï/ä");
    }
}
