//! A server in the process, which a test has say what it likes.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use tieline_client::v1::responses_service_server::{ResponsesService, ResponsesServiceServer};
use tieline_client::v1::{server_event::Event, *};
use tieline_client::{Client, Connection, Options};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{async_trait, Request, Response as Answer, Status, Streaming};

/// The server's end of a connection.
pub struct Talk {
    hears: Streaming<ConverseRequest>,
    says: mpsc::Sender<Result<ConverseResponse, Status>>,
}

impl Talk {
    /// The next message of the client; none where it has gone.
    pub async fn hear(&mut self) -> Option<ConverseRequest> {
        self.hears.message().await.ok().flatten()
    }

    pub async fn say(&self, events: Vec<ServerEvent>) {
        let _ = self.says.send(Ok(ConverseResponse { events })).await;
    }

    pub async fn fail(&self, status: Status) {
        let _ = self.says.send(Err(status)).await;
    }

    /// Waits until the client has gone.
    pub async fn silent(&mut self) {
        while self.hear().await.is_some() {}
    }
}

struct Server<F>(F);

type Said<T> = Result<Answer<T>, Status>;

fn none<T>() -> Said<T> {
    Err(Status::unimplemented("not in this test"))
}

#[async_trait]
impl<F, R> ResponsesService for Server<F>
where
    F: Fn(Talk) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    type ConverseStream = ReceiverStream<Result<ConverseResponse, Status>>;
    type StreamStream = ReceiverStream<Result<StreamResponse, Status>>;
    type ResumeStream = ReceiverStream<Result<ResumeResponse, Status>>;

    async fn converse(&self, request: Request<Streaming<ConverseRequest>>) -> Said<Self::ConverseStream> {
        let (says, answers) = mpsc::channel(16);
        tokio::spawn((self.0)(Talk { hears: request.into_inner(), says }));
        Ok(Answer::new(ReceiverStream::new(answers)))
    }
    async fn create(&self, _: Request<CreateRequest>) -> Said<CreateResponse> {
        none()
    }
    async fn stream(&self, _: Request<StreamRequest>) -> Said<Self::StreamStream> {
        none()
    }
    async fn resume(&self, _: Request<ResumeRequest>) -> Said<Self::ResumeStream> {
        none()
    }
    async fn get(&self, _: Request<GetRequest>) -> Said<GetResponse> {
        none()
    }
    async fn delete(&self, _: Request<DeleteRequest>) -> Said<DeleteResponse> {
        none()
    }
    async fn cancel(&self, _: Request<CancelRequest>) -> Said<CancelResponse> {
        none()
    }
    async fn list_input_items(&self, _: Request<ListInputItemsRequest>) -> Said<ListInputItemsResponse> {
        none()
    }
    async fn count_input_tokens(
        &self,
        _: Request<CountInputTokensRequest>,
    ) -> Said<CountInputTokensResponse> {
        none()
    }
    async fn compact(&self, _: Request<CompactRequest>) -> Said<CompactResponse> {
        none()
    }
}

/// Serves each connection by a function, until the runtime of the test ends.
pub async fn serve<F, R>(talk: F) -> SocketAddr
where
    F: Fn(Talk) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = ResponsesServiceServer::new(Server(talk));
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

pub fn client(address: SocketAddr) -> Client {
    Client::new(&address.to_string(), Options::default()).unwrap()
}

/// A connection to a server that does this on each one.
pub async fn connect<F, R>(talk: F) -> Connection
where
    F: Fn(Talk) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    client(serve(talk).await).connect().await.unwrap()
}

/// What a test that hangs runs into.
pub async fn soon<T>(doing: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), doing).await.expect("it hangs")
}

pub fn event(number: i32, event: Event) -> ServerEvent {
    ServerEvent { sequence_number: Some(number), event: Some(event), ..Default::default() }
}

pub fn created(number: i32, id: &str) -> ServerEvent {
    let response = Some(Response { id: id.into(), ..Default::default() });
    ServerEvent { response, ..event(number, Event::ResponseCreated(ResponseCreated::default())) }
}

pub fn delta(number: i32, text: &str) -> ServerEvent {
    event(number, Event::OutputTextDelta(OutputTextDelta { delta: text.into(), ..Default::default() }))
}

pub fn called(number: i32, call_id: &str) -> ServerEvent {
    let (call_id, name, arguments) = (call_id.into(), "look".into(), "{}".into());
    done(number, item::Item::FunctionCall(FunctionCall { call_id, name, arguments, ..Default::default() }))
}

pub fn done(number: i32, made: item::Item) -> ServerEvent {
    let item = Some(Item { item: Some(made) });
    event(number, Event::OutputItemDone(OutputItemDone { item, ..Default::default() }))
}

pub fn held(number: i32, id: &str) -> ServerEvent {
    let response = Some(Response { id: id.into(), ..Default::default() });
    let held = event(number, Event::ResponseDone(ResponseDone::default()));
    ServerEvent { response, ending: Ending::Held.into(), ..held }
}

pub fn completed(number: i32, id: &str, text: &str) -> ServerEvent {
    let said = Message { content: Some(message::Content::Text(text.into())), ..Default::default() };
    let output = vec![Item { item: Some(item::Item::Message(said)) }];
    let response = Some(Response { id: id.into(), output, ..Default::default() });
    let completed = event(number, Event::ResponseCompleted(ResponseCompleted::default()));
    ServerEvent { response, ending: Ending::Completed.into(), ..completed }
}

pub fn failed(number: i32, ending: Ending, error: Error) -> ServerEvent {
    let failure = ErrorEvent { error: Some(error), ..Default::default() };
    ServerEvent { ending: ending.into(), ..event(number, Event::Error(failure)) }
}

/// Puts events on the lane of a request.
pub fn on(request: &ConverseRequest, events: Vec<ServerEvent>) -> Vec<ServerEvent> {
    let placed = |event| ServerEvent { stream_id: request.stream_id.clone(), ..event };
    events.into_iter().map(placed).collect()
}
