//! The bytes of one append turn of a real server, cut at every one of them.
//!
//! `TIELINE_RECORD=127.0.0.1:50051 cargo test --test cut record` records them anew, from a server with
//! the script of the interop scenarios.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tieline_client::{text, Client, Error, Options, Tool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/append_turn.json");
const PREFACE: usize = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
// The kinds of frames of HTTP/2.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// What the server sent after it had so many frames of the client.
type Chunks = Vec<(usize, Vec<u8>)>;

async fn ask(address: SocketAddr) -> (Result<String, Error>, usize) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let parameters = r#"{"type":"object","properties":{"city":{"type":"string"}}}"#;
    let tool = Tool::new("get_weather", "Says the weather in a city.", parameters, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Error>("4 degrees and rain".into()) }
    });
    let turn = async {
        let client = Client::new(&address.to_string(), Options::default())?;
        let response = client.connect().await?.ask("What is the weather in Oslo?", &[tool]).await?;
        Ok(text(&response))
    };
    let said = tokio::time::timeout(Duration::from_secs(20), turn).await.expect("it hangs");
    (said, runs.load(Ordering::SeqCst))
}

/// Counts what a client says that a server answers.
async fn count(mut from: OwnedReadHalf, mut copy: Option<OwnedWriteHalf>, heard: watch::Sender<usize>) {
    let (mut pending, mut buffer, mut begun) = (Vec::new(), vec![0; 1 << 16], false);
    while let Ok(many @ 1..) = from.read(&mut buffer).await {
        if let Some(copy) = &mut copy {
            copy.write_all(&buffer[..many]).await.unwrap();
        }
        pending.extend_from_slice(&buffer[..many]);
        if !begun && pending.len() >= PREFACE {
            pending.drain(..PREFACE);
            begun = true;
        }
        while begun && pending.len() >= 9 {
            let length = u32::from_be_bytes([0, pending[0], pending[1], pending[2]]) as usize;
            if pending.len() < 9 + length {
                break;
            }
            if length > 0 && [DATA, HEADERS, SETTINGS].contains(&pending[3]) {
                heard.send_modify(|many| *many += 1);
            }
            pending.drain(..9 + length);
        }
    }
}

#[tokio::test]
async fn record() {
    let Ok(server) = std::env::var("TIELINE_RECORD") else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let chunks = Arc::new(Mutex::new(Chunks::new()));
    let written = chunks.clone();
    tokio::spawn(async move {
        let (from, mut back) = listener.accept().await.unwrap().0.into_split();
        let (mut answers, to) = TcpStream::connect(server).await.unwrap().into_split();
        let (heard, hears) = watch::channel(0);
        tokio::spawn(count(from, Some(to), heard));
        let mut buffer = vec![0; 1 << 16];
        while let Ok(many @ 1..) = answers.read(&mut buffer).await {
            let (after, bytes) = (*hears.borrow(), &buffer[..many]);
            {
                let mut chunks = chunks.lock().unwrap();
                match chunks.last_mut() {
                    Some((last, chunk)) if *last == after => chunk.extend_from_slice(bytes),
                    _ => chunks.push((after, bytes.to_vec())),
                }
            }
            back.write_all(bytes).await.unwrap();
        }
    });
    assert_eq!(ask(address).await.0.unwrap(), "It is 4 degrees and rain.");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let chunks: Vec<_> = written.lock().unwrap().iter().map(|(after, bytes)| (*after, hex(bytes))).collect();
    std::fs::write(RECORD, serde_json::to_string_pretty(&chunks).unwrap() + "\n").unwrap();
}

fn recorded() -> Chunks {
    let chunks: Vec<(usize, String)> =
        serde_json::from_str(&std::fs::read_to_string(RECORD).unwrap()).unwrap();
    let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
    chunks.into_iter().map(|(after, hex)| (after, hex.as_bytes().chunks(2).map(byte).collect())).collect()
}

/// The recorded server, which is gone after so many bytes.
async fn play(connection: TcpStream, chunks: Arc<Chunks>, mut left: usize) {
    let (from, mut to) = connection.into_split();
    let (heard, mut hears) = watch::channel(0);
    let mut counting = JoinSet::new(); // It ends with this one.
    counting.spawn(count(from, None, heard));
    for (after, bytes) in chunks.iter() {
        if hears.wait_for(|many| many >= after).await.is_err() {
            return;
        }
        let part = &bytes[..left.min(bytes.len())];
        if to.write_all(part).await.is_err() || part.len() < bytes.len() {
            return;
        }
        left -= part.len();
    }
    counting.join_next().await; // All was said: until the client goes.
}

async fn cut(chunks: Arc<Chunks>, at: usize) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut playing = JoinSet::new();
    playing.spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            play(connection, chunks.clone(), at).await;
        }
    });
    let (said, runs) = ask(address).await;
    assert!(runs <= 1, "cut at {at} the tool ran {runs} times");
    match said {
        Ok(said) => assert_eq!((said.as_str(), runs), ("It is 4 degrees and rain.", 1), "cut at {at}"),
        Err(Error::Lost { .. }) => return false,
        Err(Error::Api(said)) => {
            assert_ne!(said.status, tonic::Code::Ok, "cut at {at}: {said}");
            return false;
        }
        Err(other) => panic!("cut at {at}: {other}"),
    }
    true
}

#[tokio::test]
async fn a_turn_that_is_cut_at_every_byte() {
    let chunks = Arc::new(recorded());
    let total: usize = chunks.iter().map(|(_, bytes)| bytes.len()).sum();
    let (mut running, mut whole) = (JoinSet::new(), 0);
    for at in 0..=total {
        running.spawn(cut(chunks.clone(), at));
        if running.len() == 16 {
            whole += usize::from(running.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(ended) = running.join_next().await {
        whole += usize::from(ended.unwrap());
    }
    assert!((1..total).contains(&whole), "{whole} turns of {total} were whole");
    for _ in 0..500 {
        if tokio::runtime::Handle::current().metrics().num_alive_tasks() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} tasks are left", tokio::runtime::Handle::current().metrics().num_alive_tasks());
}
