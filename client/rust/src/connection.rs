use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::task::AbortHandle;
use tokio_stream::StreamExt;
use tonic::Streaming;

use crate::client::Calls;
use crate::v1::responses_service_client::ResponsesServiceClient;
use crate::v1::{
    converse_request, server_event, ConverseRequest, ConverseResponse, Ending, ResponseCreate, ServerEvent,
    SessionStart,
};
use crate::{ApiError, Error, Tool, Turn};

/// One `Converse` stream, seen from one of its lanes. It ends with its last clone, lane and turn.
#[derive(Clone)]
pub struct Connection {
    link: Arc<Link>,
    lane: Option<String>,
}

impl Connection {
    pub(crate) async fn open(
        mut stub: ResponsesServiceClient<Calls>,
        receives: Option<usize>,
    ) -> Result<Self, Error> {
        let (outgoing, mut requests) = unbounded_channel();
        if let Some(limit) = receives {
            let start = SessionStart { max_receive_bytes: Some(limit as u64), ..Default::default() };
            let message = Some(converse_request::Message::SessionStart(start));
            let _ = outgoing.send(ConverseRequest { message, ..Default::default() });
        }
        let requests = futures_util::stream::poll_fn(move |context| requests.poll_recv(context));
        let answers = stub.converse(requests).await?.into_inner();
        let board = Arc::new(Mutex::new(Board { outgoing: Some(outgoing), ..Default::default() }));
        let reader = tokio::spawn(read(answers, board.clone())).abort_handle();
        Ok(Self { link: Arc::new(Link { board, reader }), lane: None })
    }

    /// The same connection, from the lane of this name: letters, digits, `_`, `.` and `-`. Turns of
    /// several lanes run at once, those of one lane after another.
    pub fn lane(&self, name: impl Into<String>) -> Self {
        Self { link: self.link.clone(), lane: Some(name.into()) }
    }

    /// Makes a turn and waits for its response; the tools answer its calls.
    pub async fn ask(
        &self,
        create: impl Into<ResponseCreate>,
        tools: &[Tool],
    ) -> Result<crate::v1::Response, Error> {
        self.start(create, tools)?.result().await
    }

    /// Begins a turn. With tools it has the append shape: one response, held at calls until their
    /// outputs are there.
    pub fn start(&self, create: impl Into<ResponseCreate>, tools: &[Tool]) -> Result<Turn, Error> {
        Turn::start(self, create.into(), tools)
    }

    /// Goes on with a resumable response behind an event, as an [`Error::Lost`] names them. It does
    /// not know which calls have been answered: [`Turn::resume`] does.
    pub fn resume(&self, response_id: &str, after: Option<i32>, tools: &[Tool]) -> Result<Turn, Error> {
        Turn::resumed(self, response_id, after, tools)
    }

    /// Ends the connection now, and what runs on it unless that is resumable.
    pub fn close(&self) {
        self.link.reader.abort();
        self.board().end(None);
    }

    /// Sends a message; `before` comes first, and in the order of the stream.
    pub(crate) fn send(
        &self,
        message: converse_request::Message,
        event_id: &str,
        before: impl FnOnce(&mut Board),
    ) -> Result<(), Error> {
        let mut board = self.board();
        let lost = Error::Lost { response_id: None, after: None, cause: board.cause.clone() };
        let outgoing = board.outgoing.clone().ok_or(lost.clone())?;
        before(&mut board);
        let (stream_id, event_id) = (self.lane.clone(), Some(event_id.into()));
        let request = ConverseRequest { message: Some(message), event_id, stream_id, ..Default::default() };
        // One that the stream does not take any more has its end told by the reader.
        let _ = outgoing.send(request);
        Ok(())
    }

    /// A place for the events of a turn that this message begins.
    pub(crate) fn begin(
        &self,
        message: converse_request::Message,
        event_id: &str,
    ) -> Result<UnboundedReceiver<ServerEvent>, Error> {
        let (inbox, events) = unbounded_channel();
        let slot = Slot { lane: self.lane.clone(), create: event_id.into(), append: None, inbox };
        self.send(message, event_id, |board| board.slots.push(slot))?;
        Ok(events)
    }

    pub(crate) fn cause(&self) -> Option<Box<ApiError>> {
        self.board().cause.clone()
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        locked(&self.link.board)
    }
}

/// What all that use a connection share. The reader does not have it, so that it ends with them.
struct Link {
    board: Arc<Mutex<Board>>,
    reader: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The turns that have not ended, in the order of their creates.
#[derive(Default)]
pub(crate) struct Board {
    slots: Vec<Slot>,
    outgoing: Option<UnboundedSender<ConverseRequest>>,
    cause: Option<Box<ApiError>>,
}

struct Slot {
    lane: Option<String>,
    create: String,
    append: Option<String>,
    inbox: UnboundedSender<ServerEvent>,
}

impl Board {
    /// Names the append whose errors are a turn's, too.
    pub(crate) fn appended(&mut self, create: &str, append: &str) {
        for slot in self.slots.iter_mut().filter(|slot| slot.create == create) {
            slot.append = Some(append.into());
        }
    }

    fn deliver(&mut self, event: ServerEvent) {
        let Some(at) = self.owner(&event) else { return };
        let over = ends(&event) && event.ending != Ending::Held as i32;
        let _ = self.slots[at].inbox.send(event); // It has no reader where the turn was dropped.
        if over {
            self.slots.remove(at);
        }
    }

    /// The turn that an event is for; none where it is the connection's, or answers a message of no turn.
    fn owner(&self, event: &ServerEvent) -> Option<usize> {
        let first = || self.slots.iter().position(|slot| slot.lane == event.stream_id);
        let Some(server_event::Event::Error(failure)) = &event.event else {
            return if event.sequence_number.is_some() || ends(event) { first() } else { None };
        };
        let Some(id) = failure.error.as_ref().and_then(|error| error.event_id.as_ref()) else {
            return first();
        };
        let named = self.slots.iter().position(|slot| slot.create == *id || slot.append.as_ref() == Some(id));
        // A replay under a key has the event_id of the first create, which this connection may not know.
        named.or_else(|| if ends(event) { first() } else { None })
    }

    fn end(&mut self, cause: Option<Box<ApiError>>) {
        self.cause = self.cause.take().or(cause);
        self.outgoing = None;
        self.slots.clear();
    }
}

async fn read(mut answers: Streaming<ConverseResponse>, board: Arc<Mutex<Board>>) {
    let cause = loop {
        match answers.next().await {
            Some(Ok(answer)) => {
                let mut board = locked(&board);
                answer.events.into_iter().for_each(|event| board.deliver(event));
            }
            Some(Err(status)) => break Some(Box::new(status.into())),
            None => break None,
        }
    };
    locked(&board).end(cause);
}

fn locked(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a turn ends here for now, for whatever reason: the number of a newer one has no name yet.
pub(crate) fn ends(event: &ServerEvent) -> bool {
    event.ending != Ending::Unspecified as i32
}
