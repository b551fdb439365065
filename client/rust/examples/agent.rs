//! An agent that counts the words of files: `cargo run --example agent -- README.md`.

use tieline_client::{text, v1::server_event::Event, v1::ResponseCreate, Client, Options, Tool};

const PARAMETERS: &str =
    r#"{"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}"#;

async fn count_words(arguments: String) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let arguments: serde_json::Value = serde_json::from_str(&arguments)?;
    let path = arguments["path"].as_str().ok_or("there is no path")?;
    let words = tokio::fs::read_to_string(path).await?.split_whitespace().count();
    Ok(format!("{path} has {words} words"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or("README.md".into());
    let address = std::env::var("TIELINE_ADDRESS").unwrap_or("127.0.0.1:50051".into());
    let options = Options { key: std::env::var("TIELINE_API_KEY").ok(), ..Default::default() };
    let connection = Client::new(&address, options)?.connect().await?;

    let tool = Tool::new("count_words", "Counts the words of a file.", PARAMETERS, count_words);
    let mut create = ResponseCreate::from(format!("How many words does the file {path} have?").as_str());
    create.max_output_tokens = Some(300);
    let mut turn = connection.start(create, &[tool])?;
    while let Some(event) = turn.next().await {
        match event?.event {
            Some(Event::OutputTextDelta(piece)) => print!("{}", piece.delta),
            Some(Event::FunctionCallArgumentsDone(call)) => println!("-> count_words {}", call.arguments),
            _ => {}
        }
    }
    println!("\n== {}", text(&turn.result().await?));
    Ok(())
}
