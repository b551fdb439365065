//! Does the scenarios that clients in all languages do, and prints a line for each.

mod scenarios;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{de::DeserializeOwned, Deserialize};
use serde_json::{json, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Deserialize)]
pub struct Targets {
    address: String,
    keyed: String,
    key: String,
    cut: String,
    newer: String,
    drains: String,
}

#[derive(Deserialize)]
pub struct Tool {
    name: String,
    description: String,
    parameters: Value,
    output: String,
}

#[derive(Deserialize)]
struct List {
    tool: Tool,
    scenarios: Vec<Scenario>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Scenario {
    name: String,
    input: String,
    then: String,
    text: String,
    first: String,
    key: String,
    status: String,
    code: String,
    reason: String,
    arguments: Value,
    lanes: BTreeMap<String, String>,
    texts: BTreeMap<String, String>,
    refused: Vec<Refused>,
    services: Vec<String>,
    milliseconds: u64,
    seconds: u64,
    bytes: usize,
    limit: usize,
}

#[derive(Deserialize)]
struct Refused {
    model: Option<String>,
    input: String,
    code: String,
    param: Option<String>,
}

/// One scenario with what it needs.
pub struct Run {
    scenario: Scenario,
    tool: Arc<Tool>,
    targets: Arc<Targets>,
}

#[tokio::main]
async fn main() -> Outcome {
    let [list, targets] = [1, 2].map(|at| std::env::args().nth(at).unwrap_or_default());
    let only = std::env::args().nth(3);
    let list: List = read(&list)?;
    let (tool, targets) = (Arc::new(list.tool), Arc::new(read::<Targets>(&targets)?));
    let mut running = JoinSet::new();
    for scenario in list.scenarios {
        if only.as_ref().is_none_or(|only| *only == scenario.name) {
            running.spawn(bounded(Run { scenario, tool: tool.clone(), targets: targets.clone() }));
        }
    }
    while let Some(line) = running.join_next().await {
        println!("{}", line?);
    }
    Ok(())
}

fn read<T: DeserializeOwned>(path: &str) -> Outcome<T> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

async fn bounded(run: Run) -> Value {
    let name = run.scenario.name.clone();
    // A busy machine takes its time; this only bounds a hang.
    let limit = Duration::from_secs(180);
    // A task of its own, so that one that panics has its line, too.
    let mut doing = tokio::spawn(async move { scenarios::run(&run).await });
    let ended = timeout(limit, &mut doing).await;
    doing.abort();
    let (ok, why) = match ended {
        Ok(Ok(Some(Ok(())))) => return json!({"scenario": name, "ok": true}),
        Ok(Ok(Some(Err(error)))) => (json!(false), format!("{error} ({error:?})")),
        Ok(Ok(None)) => (Value::Null, "this runner does not know it".into()),
        Ok(Err(panic)) => (json!(false), panic.to_string()),
        Err(_) => (json!(false), "hangs".into()),
    };
    json!({"scenario": name, "ok": ok, "why": why.chars().take(400).collect::<String>()})
}
