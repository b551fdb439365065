use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tieline_client::v1::{
    server_event::Event, CreateRequest, Ending, Response, ResponseCreate, ResponseStatus,
};
use tieline_client::{text, ApiError, Client, Connection, Error, Options, Tool, Turn};
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{health_client::HealthClient, HealthCheckRequest};

use crate::{Outcome, Run};

/// None where the scenario is not known.
pub async fn run(run: &Run) -> Option<Outcome> {
    Some(match run.scenario.name.as_str() {
        "turn" => turn(run).await,
        "append" => append(run).await,
        "chain" => chain(run).await,
        "lanes" => lanes(run).await,
        "cancel" => cancel(run).await,
        "error" => error(run).await,
        "resume" => resume(run).await,
        "key" => key(run).await,
        "wrong_key" => wrong_key(run).await,
        "health" => health(run).await,
        "reflection" => reflection(run).await,
        "deadline" => deadline(run).await,
        "keepalive" => keepalive(run).await,
        "large" => large(run).await,
        "unicode" => unicode(run).await,
        "newer" => newer(run).await,
        "goaway" => goaway(run).await,
        _ => return None,
    })
}

fn same<T: PartialEq + Debug>(what: &str, got: T, expected: T) -> Outcome {
    if got == expected {
        return Ok(());
    }
    let [got, expected] =
        [got, expected].map(|each| format!("{each:?}").chars().take(150).collect::<String>());
    Err(format!("{what} is {got}, not {expected}").into())
}

async fn connect(address: &str) -> Result<Connection, Error> {
    Client::new(address, Options::default())?.connect().await
}

/// Makes a turn, whose text is to be this one.
async fn says(
    connection: &Connection,
    create: impl Into<ResponseCreate>,
    expected: &str,
) -> Outcome<Response> {
    let response = connection.ask(create, &[]).await?;
    same("the text", text(&response).as_str(), expected)?;
    same("the status", response.status(), ResponseStatus::Completed)?;
    Ok(response)
}

/// The pieces of text to the end of a turn, joined.
async fn pieces(turn: &mut Turn, mut numbers: impl FnMut(i32)) -> (String, Option<Error>) {
    let mut joined = String::new();
    let mut events = turn.events();
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => return (joined, Some(error)),
        };
        event.sequence_number.into_iter().for_each(&mut numbers);
        if let Some(Event::OutputTextDelta(piece)) = event.event {
            joined += &piece.delta;
        }
    }
    (joined, None)
}

async fn turn(run: &Run) -> Outcome {
    let connection = connect(&run.targets.address).await?;
    let mut turn = connection.start(run.scenario.input.as_str(), &[])?;
    let mut last = Ending::Unspecified;
    while let Some(event) = turn.next().await {
        last = event?.ending();
    }
    let response = turn.result().await?;
    same("the ending", last, Ending::Completed)?;
    same("the text", text(&response), run.scenario.text.clone())?;
    let usage = response.usage.unwrap_or_default();
    same("whether there is usage", usage.input_tokens > 0 && usage.output_tokens > 0, true)
}

async fn append(run: &Run) -> Outcome {
    let connection = connect(&run.targets.address).await?;
    let (calls, (output, expected)) =
        (Arc::new(AtomicUsize::new(0)), (run.tool.output.clone(), run.scenario.arguments.clone()));
    let counted = calls.clone();
    let parameters = run.tool.parameters.to_string();
    let tool = Tool::new(&run.tool.name, &run.tool.description, &parameters, move |arguments| {
        counted.fetch_add(1, Ordering::SeqCst);
        let found: Option<Value> = serde_json::from_str(&arguments).ok();
        let right = found.as_ref() == Some(&expected);
        let output = output.clone();
        async move {
            if right {
                Ok(output)
            } else {
                Err(format!("the arguments are {arguments}"))
            }
        }
    });
    let mut turn = connection.start(run.scenario.input.as_str(), &[tool])?;
    let mut holds = 0;
    while let Some(event) = turn.next().await {
        holds += usize::from(event?.ending() == Ending::Held);
    }
    same("the text", text(&turn.result().await?), run.scenario.text.clone())?;
    same("the number of holds", holds, 1)?;
    same("the number of calls", calls.load(Ordering::SeqCst), 1)
}

async fn chain(run: &Run) -> Outcome {
    let connection = connect(&run.targets.address).await?;
    let first = connection.ask(run.scenario.input.as_str(), &[]).await?;
    let mut create = ResponseCreate::from(run.scenario.then.as_str());
    create.previous_response_id = Some(first.id.clone());
    let second = says(&connection, create, &run.scenario.text).await?;
    same("the previous response", second.previous_response_id, Some(first.id))
}

async fn lanes(run: &Run) -> Outcome {
    let connection = connect(&run.targets.address).await?;
    let mut lanes: Vec<_> = run.scenario.lanes.iter().collect();
    // The one that is to end first is the last one that is asked.
    lanes.sort_by_key(|(name, _)| **name == run.scenario.first);
    let mut running = tokio::task::JoinSet::new();
    for (name, input) in lanes {
        let mut turn = connection.lane(name).start(input.as_str(), &[])?;
        let (name, expected) = (name.clone(), run.scenario.texts[name].clone());
        running.spawn(async move {
            same("the text", text(&turn.result().await?), expected)?;
            Outcome::Ok(name)
        });
    }
    let mut ended = Vec::new();
    while let Some(name) = running.join_next().await {
        ended.push(name??);
    }
    same("the lane that ended first", &ended[0], &run.scenario.first)
}

async fn cancel(run: &Run) -> Outcome {
    let connection = connect(&run.targets.address).await?;
    let mut turn = connection.start(run.scenario.input.as_str(), &[])?;
    let (mut last, mut cancelled) = (Ending::Unspecified, false);
    while let Some(event) = turn.next().await {
        let event = event?;
        last = event.ending();
        if matches!(event.event, Some(Event::OutputTextDelta(_))) && !std::mem::replace(&mut cancelled, true)
        {
            turn.cancel()?;
        }
    }
    same("the ending", last, Ending::Incomplete)?;
    same("the status", turn.result().await?.status(), ResponseStatus::Cancelled)?;
    says(&connection, run.scenario.then.as_str(), &run.scenario.text).await.map(drop)
}

async fn error(run: &Run) -> Outcome {
    let connection = connect(&run.targets.address).await?;
    for refused in &run.scenario.refused {
        let mut create = ResponseCreate::from(refused.input.as_str());
        create.model = refused.model.clone();
        let Err(Error::Api(error)) = connection.ask(create, &[]).await else {
            return Err(format!("{} was not told", refused.code).into());
        };
        same("the code", &error.code, &refused.code)?;
        same("the param", error.param, refused.param.clone())?;
    }
    says(&connection, run.scenario.then.as_str(), &run.scenario.text).await.map(drop)
}

async fn resume(run: &Run) -> Outcome {
    let mut numbers = Vec::new();
    let mut create = ResponseCreate::from(run.scenario.input.as_str());
    create.resumable = Some(true);
    let mut turn = connect(&run.targets.cut).await?.start(create, &[])?;
    let (begun, lost) = pieces(&mut turn, |number| numbers.push(number)).await;
    let Some(Error::Lost { response_id: Some(id), after, .. }) = lost else {
        return Err(format!("the connection was not cut: {lost:?}").into());
    };
    let mut turn = connect(&run.targets.address).await?.resume(&id, after, &[])?;
    let (rest, error) = pieces(&mut turn, |number| numbers.push(number)).await;
    error.map_or(Ok(()), Err)?;
    same("whether there were pieces before and after", begun.is_empty() || rest.is_empty(), false)?;
    same("the text of the pieces", begun + &rest, run.scenario.text.clone())?;
    same("the text of the response", text(&turn.result().await?), run.scenario.text.clone())?;
    let all = (0..).take(numbers.len()).collect();
    same("the numbers", numbers, all)
}

async fn key(run: &Run) -> Outcome {
    let options = Options { key: Some(run.targets.key.clone()), ..Default::default() };
    let connection = Client::new(&run.targets.keyed, options)?.connect().await?;
    says(&connection, run.scenario.input.as_str(), &run.scenario.text).await.map(drop)
}

async fn wrong_key(run: &Run) -> Outcome {
    let options = Options { key: Some(run.scenario.key.clone()), ..Default::default() };
    let Err(Error::Api(error)) = Client::new(&run.targets.keyed, options)?.connect().await else {
        return Err("a wrong key was taken".into());
    };
    same("the code", &error.code, &run.scenario.code)?;
    same("the status", &format!("{:?}", error.status).to_uppercase(), &run.scenario.status)
}

async fn channel(address: &str) -> Outcome<Channel> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.connect().await?)
}

async fn health(run: &Run) -> Outcome {
    let mut stub = HealthClient::new(channel(&run.targets.address).await?);
    for service in &run.scenario.services {
        let request = HealthCheckRequest { service: service.clone() };
        let checked = stub.check(request.clone()).await?.into_inner();
        same("the check", checked.status(), ServingStatus::Serving)?;
        let mut watch = stub.watch(request).await?.into_inner();
        let watched = watch.message().await?.ok_or("the watch says nothing")?;
        same("the watch", watched.status(), ServingStatus::Serving)?;
    }
    let unknown = stub.check(HealthCheckRequest { service: "no.such.Service".into() }).await;
    same(
        "the status of an unknown service",
        unknown.map_err(|status| status.code()).err(),
        Some(Code::NotFound),
    )
}

/// What reflection of a revision lists; the two are alike but for their package.
macro_rules! listed {
    ($revision:ident, $channel:expr) => {{
        use tonic_reflection::pb::$revision::{
            server_reflection_client::ServerReflectionClient, server_reflection_request::MessageRequest,
            server_reflection_response::MessageResponse, ServerReflectionRequest,
        };
        let message_request = Some(MessageRequest::ListServices(String::new()));
        let request = ServerReflectionRequest { host: String::new(), message_request };
        let mut stub = ServerReflectionClient::new($channel);
        let mut answers = stub.server_reflection_info(tokio_stream::once(request)).await?.into_inner();
        let answer = answers.message().await?.and_then(|answer| answer.message_response);
        let Some(MessageResponse::ListServicesResponse(list)) = answer else {
            return Err(format!("instead of a list came {answer:?}").into());
        };
        list.service.into_iter().map(|service| service.name).collect::<Vec<_>>()
    }};
}

async fn reflection(run: &Run) -> Outcome {
    let channel = channel(&run.targets.address).await?;
    for listed in [listed!(v1, channel.clone()), listed!(v1alpha, channel)] {
        for service in &run.scenario.services {
            same(&format!("whether {service} is listed"), listed.contains(service), true)?;
        }
    }
    Ok(())
}

async fn deadline(run: &Run) -> Outcome {
    let limit = Duration::from_millis(run.scenario.milliseconds);
    let client = Client::new(&run.targets.address, Options::default())?;
    let mut create = ResponseCreate::from(run.scenario.input.as_str());
    let message = CreateRequest { response_create: Some(create.clone()), ..Default::default() };
    let mut request = client.request(message);
    request.set_timeout(limit);
    let late = client.responses().create(request).await.map_err(ApiError::from).err();
    same("the status of the call", late.map(|error| error.status), Some(Code::DeadlineExceeded))?;
    let connection = client.connect().await?;
    create.timeout = Some(limit.try_into()?);
    let cut = connection.ask(create, &[]).await?;
    same("the status", cut.status(), ResponseStatus::Incomplete)?;
    let reason = cut.incomplete_details.and_then(|details| details.reason);
    same("the reason", reason.as_ref(), Some(&run.scenario.reason))?;
    says(&connection, run.scenario.then.as_str(), &run.scenario.text).await.map(drop)
}

async fn keepalive(run: &Run) -> Outcome {
    let connection = connect(&run.targets.address).await?;
    tokio::time::sleep(Duration::from_secs(run.scenario.seconds)).await;
    says(&connection, run.scenario.input.as_str(), &run.scenario.text).await.map(drop)
}

async fn large(run: &Run) -> Outcome {
    let input = run.scenario.input.as_str();
    let options = Options { max_receive_bytes: Some(run.scenario.limit), ..Default::default() };
    let wide = Client::new(&run.targets.address, options)?;
    let response = wide.connect().await?.ask(input, &[]).await?;
    same("the length on a connection", text(&response).len(), run.scenario.bytes)?;
    let answer = wide.create(input).await?;
    same("the length by Create", text(&answer.response.unwrap_or_default()).len(), run.scenario.bytes)?;
    let answer = Client::new(&run.targets.address, Options::default())?.create(input).await?;
    same("output_omitted", answer.output_omitted, true)?;
    same("what is omitted", text(&answer.response.unwrap_or_default()).len(), 0)
}

async fn unicode(run: &Run) -> Outcome {
    let connection = connect(&run.targets.address).await?;
    let mut turn = connection.start(run.scenario.input.as_str(), &[])?;
    let (joined, error) = pieces(&mut turn, |_| {}).await;
    error.map_or(Ok(()), Err)?;
    same("the text of the pieces", joined.as_str(), &run.scenario.text)?;
    same("the text of the response", text(&turn.result().await?).as_str(), &run.scenario.text)
}

/// Does not look at the status of the response, which is one that these stubs do not know.
async fn newer(run: &Run) -> Outcome {
    let connection = connect(&run.targets.newer).await?;
    let response = connection.ask(run.scenario.input.as_str(), &[]).await?;
    same("the text", text(&response).as_str(), &run.scenario.text)
}

async fn goaway(run: &Run) -> Outcome {
    let connection = connect(&run.targets.drains).await?;
    says(&connection, run.scenario.input.as_str(), &run.scenario.text).await?;
    match connection.ask(run.scenario.input.as_str(), &[]).await {
        Err(Error::Lost { .. }) => Ok(()),
        Err(Error::Api(error)) => same("the code", &error.code, &run.scenario.code),
        other => Err(format!("a later create is answered by {other:?}").into()),
    }
}
