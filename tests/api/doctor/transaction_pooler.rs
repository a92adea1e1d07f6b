//! A pooler whose one session serves all clients, each for the length of a transaction: PgBouncer's pool_mode = transaction.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// A session of the server, and the server's first messages.
struct Session {
    stream: TcpStream,
    greeting: Vec<u8>,
}

/// Starts a pooler in front of the server at this port, and returns its port. It runs until the test ends.
pub async fn start(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = SocketAddr::from(([127, 0, 0, 1], server));
    let session = Arc::new(Mutex::new(None));
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            // A client that disconnects ends its task with an error.
            tokio::spawn(by_transaction(client, server, Arc::clone(&session)));
        }
    });
    port
}

async fn by_transaction(
    mut client: TcpStream,
    server: SocketAddr,
    session: Arc<Mutex<Option<Session>>>,
) -> io::Result<()> {
    let startup = read_startup(&mut client).await?;
    {
        let mut session = session.lock().await;
        if session.is_none() {
            let mut stream = TcpStream::connect(server).await?;
            stream.write_all(&startup).await?;
            let mut greeting = Vec::new();
            until_ready(&mut stream, &mut greeting).await?;
            *session = Some(Session { stream, greeting });
        }
        client.write_all(&session.as_ref().unwrap().greeting).await?;
    }
    let mut held: Option<OwnedMutexGuard<Option<Session>>> = None;
    loop {
        // A client's messages before it waits for the answer end in a query or in Sync.
        let mut asked = Vec::new();
        loop {
            match read_message(&mut client, &mut asked).await? {
                b'Q' | b'S' => break,
                b'X' => return Ok(()),
                _ => {}
            }
        }
        let mut session = match held.take() {
            Some(session) => session,
            None => Arc::clone(&session).lock_owned().await,
        };
        let stream = &mut session.as_mut().unwrap().stream;
        stream.write_all(&asked).await?;
        let mut answer = Vec::new();
        let status = until_ready(stream, &mut answer).await?;
        client.write_all(&answer).await?;
        // A transaction keeps the session.
        held = (status != b'I').then_some(session);
    }
}

/// The first message of a client, which has no type. Encryption is refused.
async fn read_startup(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    loop {
        let length = client.read_u32().await?;
        let mut message = length.to_be_bytes().to_vec();
        message.resize(length as usize, 0);
        client.read_exact(&mut message[4..]).await?;
        // A request for TLS or GSS encryption has only a code.
        if message.len() > 8 {
            return Ok(message);
        }
        client.write_all(b"N").await?;
    }
}

/// Adds a message to the buffer, and returns its type.
async fn read_message(stream: &mut TcpStream, read: &mut Vec<u8>) -> io::Result<u8> {
    let kind = stream.read_u8().await?;
    let length = stream.read_u32().await?;
    let mut body = vec![0; length as usize - 4];
    stream.read_exact(&mut body).await?;
    read.push(kind);
    read.extend(length.to_be_bytes());
    read.extend(body);
    Ok(kind)
}

/// Reads until the server is ready for the next query, without notices. Returns the transaction status; `I` means none.
async fn until_ready(stream: &mut TcpStream, read: &mut Vec<u8>) -> io::Result<u8> {
    loop {
        let begin = read.len();
        match read_message(stream, read).await? {
            b'A' => read.truncate(begin),
            b'Z' => return Ok(read[read.len() - 1]),
            _ => {}
        }
    }
}
