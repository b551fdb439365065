use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::{interceptor::InterceptedService, Interceptor};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::v1::models_service_client::ModelsServiceClient;
use crate::v1::responses_service_client::ResponsesServiceClient;
use crate::v1::{
    CancelRequest, CompactRequest, CreateRequest, CreateResponse, GetRequest, ListInputItemsRequest,
    ResponseCreate, ResumeRequest, StreamRequest,
};
use crate::{Connection, Error};

/// How a server is reached. The default is a server without keys and TLS.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Without TLS it can be read on its way.
    pub key: Option<String>,
    /// `ClientTlsConfig::new().with_native_roots()` trusts what the system trusts.
    #[cfg(feature = "tls")]
    pub tls: Option<tonic::transport::ClientTlsConfig>,
    /// Of one message; the server is told. Unset: 4 MiB, as in tonic.
    pub max_receive_bytes: Option<usize>,
}

/// What the stubs call through: a channel, and the key.
pub type Calls = InterceptedService<Channel, Credentials>;

/// Puts the key into the metadata of a call.
#[derive(Debug, Clone)]
pub struct Credentials(Option<MetadataValue<Ascii>>);

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(bearer) = &self.0 {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        Ok(request)
    }
}

/// A server. A clone shares its channel.
#[derive(Debug, Clone)]
pub struct Client {
    calls: Calls,
    receives: Option<usize>,
}

impl Client {
    /// A client of the server at `host:port`, within a Tokio runtime. Nothing is sent before the
    /// first use.
    pub fn new(address: &str, options: Options) -> Result<Self, Error> {
        let bearer = options.key.map(|key| format!("Bearer {key}").parse());
        let bearer =
            bearer.transpose().map_err(|_| Error::Options("the key has characters that none has".into()))?;
        #[allow(unused_mut)]
        let mut endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(unusable)?;
        #[cfg(feature = "tls")]
        if let Some(tls) = options.tls {
            endpoint = Endpoint::from_shared(format!("https://{address}")).map_err(unusable)?;
            endpoint = endpoint.tls_config(tls).map_err(unusable)?;
        }
        let channel = endpoint
            .connect_timeout(Duration::from_secs(20))
            .http2_keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20))
            .keep_alive_while_idle(true)
            .connect_lazy();
        let calls = InterceptedService::new(channel, Credentials(bearer));
        Ok(Self { calls, receives: options.max_receive_bytes })
    }

    /// The calls of the schema. Their statuses are an [`Error`] by `?`.
    pub fn responses(&self) -> ResponsesServiceClient<Calls> {
        let stub = ResponsesServiceClient::new(self.calls.clone());
        match self.receives {
            Some(limit) => stub.max_decoding_message_size(limit),
            None => stub,
        }
    }

    /// The models of the server.
    pub fn models(&self) -> ModelsServiceClient<Calls> {
        ModelsServiceClient::new(self.calls.clone())
    }

    /// What a call is given: the message, with the receive limit unless it states one.
    pub fn request<M: Limited>(&self, mut message: M) -> Request<M> {
        let limit = message.max_receive_bytes();
        *limit = limit.or(self.receives.map(|limit| limit as u64));
        Request::new(message)
    }

    /// One turn without a connection.
    pub async fn create(&self, create: impl Into<ResponseCreate>) -> Result<CreateResponse, Error> {
        let message = CreateRequest { response_create: Some(create.into()), ..Default::default() };
        Ok(self.responses().create(self.request(message)).await?.into_inner())
    }

    /// Opens a connection.
    pub async fn connect(&self) -> Result<Connection, Error> {
        Connection::open(self.responses(), self.receives).await
    }
}

fn unusable(error: tonic::transport::Error) -> Error {
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    Error::Options(cause.unwrap_or_else(|| error.to_string()))
}

/// A request that says what its client receives.
pub trait Limited {
    /// The field.
    fn max_receive_bytes(&mut self) -> &mut Option<u64>;
}

macro_rules! limited {
    ($($request:ty),*) => {
        $(impl Limited for $request {
            fn max_receive_bytes(&mut self) -> &mut Option<u64> {
                &mut self.max_receive_bytes
            }
        })*
    };
}

limited!(
    CreateRequest,
    StreamRequest,
    ResumeRequest,
    GetRequest,
    CancelRequest,
    ListInputItemsRequest,
    CompactRequest
);
