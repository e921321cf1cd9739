//! What collection may remove: a pure function of what the board says.

/// What a collector has seen of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Newest version.
    pub head: u64,
    /// Nothing below this version is left.
    pub floor: u64,
    /// Versions below this one were given up before; at least `floor`.
    pub boundary: u64,
    /// Oldest version that is too young to go.
    pub young: Option<u64>,
    /// For each lease that is to be respected, the oldest version it needs.
    pub needs: Vec<u64>,
}

/// Why the boundary is not higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The newest versions that are to be kept.
    Keep,
    /// Versions that are too young.
    Age,
    /// A lease.
    Lease,
    /// Nothing but that there is no complete anchor nearer to the versions that are to be kept.
    Anchor,
}

impl Limit {
    /// Its name in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Age => "age",
            Self::Lease => "lease",
            Self::Anchor => "anchor",
        }
    }
}

/// What a collection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The boundary from now on: a version with a complete anchor, or the boundary of before.
    pub boundary: u64,
    /// Versions from the floor up to this one, exclusive, are removed.
    pub until: u64,
    /// Why not more.
    pub limit: Limit,
}

impl View {
    /// The highest boundary that settings and leases allow, and which of them does; `keep` counts
    /// versions, and one is always kept.
    #[must_use]
    pub fn ceiling(&self, keep: u64) -> (u64, Limit) {
        let kept = self.head.saturating_sub(keep.max(1) - 1);
        let mut ceiling = (kept, Limit::Keep);
        for (version, limit) in [
            (self.young, Limit::Age),
            (self.first_needed(), Limit::Lease),
        ] {
            if let Some(version) = version.filter(|version| *version < ceiling.0) {
                ceiling = (version, limit);
            }
        }
        (ceiling.0.max(self.floor), ceiling.1)
    }

    /// The oldest version that a lease needs, of those that are still there.
    ///
    /// A reader whose next version is gone starts from an anchor, so that its lease protects nothing.
    #[must_use]
    pub fn first_needed(&self) -> Option<u64> {
        self.needs
            .iter()
            .filter(|needs| needs.saturating_add(1) >= self.floor)
            .map(|needs| (*needs).max(self.floor))
            .min()
    }

    /// The plan, given the newest complete anchor at or below the ceiling, if there is one.
    ///
    /// Every version from the new boundary on can be read by anyone, for it has an anchor and the
    /// versions after it have all their deltas.
    #[must_use]
    pub fn plan(&self, keep: u64, anchor: Option<u64>) -> Plan {
        let (ceiling, limit) = self.ceiling(keep);
        let usable = anchor.filter(|anchor| *anchor <= ceiling);
        let boundary = usable.map_or(self.boundary, |anchor| anchor.max(self.boundary));
        Plan {
            boundary,
            until: self.until(boundary),
            limit: if boundary < ceiling && limit == Limit::Keep {
                Limit::Anchor
            } else {
                limit
            },
        }
    }

    /// How far versions below `boundary` may be removed, as leases are.
    #[must_use]
    pub fn until(&self, boundary: u64) -> u64 {
        let needed = self.first_needed().unwrap_or(u64::MAX);
        boundary.min(needed).max(self.floor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A small board, and a simulation of what the plan does to it.
    #[derive(Debug, Clone)]
    struct Board {
        view: View,
        anchors: BTreeSet<u64>,
        keep: u64,
    }

    prop_compose! {
        fn board()(first in 0..5_u64, length in 1..24_u64)(
            anchors in proptest::collection::btree_set(first..first + length, 0..6),
            floor in first..first + length,
            boundary in first..first + length,
            young in proptest::option::of(first..first + length),
            needs in proptest::collection::vec(0..first + length + 2, 0..4),
            keep in 0..12_u64,
            head in Just(first + length - 1),
        ) -> Board {
            // As every collection leaves it: the oldest that can be relied on has an anchor.
            let mut anchors = anchors;
            let boundary = boundary.max(floor);
            anchors.insert(boundary);
            Board { view: View { head, floor, boundary, young, needs }, anchors, keep }
        }
    }

    impl Board {
        fn plan(&self) -> Plan {
            let (ceiling, _) = self.view.ceiling(self.keep);
            let anchor = self.anchors.range(..=ceiling).next_back();
            self.view.plan(self.keep, anchor.copied())
        }

        /// Whether a boundary may stand, said without arithmetic: version by version.
        fn allows(&self, boundary: u64) -> bool {
            let kept: BTreeSet<u64> = (0..=self.view.head).filter(|v| *v >= boundary).collect();
            let there: BTreeSet<u64> = (self.view.floor..=self.view.head).collect();
            let newest = there.iter().rev().take(self.keep.max(1) as usize);
            let young = there
                .iter()
                .filter(|v| self.view.young.is_some_and(|y| **v >= y));
            let leased = there.iter().filter(|v| self.is_leased(**v));
            self.anchors.contains(&boundary)
                && there.contains(&boundary)
                && newest.chain(young).chain(leased).all(|v| kept.contains(v))
        }

        /// Whether some reader goes on through this version from one that is still there, or was
        /// the last before those.
        fn is_leased(&self, version: u64) -> bool {
            let serves = |needs: u64| needs + 1 >= self.view.floor && needs <= version;
            self.view.needs.iter().any(|needs| serves(*needs))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn the_plan_is_the_greediest_that_the_invariants_allow(board in board()) {
            let plan = board.plan();
            let best = (board.view.boundary..=board.view.head).rev().find(|b| board.allows(*b));
            prop_assert_eq!(plan.boundary, best.unwrap_or(board.view.boundary));
            // What goes: exactly what is below the boundary and not leased.
            let gone: BTreeSet<u64> = (board.view.floor..plan.until).collect();
            for version in board.view.floor..=board.view.head {
                let may_go = version < plan.boundary && !board.is_leased(version);
                prop_assert_eq!(gone.contains(&version), may_go, "{}", version);
            }
            // From the oldest that stays to the head there is a way for anyone.
            prop_assert!(board.anchors.contains(&plan.boundary));
            prop_assert!(!gone.contains(&board.view.head));
        }

        #[test]
        fn a_second_plan_does_nothing(board in board()) {
            let plan = board.plan();
            let mut after = board.clone();
            after.view.floor = plan.until;
            after.view.boundary = plan.boundary;
            after.anchors.retain(|version| *version >= plan.until);
            let again = after.plan();
            prop_assert_eq!(again.boundary, plan.boundary);
            prop_assert_eq!(again.until, plan.until);
        }
    }

    #[test]
    fn the_limit_is_named() {
        let view = View {
            head: 20,
            floor: 0,
            boundary: 0,
            young: None,
            needs: vec![],
        };
        let plan = |view: &View, anchor| view.plan(5, anchor).limit;
        assert_eq!(plan(&view, Some(16)), Limit::Keep);
        assert_eq!(plan(&view, Some(15)), Limit::Anchor);
        assert_eq!(plan(&view, None), Limit::Anchor);
        let leased = View {
            needs: vec![9, 12],
            ..view.clone()
        };
        assert_eq!(plan(&leased, Some(9)), Limit::Lease);
        let young = View {
            young: Some(7),
            ..leased
        };
        assert_eq!(plan(&young, Some(7)), Limit::Age);
        assert_eq!(young.ceiling(1), (7, Limit::Age));
        assert_eq!(view.ceiling(u64::MAX), (0, Limit::Keep));
    }
}
