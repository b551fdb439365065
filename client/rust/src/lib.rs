//! Client of a Tieline server: the Responses API over gRPC, many turns on a connection.

mod client;
mod connection;
mod error;
mod items;
mod turn;

/// The stubs of the schema.
#[allow(clippy::all)]
#[rustfmt::skip]
#[path = "v1/tieline.v1.rs"]
pub mod v1;

pub use client::{Calls, Client, Credentials, Limited, Options};
pub use connection::Connection;
pub use error::{ApiError, Error};
pub use items::{create, function_output, function_tool, text, user_text};
pub use turn::{Tool, Turn};
