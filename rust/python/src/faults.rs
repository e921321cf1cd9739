//! `FaultPlan`: faults on purpose, for tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use deltawire_board::faults::{self, Fault, Operation, Rule};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::board::to_python;

/// Decides which requests of a board fail, and how.
#[pyclass(frozen, module = "deltawire._native")]
pub(crate) struct FaultPlan {
    pub(crate) plan: Arc<faults::FaultPlan>,
}

/// Number, operation, path and fault.
type Event = (u64, &'static str, String, Option<&'static str>);

#[pymethods]
impl FaultPlan {
    #[new]
    fn new(seed: u64) -> Self {
        Self {
            plan: Arc::new(faults::FaultPlan::new(seed)),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn add(
        &self,
        fault: &str,
        on: Vec<String>,
        path: String,
        skip: u64,
        times: Option<u64>,
        probability: f64,
        milliseconds: u64,
        bytes: u64,
        operations: u64,
    ) -> PyResult<()> {
        let unknown = |what: &str, name: &str| {
            PyValueError::new_err(format!("there is no {what} of the name {name}"))
        };
        let on = on
            .iter()
            .map(|name| Operation::parse(name).ok_or_else(|| unknown("operation", name)))
            .collect::<PyResult<Vec<_>>>()?;
        let rule = Rule {
            fault: Fault::parse(fault).ok_or_else(|| unknown("fault", fault))?,
            on,
            path,
            skip,
            times,
            probability,
            wait: Duration::from_millis(milliseconds),
            bytes,
            operations,
        };
        self.plan
            .add(rule)
            .map_err(|error| PyValueError::new_err(error.message))
    }

    fn clear(&self) {
        self.plan.clear();
    }

    fn crash(&self) {
        self.plan.crash();
    }

    #[getter]
    fn crashed(&self) -> bool {
        self.plan.crashed()
    }

    fn settle(&self, py: Python<'_>) -> PyResult<usize> {
        py.detach(|| self.plan.settle())
            .map_err(|error| to_python(py, "", error))
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.plan.counts();
        let named = counts
            .into_iter()
            .map(|(each, count)| (each.as_str(), count));
        named.collect()
    }

    fn injected(&self) -> BTreeMap<&'static str, u64> {
        let injected = self.plan.injected();
        let named = injected
            .into_iter()
            .map(|(each, count)| (each.as_str(), count));
        named.collect()
    }

    fn events(&self) -> Vec<Event> {
        let events = self.plan.events().into_iter();
        let named = events.map(|event| {
            let fault = event.fault.map(Fault::as_str);
            (event.number, event.operation.as_str(), event.path, fault)
        });
        named.collect()
    }
}
