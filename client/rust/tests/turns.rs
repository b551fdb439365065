//! Turns against a server that goes, refuses, or speaks a later revision.

mod support;

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use support::*;
use tieline_client::v1::{self, converse_request::Message, server_event::Event, Ending, ServerEvent};
use tieline_client::{function_output, text, ApiError, Error, Tool};
use tokio_stream::StreamExt;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// A tool that counts how often it runs.
fn look() -> (Tool, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let tool = Tool::new("look", "Looks.", "{}", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Error>("seen".into()) }
    });
    (tool, runs)
}

fn lost_at(error: Error, id: Option<&str>, number: Option<i32>) -> Option<ApiError> {
    let Error::Lost { response_id, after, cause } = error else { panic!("{error:?}") };
    assert_eq!((response_id.as_deref(), after), (id, number));
    cause.map(|cause| *cause)
}

#[tokio::test]
async fn nobody_is_there() {
    let error = soon(client(([127, 0, 0, 1], 1).into()).connect()).await.err().unwrap();
    assert_eq!(error.api().unwrap().status, Code::Unavailable);
}

#[tokio::test]
async fn an_address_or_a_key_that_is_none() {
    let options =
        |key: Option<&str>| tieline_client::Options { key: key.map(Into::into), ..Default::default() };
    for (address, key) in [("not an address", None), ("", None), ("127.0.0.1:1", Some("a\nb"))] {
        let error = tieline_client::Client::new(address, options(key)).err();
        assert!(matches!(error, Some(Error::Options(_))), "{address}: {error:?}");
    }
}

#[tokio::test]
async fn the_server_is_gone_before_during_and_after_each_kind_of_event() {
    let said = [created(0, "resp_1"), delta(1, "one"), called(2, "call_1"), held(3, "resp_1")];
    for many in 0..=said.len() {
        for with_status in [false, true] {
            let said = said.clone();
            let connection = connect(move |mut talk| {
                let said = said[..many].to_vec();
                async move {
                    talk.hear().await;
                    for event in said {
                        talk.say(vec![event]).await;
                    }
                    if with_status {
                        talk.fail(Status::unavailable("gone")).await;
                    }
                }
            });
            let (tool, runs) = look();
            let mut turn = connection.await.start("hello", &[tool]).unwrap();
            let error = soon(turn.result()).await.unwrap_err();
            let id = (many > 0).then_some("resp_1");
            // The hold is answered before the loss is heard of, or the answer finds nobody.
            let cause = lost_at(error, id, (many as i32).checked_sub(1).filter(|after| *after >= 0));
            assert_eq!(cause.map(|cause| cause.status), with_status.then_some(Code::Unavailable), "{many}");
            assert!(runs.load(Ordering::SeqCst) <= 1);
            assert!(soon(turn.next()).await.is_none());
            assert!(matches!(soon(turn.result()).await, Err(Error::Lost { .. })));
        }
    }
}

#[tokio::test]
async fn a_tool_does_not_run_again_after_a_resume() {
    let address = serve(|mut talk| async move {
        match talk.hear().await.unwrap().message {
            Some(Message::ResponseCreate(create)) => {
                assert_eq!((create.append, create.tools.len()), (Some(true), 1));
                talk.say(vec![created(0, "resp_1"), called(1, "call_1"), held(2, "resp_1")]).await;
                talk.hear().await; // The append, and then it is gone.
            }
            Some(Message::ResponseResume(resume)) => {
                assert_eq!((resume.response_id.as_deref(), resume.after), (Some("resp_1"), Some(2)));
                let append = talk.hear().await.unwrap();
                let event_id = append.event_id.clone();
                let taken =
                    v1::Error { code: Some("response_not_active".into()), event_id, ..Default::default() };
                let taken = failed(3, Ending::Unspecified, taken);
                talk.say(vec![taken, completed(4, "resp_1", "all seen")]).await;
                talk.silent().await;
            }
            other => panic!("{other:?}"),
        }
    })
    .await;
    let (tool, runs) = look();
    let mut turn = client(address).connect().await.unwrap().start("hello", &[tool]).unwrap();
    lost_at(soon(turn.result()).await.unwrap_err(), Some("resp_1"), Some(2));
    turn.resume(&client(address).connect().await.unwrap()).unwrap();
    assert_eq!(text(&soon(turn.result()).await.unwrap()), "all seen");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_tool_at_work_goes_on_where_nobody_waited_for_it() {
    let connection = connect(|mut talk| async move {
        talk.hear().await;
        talk.say(vec![created(0, "resp_1"), called(1, "call_1"), held(2, "resp_1")]).await;
        talk.hear().await;
        talk.say(vec![completed(3, "resp_1", "done")]).await;
        talk.silent().await;
    })
    .await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let slow = Tool::new("look", "", "{}", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, Error>("seen".into())
        }
    });
    let mut turn = connection.start("hello", &[slow]).unwrap();
    let ended = soon(async {
        loop {
            if let Ok(ended) = tokio::time::timeout(Duration::from_millis(15), turn.result()).await {
                return ended;
            }
        }
    });
    assert_eq!(text(&ended.await.unwrap()), "done");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_refused_append_is_told_once_and_another_one_goes_on() {
    let connection = connect(|mut talk| async move {
        talk.hear().await;
        talk.say(vec![created(0, "resp_1"), called(1, "call_1"), held(2, "resp_1")]).await;
        let event_id = talk.hear().await.unwrap().event_id;
        let code = Some("tool_output_missing".into());
        let refused = v1::Error { code, event_id, ..Default::default() };
        talk.say(vec![failed(3, Ending::Unspecified, refused)]).await;
        talk.hear().await;
        talk.say(vec![completed(4, "resp_1", "done")]).await;
        talk.silent().await;
    })
    .await;
    let mut turn = connection.start("hello", &[look().0]).unwrap();
    for _ in 0..2 {
        let error = soon(turn.result()).await.unwrap_err();
        assert_eq!(error.api().unwrap().code, "tool_output_missing");
    }
    turn.append(vec![function_output("call_1", "by hand")]).unwrap();
    assert_eq!(text(&soon(turn.result()).await.unwrap()), "done");
}

#[tokio::test]
async fn a_refusal_is_the_turns_and_the_connection_lives_on() {
    let connection = connect(|mut talk| async move {
        let event_id = talk.hear().await.unwrap().event_id;
        let wait = prost_types::Duration { seconds: 2, nanos: 500_000_000 };
        let [code, param] = ["rate_limit_exceeded", "model"].map(|said| Some(said.into()));
        let refused = v1::Error {
            code,
            param,
            message: "Later.".into(),
            retry_after: Some(wait),
            event_id,
            ..Default::default()
        };
        talk.say(vec![failed(0, Ending::Refused, refused)]).await;
        talk.hear().await;
        talk.say(vec![created(0, "resp_2"), completed(1, "resp_2", "hello")]).await;
        talk.silent().await;
    })
    .await;
    let error = soon(connection.ask("hello", &[])).await.unwrap_err();
    let Error::Api(said) = error else { panic!("{error:?}") };
    assert_eq!((said.code.as_str(), said.param.as_deref()), ("rate_limit_exceeded", Some("model")));
    assert_eq!((said.status, said.retry_after), (Code::Ok, Some(Duration::from_millis(2500))));
    assert_eq!(text(&soon(connection.ask("hello", &[])).await.unwrap()), "hello");
}

#[tokio::test]
async fn a_status_says_its_code() {
    let mut details =
        ErrorDetails::with_error_info("SLOW_CONSUMER", "tieline", [(String::new(), String::new())]);
    details.set_retry_info(Some(Duration::from_secs(3)));
    let status = Status::with_error_details(Code::ResourceExhausted, "Too slow.", details);
    let connection = connect(move |mut talk| {
        let status = status.clone();
        async move {
            talk.hear().await;
            talk.fail(status).await;
        }
    })
    .await;
    let error = soon(connection.ask("hello", &[])).await.unwrap_err();
    let said = lost_at(error, None, None).unwrap();
    assert_eq!((said.code.as_str(), said.status), ("slow_consumer", Code::ResourceExhausted));
    assert_eq!(said.retry_after, Some(Duration::from_secs(3)));
    let later = connection.start("hello", &[]).err().unwrap();
    assert_eq!(later.api().unwrap().code, "slow_consumer");
}

#[tokio::test]
async fn a_failed_response_is_an_error_however_often_it_is_asked_for() {
    let connection = connect(|mut talk| async move {
        talk.hear().await;
        let mut end = completed(1, "resp_1", "so far");
        end.ending = Ending::Failed.into();
        let error = v1::ResponseError { code: "server_error".into(), ..Default::default() };
        end.response.as_mut().unwrap().error = Some(error);
        talk.say(vec![created(0, "resp_1"), end]).await;
        talk.silent().await;
    })
    .await;
    let mut turn = connection.start("hello", &[]).unwrap();
    for _ in 0..2 {
        assert_eq!(soon(turn.result()).await.unwrap_err().api().unwrap().code, "server_error");
    }
    assert_eq!(text(turn.response().unwrap()), "so far");
}

#[tokio::test]
async fn lanes_have_their_own_events() {
    let connection = connect(|mut talk| async move {
        let [first, second] = [talk.hear().await.unwrap(), talk.hear().await.unwrap()];
        let mut both = on(&first, vec![created(0, "resp_1"), delta(1, "a")]);
        both.extend(on(&second, vec![created(0, "resp_2"), completed(1, "resp_2", "quick")]));
        both.extend(on(&first, vec![completed(2, "resp_1", "slow")]));
        talk.say(both).await;
        talk.silent().await;
    })
    .await;
    let mut slow = connection.lane("slow").start("hello", &[]).unwrap();
    let mut quick = connection.start("hello", &[]).unwrap();
    let heard: Vec<_> = soon(quick.events().collect()).await;
    assert_eq!(heard.len(), 2);
    assert_eq!(text(&soon(quick.result()).await.unwrap()), "quick");
    assert_eq!(text(&soon(slow.result()).await.unwrap()), "slow");
}

#[tokio::test]
async fn a_later_revision_is_no_trouble() {
    let connection = connect(|mut talk| async move {
        talk.hear().await;
        let arm = ServerEvent { sequence_number: Some(1), ..Default::default() };
        let mut end = completed(3, "resp_1", "from the future");
        end.ending = 99;
        end.response.as_mut().unwrap().status = Some(99);
        let beat = event(2, Event::Heartbeat(v1::Heartbeat { phase: Some(99), ..Default::default() }));
        let beat = ServerEvent { sequence_number: None, ..beat };
        talk.say(vec![created(0, "resp_1"), arm, beat, end]).await;
        talk.silent().await;
    })
    .await;
    let mut turn = connection.start("hello", &[]).unwrap();
    let heard: Vec<_> = soon(turn.events().collect()).await;
    assert_eq!(heard.len(), 2); // The unknown arm and the heartbeat are passed over.
    assert_eq!(text(&soon(turn.result()).await.unwrap()), "from the future");
    let mut bytes = created(0, "resp_1").encode_to_vec();
    bytes.extend(b"\xfa\x3f\x02\x08\x01"); // A field that no revision has.
    assert_eq!(ServerEvent::decode(bytes.as_slice()).unwrap(), created(0, "resp_1"));
}

#[tokio::test]
async fn a_turn_that_is_dropped_is_cancelled_and_nobody_stays_behind() {
    let (told, mut tells) = tokio::sync::mpsc::unbounded_channel();
    let connection = connect(move |mut talk| {
        let told = told.clone();
        async move {
            talk.hear().await;
            talk.say(vec![created(0, "resp_1")]).await;
            if let Some(Message::ResponseCancel(cancel)) = talk.hear().await.unwrap().message {
                told.send(cancel.response_id).unwrap();
            }
            talk.silent().await;
            told.send(Some("gone".into())).unwrap();
        }
    })
    .await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut turn = connection.start("hello", &[]).unwrap();
    soon(turn.next()).await.unwrap().unwrap();
    drop(turn);
    assert_eq!(soon(tells.recv()).await.unwrap().as_deref(), Some("resp_1"));
    drop(connection);
    assert_eq!(soon(tells.recv()).await.unwrap().as_deref(), Some("gone"));
    assert!(tokio::runtime::Handle::current().metrics().num_alive_tasks() < tasks);
}

#[tokio::test]
async fn a_connection_that_is_closed_ends_its_turns() {
    let connection = connect(|mut talk| async move {
        talk.hear().await;
        pending::<()>().await;
    })
    .await;
    let mut turn = connection.start("hello", &[]).unwrap();
    connection.close();
    assert!(lost_at(soon(turn.result()).await.unwrap_err(), None, None).is_none());
    assert!(matches!(connection.start("hello", &[]), Err(Error::Lost { .. })));
}
