use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::v1::{server_event, Ending, ServerEvent};

/// Why there is no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server said no: to a request on a connection, to a call, or as the end of a response.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The connection ended before the turn. A resumable response is not lost with it.
    #[error("connection lost (response {response_id:?}, after event {after:?})")]
    Lost {
        /// Unset where the response had not begun.
        response_id: Option<String>,
        /// The number of the last event that was handed over.
        after: Option<i32>,
        /// The status that the connection ended with.
        #[source]
        cause: Option<Box<ApiError>>,
    },
    /// The address, the key or the TLS settings cannot be used.
    #[error("unusable options: {0}")]
    Options(String),
}

/// A server's no.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{code} ({status:?}): {message}")]
pub struct ApiError {
    /// A word for machines, like `model_not_found`; empty where none was said.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// The path of the member at fault.
    pub param: Option<String>,
    /// How long to wait until a retry can help.
    pub retry_after: Option<Duration>,
    /// Of a call, or of a connection that ended; `Ok` for an event.
    pub status: Code,
}

impl Error {
    /// The server's no, where this is one or came of one.
    pub fn api(&self) -> Option<&ApiError> {
        match self {
            Error::Api(said) => Some(said),
            Error::Lost { cause, .. } => cause.as_deref(),
            Error::Options(_) => None,
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Error::Api(status.into())
    }
}

impl From<Status> for ApiError {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let violation = details.bad_request().and_then(|said| said.field_violations.first());
        // tonic says CANCELLED where its own clock ends a call.
        let late = status.code() == Code::Cancelled && status.message() == "Timeout expired";
        ApiError {
            code: details.error_info().map(|said| said.reason.to_lowercase()).unwrap_or_default(),
            message: status.message().into(),
            param: violation.map(|said| said.field.clone()),
            retry_after: details.retry_info().and_then(|said| said.retry_delay),
            status: if late { Code::DeadlineExceeded } else { status.code() },
        }
    }
}

/// The error of an error event, or of a turn that failed.
pub(crate) fn told(event: &ServerEvent) -> Option<Error> {
    if let Some(server_event::Event::Error(failure)) = &event.event {
        let said = failure.error.clone().unwrap_or_default();
        return Some(Error::Api(ApiError {
            code: said.code.unwrap_or_default(),
            message: said.message,
            param: said.param,
            retry_after: said.retry_after.and_then(|wait| wait.try_into().ok()),
            status: Code::Ok,
        }));
    }
    if event.ending != Ending::Failed as i32 {
        return None;
    }
    let why = event.response.as_ref().and_then(|response| response.error.clone()).unwrap_or_default();
    let (param, retry_after) = (None, None);
    Some(Error::Api(ApiError { code: why.code, message: why.message, param, retry_after, status: Code::Ok }))
}
