//! The commit protocol behind a store that fails on purpose.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;

use common::*;
use deltawire_board::commit::commit;
use deltawire_board::epoch;
use deltawire_board::faults::{Fault, FaultPlan, Operation, Rule};
use deltawire_board::head::head;
use deltawire_board::{ErrorKind, Hex, Store};

fn planned(store: &Store, plan: &Arc<FaultPlan>) -> Store {
    store.clone().with_faults(Arc::clone(plan))
}

fn on(fault: Fault, operation: Operation, path: &str) -> Rule {
    Rule {
        on: vec![operation],
        path: path.into(),
        operations: 1000,
        ..Rule::new(fault)
    }
}

#[test]
fn a_lost_reply_is_success_and_a_late_create_is_no_second_version() {
    let scratch = Scratch::new();
    for (number, clean) in [memory("faults-late"), scratch.store()].iter().enumerate() {
        let plan = Arc::new(FaultPlan::new(number as u64));
        let store = planned(clean, &plan);
        let start = fill(&store, 0, 1, 1);
        plan.add(on(Fault::LostReply, Operation::Create, "manifests/"))
            .unwrap();
        let second = next(&start, 1, 2);
        let start = after(&second, commit(&store, &second).unwrap());
        assert_eq!(plan.injected()[&Fault::LostReply], 1);

        plan.add(on(Fault::Late, Operation::Create, "manifests/"))
            .unwrap();
        let (ours, other) = (next(&start, 1, 3), next(&start, 1, 4));
        let error = commit(&store, &ours).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Store);
        assert_eq!(head(clean, None).unwrap(), Some(2));
        commit(&store, &other).unwrap();
        assert_eq!(plan.settle().unwrap(), 1);
        // The late one found the name taken.
        let error = commit(clean, &ours).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict);
        assert!(error.message.contains(&other.write_id.to_string()));
    }
}

#[test]
fn a_crash_at_every_operation_leaves_whole_versions() {
    let total = {
        let plan = Arc::new(FaultPlan::new(0));
        fill(&planned(&memory("faults-count"), &plan), 0, 3, 1);
        plan.counts().values().sum::<u64>()
    };
    for fault in [Fault::Crash, Fault::CrashAfter] {
        for skip in 0..total {
            let clean = memory(&format!("faults-crash-{}-{skip}", fault.as_str()));
            let plan = Arc::new(FaultPlan::new(0));
            let store = planned(&clean, &plan);
            let anchored = first(&store, 0, 1);
            plan.add(Rule {
                skip,
                ..Rule::new(fault)
            })
            .unwrap();
            let mut told = None;
            if let Ok(digest) = commit(&store, &anchored) {
                let mut start = after(&anchored, digest);
                told = Some(0);
                for version in 1..=3 {
                    let manifest = next(&start, 1, 7);
                    let Ok(digest) = commit(&store, &manifest) else {
                        break;
                    };
                    start = after(&manifest, digest);
                    told = Some(version);
                }
            }
            let found = head(&clean, None).unwrap();
            let following = told.map_or(0, |version: u64| version + 1);
            assert!(found == told || found == Some(following), "{skip}");
        }
    }
}

#[test]
fn epochs_do_not_trust_listings() {
    let plan = Arc::new(FaultPlan::new(0));
    let store = planned(&memory("faults-epochs"), &plan);
    plan.add(Rule {
        times: None,
        operations: 1000,
        ..Rule::new(Fault::StaleList)
    })
    .unwrap();
    for epoch in 1..5 {
        assert_eq!(
            epoch::acquire(&store, Hex([epoch as u8; 16]), 0).unwrap(),
            epoch
        );
    }
}
