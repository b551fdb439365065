use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream};
use futures_util::FutureExt;
use tokio::sync::mpsc::UnboundedReceiver;
use uuid::Uuid;

use crate::connection::ends;
use crate::error::told;
use crate::v1::{
    converse_request::Message, item, response_append, server_event::Event, Ending, FunctionCall, Item,
    ItemList, Response, ResponseAppend, ResponseCancel, ResponseCreate, ResponseResume, ServerEvent,
};
use crate::{function_output, function_tool, Connection, Error};

type Run = dyn Fn(String) -> BoxFuture<'static, String> + Send + Sync;

/// A function that the model may call.
#[derive(Clone)]
pub struct Tool {
    name: String,
    description: String,
    parameters_json: String,
    run: Arc<Run>,
}

impl Tool {
    /// The model is told what `run` makes of the arguments (JSON text), be it an error.
    pub fn new<F, R, E>(name: &str, description: &str, parameters_json: &str, run: F) -> Self
    where
        F: Fn(String) -> R + Send + Sync + 'static,
        R: Future<Output = Result<String, E>> + Send + 'static,
        E: Display,
    {
        let run = move |arguments| {
            let running = run(arguments);
            async move { running.await.unwrap_or_else(|error| format!("error: {error}")) }.boxed()
        };
        let [name, description, parameters_json] = [name, description, parameters_json].map(String::from);
        Self { name, description, parameters_json, run: Arc::new(run) }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Hold {
    Running,
    Held,
    /// Until an event says that the append was taken.
    Answered,
    /// The append was refused: one by hand may do better.
    Refused,
}

/// A response on its way. One that is dropped is cancelled.
pub struct Turn {
    connection: Connection,
    inbox: UnboundedReceiver<ServerEvent>,
    event_id: String,
    tools: Vec<Tool>,
    id: Option<String>,
    after: Option<i32>,
    response: Option<Response>,
    items: Vec<Item>,
    /// Since the last hold.
    calls: Vec<FunctionCall>,
    /// By call id: what has run does not run again.
    outputs: HashMap<String, String>,
    /// The tool at work, which goes on where the caller dropped the future that waited for it.
    running: Option<BoxFuture<'static, String>>,
    hold: Hold,
    /// An earlier connection may have brought the answer of the hold.
    again: bool,
    over: bool,
    failure: Option<Error>,
}

impl Turn {
    pub(crate) fn start(
        connection: &Connection,
        mut create: ResponseCreate,
        tools: &[Tool],
    ) -> Result<Self, Error> {
        if !tools.is_empty() {
            create.append = Some(true);
        }
        let offered =
            tools.iter().map(|tool| function_tool(&tool.name, &tool.description, &tool.parameters_json));
        create.tools.extend(offered);
        Self::begin(connection, Message::ResponseCreate(create), tools)
    }

    pub(crate) fn resumed(
        connection: &Connection,
        id: &str,
        after: Option<i32>,
        tools: &[Tool],
    ) -> Result<Self, Error> {
        let mut turn = Self::begin(connection, resume(Some(id.into()), after), tools)?;
        (turn.id, turn.after) = (Some(id.into()), after);
        Ok(turn)
    }

    fn begin(connection: &Connection, message: Message, tools: &[Tool]) -> Result<Self, Error> {
        let event_id = new_id();
        Ok(Self {
            inbox: connection.begin(message, &event_id)?,
            connection: connection.clone(),
            event_id,
            tools: tools.to_vec(),
            id: None,
            after: None,
            response: None,
            items: Vec::new(),
            calls: Vec::new(),
            outputs: HashMap::new(),
            running: None,
            hold: Hold::Running,
            again: false,
            over: false,
            failure: None,
        })
    }

    /// Goes on with a lost turn on a lane of another connection. No tool runs again.
    pub fn resume(&mut self, connection: &Connection) -> Result<(), Error> {
        let event_id = new_id();
        self.inbox =
            connection.begin(resume(self.id.clone(), self.after), &event_id).map_err(|e| self.located(e))?;
        (self.connection, self.event_id) = (connection.clone(), event_id);
        if self.hold == Hold::Answered {
            (self.hold, self.again) = (Hold::Held, true);
        }
        (self.over, self.failure) = (false, None);
        Ok(())
    }

    /// Asks for the end of the turn. The end comes as an event, with what there is.
    pub fn cancel(&self) -> Result<(), Error> {
        let cancel = ResponseCancel { response_id: self.id.clone(), ..Default::default() };
        let sent = self.connection.send(Message::ResponseCancel(cancel), &self.event_id, |_| {});
        sent.map_err(|lost| self.located(lost))
    }

    /// Answers a hold by hand. The events then go on.
    pub fn append(&mut self, items: Vec<Item>) -> Result<(), Error> {
        let input = Some(response_append::Input::InputItems(ItemList { items }));
        let append = ResponseAppend { response_id: self.id.clone(), input, ..Default::default() };
        let id = new_id();
        let named = |board: &mut crate::connection::Board| board.appended(&self.event_id, &id);
        let sent = self.connection.send(Message::ResponseAppend(append), &id, named);
        self.hold = Hold::Answered;
        sent.map_err(|lost| self.lost(lost))
    }

    /// Reads to the end of the turn, or to a hold that no tool answers. A response that is incomplete
    /// or cancelled is a result.
    pub async fn result(&mut self) -> Result<Response, Error> {
        while let Some(event) = self.next().await {
            event?;
        }
        match &self.failure {
            Some(error) => Err(error.clone()),
            None => Ok(self.response.clone().unwrap_or_default()),
        }
    }

    /// The response as it was last told.
    pub fn response(&self) -> Option<&Response> {
        self.response.as_ref()
    }

    /// What [`Turn::next`] gives, as a stream.
    pub fn events(&mut self) -> impl Stream<Item = Result<ServerEvent, Error>> + Unpin + Send + '_ {
        Box::pin(stream::unfold(self, |turn| async { turn.next().await.map(|event| (event, turn)) }))
    }

    /// The next event; none at the end of the turn, or at a hold that no tool answers. The future may
    /// be dropped: no event is lost with it, and a tool at work goes on with the next one.
    pub async fn next(&mut self) -> Option<Result<ServerEvent, Error>> {
        let told = self.step().await?;
        self.failure = told.as_ref().err().cloned();
        Some(told)
    }

    async fn step(&mut self) -> Option<Result<ServerEvent, Error>> {
        loop {
            if !self.over && self.hold == Hold::Held && !self.tools.is_empty() && !self.calls.is_empty() {
                if let Err(lost) = self.answer().await {
                    return Some(Err(lost));
                }
            }
            if self.over || matches!(self.hold, Hold::Held | Hold::Refused) {
                return None;
            }
            let Some(event) = self.inbox.recv().await else {
                let (response_id, after, cause) = (None, None, self.connection.cause());
                return Some(Err(self.lost(Error::Lost { response_id, after, cause })));
            };
            if self.note(&event) {
                return Some(told(&event).map_or(Ok(event), Err));
            }
        }
    }

    /// Keeps what an event says of its turn, and says whether it is handed over.
    fn note(&mut self, event: &ServerEvent) -> bool {
        self.after = self.after.max(event.sequence_number);
        if let (Some(Event::Error(failure)), false) = (&event.event, ends(event)) {
            let code = failure.error.as_ref().and_then(|error| error.code.as_deref());
            let taken = self.again && code == Some("response_not_active");
            if !taken && self.hold == Hold::Answered {
                self.hold = Hold::Refused;
            }
            return !taken;
        }
        if self.hold != Hold::Running {
            (self.hold, self.again) = (Hold::Running, false);
            self.calls.clear();
        }
        if let Some(Event::OutputItemDone(done)) = &event.event {
            self.items.extend(done.item.clone());
            if let Some(item::Item::FunctionCall(call)) =
                done.item.as_ref().and_then(|done| done.item.as_ref())
            {
                self.calls.push(call.clone());
            }
        }
        if let Some(response) = &event.response {
            let mut response = response.clone();
            self.id = Some(response.id.clone());
            if ends(event) && response.output.is_empty() {
                response.output = self.items.clone(); // It is left out where it is too large.
            }
            self.response = Some(response);
        }
        if event.ending == Ending::Held as i32 {
            self.hold = Hold::Held;
        } else {
            self.over = ends(event);
        }
        event.event.is_some() || ends(event)
    }

    /// Runs the tools for the calls of a hold, one after another.
    async fn answer(&mut self) -> Result<(), Error> {
        while let Some(call) = self.calls.iter().find(|call| !self.outputs.contains_key(&call.call_id)) {
            let running = self.running.get_or_insert_with(|| run(&self.tools, call));
            let output = running.await;
            self.running = None;
            self.outputs.insert(call.call_id.clone(), output);
        }
        let answers =
            self.calls.iter().map(|call| function_output(&call.call_id, &self.outputs[&call.call_id]));
        self.append(answers.collect())
    }

    fn lost(&mut self, lost: Error) -> Error {
        self.over = true;
        self.located(lost)
    }

    /// Says of a lost connection where the turn was.
    fn located(&self, error: Error) -> Error {
        match error {
            Error::Lost { cause, .. } => {
                Error::Lost { response_id: self.id.clone(), after: self.after, cause }
            }
            other => other,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.cancel();
        }
    }
}

fn run(tools: &[Tool], call: &FunctionCall) -> BoxFuture<'static, String> {
    match tools.iter().find(|tool| tool.name == call.name) {
        Some(tool) => (tool.run)(call.arguments.clone()),
        None => std::future::ready(format!("error: there is no tool {}", call.name)).boxed(),
    }
}

fn resume(response_id: Option<String>, after: Option<i32>) -> Message {
    Message::ResponseResume(ResponseResume { response_id, after, ..Default::default() })
}

/// A replay repeats old names: none is used twice.
fn new_id() -> String {
    Uuid::new_v4().to_string()
}
